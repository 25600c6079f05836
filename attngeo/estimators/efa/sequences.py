"""Tidy tables as tensors: one row of a table is an item of a sequence, its value, or both.

Shapes: N sequences with P places in all, one sequence after the other; padded, N sequences of up to I positions. A
place without a row, which is 0 in all numbers, is a gap between positions, or padding at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from torch import Tensor

from attngeo.errors import TableError
from attngeo.estimators.efa.columns import (
    TABLE,
    Covariate,
    MeanAndDeviation,
    Number,
    check_columns,
    code_sequences,
    code_values,
    rank_positions,
    read_covariates,
    require_frame,
    require_numbers,
)
from attngeo.estimators.efa.families import ExponentialFamily
from attngeo.estimators.efa.networks import Batch
from attngeo.estimators.efa.options import EfaOptions
from attngeo.estimators.shared.cells import show_value
from attngeo.estimators.shared.saving import Count, Finite
from attngeo.schemas import Table

POSITION = "position"
# The largest value that may have a vector of its own; the largest number that is added to those of a network.
MOST_LEVELS, FARTHEST = 100_000, 30.0


class ValueColumn(Table):
    """What a model knows of a column of values.

    scale: mean and deviation. variance: at which a learned one starts. raw_start: what is added to the number that the
    network gives a family other than the Gaussian, which begins near 0.
    """

    scale: MeanAndDeviation = (0.0, 1.0)
    variance: Annotated[Finite, Field(gt=0)] = 1.0
    raw_start: Annotated[float, Field(ge=-FARTHEST, le=FARTHEST)] = 0.0


class DataShape(Table):
    """What a model has to know of its data, as a saved model has it.

    part: "items" or "values". items: how many. longest: positions that a sequence may have. trained: positions of the
    longest sequence that was read. coordinates, lags: how many. levels: values from 0, for one vector for each.
    values, covariates: their columns. place_scale: mean and deviation of each coordinate. places: coordinates of the
    positions, for the spatial factor model. position: the column of positions that training rows have, if their order
    matters.
    """

    part: Literal["items", "values"]
    items: Count = 0
    longest: Count = 0
    trained: Count = 0
    coordinates: Count = 0
    lags: Count = 0
    levels: Annotated[Count, Field(le=MOST_LEVELS + 1)] = 0
    values: tuple[ValueColumn, ...] = ()
    covariates: tuple[Covariate, ...] = ()
    place_scale: tuple[MeanAndDeviation, ...] = ()
    places: tuple[tuple[Number, ...], ...] = ()
    position: str | None = None

    @property
    def covariate_sizes(self) -> tuple[int, int]:
        """How many categories the covariates have, and how many numbers a row has of them."""
        return sum(len(column.categories) for column in self.covariates), sum(
            column.numbers for column in self.covariates
        )


@dataclass(frozen=True)
class Sequences:
    """The rows of a table, by sequence, without padding: one long sequence does not make the others larger.

    names: of the sequences, [N]. starts: the first place of each, and the number of places, [N + 1]. rows: the row of
    the table at each place, [P], or −1. known: whether what is modelled is known there, so that other places see it,
    [P]. asked: which places are predicted, [P]. items: their numbers, [P]. values: [P, columns], NaN if a known place
    lacks one. coordinates: [P, dimensions]. lagged: values at earlier times, the latest first, [P, lags]. categories,
    numbers: of covariates, as those of `read_covariates`, [P, …]. None is what the table lacks.
    """

    names: np.ndarray
    starts: np.ndarray
    rows: np.ndarray
    known: Tensor
    asked: Tensor
    items: Tensor | None = None
    values: Tensor | None = None
    coordinates: Tensor | None = None
    lagged: Tensor | None = None
    categories: Tensor | None = None
    numbers: Tensor | None = None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lengths(self) -> np.ndarray:
        """The number of places of each sequence, [N]."""
        return np.diff(self.starts)

    @cached_property
    def present(self) -> Tensor:
        """Where there is a row, [P]."""
        return torch.as_tensor(self.rows >= 0)

    @cached_property
    def at(self) -> tuple[Tensor, Tensor]:
        """The sequence and the position of each place, [P] each."""
        sequence = np.repeat(np.arange(len(self)), self.lengths)
        return torch.as_tensor(sequence), torch.as_tensor(np.arange(len(self.rows)) - self.starts[sequence])

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of places that there are, by their names."""
        for part in fields(self):
            tensor = getattr(self, part.name)
            if isinstance(tensor, Tensor):
                yield part.name, tensor

    def take(self, which: np.ndarray) -> Self:
        """Some of the sequences."""
        at = self.find_places(which)
        starts = np.concatenate([[0], self.lengths[which].cumsum()])
        places = torch.as_tensor(at)
        parts: dict[str, Any] = {name: tensor[places] for name, tensor in self.tensors()}
        return type(self)(self.names[which], starts, self.rows[at], **parts)

    def find_places(self, which: np.ndarray) -> np.ndarray:
        """The places of some of the sequences, one after the other."""
        lengths = self.lengths[which]
        before = lengths.cumsum() - lengths
        places: np.ndarray = np.repeat(self.starts[which] - before, lengths) + np.arange(lengths.sum())
        return places

    def pad(self, numbers: Tensor) -> Tensor:
        """Numbers of places, [P, …], as those of positions, [N, I, …]; 0 at those that a sequence does not have."""
        wide = numbers.new_zeros(len(self), int(self.lengths.max(initial=1)), *numbers.shape[1:])
        wide[self.at] = numbers
        return wide

    def batch(self, *names: str) -> Batch:
        """These parts, padded to the longest sequence; numbers in single precision."""
        padded: dict[str, Tensor] = {}
        for name in ("known", *names):
            tensor = self.pad(getattr(self, name))
            padded[name] = tensor.float() if tensor.is_floating_point() else tensor
        if "lagged" in padded:
            padded["lagged"] = padded["lagged"].transpose(1, 2)
        return Batch(**padded, present=padded["known"] if self.is_complete else self.pad(self.present))

    @cached_property
    def is_complete(self) -> bool:
        """Whether what is modelled is known at each place with a row."""
        return bool(self.known.equal(self.present))

    def scatter(self, numbers: Tensor, rows: int, where: Tensor) -> np.ndarray:
        """Numbers at some places, [P, …], as those of each row of the table, [rows, …]; NaN for the others."""
        chosen = where.numpy()
        spread = np.full((rows, *numbers.shape[1:]), np.nan)
        spread[self.rows[chosen]] = numbers.double().numpy()[chosen]
        return spread


