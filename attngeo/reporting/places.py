"""Where a key stands in a TOML file: tomllib does not say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

Place = tuple[str | int, ...]
# [name] and [[name]], and keys, at the beginning of a line.
HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.-]+)\s*\]")
KEY = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*=")


def line_of(text: str, place: Place) -> int:
    r"""The line of a key in a TOML text, or of the nearest part around it, counted from 1.

    >>> line_of("title = 'a'\n[[check]]\nof = 'x'\n[[check]]\nof = 'y'\n", ("check", 1, "of"))
    5
    """
    best, matched = 1, 0
    for line, here in _places(text):
        common = _common(here, place)
        if common == len(here) and common > matched:
            best, matched = line, common
    return best


def name_of(place: Place) -> str:
    """A place as people write it, counted from 1.

    >>> name_of(("section", 1, "figures", 0, "kind"))
    'section[2].figures[1].kind'
    """
    return "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or "recipe"


def _places(text: str) -> Iterator[tuple[int, Place]]:
    """Every header and key with its line."""
    around: Place = ()
    counts: Counter[Place] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.match(line):
            around = ()
            *outer, last = header[2].split(".")
            for part in outer:
                around = (*around, part)
                if counts[around]:
                    around = (*around, counts[around] - 1)
            around = (*around, last)
            if header[1] == "[[":
                counts[around] += 1
                around = (*around, counts[around] - 1)
            yield number, around
        elif key := KEY.match(line):
            yield number, (*around, *key[1].split("."))


def _common(one: Place, other: Place) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
