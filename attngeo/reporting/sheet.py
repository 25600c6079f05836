"""How tables fit a sheet of A4: the size of their type, where their words break, and the parts of wide ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup, escape

from attngeo.questions.rows import IDENTITY

# The width between the margins of the page, in points.
WIDTH = 527
# The type of tables, in points: the largest; the smallest of a whole table; and that of a table in parts.
LARGEST, SMALLEST, OF_PARTS = 8.0, 5.5, 6.5
# The widths of a letter in cells and in headings, which are bold, and of the space around a text, as shares of the
# type's size. Those of wide fonts; others leave room.
LETTER, BOLD_LETTER, AROUND = 0.62, 0.7, 0.7
# A longer word may break after these marks, and a word without them after so many letters. A long text has some lines.
LONG_WORD, MARKS, LONGEST_WORD, LINES = 16, "/_:@.=-", 40, 3
# The columns that name a row, which every part of a table has, are at most this share of its width.
MOST_NAMES_SHARE = 0.5


@dataclass(frozen=True)
class SheetFit:
    """The size of a table on a sheet, and the parts it is cut into.

    Attributes:
        size: type size in points.
        names: number of first columns that each part repeats.
        starts: first column of each part besides these; empty if the whole table fits.
    """

    size: float
    names: int
    starts: tuple[int, ...]


def break_words(text: str) -> Markup:
    """HTML of a text whose long words may break after a mark; a short word stays whole.

    >>> break_words("demo:minilm"), break_words("organisation/encoder_base")
    (Markup('demo:minilm'), Markup('organisation/<wbr>encoder_<wbr>base'))
    """
    pieces = [_split_word(word) if word.strip() else [word] for word in re.split(r"(\s+)", text)]
    return Markup("").join(Markup("<wbr>").join(map(escape, piece)) for piece in pieces)


def _split_word(word: str) -> list[str]:
    """The pieces of a word that a line may end with."""
    if len(word) <= LONG_WORD:
        return [word]
    pieces = re.findall(rf"[^{MARKS}]{{1,{LONGEST_WORD}}}[{MARKS}]*|[{MARKS}]+", word)
    return [str(piece) for piece in pieces]


def fit_table(shown: pd.DataFrame, are_numeric: Sequence[bool]) -> SheetFit:
    """The fit of a table of texts on a sheet. are_numeric: whether each column has numbers, which do not break."""
    widths = [
        _measure_column(name, shown.iloc[:, place], is_numeric)
        for place, (name, is_numeric) in enumerate(zip(shown.columns, are_numeric, strict=True))
    ]
    size = min(WIDTH / max(sum(widths), 1), LARGEST)
    if size >= SMALLEST:
        return SheetFit(round(size, 2), 0, ())
    room = WIDTH / OF_PARTS
    names = 0
    for name, is_numeric in zip(shown.columns, are_numeric, strict=True):
        if (is_numeric and name not in IDENTITY) or sum(widths[: names + 1]) > MOST_NAMES_SHARE * room:
            break
        names += 1
    of_names = sum(widths[:names])
    others = widths[names:]
    starts = _cut(others, room - of_names)
    # Parts of about the same width, and no more of them.
    even = sum(others) / len(starts)
    while len(_cut(others, even)) > len(starts):
        even += 1
    return SheetFit(OF_PARTS, names, tuple(names + start for start in _cut(others, even)))


def _cut(widths: Sequence[float], room: float) -> list[int]:
    """The first column of each part, if as many columns as fit are in a part, and at least one."""
    starts = [0]
    taken = 0.0
    for place, width in enumerate(widths):
        if taken + width > room and place > starts[-1]:
            starts.append(place)
            taken = 0.0
        taken += width
    return starts


def _measure_column(name: str, cells: pd.Series, is_numeric: bool) -> float:
    """The least width of a column, as a multiple of the type's size."""
    heading = max(map(len, re.split(r"(?<=_)", str(name))))
    longest = 0.0
    for cell in set(cells):
        if is_numeric:
            longest = max(longest, len(cell))
            continue
        pieces = [len(piece) for word in cell.split() for piece in _split_word(word)]
        longest = max(longest, len(cell) / LINES, *pieces)
    return max(heading * BOLD_LETTER, longest * LETTER) + AROUND
