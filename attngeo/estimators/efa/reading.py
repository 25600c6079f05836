"""Tables as sequences: a tidy table with a row for each observation is read as tensors of entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attngeo.errors import TableError
from attngeo.estimators.efa.columns import (
    TABLE,
    check_columns,
    code_sequences,
    code_values,
    rank_positions,
    require_all_numbers,
    require_frame,
    require_numbers,
)
from attngeo.estimators.efa.covariates import read_covariates
from attngeo.estimators.efa.families import ExponentialFamily
from attngeo.estimators.efa.options import EfaOptions
from attngeo.estimators.efa.sequences import POSITION, DataShape, Sequences
from attngeo.estimators.shared.cells import show_value

# Coordinates of one place in two tables differ by less than this share of the largest one in their column.
SAME_PLACE = 1e-6


@dataclass(frozen=True)
class TableReader:
    """A reader of tables for a part of a model: the columns, and what they must have.

    items: the known items in the order of their numbers; None if the table needs none. Those of other kinds are found
    by their texts. If positions do not matter, a column called position that cannot be read is ignored, unless the
    options name it.
    """

    options: EfaOptions
    items: Sequence[Any] | None
    shape: DataShape

    @property
    def has_values(self) -> bool:
        """Whether values are modelled."""
        return self.shape.part == "values"

    @property
    def position(self) -> str | None:
        """The column of positions that a table must have."""
        return self.options.position or self.shape.position

    @property
    def modelled(self) -> list[str]:
        """The columns of what is modelled."""
        return list(self.options.families) if self.has_values else [self.options.item]

    @property
    def needed(self) -> list[str]:
        """The columns that a table must have."""
        options = self.options
        names = [options.sequence, *options.kinds]
        if self.items is not None:
            names.append(options.item)
        if self.has_values:
            names += [*options.coordinates, *options.lags, *self.modelled]
        if self.position is not None:
            names.append(self.position)
        return names

    def read(self, frame: pd.DataFrame, *, source: str = TABLE, fill: bool = False) -> Sequences:
        """The sequences of a table.

        Args:
            frame: a row for each observation.
            source: what messages call the table.
            fill: whether rows may lack what is modelled. They are predicted from those that have it, and no row is
                predicted from them. Those of one position are alternatives: each has a copy of its sequence, without
                the other ones.

        Raises:
            TableError: a cell or a sequence cannot be read; it names the row, from 1, and what to do.
        """
        require_frame(frame, source)
        check_columns(frame, self.needed, source)
        codes, labels = code_sequences(frame[self.options.sequence], source)
        is_empty = frame[self.modelled].isna().to_numpy()
        lacks_item = np.zeros(len(frame), bool)
        if fill and self.has_values and self.items is not None and self.options.part == "both":
            lacks_item = frame[self.options.item].isna().to_numpy()
        missing = is_empty.all(1) | lacks_item if fill else lacks_item
        predicted = self._find_predicted(codes, labels, missing, source) & ~lacks_item
        positions = self._find_positions(frame, codes, labels, missing, source)
        layout = _lay_out(codes, positions, missing)
        columns: dict[str, np.ndarray] = {}
        if self.items is not None:
            with_item = ~lacks_item if self.has_values else ~missing
            kept = np.flatnonzero(with_item)
            columns["items"] = code_values(frame[self.options.item], self.items, kept=kept, source=source)
        if self.has_values:
            values = self._read_values(frame, is_empty, missing, source)
            columns["values"] = np.where(missing[:, None], 0, values)
            for tensor, names in (("coordinates", self.options.coordinates), ("lagged", self.options.lags)):
                if names:
                    numbers = [require_all_numbers(frame, name, source=source) for name in names]
                    columns[tensor] = np.stack(numbers, 1)
        if self.shape.covariates:
            covariates = dict(zip(self.options.kinds, self.shape.covariates, strict=True))
            columns["categories"], columns["numbers"] = read_covariates(frame, covariates, source)
        return Sequences(
            names=labels[layout.sequences],
            starts=layout.starts,
            rows=layout.find_rows(),
            known=layout.spread(~missing),
            asked=layout.spread(predicted),
            **{name: layout.spread(numbers) for name, numbers in columns.items()},
        )

    def _read_values(self, frame: pd.DataFrame, is_empty: np.ndarray, missing: np.ndarray, source: str) -> np.ndarray:
        """The values of rows, [rows, columns]; NaN for those that a row lacks which has another one. Raises TableError.

        is_empty: cells, [rows, columns]. missing: which rows are not read.
        """
        is_read = ~missing[:, None] & (~is_empty | is_empty.all(1, keepdims=True))
        values = []
        for name, cells in zip(self.modelled, is_read.T, strict=True):
            values.append(require_numbers(frame, name, kept=np.flatnonzero(cells), source=source))
        return np.stack(values, 1)

    def _find_predicted(self, codes: np.ndarray, labels: np.ndarray, missing: np.ndarray, source: str) -> np.ndarray:
        """Which rows are predicted: missing ones, and those that another known row predicts. Raises TableError.

        A factor model of places predicts only the missing row of a sequence that has one.
        """
        sizes = np.bincount(codes)
        known = np.bincount(codes[~missing], minlength=len(sizes))
        if self.shape.places:  # whose values a factor model adds up
            gaps = sizes - known
            has_several = gaps > 1
            if has_several.any():
                sequence = codes[missing][has_several[codes[missing]]][0]
                raise TableError(
                    f"sequence {show_value(labels[sequence])} has {gaps[sequence]} missing values, expected at most "
                    "one: a factor model of places adds up all others; leave such sequences out, or fit one with model "
                    "efa",
                    table=source,
                )
            is_predicted: np.ndarray = missing | (gaps[codes] == 0)
            return is_predicted
        if self.options.may_be_alone:
            return np.ones(len(codes), bool)
        advice = "leave it out, or set short of fit or predict to keep"
        if (known == 0).any():
            columns = " or ".join(self.modelled)
            raise TableError(
                f"sequence {show_value(labels[(known == 0).argmax()])} has no row with {columns}, so no "
                f"row predicts another; {advice}",
                table=source,
            )
        alone = np.flatnonzero(sizes == 1)
        if len(alone):
            others = ""
            if len(alone) == 2:
                others = ", and so has 1 other"
            elif len(alone) > 2:
                others = f", and so have {len(alone) - 1:,} others"
            raise TableError(
                f"sequence {show_value(labels[alone[0]])} has one row, which no other row predicts{others}; {advice}",
                table=source,
            )
        has_others: np.ndarray = missing | (known[codes] > 1)
        return has_others

    def _find_positions(
        self, frame: pd.DataFrame, codes: np.ndarray, labels: np.ndarray, missing: np.ndarray, source: str
    ) -> np.ndarray:
        """The position of each row in its sequence, from 0, [rows]. Raises TableError.

        Missing rows may have one position. Without a column of positions, those at the end of a sequence all have the
        first position after the rows that are there.
        """
        ranks = self._rank_rows(frame, codes, source, missing)
        if ranks is None:
            positions: np.ndarray = pd.Series(codes).groupby(codes).cumcount().to_numpy()
            if missing.any():
                last = pd.Series(np.where(missing, -1, positions)).groupby(codes).transform("max").to_numpy()
                ranks = np.minimum(positions, last + 1)
        if ranks is not None:
            positions = pd.Series(ranks).groupby(codes).rank(method="dense").to_numpy(np.int64) - 1
        row = positions.argmax()
        longest = self.shape.longest
        if longest and positions[row] >= longest and self.options.gives_vectors(self.position):
            advice = "; rows that are asked for may share a position" if missing.any() else ""
            raise TableError(
                f"sequence {show_value(labels[codes[row]])} has {positions[row] + 1} positions, expected at most "
                f"{longest}; shorten it, or fit to longer sequences{advice}",
                table=source,
            )
        return positions

    def _rank_rows(self, frame: pd.DataFrame, codes: np.ndarray, source: str, missing: np.ndarray) -> np.ndarray | None:
        """The ranks of the positions of rows; None if the table has none, and its order counts.

        codes: of the sequences of rows. Positions of a sequence must differ, but those of missing rows need not differ
        from each other.
        """
        if self.position is None and POSITION not in frame.columns:
            return None
        try:
            return rank_positions(frame[self.position or POSITION], codes, source, missing)
        except TableError:
            if self.position is not None or self.options.has_order(None) or not self.items:
                raise
            return None


@dataclass(frozen=True)
class EntryLayout:
    """The entry of each row of a table. A row has an entry in each copy of its sequence, R in all.

    sequences: the sequence of each copy, [N]. starts: the first entry of each copy, and the number of entries, [N + 1].
    rows, entries: [R] each.
    """

    sequences: np.ndarray
    starts: np.ndarray
    rows: np.ndarray
    entries: np.ndarray

    def spread(self, numbers: np.ndarray) -> Tensor:
        """Numbers of rows, [rows, …], as those of entries, [P, …]; 0 for an entry without a row."""
        spread = np.zeros((self.starts[-1], *numbers.shape[1:]), numbers.dtype)
        spread[self.entries] = numbers[self.rows]
        return torch.as_tensor(spread)

    def find_rows(self) -> np.ndarray:
        """The row at each entry, [P]; −1 for none."""
        rows = np.full(self.starts[-1], -1)
        rows[self.entries] = self.rows
        return rows


def _lay_out(codes: np.ndarray, positions: np.ndarray, missing: np.ndarray) -> EntryLayout:
    """The entries of rows. codes, positions: the sequence of each row, and its position there."""
    rows, copies, sequences = _copy_for_alternatives(codes, positions, missing)
    lengths = np.zeros(len(sequences), np.int64)
    np.maximum.at(lengths, copies, positions[rows] + 1)
    starts = np.concatenate([[0], lengths.cumsum()])
    return EntryLayout(sequences, starts, rows, starts[copies] + positions[rows])


def _copy_for_alternatives(
    codes: np.ndarray, positions: np.ndarray, missing: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, and the number of the copy of a sequence that each is in, [R] each; and the sequence of each copy.

    A sequence has as many copies as there are missing rows at one position; each has all rows that are not missing.
    codes, positions: the sequence and the position of each row.
    """
    rows = np.arange(len(codes))
    copies = np.ones(codes.max() + 1, np.int64)
    if not missing.any():
        return rows, codes, np.arange(len(copies))
    alternative = np.zeros(len(codes), np.int64)
    alternative[missing] = pd.Series(rows[missing]).groupby([codes[missing], positions[missing]]).cumcount()
    np.maximum.at(copies, codes, alternative + 1)
    times = np.where(missing, 1, copies[codes])
    rows = np.repeat(rows, times)
    repetition = np.arange(len(rows)) - np.repeat(times.cumsum() - times, times)
    copy = np.where(missing[rows], alternative[rows], repetition)
    first_copies = copies.cumsum() - copies
    return rows, first_copies[codes[rows]] + copy, np.repeat(np.arange(len(copies)), copies)


