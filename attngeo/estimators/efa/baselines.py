"""How probable the rows of a table are by a fitted model, beside what is known without a context.

Without a context, there is one distribution for each item, of the family of the model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attngeo.estimators.efa.columns import TABLE, TRAINING
from attngeo.estimators.efa.families import ExponentialFamily, Gaussian
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.options import EfaOptions
from attngeo.estimators.efa.prediction import read_all
from attngeo.estimators.efa.sequences import Sequences

# Steps of the optimizer; one suffices for most families. Smaller gradients and changes end it.
STEPS, TOLERANCE = 20, 1e-12
# Rows of data whose log p is computed at once.
ROWS = 2**16
# The smallest variance, of values that are all equal.
LEAST = 1e-12
# The rows of an item with the mean of all, so that none has an infinite parameter.
PRIOR = 1e-6


class Measured(NamedTuple):
    """What is read of a table, and the mean log p of a row: by the model, and by the best one without a context.

    without_repeats: by the frequencies of items that are not in the context; NaN for values, and if an item occurs
    twice in a sequence.
    """

    sequences: int
    rows: int
    log_prob: float
    without_context: float
    without_repeats: float


def measure_rows(model: PartModel, data: Sequences, train: Sequences, options: EfaOptions) -> Measured:
    """The rows of a table; train: those that the baselines learn from. Raises TableError for values of no family.

    Without a context: for items, their frequencies, one added to each count; for values, a parameter of the family for
    each item, or one for all if there are no items. Without repeats: the same frequencies, but items of the context
    have probability 0, and the rest sum to 1.
    """
    model.check(data, options.value, TABLE)
    model.check(train, options.value, TRAINING)
    log_prob = float(read_all(model, data, model.log_prob, options).double().sum())
    rows = int(data.known.sum())
    if model.is_of_items:
        without = _measure_items(model.shape.items, train, data, causal=options.causal)
    else:
        without = _measure_values(model, train, data), math.nan
    return Measured(len(data), rows, log_prob / rows, *without)


def _measure_items(items: int, train: Sequences, data: Sequences, *, causal: bool) -> tuple[float, float]:
    assert train.items is not None
    assert data.items is not None
    counts = torch.bincount(train.items[train.known], minlength=items).double() + 1
    chances = (counts / counts.sum())[data.items] * data.known
    alone = float(chances[data.known].log().mean())
    if any(_has_repeats(table) for table in (train, data)):
        return alone, math.nan
    at, starts = data.at[0], torch.as_tensor(data.starts[:-1])
    totals = torch.zeros(len(data), dtype=torch.float64).index_add(0, at, chances)
    before = chances.cumsum(0) - chances
    seen = before - before[starts][at] if causal else totals[at] - chances
    return alone, float((chances / (1 - seen))[data.known].log().mean())


def _has_repeats(table: Sequences) -> bool:
    """Whether a sequence has an item twice."""
    assert table.items is not None
    pairs = (table.at[0] * (table.items.max() + 1) + table.items)[table.known]
    return len(torch.unique(pairs)) < len(pairs)


def _measure_values(model: PartModel, train: Sequences, data: Sequences) -> float:
    family = copy.deepcopy(model.family).cpu().double()
    values, items = _pick(train)
    counts = torch.bincount(items, minlength=max(model.shape.items, 1)).double()
    if list(family.parameters()) and not isinstance(family, Gaussian):
        natural = _fit_values(family, values, items, counts)
    else:  # the best parameter is that with the mean of t(y); an item without rows has that of all
        sufficient = family.sufficient(values).double()
        common = sufficient.mean()  # of large numbers, differences are added
        sums = torch.zeros_like(counts).index_add(0, items, sufficient - common)
        raw = family.find_raw(common + sums / (counts + PRIOR))
        if isinstance(family, Gaussian) and family.log_variance is not None:
            variance = (values - raw[items]).square().mean()
            nn.init.constant_(family.log_variance, float(variance.clamp(LEAST).log()))
        natural = family.natural(raw)
    with torch.no_grad():
        pairs = zip(*(torch.split(part, ROWS) for part in _pick(data)), strict=True)
        total = sum(float(family.log_prob(natural[items], values).sum()) for values, items in pairs)
    return total / int(data.known.sum())


def _pick(table: Sequences) -> tuple[Tensor, Tensor]:
    """Known values, and the numbers of their items; 0 for all if there are none."""
    assert table.values is not None
    values = table.values[table.known].float().double()  # as the model reads them
    return values, torch.zeros(len(values), dtype=torch.long) if table.items is None else table.items[table.known]


def _fit_values(family: ExponentialFamily, values: Tensor, items: Tensor, rows: Tensor) -> Tensor:
    """The natural parameter of each item, and the parameters of the family, by the different values of each item.

    rows: of each item.
    """
    pairs, counts = torch.unique(torch.stack([values, items.double()], 1), dim=0, return_counts=True)
    values, items = pairs[:, 0], pairs[:, 1].long()

    def log_prob(natural: Tensor) -> Tensor:
        mean: Tensor = (counts * family.log_prob(natural.expand(len(rows))[items], values)).sum() / counts.sum()
        return mean

    alone = _climb(family, log_prob, torch.zeros(1))
    raw = _climb(family, log_prob, alone.expand(len(rows)))
    return family.natural(torch.where(rows > 0, raw, alone)).detach()


def _climb(family: ExponentialFamily, log_prob: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """The network's numbers, and parameters of the family, of the largest log p of natural parameters."""
    raw = start.double().clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [raw, *family.parameters()], max_iter=STEPS, tolerance_grad=TOLERANCE, tolerance_change=TOLERANCE,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        """−log p, with a little that keeps the parameters of items near each other which would be infinite."""
        optimizer.zero_grad()
        around = (raw - raw.mean()).square().mean()
        total: Tensor = -log_prob(family.natural(raw)) + 1e-6 * around
        total.backward()  # type: ignore[no-untyped-call]
        return total

    for _ in range(STEPS):
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return raw.detach()
