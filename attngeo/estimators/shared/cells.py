"""Cells of a user's table, each compared with known values by itself: no cell decides how the others are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from attngeo.choices import as_python

# The code of a cell that is missing, or that no known value equals.
UNKNOWN = -1
# A whole number, and one that begins with 0, which may be a code.
WHOLE = re.compile(r"[-+]?\d+")
CODE = re.compile(r"[-+]?0\d+")
# Texts that pandas reads as booleans, in lower case.
BOOLEANS = {"true": True, "false": False}


def find_values(column: pd.Series[Any], values: Sequence[Any], *, are_codes: bool = False) -> np.ndarray:
    """The code of each cell: its number among known values, int64; UNKNOWN if it is missing or none of them.

    A text cell is the number or the boolean that pandas reads of it, if the text itself is unknown; the number of a
    cell is the text of it, if the number is unknown. So a column has the same codes, whatever kind its other cells
    gave it. A boolean may be written as true, True or TRUE.

    Args:
        column: cells, [rows].
        values: the known values.
        are_codes: whether 01 is another value than 1.

    Returns:
        [rows].

    Raises:
        TypeError: a cell is no single value, such as a list.
    """
    code_of = {value: code for code, value in reversed([*enumerate(values)])}
    for value, code in [*code_of.items()]:
        if isinstance(value, str) and value.lower() in BOOLEANS:
            for spelling in (value.lower(), value.capitalize(), value.upper()):
                code_of.setdefault(spelling, code)
    indices, distinct = pd.factorize(column)
    cells = list(distinct)
    codes = [code_of.get(cell, UNKNOWN) for cell in cells]
    unknown = [index for index, code in enumerate(codes) if code == UNKNOWN]
    texts = [index for index in unknown if isinstance(cells[index], str)]
    parsed = _parse([cells[index] for index in texts], are_codes=are_codes)
    for index, value in zip(texts, parsed, strict=True):
        code = code_of.get(value, UNKNOWN)
        if code == UNKNOWN:
            continue
        if not isinstance(value, bool) or isinstance(values[code], bool):  # to Python, True is 1
            codes[index] = code
    for index in unknown:
        if not isinstance(cells[index], str):
            codes[index] = code_of.get(_write(cells[index]), UNKNOWN)
    # A missing cell has the index -1.
    return np.array([*codes, UNKNOWN], dtype=np.int64)[indices]


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


def show_value(value: Any) -> str:
    """A value of a table for messages, as Python writes it."""
    return f"{as_python(value)!r:.60}"