def check_support(
    families: Sequence[ExponentialFamily], sequences: Sequences, columns: Sequence[str], source: str
) -> None:
    """Raise TableError for the first row whose value the family of its column cannot give."""
    assert sequences.values is not None
    for family, values, column in zip(families, sequences.values.unbind(1), columns, strict=True):
        wrong = ~family.supports(values) & sequences.known & ~values.isnan()
        if wrong.any():
            rows = sequences.rows[wrong.numpy()]
            value = float(values[wrong][int(rows.argmin())])
            advice = "leave the row out" if source == TABLE else "choose another family"
            problem = f"{value:g}, expected {family.values}; {advice}"
            raise TableError(problem, table=source, row=int(rows.min()) + 1, column=column)


def check_places(sequences: Sequences, places: tuple[tuple[float, ...], ...]) -> None:
    """Raise TableError unless each sequence has all these places, in this order: whose neighbours are known."""
    if not _has_places(sequences, torch.tensor(places, dtype=torch.float64)):
        raise TableError(
            f"a factor model of places requires its {len(places)} places in each sequence, in one order; give "
            "all rows, with a column that orders them",
            table=TABLE,
        )


def _has_places(sequences: Sequences, places: Tensor) -> bool:
    """Whether each sequence has these places, [places, dimensions], in this order."""
    if sequences.coordinates is None or (sequences.lengths != len(places)).any() or not sequences.present.all():
        return False
    tolerance = SAME_PLACE * places.abs().amax(0)  # in single precision they differ by less
    distances = (sequences.coordinates.reshape(-1, *places.shape) - places).abs()
    return bool((distances <= tolerance).all())
