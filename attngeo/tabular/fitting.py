"""Training of several tables of one shape as one batch of models. Each ends as it does alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from attngeo.devices import pick_device
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.tabular.batches import MaskedRows
from attngeo.tabular.network import CellLayout, TableAttention
from attngeo.training import History, TrainingOptions, draw_generator, train

# Models that are trained at once: more do not make one faster, and need more memory.
MOST_MODELS = 32
# Numbers in the largest tensor of a step below which torch does not divide them between threads.
UNDIVIDED = 2**15


@dataclass(frozen=True)
class FittingPlan:
    """The training of one table.

    codes: [rows, K], the response is the last column; see `attngeo.tabular.network` for missing ones. weights: of the
    rows. held_out: codes and weights of the rows that early stopping looks at. network: sizes of the block.
    start: the network that is trained further, in place; a new one if it is None. optimizer: of its weights.
    """

    layout: CellLayout
    codes: torch.Tensor
    weights: torch.Tensor
    held_out: tuple[torch.Tensor, torch.Tensor] | None
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

    def going_on(self, start: TableAttention, optimizer: torch.optim.Optimizer) -> FittingPlan:
        """The plan that trains an existing network."""
        return replace(self, start=start, optimizer=optimizer)


@dataclass(frozen=True)
class FittedTable:
    """A trained network (a batch of one), and the losses of its training, [epochs]; validation is empty without one."""

    network: TableAttention
    train: np.ndarray
    validation: np.ndarray


def fit_plans(plans: Sequence[FittingPlan], progress: ProgressCallback = ignore_progress) -> list[FittedTable]:
    """Train each plan: those of one kind together. Raises TrainingError as `attngeo.training.train` does."""
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
    network.partial = bool((codes < -1).any())
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
    return [_take(network, history, number) for number in range(len(plans))]


@contextmanager
def _limited_threads(numbers: int) -> Iterator[None]:
    """Compute on one thread if the tensors of a step are small: several would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if numbers < UNDIVIDED else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _take(network: TableAttention, history: History, number: int) -> FittedTable:
    validation = history.validation[:, number] if history.validation.size else history.validation
    return FittedTable(
        network.select(number) if len(history.best_epoch) > 1 else network,
        history.train[:, number],
        validation,
    )
