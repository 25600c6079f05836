"""Print the lowest versions that pyproject.toml allows, as constraints for pip: `make lowest` installs them.

Each dependency has the version of its lower bound, except torch: only the release of constraints.txt has a CPU build.
What the dependencies themselves require has the version of constraints.txt, unless an old dependency requires an older
one.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Beside the dependencies of the package, what runs the smoke tests.
TEST_TOOLS = ("hypothesis", "pytest")
# Those that the smoke tests use.
EXTRAS = ("cbow", "data", "estimators", "images", "sentencepiece")
FIXED = ("torch",)
# Required in an exact or an older version by the lowest pydantic, datasets and huggingface-hub.
LEFT_TO_PIP = ("dill", "fsspec", "httpcore2", "multiprocess", "pydantic-core")


def normalize(name: str) -> str:
    """A package's name as the index writes it.

    >>> normalize("Huggingface_Hub")
    'huggingface-hub'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def read_bounds(extra: str = "") -> dict[str, str]:
    """Name → lower bound of each dependency in pyproject.toml, or of those of an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed = project["optional-dependencies"][extra] if extra else project["dependencies"]
    found = (re.match(r"([\w.-]+)[^>]*>=([\w.]+)", requirement) for requirement in listed)
    return {normalize(match[1]): match[2] for match in found if match}


def read_constraints() -> dict[str, str]:
    """Name → version of each line of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return {
        normalize(name): version
        for name, equal, version in (line.partition("==") for line in lines)
        if equal and not name.startswith("#")
    }


def lowest_versions() -> dict[str, str]:
    """Name → version of everything that is pinned for the smoke tests."""
    constraints, tools = read_constraints(), read_bounds("dev")
    lowest = read_bounds() | {name: tools[name] for name in TEST_TOOLS}
    for extra in EXTRAS:
        lowest |= read_bounds(extra)
    lowest |= {name: constraints[name] for name in FIXED}
    return {name: version for name, version in constraints.items() if name not in LEFT_TO_PIP} | lowest


if __name__ == "__main__":
    for name, version in sorted(lowest_versions().items()):
        print(f"{name}=={version}")
