"""Columns of a tidy table as codes, ranks and numbers, with the row that an error is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attngeo.bounds.names import list_names, name_type, printable
from attngeo.choices import advise, as_python
from attngeo.errors import TableError, UnknownColumnError, UsageError
from attngeo.estimators.efa.families import LARGEST
from attngeo.estimators.shared.cells import (
    UNKNOWN,
    find_values,
    name_missing,
    parse_numbers,
    read_like_numbers,
    read_numbers,
    show_value,
)
from attngeo.estimators.shared.dates import find_readable, read_any_moments, refuse_mixed_zones
from attngeo.estimators.shared.files import naming, sort_values
from attngeo.estimators.shared.numerals import describe_unit
from attngeo.estimators.shared.saving import PLAIN

# The names in messages of the tables of a fit, and of one that a fitted model reads.
TRAINING = "the training table"
HELD_OUT = "the validation table"
TEST = "the test table"
TABLE = "the table"
# A deviation that is a smaller share of the mean is that of equal numbers, whose mean is rounded.
ROUNDING = 2.0**-48


def check_columns(frame: pd.DataFrame, names: Iterable[str], source: str) -> None:
    """Raise TableError unless a table has rows, and these columns once each; UsageError if it is not a DataFrame.

    Raises UnknownColumnError if the training table lacks a column, because options name its columns.
    """
    if not isinstance(frame, pd.DataFrame):
        raise UsageError(f"{source} is {name_type(frame)}, expected a DataFrame; read a file with pandas first")
    if not len(frame):
        raise TableError("has no rows, expected at least one", subject=source)
    columns = list(frame.columns)
    for name in names:
        count = columns.count(name)
        if count == 1:
            continue
        options: tuple[str, ...] = ("sequence", "item")
        advice = "name the columns with options such as $sequence and $item"
        if source == TABLE:  # of a fitted model
            options = ()
            advice = "name the columns as in training"
        problem = f"{count} columns {name!r:.60}"
        if not count:
            problem = f"no column {name!r:.60}"
            advice = advise(name, map(printable, map(str, columns)), advice)
        kind = TableError if count or source != TRAINING else UnknownColumnError
        raise kind(
            f"{problem}, expected one; its columns are {list_names(columns)}; {advice}", *options, subject=source
        )


def refuse_first(wrong: np.ndarray, column: pd.Series[Any], source: str, problem: str) -> None:
    """Raise TableError for the first wrong row, if any.

    Args:
        wrong: whether each row is wrong, [rows].
        column: the column of the values.
        source: the table, for messages.
        problem: text that follows the value in the message.
    """
    if wrong.any():
        row = int(wrong.argmax())
        raise TableError(f"{show_value(column.iloc[row])}{problem}", subject=source, row=row + 1, column=column.name)


def require_values(column: pd.Series[Any], source: str, is_read: np.ndarray | bool = True) -> None:
    """Raise TableError for a missing value. is_read: the rows to check, [rows]."""
    from_file = ", or holds a value such as NA, which --missing '' keeps" if source != TRAINING else ""
    problem = f", expected a value: the cell is empty{from_file}; fill it, or leave the row out"
    refuse_first(is_read & column.isna().to_numpy(), column, source, problem)


def refuse_kind(column: Any, value: Any, source: str) -> TableError:
    """The error for a value that cannot be compared, such as a list, or that a saved model cannot store."""
    kind = type(value).__name__
    return TableError(f"has a {kind}, expected strings or numbers; convert it", subject=source, column=column)


def code_sequences(column: pd.Series[Any], source: str) -> tuple[np.ndarray, pd.Index[Any]]:
    """The sequence number of each row, and the names of the sequences in order of appearance. Raises TableError."""
    require_values(column, source)
    try:
        return pd.factorize(column)
    except TypeError:
        raise refuse_kind(column.name, column.iloc[0], source) from None


def rank_positions(column: pd.Series[Any], codes: np.ndarray, source: str, missing: np.ndarray) -> np.ndarray:
    """The ranks of positions, equal ones together. Positions are numbers, with all digits, or dates of any year.

    Args:
        column: the positions.
        codes: sequence of each row.
        source: the table, for messages.
        missing: rows to predict, which may share a position, [rows].

    Raises:
        TableError: a value is not a position, or a sequence has a position twice.
    """
    require_values(column, source)
    values = column.dt.start_time if isinstance(column.dtype, pd.PeriodDtype) else column
    if column.dtype.kind == "c":
        raise TableError("has complex numbers, expected real numbers or dates", subject=source, column=column.name)
    if not (pd.api.types.is_numeric_dtype(values.dtype) or values.dtype.kind in "mM"):  # texts, or days of Parquet
        values = parse_numbers(column)
        if values.isna().any():
            moments = read_any_moments(column)
            if moments.wall.isna().sum() < values.isna().sum():
                with naming({"": source}):
                    refuse_mixed_zones(column, moments, "write them all the same way")
                values = moments.utc if moments.zones else moments.wall
    wrong = values.isna().to_numpy()
    if values.dtype.kind == "f":
        wrong = wrong | np.isinf(values.to_numpy(np.float64, na_value=np.nan))
    problem = f", expected a finite number or a date (2020-01-31); {advise_date(column, wrong)}"
    refuse_first(wrong, column, source, problem)
    ranks = values.rank(method="dense").to_numpy(np.int64)
    twice = pd.DataFrame({"sequence": codes, "position": ranks}).duplicated()
    if missing.any():
        twice &= ~pd.Series(missing).groupby([codes, ranks]).transform("all")
    refuse_first(twice.to_numpy(), column, source, " occurs twice in its sequence; name a column that numbers the rows")
    return ranks


def advise_date(column: pd.Series[Any], is_wrong: np.ndarray) -> str:
    """Advice about the first cell that is not a date; "" if all are dates. is_wrong: [rows]."""
    if not is_wrong.any():
        return ""
    row = int(is_wrong.argmax())
    readings = sum(bool(is_read[row]) for is_read in find_readable(column).values())
    if readings > 1:
        return "day and month cannot be told apart; write dates as 2020-01-31"
    return "leave the row out"


def learn_items(tables: Mapping[str, pd.DataFrame], column: str) -> list[Any]:
    """The items of tables, sorted. tables: name in messages → table.

    Raises TableError for a missing item, or an item that a saved model could not store.
    """
    items: set[Any] = set()
    for source, table in tables.items():
        check_columns(table, [column], source)
        _, labels = code_sequences(table[column], source)
        for item in map(as_python, labels):
            if not isinstance(item, PLAIN):
                raise refuse_kind(column, item, source)
            items.add(item)
    return sort_values(items)


def code_values(
    column: pd.Series[Any],
    known: Sequence[Any],
    source: str,
    is_read: np.ndarray | bool = True,
    *,
    noun: str = "items",
    advice: str = "",
) -> np.ndarray:
    """The number of each value among the known ones; 0 for rows that are not read.

    Values of another kind are matched as in `find_values`. Raises TableError for a missing or unknown value; the
    message ends with the advice.
    """
    try:
        codes = find_values(column, known, are_codes=True)
    except TypeError:
        raise refuse_kind(column.name, column.iloc[0], source) from None
    require_values(column, source, is_read)
    problem = (
        f" is not in the training rows, expected one of {len(known):,} {noun} such as {show_value(known[0])}; leave "
        "the row "
        f"out, or fit again with it{advice}"
    )
    refuse_first(is_read & (codes == UNKNOWN), column, source, problem)
    return np.where(codes == UNKNOWN, 0, codes)


def require_numbers(column: pd.Series[Any], source: str, is_read: np.ndarray | bool = True) -> np.ndarray:
    """A column as finite numbers with finite squares; only rows to read are checked. Raises TableError."""
    if column.dtype.kind in "mMc" or isinstance(column.dtype, pd.PeriodDtype):
        problem = "has dates, times or complex numbers, expected numbers; convert it, or name another column"
        raise TableError(problem, subject=source, column=column.name)
    numbers = read_numbers(column)
    expected = f", expected a finite number of at most {LARGEST:g}"
    is_number = ~np.isnan(read_like_numbers(column))
    is_text = column.notna().to_numpy() & ~is_number
    refuse_first(is_read & is_text, column, source, f"{expected}; {_advise_texts(column, is_text, is_number, source)}")
    has_commas = is_read & is_number & np.isnan(numbers)
    refuse_first(has_commas, column, source, f"{expected}; write numbers with a decimal point")
    require_values(column, source, is_read)
    problem = f"{expected}; leave the row out, or scale the column"
    refuse_first(is_read & ~(np.abs(numbers) <= LARGEST), column, source, problem)
    return numbers


def _advise_texts(column: pd.Series[Any], is_text: np.ndarray, is_number: np.ndarray, source: str) -> str:
    """What to do about the cells of a column that are no numbers, "" for none. is_text, is_number: [rows]."""
    if not is_text.any():
        return ""
    unit = describe_unit(column)
    if unit:
        return unit
    if not is_number.any():
        advice = "write it as in training" if source == TABLE else "name another column"
        return f"no cell of the column is a number; {advice}"
    texts = f"{is_text.sum():,} of {len(column):,} cells are not numbers"
    first = str(column.iloc[int(is_text.argmax())])
    # Without another value, the missing cell would be refused, too.
    others = "" if source == TABLE else "if it has other values, "
    return f"{texts}; leave the row out, or {others}treat such values as missing with {name_missing([first])}"


def measure_scale(numbers: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of numbers; exactly 0 for equal numbers, although their mean is rounded."""
    mean = float(numbers.mean())
    deviation = float(numbers.std())
    if deviation <= max(ROUNDING * abs(mean), 1 / LARGEST):
        deviation = 0.0
    return mean, deviation
