"""Cells of a user's table, each compared with known values by itself: no cell decides how the others are read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from attngeo.choices import as_python
from attngeo.errors import TableError

# The code of a cell that is missing, or that no known value equals.
UNKNOWN = -1
# A whole number, and one that begins with 0, which may be a code.
WHOLE = re.compile(r"[-+]?\d+")
CODE = re.compile(r"[-+]?0\d+")
# Texts that pandas reads as booleans, in lower case.
BOOLEANS = {"true": True, "false": False}
# A number with a decimal comma, and perhaps points between thousands; and one whose comma may be between thousands.
COMMA = re.compile(r"\s*[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+)?,\d+(?:[eE][-+]?\d+)?\s*")
THOUSANDS = re.compile(r"\s*[-+]?[1-9]\d{0,2},\d{3}\s*")
# A number with points between thousands, where commas are decimal marks.
POINTS = re.compile(r"\s*[-+]?[1-9]\d{0,2}(?:\.\d{3})+\s*")
# A number with a decimal point.
POINT = re.compile(r"\s*[-+]?\d*\.\d+(?:[eE][-+]?\d+)?\s*")
# The largest share of the cells of a column that cannot be read as in training without an error.
MOST_UNREAD_SHARE = 0.1


def find_values(column: pd.Series[Any], values: Sequence[Any], *, are_codes: bool = False) -> np.ndarray:
    """The code of each cell: its number among known values, int64; UNKNOWN if it is missing or unknown.

    If a text is unknown, it is matched as the number or boolean that pandas would read; if a number is unknown, as its
    text. So a cell has the same code whatever the kind of its column. A boolean may be written as true, True or TRUE.
    An unknown fraction matches a known one that is equal in single precision.

    Args:
        column: cells, [rows].
        values: the known values.
        are_codes: whether 01 and 1 are different values.

    Returns:
        [rows].

    Raises:
        TypeError: a cell is not a single value, but for example a list.
    """
    code_of = _number_values(values)
    indices, distinct = pd.factorize(column)
    cells = list(distinct)
    codes = [code_of.get(cell, UNKNOWN) for cell in cells]
    unknown = [index for index, code in enumerate(codes) if code == UNKNOWN]
    texts = [index for index in unknown if isinstance(cells[index], str)]
    numbers = {index: cells[index] for index in unknown if isinstance(cells[index], float | np.floating)}
    parsed = _parse([cells[index] for index in texts], are_codes=are_codes)
    for index, value in zip(texts, parsed, strict=True):
        if isinstance(value, float):
            numbers[index] = value
        code = code_of.get(value, UNKNOWN)
        if code == UNKNOWN:
            continue
        if not isinstance(value, bool) or isinstance(values[code], bool):  # to Python, True is 1
            codes[index] = code
    for index in unknown:
        if not isinstance(cells[index], str):
            codes[index] = code_of.get(_write(cells[index]), UNKNOWN)
    rounded = [index for index in numbers if codes[index] == UNKNOWN]
    nearest = _find_fractions([float(numbers[index]) for index in rounded], values)
    for index, code in zip(rounded, nearest, strict=True):
        codes[index] = code
    # A missing cell has the index -1.
    return np.array([*codes, UNKNOWN], dtype=np.int64)[indices]


def _number_values(values: Sequence[Any]) -> dict[Any, int]:
    """Known value → its number, that of each other spelling of a text such as true, too."""
    code_of = {value: code for code, value in reversed([*enumerate(values)])}
    for value, code in [*code_of.items()]:
        if isinstance(value, str) and value.lower() in BOOLEANS:
            for spelling in (value.lower(), value.capitalize(), value.upper()):
                code_of.setdefault(spelling, code)
    return code_of


def _find_fractions(numbers: list[float], values: Sequence[Any]) -> list[int]:
    """The code of the only known float from which single precision does not tell a number; UNKNOWN for none or two.

    Two whole numbers are one only if they are equal, as files have them exactly.
    """
    codes = [code for code, value in enumerate(values) if isinstance(value, float)]
    if not codes or not numbers:
        return [UNKNOWN] * len(numbers)
    codes.sort(key=lambda code: values[code])
    fractions = np.array([values[code] for code in codes])
    with np.errstate(over="ignore", invalid="ignore"):
        # No rounding to single precision is farther.
        reach = np.spacing(np.abs(fractions).astype(np.float32)).astype(float) / 2
    first_above = np.searchsorted(fractions, numbers, side="right")
    found = np.full(len(numbers), UNKNOWN)
    count = np.zeros(len(numbers), dtype=int)
    # The nearest two on each side: if more than one is in reach, two of these are.
    for place in (first_above - 2, first_above - 1, first_above, first_above + 1):
        is_there = (place >= 0) & (place < len(fractions))
        at = np.clip(place, 0, len(fractions) - 1)
        is_near = is_there & (np.abs(fractions[at] - numbers) <= reach[at])
        is_near &= (np.floor(fractions[at]) != fractions[at]) | (np.floor(numbers) != numbers)
        found[is_near] = np.array(codes)[at][is_near]
        count += is_near
    return [int(code) for code in np.where(count == 1, found, UNKNOWN)]


def read_numbers(column: pd.Series[Any]) -> np.ndarray:
    """The cells of a column as float64, [rows]; NaN for a missing cell, and for other cells such as dates.

    A whole number too large for a float is infinite.
    """
    if column.dtype.kind in "mMc":
        return np.full(len(column), np.nan)
    return np.asarray(parse_numbers(column).to_numpy(np.float64, na_value=np.nan))


def read_like_numbers(column: pd.Series[Any]) -> np.ndarray:
    """The cells of a column as numbers, as in `read_numbers`, but also 7,5 if a comma is the decimal mark.

    It is the decimal mark in all cells if it cannot separate thousands in one of them. Points then separate thousands,
    unless one of them must be a decimal mark.
    """
    numbers = read_numbers(column)
    if column.dtype.kind in "mMc" or not (np.isnan(numbers) & column.notna().to_numpy()).any():
        return numbers
    texts = column.where(column.map(lambda value: isinstance(value, str))).astype("str").fillna("")
    with_comma, with_point = find_marks(texts)
    if with_comma.any():
        is_other = texts.str.fullmatch(COMMA)
        if not with_point.any():
            is_other |= texts.str.fullmatch(POINTS)
        others = is_other.to_numpy(bool)
        points = texts[others].str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
        numbers = numbers.copy()
        numbers[others] = points.str.strip().astype(float)
    return numbers


def find_marks(texts: pd.Series[str]) -> tuple[np.ndarray, np.ndarray]:
    """The cells whose comma, or whose point, must be a decimal mark, because it cannot separate thousands."""
    with_comma = texts.str.fullmatch(COMMA, na=False) & ~texts.str.fullmatch(THOUSANDS, na=False)
    with_point = texts.str.fullmatch(POINT, na=False) & ~texts.str.fullmatch(POINTS, na=False)
    return with_comma.to_numpy(bool), with_point.to_numpy(bool)


def parse_numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """The cells of a column as numbers of one kind, with all digits if they fit in int64; missing for other cells."""
    try:
        numbers = pd.to_numeric(column, errors="coerce")
    except OverflowError:
        numbers = column
    if numbers.dtype != object:
        return numbers
    return pd.to_numeric(column.astype(str), errors="coerce")  # the text of a number that is too large is infinite


def refuse_unread(
    column: pd.Series[Any], is_wrong: np.ndarray, noun: str, example: Any, *, is_strict: bool = False
) -> str:
    """A note about cells that cannot be read like the training column; "" for none.

    Args:
        column: cells.
        is_wrong: whether each cell is present but unreadable, [rows].
        noun: kind of the training values, such as "number".
        example: a training value.
        is_strict: whether a single unreadable cell is an error.

    Raises:
        TableError: fewer than nine tenths of the present cells can be read.
    """
    count = int(is_wrong.sum())
    if not count:
        return ""
    present = int(column.notna().sum())
    row = int(is_wrong.argmax())
    shown = show_value(column.iloc[row])
    like = "as in training" if example in (None, "") else f"like {show_value(example)} in training"
    if is_strict or count > MOST_UNREAD_SHARE * present:
        more = f" (nor are {count - 1:,} more of {present:,} cells)" if count > 1 else ""
        advice = "write the column as in training, or leave the row out"
        if isinstance(column.iloc[row], str):
            advice += f"; {name_missing([column.iloc[row]])} treats such values as missing"
        raise TableError(f"{shown} is not a {noun} {like}{more}; {advice}", row=row + 1, column=column.name)
    return (
        f"{count:,} of {present:,} cells are not {noun}s {like} and count as missing, such as {shown} in row {row + 1}"
    )


def _parse(texts: list[str], *, are_codes: bool) -> list[Any]:
    """The number or the boolean that each text is in a column of such; None if it is neither."""
    numbers = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").tolist()
    values: list[Any] = []
    for text, number in zip(map(str.strip, texts), numbers, strict=True):
        if are_codes and CODE.fullmatch(text):
            values.append(None)
        elif WHOLE.fullmatch(text) and number == number:
            values.append(int(text))  # with all its digits
        elif number == number:
            values.append(number)
        else:
            values.append(BOOLEANS.get(text.lower()))
    return values


def _write(value: Any) -> str:
    """A number or a boolean as text; without a fraction if it is whole, as in a column without missing cells."""
    is_whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if is_whole else str(value)


def name_missing(texts: Sequence[str]) -> str:
    """The command-line options that treat these texts as missing, for messages."""
    return " ".join(f"--missing {shlex.quote(text)}" for text in texts)


def show_value(value: Any) -> str:
    """A value of a table for messages, as Python writes it."""
    return f"{as_python(value)!r:.60}"
