"""Batches in an order that follows from the seed and the number of the epoch alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

Batch = tuple[Tensor, ...]


def draw_generator(*seeds: int) -> torch.Generator:
    """A generator on the CPU whose numbers follow from the seeds; other seeds give independent ones."""
    state = int(np.random.SeedSequence(seeds).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(state & (2**63 - 1))


class Batches(Protocol):
    """What the loop reads. An epoch that is started again gives the same batches.

    example_dim: the dimension of each tensor of a batch that counts examples. Several processes share it.
    """

    example_dim: int

    def __len__(self) -> int:
        """The number of batches in an epoch."""

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from 0, without the first `start` ones."""


class TensorBatches:
    """Batches of tensors in memory that have the same first dimension: that of the examples.

    tensors: [examples, ...] each. size: examples in a batch; the last one may be smaller. seed: of the order, which is
    another one in each epoch; None keeps the examples in their order, as for validation.
    """

    example_dim = 0

    def __init__(self, tensors: Sequence[Tensor], size: int, seed: int | None = None) -> None:
        self.tensors, self.size, self.seed = tuple(tensors), size, seed

    def __len__(self) -> int:
        return -(-len(self.tensors[0]) // self.size)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from 0, without the first `start` ones."""
        total = len(self.tensors[0])
        order = None if self.seed is None else torch.randperm(total, generator=draw_generator(self.seed, number))
        for at in range(start * self.size, total, self.size):
            rows = slice(at, at + self.size) if order is None else order[at : at + self.size]
            yield tuple(each[rows] for each in self.tensors)
