"""Tidy tables as padded tensors: one row of a table is an item of a sequence, its value, or both.

Shapes: N sequences of up to I positions; unknown positions, `known` = False, are at the end of each, or where a row has
no value or no item.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attngeo.efa.options import ColumnOptions
from attngeo.errors import TableError, UsageError

if TYPE_CHECKING:
    from attngeo.efa.families import ExponentialFamily

POSITION = "position"
# What messages call the table that a model learns from, and one that a fitted model reads.
TRAINING, TABLE = "the training table", "the table"
NO_SEQUENCE = "has no sequence of two or more rows, expected some"
# Names that a message lists at most.
MOST_LISTED = 10
# Squares of numbers up to this one are finite in single precision, and so are sums of many of them.
LARGEST = 1e18


@dataclass(frozen=True)
class Sequences:
    """The rows of a table, by sequence.

    names: of the sequences, [N]. rows: the row of the table at each position, [N, I], or −1. known: [N, I]. items:
    their numbers, [N, I]. values: [N, I]. coordinates: [N, I, dimensions]. lagged: values at earlier times, the latest
    first, [N, lags, I]. None is what the table lacks; numbers at unknown positions are 0.
    """

    names: np.ndarray
    rows: np.ndarray
    known: Tensor
    items: Tensor | None = None
    values: Tensor | None = None
    coordinates: Tensor | None = None
    lagged: Tensor | None = None

    def __len__(self) -> int:
        return len(self.names)

    def take(self, which: np.ndarray) -> Self:
        """Some of the sequences."""
        parts = (self.items, self.values, self.coordinates, self.lagged)
        at = torch.as_tensor(which)
        return type(self)(
            self.names[which], self.rows[which], self.known[at], *(None if each is None else each[at] for each in parts)
        )

    def scatter(self, found: Tensor, rows: int) -> np.ndarray:
        """Numbers at each position, [N, I, …], as those of each row of the table, [rows, …]."""
        known = self.known.numpy()
        spread = np.full((rows, *found.shape[2:]), np.nan)
        spread[self.rows[known]] = found.double().numpy()[known]
        return spread


@dataclass(frozen=True)
class TableReading:
    """How tables are read: the columns, and what they must have.

    items: the known items in the order of their numbers; None if the table needs none. Those of other kinds are found
    by their texts. has_values, causal: whether values are needed, and whether a sequence of one row makes sense.
    longest: most positions, 0 for any. is_ordered: whether positions matter; a column of that name that nobody asked
    for may then say anything.
    """

    columns: ColumnOptions
    items: Sequence[Any] | None = None
    has_values: bool = False
    causal: bool = False
    longest: int = 0
    is_ordered: bool = True
    numbers: dict[Any, int] = field(init=False)
    texts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", {item: at for at, item in enumerate(self.items or ())})
        object.__setattr__(self, "texts", {str(item): at for at, item in enumerate(self.items or ())})

    @property
    def needed(self) -> list[str]:
        """The columns that a table must have."""
        columns = self.columns
        names = [columns.sequence, *columns.coordinate_names, *columns.lag_names]
        names += [columns.item] if self.items is not None else []
        names += [columns.value] if self.has_values else []
        names += [columns.position] if columns.position is not None else []
        return names

    def read(
        self,
        frame: pd.DataFrame,
        *,
        source: str = TABLE,
        numbers: np.ndarray | None = None,
        places: np.ndarray | None = None,
    ) -> Sequences:
        """The sequences of a table. Raises TableError that names the row, from 1, and what to do.

        numbers, places: of the rows, if they are a part of a larger table: their numbers there, from 0, and what
        `place_rows` said of them.
        """
        columns = self.columns
        frame = frame.set_axis(pd.RangeIndex(len(frame)) if numbers is None else numbers)
        check_columns(frame, self.needed, source)
        codes, labels = code_sequences(frame[columns.sequence], source)
        ranks = self._rank_rows(frame, codes, source) if places is None else None
        order = np.arange(len(frame)) if ranks is None else np.argsort(ranks, kind="stable")
        sequence = codes[order]
        where = _count_before(sequence) if places is None else places
        kept = _keep_long(sequence, labels, columns, causal=self.causal, source=source)
        order, sequence, where = order[kept], sequence[kept], where[kept]
        present, sequence = np.unique(sequence, return_inverse=True)
        if not len(order):
            raise TableError(f"{source} {NO_SEQUENCE}")
        length = int(where.max()) + 1
        self._check_longest(where, labels[present[sequence]], source)
        rows = np.full((len(present), length), -1)
        rows[sequence, where] = frame.index.to_numpy()[order]
        known = torch.as_tensor(rows >= 0)

        def spread(values: np.ndarray) -> Tensor:
            wide = np.zeros((*rows.shape, *values.shape[1:]), values.dtype)
            wide[sequence, where] = values[order]
            return torch.as_tensor(wide)

        def read_all(wanted: Iterable[str]) -> np.ndarray:
            return np.stack([read_numbers(frame, name, kept=order, source=source) for name in wanted], 1)

        return Sequences(
            labels[present], rows, known,
            items=spread(self._read_items(frame, order, source)) if self.items is not None else None,
            values=spread(read_all([columns.value])[:, 0]) if self.has_values else None,
            coordinates=spread(read_all(columns.coordinate_names)) if columns.coordinates else None,
            lagged=spread(read_all(columns.lag_names)).transpose(1, 2).contiguous() if columns.lags else None,
        )  # fmt: skip

    def place_rows(self, frame: pd.DataFrame, missing: np.ndarray) -> np.ndarray:
        """The position of each row in its sequence, from 0, those that are missing included: [rows].

        Missing rows may share one: each is asked for there, without the others. They do if the column of positions says
        so; without that column, all of those after the last row that is there are next to it. Raises TableError.
        """
        check_columns(frame, self.needed, TABLE)
        codes, labels = code_sequences(frame[self.columns.sequence], TABLE)
        ranks = self._rank_rows(frame, codes, TABLE, missing)
        if ranks is None:
            before = _count_before(codes)
            last = pd.Series(np.where(missing, -1, before)).groupby(codes).transform("max").to_numpy()
            ranks = np.minimum(before, last + 1)
        found: np.ndarray = pd.Series(ranks).groupby(codes).rank(method="dense").to_numpy(np.int64) - 1
        self._check_longest(found, labels[codes], TABLE, "; rows that are asked for may share a position")
        return found

    def _check_longest(self, where: np.ndarray, names: np.ndarray, source: str, advice: str = "") -> None:
        """Raise TableError for a position beyond the last one. where, names: position and sequence of each row."""
        at = where.argmax()
        if self.longest and where[at] >= self.longest:
            raise TableError(
                f"{source}: sequence {show_name(names[at])} has {where[at] + 1} positions, expected at most "
                f"{self.longest}; shorten it, or fit with a larger longest{advice}"
            )

    def _rank_rows(
        self, frame: pd.DataFrame, codes: np.ndarray, source: str, missing: np.ndarray | None = None
    ) -> np.ndarray | None:
        """The ranks of the positions of rows; None if the table has none, and its order counts.

        codes: of the sequences of rows. Positions of a sequence must differ, but those of missing rows need not differ
        from each other.
        """
        name = self.columns.position
        if name is not None:
            return _rank_positions(frame[name], codes, source, missing)
        if POSITION not in frame.columns:
            return None
        try:
            return _rank_positions(frame[POSITION], codes, source, missing)
        except TableError:
            if self.is_ordered:
                raise
            return None

    def _read_items(self, frame: pd.DataFrame, order: np.ndarray, source: str) -> np.ndarray:
        items = frame[self.columns.item]
        found = items.map(self.numbers)
        if found.isna().any():  # the kind of a column of a text file depends on all of its cells
            found = found.fillna(items.astype(str).map(self.texts))
        unseen = order[found.isna().to_numpy()[order]]
        if len(unseen):
            at = int(unseen.min())
            require_values(items.iloc[[at]], source)
            item, known = show_name(items.iloc[at]), show_name(next(iter(self.numbers)))
            raise TableError(
                f"{source}: row {frame.index[at] + 1} has the item {item}, which no training row has, expected one of "
                f"{len(self.numbers):,} items such as {known}; leave it out, or fit again with it"
            )
        return found.fillna(0).to_numpy().astype(np.int64)


class HasFrames(Protocol):
    """A table that is read in parts."""

    def frames(self, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """Its rows, with these columns at least."""


def learn_items(tables: Iterable[HasFrames], column: str, sources: Iterable[str]) -> list[Any]:
    """The items of tables, sorted. Raises TableError for one that is missing."""
    found: set[Any] = set()
    for table, source in zip(tables, sources, strict=True):
        rows = 0
        for frame in table.frames([column]):
            require_values(frame[column], source, first=rows)
            try:
                found |= set(frame[column].unique().tolist())
            except TypeError:
                raise refuse_kind(frame[column], source) from None
            rows += len(frame)
    try:
        return sorted(found)
    except TypeError:
        return sorted(found, key=lambda item: (type(item).__name__, item))


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
            have = ", ".join(map(str, columns[:MOST_LISTED]))
            what = f"{count} columns {name!r}" if count else f"no column {name!r}"
            advice = "as in training" if source == TABLE else "by options such as sequence and item"
            raise TableError(f"{source}: {what}, expected one; it has {have}; name the columns {advice}")


def require_values(column: pd.Series[Any], source: str, *, first: int | None = None) -> None:
    """Raise TableError for a missing value. first: the number of the first row; without it, the index has numbers."""
    missing = column.isna().to_numpy()
    if missing.any():
        at = int(missing.argmax())
        row = (column.index[at] if first is None else first + at) + 1
        raise TableError(f"{source}: row {row} has no {column.name}, expected one in each row; leave it out")


def refuse_kind(column: pd.Series[Any], source: str) -> TableError:
    """The error for a column whose values cannot be told apart, such as lists."""
    kind = type(column.iloc[0]).__name__
    return TableError(f"{source}: column {column.name!r} has a {kind}, expected texts or numbers")


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


def check_support(family: ExponentialFamily, sequences: Sequences, column: str, source: str) -> None:
    """Raise TableError for the first row whose value the family cannot give."""
    assert sequences.values is not None
    wrong = ~family.supports(sequences.values) & sequences.known
    if wrong.any():
        rows = sequences.rows[wrong.numpy()]
        at = int(rows.argmin())
        value = float(sequences.values[wrong][at])
        advice = "leave the row out" if source == TABLE else "choose another family"
        raise TableError(f"{source}: row {rows[at] + 1} has {column} {value:g}, expected {family.values}; {advice}")


def check_levels(sequences: Sequences, column: str, source: str) -> None:
    """Raise TableError for the first row whose value, or one at an earlier time, has no vector of its own."""
    assert sequences.values is not None
    earlier = [] if sequences.lagged is None else sequences.lagged.unbind(1)
    for what, values in ((column, sequences.values), *(("an earlier value", each) for each in earlier)):
        wrong = ((values < 0) | (values != values.floor())) & sequences.known
        if wrong.any():
            rows = sequences.rows[wrong.numpy()]
            at = int(rows.argmin())
            advice = "choose network, or truncated, which drops fractions" if source != TABLE else "leave the row out"
            raise TableError(
                f"{source}: row {rows[at] + 1} has {what} {float(values[wrong][at]):g}, expected a whole number from 0 "
                f"for the embedding levels; {advice}"
            )


def _rank_positions(column: pd.Series[Any], codes: np.ndarray, source: str, missing: np.ndarray | None) -> np.ndarray:
    """The ranks of positions, as `TableReading` has them."""
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


def code_sequences(column: pd.Series[Any], source: str) -> tuple[np.ndarray, np.ndarray]:
    """The number of the sequence of each row, and the names of all sequences, as they come first. Raises TableError."""
    require_values(column, source)
    try:
        codes, labels = pd.factorize(column)
    except TypeError:
        raise refuse_kind(column, source) from None
    return codes, np.asarray(labels)


def _count_before(codes: np.ndarray) -> np.ndarray:
    """How many rows before each one are of its sequence."""
    return pd.Series(codes).groupby(codes).cumcount().to_numpy()


def may_be_alone(columns: ColumnOptions, *, causal: bool) -> bool:
    """Whether a sequence of one row is read."""
    return columns.short == "keep" or (causal and columns.short == "error")


def _name_others(count: int) -> str:
    return f", and so {'has 1 other' if count == 1 else f'have {count:,} others'}" if count else ""


def _keep_long(
    sequence: np.ndarray, labels: np.ndarray, columns: ColumnOptions, *, causal: bool, source: str
) -> np.ndarray:
    """Whether each row is read: rows that are alone in their sequence may be refused or left out."""
    counts = np.bincount(sequence, minlength=len(labels))
    if may_be_alone(columns, causal=causal):
        return np.ones(len(sequence), bool)
    alone = np.flatnonzero(counts == 1)
    if len(alone) and columns.short == "error":
        raise TableError(
            f"{source}: sequence {show_name(labels[alone[0]])} has one row, which no other row predicts"
            f"{_name_others(len(alone) - 1)}; leave it out, or set short of fit or predict to drop or keep"
        )
    kept: np.ndarray = counts[sequence] > 1
    return kept
