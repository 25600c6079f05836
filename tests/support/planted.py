"""Files named like modules, which a folder of a stranger may hold. Each of them notes that it was executed."""

from __future__ import annotations

import os
import pkgutil
import sys
from pathlib import Path

# What Python imports when it starts if it is there, and attngeo, which may be installed without a folder.
OTHERS = ("sitecustomize", "usercustomize", "attngeo")


def list_modules() -> set[str]:
    """The names of all modules that can be imported, without their parents: of Python and of installed packages."""
    return {module.name for module in pkgutil.iter_modules()} | {*sys.stdlib_module_names, *OTHERS}


def plant(notes: Path, *folders: Path) -> None:
    """Put a file for each module into each folder, and a folder for attngeo. notes: of the ones that are executed."""
    code = f"with open({str(notes)!r}, 'a') as notes:\n    notes.write(__file__ + '\\n')\n"
    source = notes.with_suffix(".py")
    source.write_text(code)
    for folder in folders:
        folder.mkdir(exist_ok=True)
        for name in list_modules() - {"attngeo"}:
            os.link(source, folder / f"{name}.py")
        (folder / "attngeo").mkdir()
        os.link(source, folder / "attngeo/__init__.py")
        os.link(source, folder / "attngeo/__main__.py")


def read_notes(notes: Path) -> list[str]:
    """The files that were executed."""
    return notes.read_text().splitlines() if notes.exists() else []
