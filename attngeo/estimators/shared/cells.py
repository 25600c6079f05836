"""Cells of a user's table, each compared with known values by itself: no cell decides how the others are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

# The number of a cell that is missing, or that no known value equals.
UNKNOWN = -1
# A whole number, and one that begins with 0, which may be a code.
WHOLE = re.compile(r"[-+]?\d+")
CODE = re.compile(r"[-+]?0\d+")
# Texts that pandas reads as booleans, in lower case.
BOOLEANS = {"true": True, "false": False}


def find_values(column: pd.Series[Any], known: Sequence[Any], *, are_codes: bool = False) -> np.ndarray:
    """The number of each cell among the known values, int64, [rows]; UNKNOWN if it is missing or none of them.

    A text cell is the number or the boolean that pandas reads of it, if the text itself is unknown; the number of a
    cell is the text of it, if the number is unknown. So a column has the same numbers, whatever kind its other cells
    gave it. are_codes: whether 01 is another value than 1. Raises TypeError for a cell that is no single value, such as
    a list.
    """
    numbers = {value: number for number, value in reversed([*enumerate(known)])}
    places, index = pd.factorize(column)
    cells = list(index)
    found = [numbers.get(cell, UNKNOWN) for cell in cells]
    left = [place for place, number in enumerate(found) if number == UNKNOWN]
    texts = [place for place in left if isinstance(cells[place], str)]
    for place, value in zip(texts, _parse([cells[place] for place in texts], are_codes=are_codes), strict=True):
        number = numbers.get(value, UNKNOWN)
        if number == UNKNOWN:
            continue
        if not isinstance(value, bool) or isinstance(known[number], bool):  # to Python, True is 1
            found[place] = number
    for place in left:
        if not isinstance(cells[place], str):
            found[place] = numbers.get(_write(cells[place]), UNKNOWN)
    # A missing cell has the place -1.
    return np.array([*found, UNKNOWN], dtype=np.int64)[places]


def read_numbers(column: pd.Series[Any]) -> np.ndarray:
    """The cells of a column as float64, [rows]; NaN for a missing one and for one that is no number, such as a date.

    A whole number that is too large for a float is infinite.
    """
    if column.dtype.kind in "mMc":
        return np.full(len(column), np.nan)
    return np.asarray(parse_numbers(column).to_numpy(np.float64, na_value=np.nan))


def parse_numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """The cells of a column as numbers of one kind, with all digits if int64 has them; missing if they are none."""
    try:
        numbers = pd.to_numeric(column, errors="coerce")
    except OverflowError:
        numbers = column
    if numbers.dtype != object:
        return numbers
    return pd.to_numeric(column.astype(str), errors="coerce")  # the text of a number that is too large is infinite


def _parse(texts: list[str], *, are_codes: bool) -> list[Any]:
    """What each text is in a column of numbers or of booleans; None if it is neither."""
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


def show_value(value: Any) -> str:
    """A value of a table for messages, as Python writes it."""
    return f"{value.item() if isinstance(value, np.generic) else value!r:.60}"
