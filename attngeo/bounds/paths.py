"""Paths in texts that users give: with `~`, and with a prefix that says what is there. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from attngeo.errors import ModelNotFoundError

CBOW = "cbow:"
# Prefixes of a path: to the text of CBOW vectors, and to a table of Jigsaw's comments.
PREFIXES = (CBOW, "jigsaw:")


def local_path(text: str | Path) -> Path:
    """The path that `text` names, with `~` expanded; it need not exist. Raises ModelNotFoundError if it is no path."""
    try:
        path = Path(text).expanduser()
        path.exists()  # raises if the name is too long, or if the folder must not be entered
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelNotFoundError(f"no such file or folder ({error})"[:220], subject=str(text)[:80]) from None
    return path


def split_prefix(text: str) -> tuple[str, str]:
    """The prefix of a path, and the path.

    >>> split_prefix("cbow:text.txt"), split_prefix("text.txt")
    (('cbow:', 'text.txt'), ('', 'text.txt'))
    """
    prefix = next((prefix for prefix in PREFIXES if text.startswith(prefix)), "")
    return prefix, text.removeprefix(prefix)
