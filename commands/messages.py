"""Single lines on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from attngeo.bounds import printable
from attngeo.errors import AttnGeoError, UnexpectedError

from .shorten import shorten

# Set this variable to see the traceback of an unexpected error.
TRACEBACK = "ATTNGEO_TRACEBACK"
# How a message about one option, or two, begins.
ABOUT_OPTIONS = re.compile(r"\w+(?: (?:and|requires) \w+)?(?=[ ,])")
# A name with an underscore that is neither quoted nor part of a path.
OPTION_NAME = re.compile(r"(?<![\w'/.-])[a-z]+_[a-z_]+(?![\w'/.-])")


def say(text: str) -> None:
    """Print one line on stderr, without control characters that a terminal would execute."""
    sys.stderr.write(f"attngeo: {shorten(printable(text))}\n")


def write_flags(message: str, flags: Mapping[str, str]) -> str:
    """The message with its options as the command line spells them; the library begins a message with their names.

    Names with an underscore are replaced everywhere, because they are no words of a sentence.

    >>> write_flags("steps is 5, expected a multiple of log_every", {"steps": "--steps", "log_every": "--log-every"})
    '--steps is 5, expected a multiple of --log-every'
    """
    about = ABOUT_OPTIONS.match(message)
    end = about.end() if about is not None else 0
    first = re.sub(r"\w+", lambda word: flags.get(word[0], word[0]), message[:end])
    return first + OPTION_NAME.sub(lambda word: flags.get(word[0], word[0]), message[end:])


def describe_error(error: Exception) -> str:
    """The line for an error; for one that is a bug, with what to do."""
    if isinstance(error, AttnGeoError) and not isinstance(error, UnexpectedError):
        return str(error)
    what = str(error) if isinstance(error, UnexpectedError) else f"unexpected {type(error).__name__}: {error}"
    return f"{what}; set {TRACEBACK}=1 to see the traceback, and please report it with the model's config.json"
