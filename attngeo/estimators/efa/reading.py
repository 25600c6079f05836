"""Tables as sequences: a tidy table with a row for each observation is read as tensors of entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from attngeo.errors import TableError
from attngeo.estimators.efa.columns import (
    TABLE,
    check_columns,
    code_sequences,
    code_values,
    rank_positions,
    refuse_first,
    require_numbers,
)
from attngeo.estimators.efa.covariates import read_covariates
from attngeo.estimators.efa.families import MOST_LEVELS, ExponentialFamily, Ordinal
from attngeo.estimators.efa.options import EfaOptions
from attngeo.estimators.efa.sequences import POSITION, DataShape, Sequences
from attngeo.estimators.shared.cells import show_value

# What a model of values needs to predict places that no training row has.
NEW_PLACES = (
    "; to predict new places from their coordinates, fit without item_vectors (attngeo efa fit --no-item-vectors)"
)
REPEATED = (
    " occurs twice in its sequence, but the model allows each item once; leave the row out, or fit with repeats "
    "(attngeo efa fit --repeats)"
)
# Coordinates of one place in two tables differ by less than this share of the largest one in their column.
SAME_PLACE = 1e-6


@dataclass(frozen=True)
class TableReader:
    """Reads tables for a part of a model, and checks their columns.

    If positions do not matter, an unreadable column called position is ignored, unless the options name it.

    Attributes:
        options: names of the columns.
        items: known items in the order of their numbers, if the shape has any. Items of another kind are matched by
            their texts.
        shape: shape of the data.
        families: families of the value columns, which must allow each value; empty if the values are not checked.
    """

    options: EfaOptions
    items: Sequence[Any]
    shape: DataShape
    families: Sequence[ExponentialFamily] = ()

    @property
    def has_values(self) -> bool:
        """Whether values are modelled."""
        return self.shape.part == "values"

    @property
    def position(self) -> str | None:
        """The required position column, if any."""
        return self.options.position or self.shape.position

    @property
    def modelled(self) -> list[str]:
        """The modelled columns: the values, or the item."""
        return list(self.options.families) if self.has_values else [self.options.item]

    def read(self, frame: pd.DataFrame, *, source: str = TABLE, fill: bool = False) -> Sequences:
        """Read the sequences of a table.

        Args:
            frame: one row per observation.
            source: name of the table in messages.
            fill: whether rows without the item or values are allowed. They are predicted from complete rows, and no row
                is predicted from them. If several share a position, they are alternatives: each gets its own copy of
                the sequence, without the others.

        Raises:
            TableError: a cell or a sequence cannot be read; it names the row, from 1, and what to do.
        """
        options = self.options
        columns = [options.sequence, *options.kinds, *self.modelled]
        if self.shape.items:
            columns.append(options.item)
        if self.has_values:
            columns += [*options.coordinates, *options.lags]
        if self.position is not None:
            columns.append(self.position)
        check_columns(frame, columns, source)
        codes, names = code_sequences(frame[options.sequence], source)
        is_empty = frame[self.modelled].isna().to_numpy()
        lacks_all: Any = is_empty.all(1)
        lacks_item = np.zeros(len(frame), bool)
        if fill and self.has_values and self.shape.items and options.part == "both":
            lacks_item = frame[options.item].isna().to_numpy()
        missing = lacks_all | lacks_item if fill else lacks_item
        predicted = self._find_predicted(codes, names, missing, source) & ~lacks_item
        positions = self._find_positions(frame, codes, names, missing, source)
        copied, starts, rows = _lay_out(codes, positions, missing)
        tensors: dict[str, np.ndarray] = {"known": ~missing, "asked": predicted}
        if self.shape.items:
            has_item = ~lacks_item if self.has_values else ~missing
            advice = NEW_PLACES if self.has_values and options.coordinates else ""
            tensors["items"] = code_values(frame[options.item], self.items, source, has_item, advice=advice)
        if self.has_values:
            # A row of which each value is empty is read if it is not missing, and then refused.
            is_read = ~missing[:, None] & (~is_empty | lacks_all[:, None])
            tensors |= self._read_values(frame, is_read, source)
            tensors["values"][missing] = 0
        if self.shape.covariates:
            covariates = dict(zip(options.kinds, self.shape.covariates, strict=True))
            tensors["categories"], tensors["numbers"] = read_covariates(frame, covariates, source)
        entries = {}
        for name, numbers in tensors.items():
            spread = numbers[rows]
            spread[rows < 0] = 0
            entries[name] = torch.as_tensor(spread)
        sequences = Sequences(names=np.asarray(names)[copied], starts=starts, rows=rows, **entries)
        if self.shape.places:
            check_places(sequences, self.shape.places)
        self._refuse_repeats(sequences, frame, source)
        return sequences

    def _refuse_repeats(self, sequences: Sequences, frame: pd.DataFrame, source: str) -> None:
        """Raise TableError for an item that its sequence has before, if none may occur again."""
        if self.shape.repeats:
            return
        repeats = np.zeros(len(frame), bool)
        repeats[sequences.rows[sequences.find_repeats()]] = True
        refuse_first(repeats, frame[self.options.item], source, REPEATED)

    def _read_values(self, frame: pd.DataFrame, is_read: np.ndarray, source: str) -> dict[str, np.ndarray]:
        """The values of rows, [rows, columns], and their coordinates and lags. Raises TableError.

        is_read: the cells of values that are checked, as many.
        """
        values = []
        for number, (name, rows) in enumerate(zip(self.modelled, is_read.T, strict=True)):
            values.append(require_numbers(frame[name], source, rows))
            if self.families:
                family = self.families[number]
                advice = "leave the row out" if source == TABLE else "change the values, or choose another family"
                if isinstance(family, Ordinal) and source != TABLE:
                    advice = _advise_levels(values[-1][rows]) or advice
                is_wrong = rows & ~family.supports(torch.tensor(values[-1])).numpy()
                refuse_first(is_wrong, frame[name], source, f", expected {family.values} ({family.text}); {advice}")
        tensors = {"values": np.stack(values, 1)}
        for tensor, columns in (("coordinates", self.options.coordinates), ("lagged", self.options.lags)):
            if columns:
                tensors[tensor] = np.stack([require_numbers(frame[name], source) for name in columns], 1)
        return tensors

    def _find_predicted(self, codes: np.ndarray, names: pd.Index[Any], missing: np.ndarray, source: str) -> np.ndarray:
        """Which rows are predicted: missing ones, and those that another known row predicts. Raises TableError.

        A factor model of places predicts only the missing row of a sequence that has one.
        """
        sizes = np.bincount(codes)
        known = np.bincount(codes[~missing], minlength=len(sizes))
        gaps = sizes - known
        options: tuple[str, ...] = ()
        if self.shape.places:  # whose values a factor model adds up
            refused = gaps > 1
            problem = (
                f"{gaps[refused.argmax()]} missing values, expected at most one: a factor model of places sums "
                "over all other places; leave out such sequences, or fit with model efa"
            )
            is_predicted: np.ndarray = missing | (gaps[codes] == 0)
        elif self.options.may_be_alone:
            return np.ones(len(codes), bool)
        else:
            advice = "leave it out, or keep it with $short keep"
            options = ("short",)
            refused = known == 0
            problem = f"no row with {' or '.join(self.modelled)}, so no row predicts another; {advice}"
            if not refused.any():
                refused = sizes == 1
                problem = f"one row, which no other row predicts; {advice}"
            is_predicted = missing | (known[codes] > 1)
        if refused.any():
            count = f" (and {refused.sum() - 1:,} more)" if refused.sum() > 1 else ""
            first = show_value(names[int(refused.argmax())])
            raise TableError(f"sequence {first}{count} has {problem}", *options, subject=source)
        return is_predicted

    def _find_positions(
        self, frame: pd.DataFrame, codes: np.ndarray, names: pd.Index[Any], missing: np.ndarray, source: str
    ) -> np.ndarray:
        """The position of each row in its sequence, from 0, [rows]. Raises TableError.

        Missing rows may have one position. Without a column of positions, those at the end of a sequence all have the
        first position after the rows that are there.
        """
        ranks = None
        if (self.position or POSITION) in frame.columns:
            try:
                ranks = rank_positions(frame[self.position or POSITION], codes, source, missing)
            except TableError:
                if self.position is not None or self.options.has_order(None) or not self.shape.items:
                    raise
        if ranks is None:
            order = pd.Series(codes).groupby(codes).cumcount().to_numpy()
            last = pd.Series(np.where(missing, -1, order)).groupby(codes).transform("max").to_numpy()
            ranks = np.minimum(order, last + 1)
        positions: np.ndarray = pd.Series(ranks).groupby(codes).rank(method="dense").to_numpy(np.int64) - 1
        row = positions.argmax()
        longest = self.shape.longest
        if longest and positions[row] >= longest and self.options.gives_vectors(self.position):
            advice = "; rows to predict may share a position" if missing.any() else ""
            raise TableError(
                f"sequence {show_value(names[codes[row]])} has {positions[row] + 1} positions, expected at most "
                f"{longest}; shorten it, or fit to longer sequences{advice}",
                subject=source,
            )
        return positions


def _lay_out(
    codes: np.ndarray, positions: np.ndarray, missing: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sequence of each copy, [N]; `starts` of the copies, [N + 1]; the row at each entry, [P], −1 for none.

    A sequence has as many copies as there are missing rows at one position; each has all rows that are not missing.
    codes, positions: the sequence of each row, and its position there.
    """
    rows = np.arange(len(codes))
    copies = np.ones(codes.max() + 1, np.int64)
    alternative = np.zeros(len(codes), np.int64)
    alternative[missing] = pd.Series(rows[missing]).groupby([codes[missing], positions[missing]]).cumcount()
    np.maximum.at(copies, codes, alternative + 1)
    times = np.where(missing, 1, copies[codes])
    rows = np.repeat(rows, times)
    repetition = np.arange(len(rows)) - np.repeat(times.cumsum() - times, times)
    first_copies = copies.cumsum() - copies
    copy = first_copies[codes[rows]] + np.where(missing[rows], alternative[rows], repetition)
    lengths = np.zeros(copies.sum(), np.int64)
    np.maximum.at(lengths, copy, positions[rows] + 1)
    starts = np.concatenate([[0], lengths.cumsum()])
    entries = np.full(starts[-1], -1)
    entries[starts[copy] + positions[rows]] = rows
    return np.repeat(np.arange(len(copies)), copies), starts, entries


def check_places(sequences: Sequences, places: tuple[tuple[float, ...], ...]) -> None:
    """Raise TableError unless each sequence has exactly these places, in this order, because neighbours are fixed."""
    expected = torch.tensor(places, dtype=torch.float64)
    assert sequences.coordinates is not None
    if (sequences.lengths == len(places)).all() and sequences.present.all():
        tolerance = SAME_PLACE * expected.abs().amax(0)  # in single precision they differ by less
        distances = (sequences.coordinates.reshape(-1, *expected.shape) - expected).abs()
        if (distances <= tolerance).all():
            return
    raise TableError(
        f"a factor model of places requires its {len(places)} places in each sequence, in the same order; give all "
        "rows, with a column that orders them",
        subject=TABLE,
    )


def _advise_levels(values: np.ndarray) -> str:
    """The ordinal family that has these values; "" if none does."""
    are_levels = bool(np.all((values >= 0) & (values < MOST_LEVELS) & (values == np.floor(values))))
    largest = int(values.max(initial=0)) if are_levels else 0
    return f"ordinal:{largest + 1} has levels 0 to {largest}" if largest else ""
