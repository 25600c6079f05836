"""Batches of masked copies: rows of tables in which one cell is masked, in a random order of each model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attngeo.estimators.tabular.cell_layout import CellLayout
from attngeo.training.loop import Batch, draw_generator

# The probability that a cell of a masked copy is taken for an unseen value, so that its vector is learned.
UNSEEN_RATE = 0.01
# Batches that are prepared at once.
CHUNK = 32
# Random numbers of 16 bits decide what dropout drops: its probability is rounded to a multiple of 1/LEVELS.
LEVELS = 2**16


class MaskedRows:
    """The masked copies of the tables of M models. Each model has its own order and dropout, from its seed.

    codes: [M, rows, K]; a MISSING cell is [MASK], and never predicted. weights: weights of the rows, [M, rows]. All
    models have the same number of observed cells, and of observed responses. seeds: one per model; without seeds, the
    order is fixed. noise: how many numbers dropout may drop per row, each with probability `dropout`; 0 without seeds.
    most: maximum cells to mask per epoch, drawn anew for each epoch; None for all. has_response: whether cells of the
    last column come first. hidden: largest share of the other cells that a copy masks as well; needs seeds.
    """

    def __init__(
        self,
        layout: CellLayout,
        codes: Tensor,
        weights: Tensor,
        size: int,
        *,
        seeds: Sequence[int] = (),
        noise: int = 0,
        dropout: float = 0.0,
        most: int | None = None,
        has_response: bool = False,
        hidden: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> None:
        self._layout = layout
        self._size = size
        self._seeds = seeds
        self._noise = noise
        self._keep = 1 - dropout
        self._hidden = hidden
        self._device = device
        models, rows, columns = codes.shape
        # The numbers of the cells, row × K + column, that are masked in turn: [M, cells].
        self._cells = (codes >= 0).flatten(1).nonzero()[:, 1].reshape(models, -1)
        self._most = self._cells.shape[1] if most is None else min(most, self._cells.shape[1])
        self._has_response = has_response and self._most < self._cells.shape[1]
        self._columns = columns
        self._slots = layout.to_slots(codes)
        column = torch.arange(columns).expand_as(codes)
        self._targets = layout.to_words(codes.clamp(min=0), column).reshape(models, rows * columns)
        self._weights = weights
        self._masks = layout.mask_slots()

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of an epoch, from 0."""
        order = self._cells
        if self._seeds:
            order = self._shuffle(order, number)
        if self._has_response:  # a stable sort: each half keeps its random order
            is_other = (order % self._columns != self._columns - 1).byte()
            order = order.gather(1, is_other.sort(stable=True).indices)
        if self._most < order.shape[1]:
            order = order[:, : self._most]
            if self._seeds and self._has_response:
                order = self._shuffle(order, number, 2)
        for chunk, first in enumerate(range(0, order.shape[1], CHUNK * self._size)):
            cells = order[:, first : first + CHUNK * self._size]
            tensors = [tensor.to(self._device) for tensor in self._mask(cells, number, chunk)]
            for start in range(0, cells.shape[1], self._size):
                yield tuple(tensor[:, start : start + self._size] for tensor in tensors)

    def _shuffle(self, cells: Tensor, *numbers: int) -> Tensor:
        """Cells ([M, n]) in the random order of each model."""
        orders = [torch.randperm(cells.shape[1], generator=draw_generator(seed, *numbers)) for seed in self._seeds]
        return cells.gather(1, torch.stack(orders))

    def _mask(self, cells: Tensor, epoch: int, chunk: int) -> Batch:
        """The copies of these cells ([M, n]): slots, masked column, its word, weight and noise."""
        columns = self._layout.columns
        row = cells.div(columns, rounding_mode="floor")
        column = cells - row * columns
        rows = self._slots.gather(1, row[..., None].expand(-1, -1, columns))
        if self._seeds and (self._hidden or self._layout.has_unseen):
            rows = self._hide(rows, epoch, chunk)
        rows = rows.scatter(2, column[..., None], self._masks[column][..., None])
        noise = self._draw_noise(len(cells), cells.shape[1], epoch, chunk)
        return rows, column, self._targets.gather(1, cells), self._weights.gather(1, row), noise

    def _hide(self, rows: Tensor, epoch: int, chunk: int) -> Tensor:
        """The slots of copies, [M, n, K], of which some are masked, and some taken for unseen values.

        Each copy masks a share of its own, so that the model learns from rows with few missing cells and with many.
        """
        hidden = rows.clone()
        for model_rows, seed in zip(hidden, self._seeds, strict=True):
            generator = draw_generator(seed, epoch, chunk, 3)
            if self._layout.has_unseen:
                is_unseen = torch.rand(model_rows.shape, generator=generator) < UNSEEN_RATE
                model_rows.copy_(torch.where(is_unseen & (model_rows != self._masks), self._masks + 1, model_rows))
            if self._hidden:
                share = self._hidden * torch.rand(len(model_rows), 1, generator=generator)
                is_hidden = torch.rand(model_rows.shape, generator=generator) < share
                model_rows.copy_(torch.where(is_hidden, self._masks, model_rows))
        return hidden

    def _draw_noise(self, models: int, copies: int, epoch: int, chunk: int) -> Tensor:
        """0 or 1/(1 − dropout) for each number that dropout may drop, [models, copies, numbers]."""
        if not self._noise:
            return torch.empty(models, copies, 0)
        noise = torch.empty(models, copies * self._noise)
        bits = torch.empty(-(-noise.shape[1] // 4), dtype=torch.int64)
        least = round(LEVELS * (1 - self._keep)) - LEVELS // 2
        for model_noise, seed in zip(noise, self._seeds, strict=True):
            bits.random_(-(2**63), None, generator=draw_generator(seed, epoch, chunk, 1))
            model_noise.copy_(bits.view(torch.int16)[: len(model_noise)] >= least)
        return noise.div_(self._keep).view(models, copies, self._noise)
