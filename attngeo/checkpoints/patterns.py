"""Regular expressions from other people's configurations: they match what they match in Python, or are refused in time.

Python's own engine may never end for a pattern such as `(.|.)*!`, not even on Ctrl-C. The library regex has a limit of
time. It writes out what a count repeats, as in `((x{999}){999}){999}`, so that counts have a limit as well.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from functools import lru_cache

import regex

# Far more than the patterns of adapters take: microseconds.
SECONDS = 2.0
MOST_PATTERN_CHARACTERS = 100_000
MOST_PATTERN_REPETITIONS = 10_000
# Compiled patterns that are kept: an adapter may have one for each module of a large model.
MOST_PATTERNS = 4096
# A number of repetitions; Python refuses one of more digits.
COUNT = re.compile(r"(?<=[{,])\d{1,9}(?=[},])", re.ASCII)


class PatternError(ValueError):
    """A pattern is invalid or too slow. The text says what is wrong, for example "takes more than 2 s"."""


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern matches a whole text, as `re.fullmatch`. Raises PatternError."""
    return _search(_compile(pattern).fullmatch, text)


def matches_start(pattern: str, text: str) -> bool:
    """Whether a pattern matches the start of a text, as `re.match`. Raises PatternError."""
    return _search(_compile(pattern).match, text)


def _search(find: Callable[..., object], text: str) -> bool:
    try:
        return find(text, timeout=SECONDS) is not None
    except TimeoutError:
        raise PatternError(f"takes more than {SECONDS:g} s for {text:.40}") from None


@lru_cache(MOST_PATTERNS)
def _compile(pattern: str) -> regex.Pattern[str]:
    counts = [max(1, int(count)) for count in COUNT.findall(pattern)]
    if len(pattern) > MOST_PATTERN_CHARACTERS or math.prod(counts) > MOST_PATTERN_REPETITIONS:
        raise PatternError(
            f"has more than {MOST_PATTERN_CHARACTERS:,} characters or {MOST_PATTERN_REPETITIONS:,} repetitions"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # of what may get another meaning
            re.compile(pattern)  # regex takes more than Python does
            return regex.compile(pattern)
    except (re.error, regex.error, FutureWarning, OverflowError, RecursionError) as error:
        raise PatternError(f"is not a Python regular expression ({error!s:.60})") from None
