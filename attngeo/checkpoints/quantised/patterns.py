r"""Regular expressions of configurations, matched in a time that their form cannot blow up.

Python's `re` may take forever for a pattern such as `(.|.)*!`. Here, a part of a pattern takes the set of all places
where it may begin to the set of all where it may end, so that no place is tried twice. What names of modules need is
known: characters, `.`, `\d`, `\w`, classes, groups, alternatives, `*`, `+`, `?`, `^` and `$`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

LONGEST_PATTERN, LONGEST_NAME, DEEPEST = 500, 500, 20
SPECIAL = "\\.[]()|*+?{}^$"
# The places where a part of a pattern may begin → those where it may end.
Step = Callable[[str, set[int]], set[int]]


def matches(pattern: str, name: str) -> bool:
    """Whether a regular expression matches the beginning of a name, as `re.match` does.

    Raises ValueError for a pattern that is broken or not known here, and for one or a name of more than 500 characters.
    """
    if len(pattern) > LONGEST_PATTERN or len(name) > LONGEST_NAME:
        raise ValueError(f"more than {LONGEST_PATTERN} characters")
    return bool(_parse(pattern)(name, {0}))


@lru_cache
def _parse(pattern: str) -> Step:
    parser = _Parser(pattern)
    step = parser.read_alternatives()
    if parser.at < len(pattern):
        raise ValueError(f"{pattern[parser.at]!r} at {parser.at}")
    return step


class _Parser:
    """A pattern, read from left to right into steps."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self) -> str:
        character = self.peek()
        if not character:
            raise ValueError("it ends too early")
        self.at += 1
        return character

    def read_alternatives(self) -> Step:
        steps = [self.read_sequence()]
        while self.peek() == "|":
            self.take()
            steps.append(self.read_sequence())
        return lambda name, places: set().union(*(step(name, places) for step in steps))

    def read_sequence(self) -> Step:
        steps: list[Step] = []
        while self.peek() and self.peek() not in "|)":
            steps.append(self.read_repeated())

        def follow(name: str, places: set[int]) -> set[int]:
            for step in steps:
                places = step(name, places)
            return places

        return follow

    def read_repeated(self) -> Step:
        is_place = self.peek() in "^$"
        step = self.read_part()
        mark = self.peek()
        if not mark or mark not in "*+?":
            return step
        if is_place:
            raise ValueError("a repeated place")
        self.take()
        if self.peek() == "?":  # a lazy one ends at the same places
            self.take()
        if mark == "?":
            return lambda name, places: places | step(name, places)

        def repeat(name: str, places: set[int]) -> set[int]:
            ends = set(places) if mark == "*" else step(name, places)
            new = ends
            while new := step(name, new) - ends:
                ends = ends | new
            return ends

        return repeat

    def read_part(self) -> Step:
        character = self.take()
        if character == "(":
            return self.read_group()
        if character == "[":
            return _step_over(self.read_class())
        if character == "\\":
            return _step_over(self.read_escaped())
        if character == ".":
            return _step_over(lambda read: read != "\n")
        if character == "^":
            return lambda name, places: places & {0}  # noqa: ARG005
        if character == "$":
            return lambda name, places: places & {len(name)}
        if character in SPECIAL:
            raise ValueError(f"{character!r} at {self.at - 1}")
        return _step_over(lambda read: read == character)

    def read_group(self) -> Step:
        if self.peek() == "?":
            self.take()
            if self.take() != ":":
                raise ValueError(f"a group of an unknown kind at {self.at}")
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} groups in one another")
        step = self.read_alternatives()
        self.depth -= 1
        if self.take() != ")":
            raise ValueError("a group without an end")
        return step

    def read_escaped(self) -> Callable[[str], bool]:
        character = self.take()
        if character == "d":
            return str.isdecimal
        if character == "w":
            return lambda read: read.isalnum() or read == "_"
        if character.isalnum() or not character.isascii():
            raise ValueError(f"the unknown escape \\{character}")
        return lambda read: read == character

    def read_class(self) -> Callable[[str], bool]:
        is_negated = self.peek() == "^"
        if is_negated:
            self.take()
        members: list[Callable[[str], bool]] = []
        while self.peek() != "]" or not members:
            first = self.take()
            if first == "\\":
                members.append(self.read_escaped())
            elif first in "[]^":
                raise ValueError(f"{first!r} in a class")
            elif self.peek() == "-" and self.pattern[self.at + 1 : self.at + 2] not in ("]", ""):
                self.take()
                members.append(_range(first, self.take()))
            else:
                members.append(_range(first, first))
        self.take()
        return lambda read: any(member(read) for member in members) != is_negated


def _range(first: str, last: str) -> Callable[[str], bool]:
    if first > last or last in "\\[":
        raise ValueError(f"the range {first}-{last}")
    return lambda read: first <= read <= last


def _step_over(member: Callable[[str], bool]) -> Step:
    """One character of a kind."""
    return lambda name, places: {place + 1 for place in places if place < len(name) and member(name[place])}
