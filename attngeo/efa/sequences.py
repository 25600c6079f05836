"""Tidy tables as tensors: one row of a table is an item of a sequence, its value, or both.

Shapes: N sequences with P places in all, one sequence after the other; padded, N sequences of up to I positions. A
place that is not known, `known` = False, is that of a row without a value or an item, or is padding at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attngeo.efa.columns import (
    TABLE,
    check_columns,
    code_sequences,
    rank_positions,
    read_numbers,
    require_values,
    show_name,
)
from attngeo.efa.options import ColumnOptions
from attngeo.errors import TableError

if TYPE_CHECKING:
    from attngeo.efa.families import ExponentialFamily

POSITION = "position"
NO_SEQUENCE = "has no sequence of two or more rows, expected some"


@dataclass(frozen=True)
class Sequences:
    """The rows of a table, by sequence, without padding: one long sequence does not make the others larger.

    names: of the sequences, [N]. starts: the first place of each, and the number of places, [N + 1]. rows: the row of
    the table at each place, [P], or −1. known: [P]. items: their numbers, [P]. values: [P]. coordinates: [P,
    dimensions]. lagged: values at earlier times, the latest first, [P, lags]. None is what the table lacks; numbers at
    unknown places are 0.
    """

    names: np.ndarray
    starts: np.ndarray
    rows: np.ndarray
    known: Tensor
    items: Tensor | None = None
    values: Tensor | None = None
    coordinates: Tensor | None = None
    lagged: Tensor | None = None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lengths(self) -> np.ndarray:
        """The number of places of each sequence, [N]."""
        return np.diff(self.starts)

    def take(self, which: np.ndarray) -> Self:
        """Some of the sequences."""
        at = torch.as_tensor(self.find_places(which))
        parts = (self.items, self.values, self.coordinates, self.lagged)
        starts = np.concatenate([[0], self.lengths[which].cumsum()])
        return type(self)(
            self.names[which], starts, self.rows[at.numpy()], self.known[at],
            *(None if each is None else each[at] for each in parts),
        )  # fmt: skip

    def find_places(self, which: np.ndarray) -> np.ndarray:
        """The places of some of the sequences, one after the other."""
        lengths = self.lengths[which]
        before = lengths.cumsum() - lengths
        places: np.ndarray = np.repeat(self.starts[which] - before, lengths) + np.arange(lengths.sum())
        return places

    @cached_property
    def at(self) -> tuple[Tensor, Tensor]:
        """The sequence and the position of each place, [P] each."""
        sequence = np.repeat(np.arange(len(self)), self.lengths)
        return torch.as_tensor(sequence), torch.as_tensor(np.arange(len(self.rows)) - self.starts[sequence])

    def pad(self, numbers: Tensor) -> Tensor:
        """Numbers of places, [P, …], as those of positions, [N, I, …]; 0 at those that a sequence does not have."""
        wide = numbers.new_zeros(len(self), int(self.lengths.max(initial=1)), *numbers.shape[1:])
        wide[self.at] = numbers
        return wide

    def scatter(self, found: Tensor, rows: int) -> np.ndarray:
        """Numbers at each place, [P, …], as those of each row of the table, [rows, …]."""
        known = self.known.numpy()
        spread = np.full((rows, *found.shape[1:]), np.nan)
        spread[self.rows[known]] = found.double().numpy()[known]
        return spread


@dataclass(frozen=True)
class TableReading:
    """How tables are read: the columns, and what they must have.

    items: the known items in the order of their numbers; None if the table needs none. Those of other kinds are found
    by their texts. has_values, causal: whether values are needed, and whether a sequence of one row makes sense.
    longest: most positions, 0 for any. is_ordered: whether positions matter. If not, a column called position that
    cannot be read is ignored, unless the options name it.
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
        self._check_longest(where, labels[present[sequence]], source)
        lengths = np.zeros(len(present), np.int64)
        np.maximum.at(lengths, sequence, where + 1)
        starts = np.concatenate([[0], lengths.cumsum()])
        place = starts[sequence] + where
        rows = np.full(starts[-1], -1)
        rows[place] = frame.index.to_numpy()[order]

        def spread(values: np.ndarray) -> Tensor:
            found = np.zeros((len(rows), *values.shape[1:]), values.dtype)
            found[place] = values[order]
            return torch.as_tensor(found)

        def read_all(wanted: Iterable[str]) -> np.ndarray:
            return np.stack([read_numbers(frame, name, kept=order, source=source) for name in wanted], 1)

        return Sequences(
            labels[present], starts, rows, torch.as_tensor(rows >= 0),
            items=spread(self._read_items(frame, order, source)) if self.items is not None else None,
            values=spread(read_all([columns.value])[:, 0]) if self.has_values else None,
            coordinates=spread(read_all(columns.coordinate_names)) if columns.coordinates else None,
            lagged=spread(read_all(columns.lag_names)) if columns.lags else None,
        )  # fmt: skip

    def place_rows(self, frame: pd.DataFrame, missing: np.ndarray) -> np.ndarray:
        """The position of each row in its sequence, from 0, those that are missing included: [rows].

        Missing rows may have one position: each is asked for there, without the others. Without a column of positions,
        those at the end of a sequence all have the first position after the rows that are there. Raises TableError.
        """
        check_columns(frame, self.needed, TABLE)
        codes, labels = code_sequences(frame[self.columns.sequence], TABLE)
        ranks = self._rank_rows(frame, codes, TABLE, missing)
        if ranks is None:
            before = _count_before(codes)
            last = pd.Series(np.where(missing, -1, before)).groupby(codes).transform("max").to_numpy()
            ranks = np.minimum(before, last + 1)
        found: np.ndarray = pd.Series(ranks).groupby(codes).rank(method="dense").to_numpy(np.int64) - 1
        advice = "; rows that are asked for may share a position" if missing.any() else ""
        self._check_longest(found, labels[codes], TABLE, advice)
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
            return rank_positions(frame[name], codes, source, missing)
        if POSITION not in frame.columns:
            return None
        try:
            return rank_positions(frame[POSITION], codes, source, missing)
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
