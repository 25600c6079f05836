"""Columns of a tidy table as codes, ranks and numbers, with the row that an error is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attngeo.bounds.names import list_names, printable
from attngeo.choices import advise, as_python
from attngeo.errors import TableError, UsageError
from attngeo.estimators.efa.families import LARGEST
from attngeo.estimators.shared.cells import UNKNOWN, find_values, parse_numbers, read_numbers, show_value
from attngeo.estimators.shared.files import sort_values
from attngeo.estimators.shared.saving import PLAIN

# The names in messages of the tables of a fit, and of one that a fitted model reads.
TRAINING = "the training table"
HELD_OUT = "the validation table"
TEST = "the test table"
TABLE = "the table"
# A deviation that is a smaller share of the mean is that of equal numbers, whose mean is rounded.
ROUNDING = 2.0**-48


def require_frame(data: Any, source: str = TABLE) -> None:
    """Raise UsageError unless it is a DataFrame."""
    if not isinstance(data, pd.DataFrame):
        raise UsageError(f"{source} is a {type(data).__name__}, expected a DataFrame; read a file with pandas first")


def check_columns(frame: pd.DataFrame, names: Iterable[str], source: str) -> None:
    """Raise TableError unless the table has rows, and these columns once each."""
    if not len(frame):
        raise TableError("has no rows, expected some", table=source)
    require_columns(list(frame.columns), names, source)


def require_columns(columns: Sequence[Any], names: Iterable[str], source: str) -> None:
    """Raise TableError unless a table has these columns once each."""
    for name in names:
        count = columns.count(name)
        if count == 1:
            continue
        options: tuple[str, ...] = ("sequence", "item")
        advice = "name the columns by options such as $sequence and $item"
        if source == TABLE:  # of a fitted model
            options = ()
            advice = "name the columns as in training"
        problem = f"{count} columns {name!r:.60}"
        if not count:
            problem = f"no column {name!r:.60}"
            advice = advise(name, map(printable, map(str, columns)), advice)
        raise TableError(f"{problem}, expected one; it has {list_names(columns)}; {advice}", *options, table=source)


def require_values(column: pd.Series[Any], source: str) -> None:
    """Raise TableError for a missing value."""
    missing = column.isna().to_numpy()
    if missing.any():
        row = int(missing.argmax()) + 1
        problem = "the cell is empty, or a text such as NA that --missing names; fill it or leave the row out"
        raise TableError(problem, table=source, row=row, column=column.name)


def refuse_kind(column: Any, value: Any, source: str) -> TableError:
    """The error for a value that cannot be told from others, such as a list, or that no saved model keeps."""
    kind = type(value).__name__
    return TableError(f"has a {kind}, expected texts or numbers; convert it", table=source, column=column)


def code_sequences(column: pd.Series[Any], source: str) -> tuple[np.ndarray, np.ndarray]:
    """The number of the sequence of each row, and the names of all sequences, as they come first. Raises TableError."""
    require_values(column, source)
    try:
        codes, labels = pd.factorize(column)
    except TypeError:
        raise refuse_kind(column.name, column.iloc[0], source) from None
    return codes, np.asarray(labels)


def rank_positions(column: pd.Series[Any], codes: np.ndarray, source: str, missing: np.ndarray) -> np.ndarray:
    """The ranks of the positions of rows. Raises TableError for one that a sequence has twice, but for missing rows.

    codes: of the sequences of rows. missing: which rows may share a position with other missing ones.
    """
    positions = _read_positions(column, source)
    twice = pd.DataFrame({"sequence": codes, "position": positions}).duplicated()
    if missing.any():
        twice &= ~pd.Series(missing).groupby([codes, positions]).transform("all")
    if twice.any():
        row = int(np.flatnonzero(twice)[0])
        problem = f"{show_value(column.iloc[row])} is in its sequence twice; name a column that numbers its rows"
        raise TableError(problem, table=source, row=row + 1, column=column.name)
    return positions


def _read_positions(column: pd.Series[Any], source: str) -> np.ndarray:
    """The ranks of positions, equal ones together: of numbers with all their digits, or of dates of any year."""
    require_values(column, source)
    values = column.dt.start_time if isinstance(column.dtype, pd.PeriodDtype) else column
    if column.dtype.kind == "c":
        raise TableError("has complex numbers, expected real ones, or dates", table=source, column=column.name)
    if not (pd.api.types.is_numeric_dtype(values.dtype) or values.dtype.kind in "mM"):  # texts, or days of Parquet
        values = parse_numbers(column)
        if values.isna().any():
            dates = pd.to_datetime(column, errors="coerce", utc=True, format="ISO8601")
            if dates.isna().sum() < values.isna().sum():
                values = dates
    wrong = values.isna().to_numpy()
    if values.dtype.kind == "f":
        wrong = wrong | np.isinf(values.to_numpy(np.float64, na_value=np.nan))
    if wrong.any():
        row = int(wrong.argmax())
        problem = f"{show_value(column.iloc[row])}, expected a finite number or a date (2020-01-31); leave the row out"
        raise TableError(problem, table=source, row=row + 1, column=column.name)
    return values.rank(method="dense").to_numpy(np.int64)


def learn_items(tables: Mapping[str, pd.DataFrame], column: str) -> list[Any]:
    """The items of tables, sorted. tables: by their names in messages.

    Raises TableError for an item that is missing, or that a saved model could not keep.
    """
    items: set[Any] = set()
    for source, table in tables.items():
        check_columns(table, [column], source)
        require_values(table[column], source)
        try:
            new = set(table[column].unique().tolist()) - items
        except TypeError:
            raise refuse_kind(column, table[column].iloc[0], source) from None
        for item in new:
            if not isinstance(as_python(item), PLAIN):
                raise refuse_kind(column, item, source)
        items |= new
    return sort_values(items)


def code_values(
    column: pd.Series[Any], known: Sequence[Any], *, kept: np.ndarray, source: str, noun: str = "items"
) -> np.ndarray:
    """The numbers of values among the known ones; 0 for rows that are not kept, which are not read.

    Those of other kinds are found as `find_values` does. Raises TableError for a value that is missing or unknown.
    """
    try:
        codes = find_values(column, known, are_codes=True)
    except TypeError:
        raise refuse_kind(column.name, column.iloc[0], source) from None
    unseen = kept[codes[kept] == UNKNOWN]
    if len(unseen):
        row = int(unseen.min())
        if column.isna().iloc[row]:
            require_values(column, source)
        raise TableError(
            f"{show_value(column.iloc[row])} is in no training row, expected one of {len(known):,} {noun} such as "
            f"{show_value(known[0])}; leave the row out, or fit again with it",
            table=source,
            row=row + 1,
            column=column.name,
        )
    return np.where(codes == UNKNOWN, 0, codes)


def require_numbers(frame: pd.DataFrame, name: str, *, kept: np.ndarray, source: str) -> np.ndarray:
    """A column as finite numbers whose squares are finite, checked for the kept rows. Raises TableError."""
    if frame[name].dtype.kind in "mM" or isinstance(frame[name].dtype, pd.PeriodDtype):
        raise TableError("has dates or times, expected numbers; convert it, or name another", table=source, column=name)
    if frame[name].dtype.kind == "c":
        raise TableError("has complex numbers, expected real ones; convert it", table=source, column=name)
    numbers = read_numbers(frame[name])
    wrong = kept[~(np.abs(numbers[kept]) <= LARGEST)]
    if len(wrong):
        row = int(wrong.min())
        value = show_value(frame[name].iloc[row])
        problem = f"{value}, expected a finite number of at most {LARGEST:g}; leave the row out, or scale the column"
        raise TableError(problem, table=source, row=row + 1, column=name)
    return numbers


def require_all_numbers(frame: pd.DataFrame, name: str, *, source: str) -> np.ndarray:
    """`require_numbers` of all rows."""
    return require_numbers(frame, name, kept=np.arange(len(frame)), source=source)


def measure_scale(numbers: np.ndarray) -> tuple[float, float]:
    """Mean and deviation of numbers; 0 for equal ones, whose mean is rounded."""
    mean = float(numbers.mean())
    deviation = float(numbers.std())
    if deviation <= max(ROUNDING * abs(mean), 1 / LARGEST):
        deviation = 0.0
    return mean, deviation
