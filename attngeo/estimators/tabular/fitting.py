"""The training of tables: those of one shape are trained as a batch of models, which end as each alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attngeo.devices import pick_device
from attngeo.estimators.tabular.cell_layout import CellLayout
from attngeo.estimators.tabular.masking import MaskedRows
from attngeo.estimators.tabular.network import TableAttention
from attngeo.estimators.tabular.options import ClassifierOptions
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.training import TrainingOptions
from attngeo.training.loop import draw_generator, limited_threads, train

# Models that are trained at once: more do not make one faster, and need more memory.
MOST_MODELS = 32
# Numbers in the largest tensor of a step below which torch does not divide them between threads.
UNDIVIDED = 2**15
# The batches of an epoch, and the least and the most masked copies in one, if no size is given.
BATCHES = 100
SMALLEST_BATCH = 128
LARGEST_BATCH = 1024


@dataclass(frozen=True)
class FittingPlan:
    """The training of one table of K columns.

    Attributes:
        layout: how categories are numbered.
        codes: categories, [rows, K]; the response is the last column, and MISSING stands for a missing cell.
        weights: weights of the rows, [rows].
        held_out_codes: categories of the rows that early stopping looks at; no rows without early stopping.
        held_out_weights: weights of these rows.
        options: sizes of the network.
        training: options of the training loop.
        seed: seed of the start and of the training.
        has_response: whether early stopping looks at the last column only.
        start: network to train further, in place; None for a new network.
    """

    layout: CellLayout
    codes: Tensor
    weights: Tensor
    held_out_codes: Tensor
    held_out_weights: Tensor
    options: ClassifierOptions
    training: TrainingOptions
    seed: int
    has_response: bool = False
    start: TableAttention | None = None

    @property
    def group_key(self) -> tuple[object, ...]:
        """A key: plans with equal keys can be trained together."""
        counts = []
        for codes in (self.codes, self.held_out_codes):
            observed = codes >= 0
            counts.append((codes.shape, int(observed.sum()), int(observed[:, -1].sum())))
        options = self.options.replace(random_state=None)
        return self.layout, tuple(counts), self.has_response, options, self.training, id(self.start)


class FittedTable(NamedTuple):
    """A trained network, and the losses of its training.

    Attributes:
        network: a batch of one model.
        train: training losses, [epochs].
        validation: validation losses, [epochs]; empty without validation rows.
    """

    network: TableAttention
    train: np.ndarray
    validation: np.ndarray


def fit_plans(plans: Sequence[FittingPlan], progress: ProgressCallback = ignore_progress) -> list[FittedTable]:
    """Train all plans, those with the same key together. Raises TrainingError, as `training.loop.train` does."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, plan in enumerate(plans):
        groups[plan.group_key].append(number)
    fitted: dict[int, FittedTable] = {}
    for numbers in groups.values():
        for start in range(0, len(numbers), MOST_MODELS):
            batch = numbers[start : start + MOST_MODELS]
            fitted |= zip(batch, _fit_group([plans[number] for number in batch], progress), strict=True)
    return [fitted[number] for number in range(len(plans))]


def _fit_group(plans: Sequence[FittingPlan], progress: ProgressCallback) -> list[FittedTable]:
    """Train plans with one key as a batch of models."""
    first = plans[0]
    options = first.options
    device = pick_device(options.device)
    network = first.start
    if network is None:
        generators = [draw_generator(plan.seed) for plan in plans]
        network = TableAttention(first.layout, **options.sizes, generators=generators)
    codes = torch.stack([plan.codes for plan in plans])
    batch_size = options.batch_size or _choose_batch(int((codes[0] >= 0).sum()), options.epoch_cells)
    batches = MaskedRows(
        first.layout,
        codes,
        torch.stack([plan.weights for plan in plans]),
        batch_size,
        seeds=[plan.seed for plan in plans],
        noise=2 * network.width if options.dropout else 0,
        dropout=options.dropout,
        most=options.epoch_cells,
        has_response=first.has_response,
        hidden=options.hidden_share,
        device=device,
    )
    validation = None
    if len(first.held_out_codes):  # in a fixed order
        held_out_codes = torch.stack([plan.held_out_codes for plan in plans])
        validation = MaskedRows(
            first.layout,
            held_out_codes,
            torch.stack([plan.held_out_weights for plan in plans]),
            max(batch_size, 1024),
            most=int((held_out_codes[0, :, -1] >= 0).sum()) if first.has_response else None,
            has_response=first.has_response,
            device=device,
        )
    numbers = codes.numel() // codes.shape[1] * batch_size * network.width
    with limited_threads(is_small=numbers < UNDIVIDED):
        history = train(network, batches, first.training, validation=validation, progress=progress)
    network.cpu()
    losses = history.validation.reshape(-1, len(plans))
    fitted = []
    for number in range(len(plans)):
        model = network if len(plans) == 1 else network.select(number)
        fitted.append(FittedTable(model, history.train[:, number], losses[:, number]))
    return fitted


def _choose_batch(cells: int, most: int | None) -> int:
    """Masked copies in a batch: a hundredth of an epoch, from 128 to 1,024."""
    copies = cells if most is None else min(cells, most)
    return max(SMALLEST_BATCH, min(LARGEST_BATCH, copies // BATCHES))
