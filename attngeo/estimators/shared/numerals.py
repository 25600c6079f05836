"""How the numbers of a column are written: decimal mark, thousands and percent, where all its cells have one form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from attngeo.estimators.shared.cells import CODE, name_missing, parse_numbers, read_like_numbers, read_numbers

DECIMALS = (".", ",")
# The characters that may part thousands, beside the other decimal mark: spaces of several widths, and apostrophes.
SPACES = " \u00a0\u2009\u202f"
APOSTROPHES = "'\u2019"
# Cells that are tried before a whole column is read.
FIRST_CELLS = 20
# Units of one column, at most.
MOST_UNITS = 3
# Texts beside numbers with a unit, at most.
MOST_TEXTS_WITHOUT_UNIT = 3
# A number with a unit.
WITH_UNIT = re.compile(
    r"\s*([$\u20ac\u00a3\u00a5])?\s*([-+]?\d(?:[\d.,'\u2019\u00a0\u2009\u202f ]*\d)?)\s*"
    r"([^\W\d_]{1,10}|[^\w\s.,:;/-]{1,3})?\s*"
)
# Whole numbers below this are exact in float64.
LARGEST_EXACT = 2**53


@dataclass(frozen=True)
class Numerals:
    """The form of the numbers of a column.

    Attributes:
        decimal: decimal mark.
        thousands: characters that may separate thousands.
        is_percent: whether the numbers have percent signs.
    """

    decimal: str
    thousands: str
    is_percent: bool = False

    @property
    def pattern(self) -> re.Pattern[str]:
        """The texts of such numbers, without their percent signs."""
        mark = re.escape(self.decimal)
        plain = rf"(?:\d+(?:{mark}\d*)?|{mark}\d+)(?:[eE][-+]?\d+)?"
        grouped = rf"[1-9]\d{{0,2}}(?:[{re.escape(self.thousands)}]\d{{3}})+(?:{mark}\d*)?"
        return re.compile(rf"[-+]?(?:{grouped}|{plain})")

    def read(self, texts: pd.Series[str]) -> pd.Series[Any]:
        """The numbers of texts of this form; of 12%, 12."""
        bare = texts.dropna().map(self.strip)
        parted = bare.str.replace(rf"[{re.escape(self.thousands)}]", "", regex=True)
        numbers = parse_numbers(parted.str.replace(self.decimal, ".", regex=False))
        if len(numbers) < len(texts) and numbers.dtype.kind == "i" and (numbers.abs() >= LARGEST_EXACT).any():
            numbers = numbers.astype("Int64")  # with all digits beside missing cells
        return numbers.reindex(texts.index)

    @staticmethod
    def strip(text: str) -> str:
        """A text without a percent sign, and without spaces at its ends."""
        return text.strip().removesuffix("%").rstrip()

    def write(self, text: str) -> str:
        """The text of a number as Python writes it, in this form."""
        return text.replace(".", self.decimal) + "%" * self.is_percent

    def __str__(self) -> str:
        """The form in words."""
        words = [f"decimal mark {self.decimal}"]
        if self.is_percent:
            words.append("percent")
        return ", ".join(words)


def find_numerals(texts: Sequence[str], marks: Sequence[str] = DECIMALS) -> dict[str, Numerals]:
    """The forms that fit all texts, at most one per decimal mark; none for codes such as 01."""
    if not texts:
        return {}
    is_percent = all(text.rstrip().endswith("%") for text in texts)
    bare = [Numerals.strip(text) if is_percent else text.strip() for text in texts]
    if any(map(CODE.fullmatch, bare)):
        return {}
    found = {}
    for decimal in marks:
        for thousands in _list_thousands(decimal):
            numerals = Numerals(decimal, thousands, is_percent)
            fits = numerals.pattern.fullmatch
            if all(map(fits, bare[:FIRST_CELLS])) and all(map(fits, bare)):
                found[decimal] = numerals
                break
    return found


def _list_thousands(decimal: str) -> tuple[str, ...]:
    """The characters that may part thousands beside this decimal mark."""
    other = DECIMALS[1 - DECIMALS.index(decimal)]
    return (other, SPACES, APOSTROPHES)


def read_beside_texts(column: pd.Series[Any], mark: str) -> np.ndarray:
    """The cells of a column as float64, [rows]; NaN for a missing cell, and for other cells.

    Works like `read_like_numbers`, but uses the only form that fits all numbers, or with a decimal comma, the form for
    it: then 1.234 is 1234. mark: decimal mark of the file; a point also if the file does not show it.
    """
    cells = column.where(column.map(lambda value: isinstance(value, str)))
    patterns = [Numerals(decimal, thousands).pattern for decimal in DECIMALS for thousands in _list_thousands(decimal)]
    texts = []
    for text in cells.dropna().unique():
        bare = Numerals.strip(text)
        if any(pattern.fullmatch(bare) for pattern in patterns):
            texts.append(text)
    forms = find_numerals(texts)
    if len(forms) > 1 and mark == ",":
        forms = {mark: forms[mark]}
    if len(forms) != 1:
        return read_like_numbers(column)
    numerals = next(iter(forms.values()))
    is_number = cells.isin(texts)
    numbers = read_numbers(column.mask(is_number)).copy()
    numbers[is_number] = numerals.read(cells[is_number]).to_numpy(float)
    return numbers


def describe_unit(column: pd.Series[Any]) -> str:
    """Advice about a column where most cells are numbers with a unit; "" for others.

    The unit follows the number, or is a currency sign before it. The column has only a few units (letters of house
    numbers are not units), and at most a few other texts. Numbers without a unit may occur beside a unit of several
    letters.
    """
    cells = column.dropna().astype("str")
    units: dict[str, str] = {}
    bare = []
    others = []
    plain = 0
    count = 0
    for cell, rows in cells.value_counts(sort=False).items():
        text = str(cell)
        match = WITH_UNIT.fullmatch(text)
        if match is None:
            others.append(text)
            if len(others) > MOST_TEXTS_WITHOUT_UNIT:
                return ""
        elif match[1] or match[3]:
            units.setdefault(match[1] or match[3], text)
            bare.append(match[2])
            count += rows
        else:
            plain += rows
    is_letter = any(len(unit) == 1 and unit.isalpha() for unit in units)
    numbers = count if is_letter else count + plain
    if not units or len(units) > (1 if plain else MOST_UNITS) or 2 * numbers <= len(cells) or not find_numerals(bare):
        return ""
    unit, example = next(iter(units.items()))
    advice = "remove the units to have the cells read as numbers"
    if others:
        advice += f", and treat the other values that are not numbers as missing with {name_missing(others)}"
    return f"{example!r:.40} is read as text, because of its unit {unit!r}; {advice}"


@dataclass(frozen=True)
class NumberColumn:
    """A column whose cells are numbers of a form.

    Attributes:
        texts: its cells, some missing.
        forms: decimal mark → form that fits; none if it is a column of texts.
        is_read: whether pandas reads the cells as numbers.
        is_unclear: whether the two decimal marks give different numbers.
    """

    texts: pd.Series[Any]
    forms: dict[str, Numerals]
    is_read: bool
    is_unclear: bool

    @property
    def name(self) -> str:
        """The name of the column."""
        return str(self.texts.name)

    def choose(self, mark: str | None) -> Numerals:
        """The form with this decimal mark, or else the first form."""
        return self.forms.get(mark or "") or next(iter(self.forms.values()))


def find_forms(texts: pd.Series[Any], *, is_read: bool = False) -> NumberColumn:
    """The forms of the cells of a column, which may be missing. is_read: whether pandas reads them as numbers."""
    distinct = texts.dropna().unique().tolist()
    if is_read:
        forms = {".": Numerals(".", ",")} | find_numerals(distinct, (",",)) if distinct else {}
    else:
        forms = find_numerals(distinct)
    is_unclear = len(forms) > 1 and not forms["."].read(texts).equals(forms[","].read(texts))
    return NumberColumn(texts, forms, is_read, is_unclear)


def find_mark(columns: Sequence[NumberColumn], otherwise: str | None) -> str | None:
    """The decimal mark that the columns show; None if they contradict each other. otherwise: the mark if none does."""
    marks = set()
    for column in columns:
        if len(column.forms) == 1:
            marks |= {*column.forms}
    if not marks:
        return otherwise
    return marks.pop() if len(marks) == 1 else None
