"""Regular expressions from other people's files, matched within a number of steps.

Python's own engine tries one way to match after the other: `(.|.)*!` never ends, not even on Ctrl-C. Here all ways are
followed at once, as the set of the places where a part of the pattern may end (Thompson, CACM 11(6), 1968). What a
pattern matches is the same. Left out are what this cannot follow (back references, looking behind, atomic groups) and
inline flags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Protocol

# The most groups inside one another, repetitions of one part, and steps for all patterns and texts of an adapter: the
# characters that are read, and the places where parts are tried.
MOST_DEPTH = 40
MOST_REPETITIONS = 1000
MOST_STEPS = 3_000_000
# Parts that Python's engine matches in one step: a class of characters, and a place between two of them.
CLASS_ESCAPES = "dDwWsS"
PLACES = {"^", "$", r"\A", r"\Z", r"\b", r"\B"}
# The operators that Python warns about, as they may get another meaning inside of a class.
CLASS_OPERATORS = ("[", "--", "&&", "~~", "||")
REPETITION = re.compile(r"[*+?]|\{(\d*)(,?)(\d*)\}", re.ASCII)
GROUP = re.compile(r"\((?:\?(?::|P<(?P<name>[A-Za-z_]\w*)>|(?P<look>[=!])))?", re.ASCII)


class PatternError(ValueError):
    """A pattern is invalid, has a part that is left out here, or takes too many steps. The text says which."""


class Steps:
    """The steps that are left for the patterns of an adapter."""

    def __init__(self, left: int = MOST_STEPS) -> None:
        self._left = left

    def take(self, count: int) -> None:
        """Raise PatternError if fewer steps are left."""
        self._left -= count
        if self._left < 0:
            raise PatternError("takes too many steps")


@dataclass
class _Text:
    """A text that is matched, and the steps for it."""

    value: str
    steps: Steps

    def step(self, places: int) -> None:
        """Take the steps of a part that is tried at these places."""
        self.steps.take(1 + places)


class _Node(Protocol):
    """A part of a pattern."""

    def ends(self, text: _Text, starts: Set[int]) -> Set[int]:
        """The places where it may end if it begins at one of `starts`."""
        ...


@dataclass
class _Literal:
    """Characters that stand for themselves."""

    characters: str

    def ends(self, text: _Text, starts: Set[int]) -> Set[int]:
        text.step(len(starts))
        return {start + len(self.characters) for start in starts if text.value.startswith(self.characters, start)}


@dataclass
class _OneOf:
    """One character of a class, which Python's engine knows; or a place, which has no characters."""

    pattern: re.Pattern[str]

    def ends(self, text: _Text, starts: Set[int]) -> Set[int]:
        text.step(len(starts))
        matches = (self.pattern.match(text.value, start) for start in starts)
        return {match.end() for match in matches if match is not None}


@dataclass
class _Sequence:
    """Parts one after the other."""

    parts: list[_Node] = field(default_factory=list)

    def ends(self, text: _Text, starts: Set[int]) -> Set[int]:
        for part in self.parts:
            if not starts:
                break
            starts = part.ends(text, starts)
        return starts


@dataclass
class _Choice:
    """One of several parts."""

    parts: list[_Sequence]

    def ends(self, text: _Text, starts: Set[int]) -> Set[int]:
        ends: set[int] = set()
        for part in self.parts:
            ends |= part.ends(text, starts)
        return ends


@dataclass
class _Repeat:
    """A part from `least` to `most` times; `most` is None without a limit."""

    part: _Node
    least: int
    most: int | None

    def ends(self, text: _Text, starts: Set[int]) -> Set[int]:
        for _ in range(self.least):
            text.step(len(starts))
            starts = self.part.ends(text, starts)
        found, last, count = set(starts), starts, self.least
        while last and (self.most is None or count < self.most):
            text.step(len(last))
            last = self.part.ends(text, last) - found
            found |= last
            count += 1
        return found


@dataclass
class _Look:
    """The places from which a part matches, or from which it does not."""

    part: _Node
    wanted: bool

    def ends(self, text: _Text, starts: Set[int]) -> Set[int]:
        return {start for start in starts if bool(self.part.ends(text, {start})) == self.wanted}


