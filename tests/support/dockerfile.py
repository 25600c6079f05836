"""Runs the steps of the Dockerfile's build stage in a clean folder and virtual environment: `make docker-check`.

For machines without a container engine. /opt/attngeo and /src become folders in a temporary one; caches that are
mounted are left out; torch comes from the index that pip is configured with.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOUNT = re.compile(r"--mount=\S+\s+")


def steps(dockerfile: str) -> list[tuple[str, str]]:
    """Instruction and arguments of every step of the first stage, lines joined, comments left out."""
    text = re.sub(r"\\\n\s*", "", "\n".join(line for line in dockerfile.splitlines() if not line.startswith("#")))
    found = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    starts = [i for i, (name, *_) in enumerate(found) if name == "FROM"]
    return [(name, rest[0]) for name, *rest in found[starts[0] + 1 : starts[1]]]


def main() -> None:
    """Run them, then the command that they install."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "src").mkdir()
        for name, arguments in steps((ROOT / "Dockerfile").read_text("utf-8")):
            sys.stdout.write(f"{name} {arguments}\n")
            if name == "COPY":
                *sources, target = shlex.split(arguments)
                for source in sources:
                    copy(ROOT / source, place / "src" / target / (source if target == "./" else ""))
            elif name == "RUN":
                command = MOUNT.sub("", arguments).replace("/opt/attngeo", str(place / "venv"))
                command = command.replace(' --index-url "$TORCH_INDEX"', "").replace(
                    "python -m venv", f"{sys.executable} -m venv"
                )
                environment = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
                environment |= {"PATH": f"{place / 'venv/bin'}:/usr/bin:/bin", "HOME": folder}
                subprocess.run(["bash", "-euc", command], cwd=place / "src", env=environment, check=True)
        shutil.rmtree(place / "src")
        subprocess.run([place / "venv/bin/attngeo", "score", "demo:minilm", "demo:encoder"], cwd=folder, check=True)
        subprocess.run(
            [place / "venv/bin/attngeo", "report", "--init"], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )


def copy(source: Path, target: Path) -> None:
    """A file or a folder, without what Python left there."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


if __name__ == "__main__":
    main()