@dataclass(frozen=True)
class TableReader:
    """How tables are read: the columns, and what they must have.

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
        return [*self.options.families] if self.has_values else [self.options.item]

    @property
    def needed(self) -> list[str]:
        """The columns that a table must have."""
        options = self.options
        names = [options.sequence, *options.kinds]
        names += [options.item] if self.items is not None else []
        names += [*options.coordinates, *options.lags, *self.modelled] if self.has_values else []
        return names + ([self.position] if self.position is not None else [])

    def read(self, frame: pd.DataFrame, *, source: str = TABLE, fill: bool = False) -> Sequences:
        """The sequences of a table. Raises TableError that names the row, from 1, and what to do.

        fill: whether rows may lack what is modelled. They are predicted from those that have it, and no row is
        predicted from them. Those of one position are alternatives: each has a copy of its sequence, without the other
        ones.
        """
        require_frame(frame, source)
        check_columns(frame, self.needed, source)
        codes, labels = code_sequences(frame[self.options.sequence], source)
        empty = frame[self.modelled].isna().to_numpy()
        without_item = np.zeros(len(frame), bool)
        if fill and self.has_values and self.items is not None and self.options.part == "both":
            without_item = frame[self.options.item].isna().to_numpy()
        missing = empty.all(1) | without_item if fill else without_item
        asked = self._find_asked(codes, labels, missing, source) & ~without_item
        where = self._place_rows(frame, codes, labels, missing, source)
        rows, sequence, copies = _copy_for_alternatives(codes, where, missing)
        lengths = np.zeros(len(copies), np.int64)
        np.maximum.at(lengths, sequence, where[rows] + 1)
        starts = np.concatenate([[0], lengths.cumsum()])
        place = starts[sequence] + where[rows]
        known = np.flatnonzero(~missing)

        def spread(numbers: np.ndarray) -> Tensor:
            at_places = np.zeros((starts[-1], *numbers.shape[1:]), numbers.dtype)
            at_places[place] = numbers[rows]
            return torch.as_tensor(at_places)

        def read_columns(names: Sequence[str], kept: np.ndarray) -> np.ndarray:
            return np.stack([require_numbers(frame, name, kept=kept, source=source) for name in names], 1)

        row_of = np.full(starts[-1], -1)
        row_of[place] = rows
        every, options = np.arange(len(frame)), self.options
        parts: dict[str, np.ndarray] = {}
        if self.items is not None:
            kept = np.flatnonzero(~without_item) if self.has_values else known
            parts["items"] = code_values(frame[options.item], self.items, kept=kept, source=source)
        if self.has_values:
            parts["values"] = np.where(missing[:, None], 0, self._read_values(frame, empty, missing, source))
            columns = {"coordinates": options.coordinates, "lagged": options.lags}
            parts |= {name: read_columns(of, every) for name, of in columns.items() if of}
        if self.shape.covariates:
            covariates = dict(zip(options.kinds, self.shape.covariates, strict=True))
            parts["categories"], parts["numbers"] = read_covariates(frame, covariates, source)
        tensors = {name: spread(numbers) for name, numbers in parts.items()}
        return Sequences(labels[copies], starts, row_of, spread(~missing), spread(asked), **tensors)

    def _read_values(self, frame: pd.DataFrame, empty: np.ndarray, missing: np.ndarray, source: str) -> np.ndarray:
        """The values of rows, [rows, columns]; NaN for those that a row lacks which has another one. Raises TableError.

        empty: which cells are, [rows, columns]. missing: which rows are not read.
        """
        stated = ~missing[:, None] & (~empty | empty.all(1, keepdims=True))
        kept = [np.flatnonzero(cells) for cells in stated.T]
        columns = zip(self.modelled, kept, strict=True)
        return np.stack([require_numbers(frame, name, kept=rows, source=source) for name, rows in columns], 1)

    def _find_asked(self, codes: np.ndarray, labels: np.ndarray, missing: np.ndarray, source: str) -> np.ndarray:
        """Which rows are predicted: missing ones, and those that another known row predicts. Raises TableError.

        A factor model of places predicts only the missing row of a sequence that has one.
        """
        sizes = np.bincount(codes)
        known = np.bincount(codes[~missing], minlength=len(sizes))
        if self.shape.places:  # whose values a factor model adds up
            gaps = sizes - known
            if (gaps > 1).any():
                at = codes[missing][(gaps > 1)[codes[missing]]][0]
                raise TableError(
                    f"sequence {show_value(labels[at])} has {gaps[at]} missing values, expected at most one: "
                    "a factor model of places adds up all others; leave such sequences out, or fit one with model efa",
                    table=source,
                )
            complete: np.ndarray = missing | (gaps[codes] == 0)
            return complete
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
            more = len(alone) - 1
            others = f", and so {'has 1 other' if more == 1 else f'have {more:,} others'}" if more else ""
            raise TableError(
                f"sequence {show_value(labels[alone[0]])} has one row, which no other row predicts{others}; {advice}",
                table=source,
            )
        has_others: np.ndarray = missing | (known[codes] > 1)
        return has_others

    def _place_rows(
        self, frame: pd.DataFrame, codes: np.ndarray, labels: np.ndarray, missing: np.ndarray, source: str
    ) -> np.ndarray:
        """The position of each row in its sequence, from 0, [rows]. Raises TableError.

        Missing rows may have one position. Without a column of positions, those at the end of a sequence all have the
        first position after the rows that are there.
        """
        ranks = self._rank_rows(frame, codes, source, missing)
        if ranks is None:
            where: np.ndarray = pd.Series(codes).groupby(codes).cumcount().to_numpy()
            if missing.any():
                last = pd.Series(np.where(missing, -1, where)).groupby(codes).transform("max").to_numpy()
                ranks = np.minimum(where, last + 1)
        if ranks is not None:
            where = pd.Series(ranks).groupby(codes).rank(method="dense").to_numpy(np.int64) - 1
        at, longest = where.argmax(), self.shape.longest
        if longest and where[at] >= longest and self.options.gives_vectors(self.position):
            advice = "; rows that are asked for may share a position" if missing.any() else ""
            raise TableError(
                f"sequence {show_value(labels[codes[at]])} has {where[at] + 1} positions, expected at most {longest}; "
                f"shorten it, or fit to longer sequences{advice}",
                table=source,
            )
        return where

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
            options = self.options
            if self.position is not None or options.has_order(None) or not self.items:
                raise
            return None


def _copy_for_alternatives(
    codes: np.ndarray, where: np.ndarray, missing: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, and the number of the copy of a sequence that each is in, [R] each; and the sequence of each copy.

    A sequence has as many copies as there are missing rows at one position; each has all rows that are not missing.
    codes, where: the sequence and the position of each row.
    """
    rows = np.arange(len(codes))
    copies = np.ones(codes.max() + 1, np.int64)
    if not missing.any():
        return rows, codes, np.arange(len(copies))
    number = np.zeros(len(codes), np.int64)
    number[missing] = pd.Series(rows[missing]).groupby([codes[missing], where[missing]]).cumcount()
    np.maximum.at(copies, codes, number + 1)
    times = np.where(missing, 1, copies[codes])
    rows = np.repeat(rows, times)
    copy = np.where(missing[rows], number[rows], np.arange(len(rows)) - np.repeat(times.cumsum() - times, times))
    return rows, (copies.cumsum() - copies)[codes[rows]] + copy, np.repeat(np.arange(len(copies)), copies)


def check_support(
    families: Sequence[ExponentialFamily], sequences: Sequences, columns: Sequence[str], source: str
) -> None:
    """Raise TableError for the first row whose value the family of its column cannot give."""
    assert sequences.values is not None
    for family, values, column in zip(families, sequences.values.unbind(1), columns, strict=True):
        wrong = ~family.supports(values) & sequences.known & ~values.isnan()
        if wrong.any():
            rows = sequences.rows[wrong.numpy()]
            at, value = int(rows.min()), float(values[wrong][int(rows.argmin())])
            advice = "leave the row out" if source == TABLE else "choose another family"
            problem = f"{value:g}, expected {family.values}; {advice}"
            raise TableError(problem, table=source, row=at + 1, column=column)
