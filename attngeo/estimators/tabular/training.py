"""Training on masked copies of rows; of several tables of one shape as a batch of models, which end as each alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attngeo.devices import pick_device
from attngeo.estimators.tabular.network import CellLayout, TableAttention
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.training import TrainingOptions
from attngeo.training.loop import Batch, draw_generator, train

# Models that are trained at once: more do not make one faster, and need more memory.
MOST_MODELS = 32
# Numbers in the largest tensor of a step below which torch does not divide them between threads.
UNDIVIDED = 2**15
# Batches that are prepared at once.
CHUNK = 32
# Random numbers of 16 bits decide what dropout drops: its probability is rounded to a multiple of 1/LEVELS.
LEVELS = 2**16


class MaskedRows:
    """The copies of the tables of M models. Each model has an order and dropout of its own, which follow from its seed.

    codes: [M, rows, K]. A cell that is MISSING is [MASK], and never predicted. weights: of rows, [M, rows]. All models
    have the same number of observed cells. seeds: one for each model; None for one fixed order without dropout.
    noise: how many numbers dropout may drop in a row, each with probability `dropout`.
    """

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

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of an epoch, from 0."""
        order = self._cells
        if self._seeds is not None:
            shuffled = [torch.randperm(self._copies, generator=draw_generator(seed, number)) for seed in self._seeds]
            order = order.gather(1, torch.stack(shuffled))
        for chunk, first in enumerate(range(0, self._copies, CHUNK * self._size)):
            parts = self._mask(order[:, first : first + CHUNK * self._size], number, chunk)
            moved = [part.to(self._device) for part in parts]
            for at in range(0, parts[0].shape[1], self._size):
                yield tuple(part[:, at : at + self._size] for part in moved)

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


@dataclass(frozen=True)
class FittingPlan:
    """The training of one table.

    codes: [rows, K], the response is the last column; MISSING for a missing one. weights: of the rows. held_out: codes
    and weights of the rows that early stopping looks at. network: sizes of the block. start: the network that is
    trained further, in place; a new one if it is None. optimizer: of its weights.
    """

    layout: CellLayout
    codes: Tensor
    weights: Tensor
    held_out: tuple[Tensor, Tensor] | None
    network: Mapping[str, int]
    dropout: float
    batch_size: int
    seed: int
    options: TrainingOptions
    start: TableAttention | None = None
    optimizer: torch.optim.Optimizer | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """Plans with an equal one can be trained together."""
        shapes = [(codes.shape, int((codes >= 0).sum())) for codes in (self.codes, *(self.held_out or ())[:1])]
        return (
            self.layout, tuple(shapes), tuple(self.network.items()), self.dropout, self.batch_size,
            self.options, id(self.start) if self.start else None,
        )  # fmt: skip

    def new_network(self) -> TableAttention:
        """A network that is not trained."""
        return TableAttention(self.layout, **self.network, generators=[draw_generator(self.seed)])


class FittedTable(NamedTuple):
    """A trained network (a batch of one), and the losses of its training, [epochs]; validation is empty without one."""

    network: TableAttention
    train: np.ndarray
    validation: np.ndarray


def fit_plans(plans: Sequence[FittingPlan], progress: ProgressCallback = ignore_progress) -> list[FittedTable]:
    """Train each plan: those of one kind together. Raises TrainingError as `training.loop.train` does."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, plan in enumerate(plans):
        groups[plan.kind].append(number)
    fitted: dict[int, FittedTable] = {}
    for numbers in groups.values():
        for at in range(0, len(numbers), MOST_MODELS):
            part = numbers[at : at + MOST_MODELS]
            fitted |= zip(part, _fit_group([plans[number] for number in part], progress), strict=True)
    return [fitted[number] for number in range(len(plans))]


def _fit_group(plans: Sequence[FittingPlan], progress: ProgressCallback) -> list[FittedTable]:
    first = plans[0]
    device = pick_device(first.options.device)
    network = first.start or TableAttention(
        first.layout, **first.network, generators=[draw_generator(plan.seed) for plan in plans]
    )
    codes = torch.stack([plan.codes for plan in plans])
    batches = MaskedRows(
        first.layout, codes, torch.stack([plan.weights for plan in plans]), first.batch_size,
        seeds=[plan.seed for plan in plans], noise=2 * network.width, dropout=first.dropout, device=device,
    )  # fmt: skip
    held_out = None
    if first.held_out is not None:
        pairs = [plan.held_out for plan in plans if plan.held_out is not None]
        stacked = [torch.stack(tensors) for tensors in zip(*pairs, strict=True)]
        held_out = MaskedRows(first.layout, stacked[0], stacked[1], max(first.batch_size, 1024), device=device)
    with _limited_threads(codes.numel() // codes.shape[1] * first.batch_size * network.width):
        history = train(
            network, batches, options=first.options, validation=held_out, optimizer=first.optimizer, progress=progress
        )
    network.cpu()
    alone = len(plans) == 1
    return [
        FittedTable(
            network if alone else network.select(number), history.train[:, number],
            history.validation[:, number] if history.validation.size else history.validation,
        )
        for number in range(len(plans))
    ]  # fmt: skip


@contextmanager
def _limited_threads(numbers: int) -> Iterator[None]:
    """Compute on one thread if the tensors of a step are small: several would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if numbers < UNDIVIDED else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
