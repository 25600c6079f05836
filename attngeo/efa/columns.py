"""The columns of a tidy table, as sequences, ranks of positions, items and numbers, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

import numpy as np
import pandas as pd

from attngeo.bounds import list_names, printable
from attngeo.errors import TableError, UsageError
from attngeo.estimators.shared.saving import PLAIN

# What messages call the table that a model learns from, and one that a fitted model reads.
TRAINING, TABLE = "the training table", "the table"
# Squares of numbers up to this one are finite in single precision, and so are sums of many of them.
LARGEST = 1e18


def require_frame(data: Any) -> None:
    """Raise UsageError unless it is a DataFrame."""
    if not isinstance(data, pd.DataFrame):
        raise UsageError(f"the table is a {type(data).__name__}, expected a DataFrame; read a file with pandas first")


def check_columns(frame: pd.DataFrame, names: Iterable[str], source: str) -> None:
    """Raise TableError unless the table has rows, and these columns once each."""
    if not len(frame):
        raise TableError(f"{source} has no rows, expected some")
    require_columns(list(frame.columns), names, source)


def require_columns(columns: Sequence[Any], names: Iterable[str], source: str) -> None:
    """Raise TableError unless a table has these columns once each."""
    for name in names:
        count = columns.count(name)
        if count != 1:
            have = list_names(columns)
            what = f"{count} columns {name!r:.60}" if count else f"no column {name!r:.60}"
            near = [] if count else get_close_matches(name, map(str, columns), 1)
            by = "as in training" if source == TABLE else "by options such as sequence and item"
            advice = f"did you mean {printable(near[0])}?" if near else f"name the columns {by}"
            raise TableError(f"{source}: {what}, expected one; it has {have}; {advice}")


def require_values(column: pd.Series[Any], source: str, *, first: int | None = None) -> None:
    """Raise TableError for a missing value. first: the number of the first row; without it, the index has numbers."""
    missing = column.isna().to_numpy()
    if missing.any():
        at = int(missing.argmax())
        row = (column.index[at] if first is None else first + at) + 1
        raise TableError(f"{source}: row {row} has no {column.name}, expected one in each row; leave it out")


def refuse_kind(column: Any, value: Any, source: str) -> TableError:
    """The error for a value that cannot be told from others, such as a list, or that no saved model keeps."""
    kind = type(value).__name__
    return TableError(f"{source}: column {column!r} has a {kind}, expected texts or numbers; convert it")


def code_sequences(column: pd.Series[Any], source: str, *, first: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The number of the sequence of each row, and the names of all sequences, as they come first.

    first: as in `require_values`. Raises TableError.
    """
    require_values(column, source, first=first)
    try:
        codes, labels = pd.factorize(column)
    except TypeError:
        raise refuse_kind(column.name, column.iloc[0], source) from None
    return codes, np.asarray(labels)


def rank_positions(column: pd.Series[Any], codes: np.ndarray, source: str, missing: np.ndarray | None) -> np.ndarray:
    """The ranks of the positions of rows. Raises TableError for one that a sequence has twice, but for missing rows.

    codes: of the sequences of rows. missing: which rows may share a position with other missing ones.
    """
    positions = _read_positions(column, source)
    twice = pd.DataFrame({"sequence": codes, "position": positions}).duplicated()
    if missing is not None:
        twice &= ~pd.Series(missing).groupby([codes, positions]).transform("all")
    if twice.any():
        at = int(np.flatnonzero(twice)[0])
        raise TableError(
            f"{source}: row {column.index[at] + 1} has the {column.name} {show_name(column.iloc[at])} of an "
            "earlier row of its sequence, expected another one; name a column that numbers them"
        )
    return positions


def _read_positions(column: pd.Series[Any], source: str) -> np.ndarray:
    """The ranks of positions, equal ones together: of numbers with all their digits, or of dates of any year."""
    require_values(column, source)
    values = column.dt.start_time if isinstance(column.dtype, pd.PeriodDtype) else column
    if column.dtype.kind == "c":
        raise TableError(f"{source}: column {column.name!r} has complex numbers, expected real ones, or dates")
    if not (pd.api.types.is_numeric_dtype(values.dtype) or values.dtype.kind in "mM"):  # texts, or days of Parquet
        values = pd.to_numeric(column, errors="coerce")
        if values.isna().any():
            dates = pd.to_datetime(column, errors="coerce", utc=True, format="ISO8601")
            values = dates if dates.isna().sum() < values.isna().sum() else values
    wrong = values.isna().to_numpy() | (values.abs() == np.inf if values.dtype.kind == "f" else False)
    if wrong.any():
        at = int(wrong.argmax())
        raise TableError(
            f"{source}: row {column.index[at] + 1} has {show_name(column.iloc[at])} in column {column.name!r}, "
            "expected a finite number, or a date such as 2020-01-31; leave the row out"
        )
    return values.rank(method="dense").to_numpy(np.int64)


class HasFrames(Protocol):
    """A table that is read in parts."""

    def frames(self, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """Its rows, with these columns at least."""


def learn_items(tables: Iterable[HasFrames], column: str, sources: Iterable[str]) -> list[Any]:
    """The items of tables, sorted. Raises TableError for one that is missing, or that a saved model could not keep."""
    found: set[Any] = set()
    for table, source in zip(tables, sources, strict=True):
        rows = 0
        for frame in table.frames([column]):
            require_values(frame[column], source, first=rows)
            try:
                items = set(frame[column].unique().tolist())
            except TypeError:
                raise refuse_kind(column, frame[column].iloc[0], source) from None
            for item in items - found:
                if not isinstance(item.item() if isinstance(item, np.generic) else item, PLAIN):
                    raise refuse_kind(column, item, source)
            found |= items
            rows += len(frame)
    try:
        return sorted(found)
    except TypeError:
        return sorted(found, key=lambda item: (type(item).__name__, item))


def read_numbers(frame: pd.DataFrame, name: str, *, kept: np.ndarray, source: str) -> np.ndarray:
    """A column as finite numbers whose squares are finite, checked for the kept rows. Raises TableError."""
    if frame[name].dtype.kind in "mM" or isinstance(frame[name].dtype, pd.PeriodDtype):
        raise TableError(f"{source}: column {name!r} has dates or times, expected numbers; convert it, or name another")
    if frame[name].dtype.kind == "c":
        raise TableError(f"{source}: column {name!r} has complex numbers, expected real ones; convert it")
    numbers = pd.to_numeric(frame[name], errors="coerce").to_numpy(np.float64, na_value=np.nan)
    wrong = kept[~(np.abs(numbers[kept]) <= LARGEST)]
    if len(wrong):
        at = int(wrong.min())
        value = show_name(frame[name].iloc[at])
        raise TableError(
            f"{source}: row {frame.index[at] + 1} has {value} in column {name!r}, expected a finite number of at most "
            f"{LARGEST:g} in size; leave the row out, or scale the column"
        )
    return numbers


def show_name(value: Any) -> str:
    """A value of a table for messages, as Python writes it."""
    return f"{value.item() if isinstance(value, np.generic) else value!r:.60}"
