"""Sequences as tensors without padding, and the shape of the data that a model was fitted to.

Shapes: N sequences with P entries in all, one sequence after the other; padded, N sequences of up to I positions. An
entry is a row of a table, its item or its values; an entry without a row, which is 0 in all numbers, is a gap between
positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from torch import Tensor

from attngeo.estimators.efa.covariates import Covariate, MeanAndDeviation, Number
from attngeo.estimators.efa.networks import Batch
from attngeo.estimators.shared.saving import Count, Finite
from attngeo.schemas import Table

POSITION = "position"
# The largest value that may have a vector of its own.
LARGEST_LEVEL = 100_000
# The largest number that is added to those of a network.
LARGEST_RAW_START = 30.0


class ValueColumn(Table):
    """The scale of a column of values in training rows.

    Attributes:
        scale: mean and standard deviation.
        variance: start of a learned variance.
        raw_start: number added to what the network gives a family other than the Gaussian, which begins near 0.
    """

    scale: MeanAndDeviation = (0.0, 1.0)
    variance: Annotated[Finite, Field(gt=0)] = 1.0
    raw_start: Annotated[float, Field(ge=-LARGEST_RAW_START, le=LARGEST_RAW_START)] = 0.0


class DataShape(Table):
    """The shape of the data of a model: sizes, scales and columns that training rows decide. Saved models keep it.

    Attributes:
        part: "items" or "values".
        items: number of items.
        longest: positions that a sequence may have.
        trained: positions of the longest sequence that was read.
        coordinates: number of coordinates.
        lags: number of earlier times.
        levels: number of values from 0, if each has a vector.
        values: columns of values.
        covariates: columns of covariates.
        place_scale: mean and standard deviation of each coordinate.
        places: coordinates of the positions, for the spatial factor model.
        position: column of positions of the training rows, if their order matters.
        repeats: whether an item may occur again in a sequence; otherwise items of the context have probability 0.
    """

    part: Literal["items", "values"]
    items: Count = 0
    longest: Count = 0
    trained: Count = 0
    coordinates: Count = 0
    lags: Count = 0
    levels: Annotated[Count, Field(le=LARGEST_LEVEL + 1)] = 0
    values: tuple[ValueColumn, ...] = ()
    covariates: tuple[Covariate, ...] = ()
    place_scale: tuple[MeanAndDeviation, ...] = ()
    places: tuple[tuple[Number, ...], ...] = ()
    position: str | None = None
    repeats: bool = True

    @property
    def covariate_sizes(self) -> tuple[int, int]:
        """The number of categories of all covariates, and of their numbers per row."""
        categories = sum(column.codes for column in self.covariates)
        numbers = sum(column.numbers for column in self.covariates)
        return categories, numbers


@dataclass(frozen=True)
class Sequences:
    """The rows of a table, by sequence, without padding, so that one long sequence does not enlarge the others.

    A tensor is None if the table lacks its columns.

    Attributes:
        names: names of the sequences, [N].
        starts: first entry of each sequence, and the number of entries, [N + 1].
        rows: row of the table at each entry, [P], or −1.
        known: whether what is modelled is known there, so that other entries see it, [P].
        asked: which entries are predicted, [P].
        items: numbers of the items, [P].
        values: [P, columns]; NaN if a known entry lacks one.
        coordinates: [P, dimensions].
        lagged: values at earlier times, the latest first, [P, lags].
        categories: categories of covariates, as `read_covariates` gives them, [P, …].
        numbers: numbers of covariates, as `read_covariates` gives them, [P, …].
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
        """The number of entries of each sequence, [N]."""
        return np.diff(self.starts)

    @cached_property
    def present(self) -> Tensor:
        """Whether each entry has a row, [P]."""
        return torch.as_tensor(self.rows >= 0)

    @cached_property
    def index(self) -> tuple[Tensor, Tensor]:
        """The sequence and the position of each entry, [P] each: an index of padded tensors."""
        sequence = np.repeat(np.arange(len(self)), self.lengths)
        position = np.arange(len(self.rows)) - self.starts[sequence]
        return torch.as_tensor(sequence), torch.as_tensor(position)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The existing tensors, with their names."""
        for field in fields(self):
            tensor = getattr(self, field.name)
            if isinstance(tensor, Tensor):
                yield field.name, tensor

    def find_repeats(self) -> np.ndarray:
        """Whether each entry repeats the item of an earlier known entry in its sequence, [P]."""
        assert self.items is not None
        sequence, _ = self.index
        known = self.known.numpy()
        pairs = pd.DataFrame({"sequence": sequence, "item": self.items})
        repeats = np.zeros(len(known), bool)
        repeats[known] = pairs[known].duplicated().to_numpy()
        return repeats

    def take(self, numbers: np.ndarray) -> Self:
        """Some of the sequences."""
        entries = self.find_entries(numbers)
        starts = np.concatenate([[0], self.lengths[numbers].cumsum()])
        index = torch.as_tensor(entries)
        tensors: dict[str, Any] = {name: tensor[index] for name, tensor in self.tensors()}
        return type(self)(self.names[numbers], starts, self.rows[entries], **tensors)

    def find_entries(self, numbers: np.ndarray) -> np.ndarray:
        """The entries of some of the sequences, one after the other."""
        lengths = self.lengths[numbers]
        before = lengths.cumsum() - lengths
        entries: np.ndarray = np.repeat(self.starts[numbers] - before, lengths) + np.arange(lengths.sum())
        return entries

    def pad(self, numbers: Tensor) -> Tensor:
        """Spread numbers of entries, [P, …], over positions, [N, I, …], with 0 for padding."""
        padded = numbers.new_zeros(len(self), int(self.lengths.max(initial=1)), *numbers.shape[1:])
        padded[self.index] = numbers
        return padded

    def batch(self, *names: str) -> Batch:
        """These tensors, padded to the longest sequence; numbers in single precision."""
        padded: dict[str, Tensor] = {}
        for name in ("known", *names):
            tensor = self.pad(getattr(self, name))
            padded[name] = tensor.float() if tensor.is_floating_point() else tensor
        if "lagged" in padded:
            padded["lagged"] = padded["lagged"].transpose(1, 2)
        return Batch(**padded, present=self.pad(self.present))

    def scatter(self, numbers: Tensor, rows: int, where: Tensor) -> np.ndarray:
        """Spread numbers of some entries, [P, …], over the rows of the table, [rows, …], with NaN for other rows."""
        chosen = where.numpy()
        spread = np.full((rows, *numbers.shape[1:]), np.nan)
        spread[self.rows[chosen]] = numbers.double().numpy()[chosen]
        return spread
