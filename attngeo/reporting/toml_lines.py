"""The line of a key in a TOML file, for error messages.

No parser gives it: tomllib forgets lines, and so does tomlkit, which keeps the whole text but moves parts of a file
whose tables alternate ([[section]], [[check]], [[section]]), so that lines cannot be counted in what it writes either.
tomllib reads and checks the file; this scanner only looks for headers, keys and inline tables.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

Place = tuple[str | int, ...]
# [name] and [[name]], and keys, at the beginning of a line.
HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.-]+)\s*\]")
KEY = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*=")
# Strings of several lines and of one, and comments.
STRINGS = re.compile(r'"""(?:\\.|[^\\])*?"""|' r"'''.*?'''|" r'"(?:\\.|[^"\\\n])*"|' r"'[^'\n]*'|#[^\n]*", re.DOTALL)


def line_of(text: str, place: Place) -> int:
    r"""The line of a key in a TOML text, counted from 1; if it is missing, of the nearest part around it.

    >>> line_of("title = 'a'\n[[check]]\nof = 'x'\n[[check]]\nof = 'y'\n", ("check", 1, "of"))
    5
    """
    best, matched = 1, 0
    for line, here in _find_places(text):
        common = _count_common(here, place)
        if common in (len(here), len(place)) and common > matched:
            best, matched = line, common
    return best


def name_of(place: Place) -> str:
    """A place as messages write it, counted from 1.

    >>> name_of(("section", 1, "figures", 0, "kind"))
    'section[2].figures[1].kind'
    """
    return "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or "recipe"


def _find_places(text: str) -> Iterator[tuple[int, Place]]:
    """The line and the place of every header, key, and inline table in a list."""
    around: Place = ()
    listed: Place = ()  # the key whose value is being read
    counts: Counter[Place] = Counter()
    lists = tables = 0  # open brackets and braces
    for number, line in enumerate(_blank_strings(text).split("\n"), 1):
        rest = line
        if not lists and (header := HEADER.match(line)):
            around = _open_header(header[2], header[1] == "[[", counts)
            yield number, around
            continue
        if not lists and (key := KEY.match(line)):
            listed, rest = (*around, *key[1].split(".")), line[key.end() :]
            yield number, listed
        for character in rest:
            if character == "{" and lists == 1 and not tables:
                yield number, (*listed, counts[listed])
                counts[listed] += 1
            tables += {"{": 1, "}": -1}.get(character, 0)
            lists += 0 if tables else {"[": 1, "]": -1}.get(character, 0)


def _blank_strings(text: str) -> str:
    """The text without the contents of strings and comments, with the same lines."""
    return STRINGS.sub(lambda found: "\n" * found[0].count("\n"), text)


def _open_header(name: str, repeated: bool, counts: Counter[Place]) -> Place:
    """The place that a header opens; a repeated one, [[name]], is the next of its list."""
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


def _count_common(one: Place, other: Place) -> int:
    """How many parts two places have in common, from the start."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
