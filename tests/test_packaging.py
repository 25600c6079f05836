"""What is installed, what is documented, and which imports may not be."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path

import attngeo

ROOT = Path(__file__).parents[1]


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "attngeo").rglob("__init__.py")}
    assert set(listed) == folders | {"attngeo.commands"}


def test_commands_is_no_top_level_module() -> None:
    code = (
        "from importlib.util import find_spec; print(find_spec('commands'), find_spec('attngeo.commands') is not None)"
    )
    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert found.stdout == "None True\n"
    assert entry_points(group="console_scripts")["attngeo"].value == "attngeo.commands.app:main"


def test_nothing_in_the_library_imports_the_commands_or_prints() -> None:
    for path in {*(ROOT / "attngeo").rglob("*.py")} - {ROOT / "attngeo/__main__.py"}:
        code = path.read_text("utf-8")
        assert not re.search(r"attngeo\.commands|from commands|^\s*print\(|sys\.exit", code, re.MULTILINE), path


def test_the_version_is_one() -> None:
    assert attngeo.__version__ == version("attngeo")
    command = subprocess.run(
        [Path(sys.executable).with_name("attngeo"), "--version"], capture_output=True, text=True, check=True
    )
    first, *others = command.stdout.splitlines()
    assert first == f"attngeo {attngeo.__version__}"
    assert {line.split()[0] for line in others} >= {"python", "torch", "transformers", "device"}
    for file in ("CITATION.cff", "CHANGELOG.md"):
        assert attngeo.__version__ in (ROOT / file).read_text("utf-8"), file


def test_public_names_are_there_and_documented() -> None:
    assert set(attngeo.__all__) == set(dir(attngeo))
    for name in attngeo.__all__:
        value = getattr(attngeo, name)
        assert name == "__version__" or value.__doc__, name


def test_the_generated_parts_of_the_readme_are_fresh() -> None:
    from support.readme import filled

    readme = (ROOT / "README.md").read_text("utf-8")
    assert filled(readme) == readme, "run `make readme`"


def test_the_readme_names_every_column_and_exit_code() -> None:
    from attngeo import errors
    from attngeo.analogies import summary
    from attngeo.pretrain import callback
    from attngeo.scores.scoring import COLUMNS

    readme = (ROOT / "README.md").read_text("utf-8")
    assert all(f"`{column}`" in readme for column in (*COLUMNS, *summary.COLUMNS, *callback.COLUMNS))
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    codes = {error.exit_code for error in classes}
    assert codes == {2, 3, 4, 130}
    assert all(f"| {code} | " in readme for code in codes)
    assert all(error.__name__ in str(errors.__doc__) for error in classes)


def test_public_names_of_pretrain_are_there_whatever_was_imported_before() -> None:
    code = (
        "import inspect, attngeo.pretrain as p, attngeo.commands.pretrain\n"
        "from attngeo.pretrain import comparison, words\n"
        "assert all(callable(getattr(p, name)) and not inspect.ismodule(getattr(p, name)) for name in p.__all__)\n"
        "assert all(getattr(p, name).__doc__ for name in p.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
