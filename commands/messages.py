"""Single lines on stderr."""

from __future__ import annotations

import sys

# Set this variable to see the traceback of an unexpected error.
TRACEBACK = "ATTNGEO_TRACEBACK"


def say(text: str) -> None:
    """Print one line on stderr, without control characters that a terminal would execute."""
    sys.stderr.write(f"attngeo: {printable(text)}\n")


def printable(text: str) -> str:
    """The text with control characters replaced, including line ends."""
    return "".join(character if character.isprintable() else "�" for character in text)


def describe_unexpected(error: Exception) -> str:
    """The line for an error that is a bug."""
    return (
        f"unexpected {type(error).__name__}: {error}; set {TRACEBACK}=1 to see the traceback, and please report it "
        "with the model's config.json"
    )
