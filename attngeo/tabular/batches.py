"""Masked copies of the rows of a table, in batches: each observed cell is masked once in an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attngeo.tabular.network import CellLayout
from attngeo.training import draw_generator
from attngeo.training.loop import Batch

# Batches that are prepared at once.
CHUNK = 32
# Random numbers of 16 bits decide what dropout drops: its probability is rounded to a multiple of 1/LEVELS.
LEVELS = 2**16


class MaskedRows:
    """The copies of the tables of M models. Each model has an order and dropout of its own, which follow from its seed.

    codes: [M, rows, K]. A cell that is MISSING is [MASK], and never predicted; one that is ABSENT takes no part.
    weights: of rows, [M, rows]. All models have the same number of observed cells. seeds: one for each model; None for
    one fixed order without dropout. noise: how many numbers dropout may drop in a row, each with probability `dropout`.
    """

    example_dim = 1

    def __init__(
        self,
        layout: CellLayout,
        codes: Tensor,
        weights: Tensor,
        size: int,
        *,
        seeds: Sequence[int] | None = None,
        noise: int = 0,
        dropout: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> None:
        self._layout, self._size, self._seeds = layout, size, seeds
        self._noise, self._keep = (noise, 1 - dropout) if seeds is not None and dropout else (0, 1.0)
        self._device = device
        models, rows, columns = codes.shape
        observed = (codes >= 0).reshape(models, -1)
        self._copies = int(observed[0].sum())
        # The numbers of the cells, row × K + column, that are masked in turn.
        self._cells = observed.nonzero()[:, 1].reshape(models, self._copies)
        self._slots = layout.to_slots(codes)
        column = torch.arange(columns).expand_as(codes)
        self._targets = layout.to_words(codes.clamp(min=0), column).reshape(models, rows * columns)
        self._weights = weights
        self._masks = layout.mask_slots()

    def __len__(self) -> int:
        return -(-self._copies // self._size)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from 0, without the first `start` ones."""
        order = self._cells
        if self._seeds is not None:
            shuffled = [torch.randperm(self._copies, generator=draw_generator(seed, number)) for seed in self._seeds]
            order = order.gather(1, torch.stack(shuffled))
        for chunk in range(start // CHUNK, -(-len(self) // CHUNK)):
            first = chunk * CHUNK * self._size
            parts = self._mask(order[:, first : first + CHUNK * self._size], number, chunk)
            moved = [each.to(self._device) for each in parts]
            for at in range(max(start * self._size - first, 0), parts[0].shape[1], self._size):
                yield tuple(each[:, at : at + self._size] for each in moved)

    def _mask(self, cells: Tensor, epoch: int, chunk: int) -> Batch:
        """The copies of these cells ([M, n]): slots, masked column, its word, weight and noise."""
        columns = self._layout.columns
        row = cells.div(columns, rounding_mode="floor")
        column = cells - row * columns
        rows = self._slots.gather(1, row[..., None].expand(-1, -1, columns))
        rows = rows.scatter(2, column[..., None], self._masks[column][..., None])
        drawn = self._draw_noise(cells.shape[1], epoch, chunk, len(cells))
        return rows, column, self._targets.gather(1, cells), self._weights.gather(1, row), drawn

    def _draw_noise(self, copies: int, epoch: int, chunk: int, models: int) -> Tensor:
        if not self._noise or self._seeds is None:
            return torch.empty(models, copies, 0)
        noise = torch.empty(models, copies * self._noise)
        bits = torch.empty(-(-noise.shape[1] // 4), dtype=torch.int64)
        least = round(LEVELS * (1 - self._keep)) - LEVELS // 2
        for one, seed in zip(noise, self._seeds, strict=True):
            bits.random_(-(2**63), None, generator=draw_generator(seed, epoch, chunk, 1))
            one.copy_(bits.view(torch.int16)[: len(one)] >= least)
        return noise.div_(self._keep).view(models, copies, self._noise)
