"""Single lines on stderr."""

from __future__ import annotations

import sys

# Set this variable to see where an unforeseen error came from.
TRACEBACK = "ATTNGEO_TRACEBACK"


def say(text: str) -> None:
    """One line on stderr, without what a terminal would obey instead of show, such as escapes in a tensor's name."""
    sys.stderr.write(f"attngeo: {printable(text)}\n")


def printable(text: str) -> str:
    """The text with control characters replaced, line ends included."""
    return "".join(character if character.isprintable() else "�" for character in text)


def unexpected(error: Exception) -> str:
    """The line for an error that nobody foresaw."""
    return (
        f"unexpected {type(error).__name__}: {error}; set {TRACEBACK}=1 to see where, and please report it with "
        "the model's config.json"
    )
