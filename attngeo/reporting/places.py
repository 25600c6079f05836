"""Where a key stands in a TOML file: tomllib does not say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

Place = tuple[str | int, ...]
# [name] and [[name]], and keys, at the beginning of a line.
HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.-]+)\s*\]")
KEY = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*=\s*(\[\s*(?:\{|$))?")
QUOTES = re.compile(r"\"{3}|'{3}")


def line_of(text: str, place: Place) -> int:
    r"""The line of a key in a TOML text, or of the nearest part around it, counted from 1.

    >>> line_of("title = 'a'\n[[check]]\nof = 'x'\n[[check]]\nof = 'y'\n", ("check", 1, "of"))
    5
    """
    best, matched = 1, 0
    for line, here in _places(text):
        common = _common(here, place)
        if common in (len(here), len(place)) and common > matched:
            best, matched = line, common
    return best


def name_of(place: Place) -> str:
    """A place as people write it, counted from 1.

    >>> name_of(("section", 1, "figures", 0, "kind"))
    'section[2].figures[1].kind'
    """
    return "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or "recipe"


def _places(text: str) -> Iterator[tuple[int, Place]]:
    """Every header, key and inline table of a list, with its line."""
    around: Place = ()
    listed: Place = ()  # the list of inline tables that is open
    counts: Counter[Place] = Counter()
    for number, line in _outside_texts(text):
        if header := HEADER.match(line):
            around = _opened(header[2], header[1] == "[[", counts)
            yield number, around
        elif key := KEY.match(line):
            place = (*around, *key[1].split("."))
            yield number, place
            listed = place if key[2] else ()
            counts[place] += line.count("{")  # those that stand beside the key
        elif listed and line.lstrip().startswith("{"):
            yield number, (*listed, counts[listed])
            counts[listed] += 1


def _outside_texts(text: str) -> Iterator[tuple[int, str]]:
    """The lines, counted from 1, without those inside a text of several lines."""
    quotes = ""
    for number, line in enumerate(text.splitlines(), 1):
        if quotes:
            quotes = "" if quotes in line else quotes
            continue
        yield number, line
        found = QUOTES.search(line)
        quotes = found[0] if found and line.count(found[0]) % 2 else ""


def _opened(name: str, repeated: bool, counts: Counter[Place]) -> Place:
    """The place that a header opens."""
    place: Place = ()
    *outer, last = name.split(".")
    for part in outer:
        place = (*place, part)
        if counts[place]:
            place = (*place, counts[place] - 1)
    place = (*place, last)
    if repeated:
        counts[place] += 1
        place = (*place, counts[place] - 1)
    return place


def _common(one: Place, other: Place) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
