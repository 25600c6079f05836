"""What tests of reports do with recipes and folders."""

from __future__ import annotations

from pathlib import Path


def change(recipe: Path, old: str, new: str) -> None:
    """Replace a part of a recipe, which must have it."""
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))


def read_files(folder: Path) -> dict[str, bytes]:
    """The contents of every file in a folder, by its path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