class Pattern:
    """A regular expression of Python's syntax. steps: those that are left for it. Raises PatternError."""

    def __init__(self, pattern: str, steps: Steps) -> None:
        steps.take(len(pattern))
        self._steps = steps
        self._part: _Node = _Parser(pattern).parse()

    def matches_start(self, text: str) -> bool:
        """Whether it matches at the beginning of a text, as `re.match` does. Raises PatternError."""
        return bool(self._part.ends(_Text(text, self._steps), {0}))

    def matches(self, text: str) -> bool:
        """Whether it matches a whole text, as `re.fullmatch` does. Raises PatternError."""
        return len(text) in self._part.ends(_Text(text, self._steps), {0})


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._names: set[str] = set()

    def parse(self) -> _Node:
        part = self._read_choice()
        if self._at < len(self._pattern):
            raise PatternError("has a ')' without its '('")
        return part

    def _read_choice(self) -> _Node:
        parts = [self._read_sequence()]
        while self._take("|"):
            parts.append(self._read_sequence())
        return parts[0] if len(parts) == 1 else _Choice(parts)

    def _read_sequence(self) -> _Sequence:
        sequence = _Sequence()
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            part = self._read_repeated()
            previous = sequence.parts[-1] if sequence.parts else None
            if isinstance(part, _Literal) and isinstance(previous, _Literal):
                previous.characters += part.characters
            else:
                sequence.parts.append(part)
        return sequence

    def _read_repeated(self) -> _Node:
        part, is_place = self._read_part()
        match = self._read_repetition()
        if match is None:
            return part
        if is_place:
            raise PatternError(f"repeats a place, {match[0]!r:.20}")
        least, most = self._count(match)
        self._take("?")  # the shortest match first: the set of all matches is the same
        if self._take("+"):
            raise PatternError("has a repetition that gives nothing back, which is not followed here")
        if self._read_repetition() is not None:
            raise PatternError("repeats a repetition")
        return _Repeat(part, least, most)

    def _read_repetition(self) -> re.Match[str] | None:
        """The repetition that follows, if one does. Braces without numbers stand for themselves."""
        match = REPETITION.match(self._pattern, self._at)
        if match is None or match[0] == "{}":
            return None
        self._at = match.end()
        return match

    def _count(self, match: re.Match[str]) -> tuple[int, int | None]:
        """The least and the most times of a repetition."""
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if match[0] in simple:
            return simple[match[0]]
        first, comma, last = match.groups()
        if max(len(first), len(last)) > len(str(MOST_REPETITIONS)):
            raise PatternError(f"repeats a part {match[0]:.20} times, expected at most {MOST_REPETITIONS:,}")
        least = int(first or 0)
        most = int(last) if last else None if comma else least
        if max(least, most or 0) > MOST_REPETITIONS or (most is not None and most < least):
            raise PatternError(f"repeats a part {match[0]} times, expected at most {MOST_REPETITIONS:,}")
        return least, most

    def _read_part(self) -> tuple[_Node, bool]:
        """A part without its repetition, and whether it is a place or looks ahead, which have no characters."""
        character = self._pattern[self._at]
        readers: dict[str, Callable[[], tuple[_Node, bool]]] = {
            "(": self._read_group, "[": self._read_class, "\\": self._read_escape,
        }  # fmt: skip
        if character in readers:
            return readers[character]()
        if character in "*+?" or (character == "{" and self._read_repetition() is not None):
            raise PatternError("repeats nothing")
        self._at += 1
        if character == ".":
            return _OneOf(re.compile(".")), False
        if character in PLACES:
            return _OneOf(re.compile(character)), True
        return _Literal(character), False

    def _read_group(self) -> tuple[_Node, bool]:
        match = GROUP.match(self._pattern, self._at)
        assert match is not None  # it begins with a parenthesis
        self._at = match.end()
        if self._pattern.startswith("?", self._at):
            raise PatternError(f"has {self._pattern[match.start() : match.start() + 4]!r}, which is not followed here")
        if match["name"] in self._names:
            raise PatternError(f"names two groups {match['name']!r:.40}")
        if match["name"] is not None:
            self._names.add(match["name"])
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise PatternError(f"has more than {MOST_DEPTH} groups inside one another")
        part = self._read_choice()
        if not self._take(")"):
            raise PatternError("has a '(' without its ')'")
        self._depth -= 1
        look = match["look"]
        return (part, False) if look is None else (_Look(part, look == "="), True)

    def _read_class(self) -> tuple[_Node, bool]:
        """A class of characters in brackets. A first `]` stands for itself."""
        start = self._at
        self._at += 1
        self._take("^")
        self._take("]")
        while self._at < len(self._pattern) and self._pattern[self._at] != "]":
            self._at += 2 if self._pattern[self._at] == "\\" else 1
        if not self._take("]"):
            raise PatternError("has a '[' without its ']'")
        text = self._pattern[start : self._at]
        if any(operator in text[1:] for operator in CLASS_OPERATORS):
            raise PatternError(f"has the class {text!r:.40}, which Python may read in another way later")
        return _OneOf(_compile(text)), False

    def _read_escape(self) -> tuple[_Node, bool]:
        text = self._pattern[self._at : self._at + 2]
        self._at += 2
        if text in PLACES:
            return _OneOf(_compile(text)), True
        if len(text) == 2 and text[1] in CLASS_ESCAPES:
            return _OneOf(_compile(text)), False
        if len(text) < 2 or (text[1].isascii() and text[1].isalnum()):
            raise PatternError(f"has {text!r}, which is not followed here")
        return _Literal(text[1]), False

    def _take(self, character: str) -> bool:
        """Go past a character, if it is the next one."""
        is_next = self._pattern.startswith(character, self._at)
        self._at += is_next
        return is_next


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise PatternError(f"is invalid: {error}") from None
