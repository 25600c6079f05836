"""What is known without a context: one distribution for each item, of the family of the model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from attngeo.efa.families import ExponentialFamily, Gaussian
from attngeo.efa.modelling import PartModel

# Steps of the optimizer; one suffices for most families. Smaller gradients and changes end it.
STEPS, TOLERANCE = 20, 1e-12
# Rows of data whose log p is computed at once.
ROWS = 2**16
# The smallest variance, of values that are all equal.
LEAST = 1e-12


def measure_baselines(
    model: PartModel, train: Iterable[tuple[Tensor, ...]], data: Iterable[tuple[Tensor, ...]], *, causal: bool
) -> tuple[float, float]:
    """The mean log p of data by two distributions that are learned from training data: without context and repeats.

    Without a context: for items, their frequencies, one added to each count; for values, a parameter of the family for
    each item, or one for all if there are no items. Without repeats: the same frequencies, but items of the context
    have probability 0, and the rest sum to 1; NaN for values, and if an item occurs twice in a sequence of a table.

    train, data: parts of tables, as `PartModel.tensors` gives them; each is read once. causal: the context is the items
    before a position; otherwise all others.
    """
    if model.is_of_items:
        return _measure_items(model, train, data, causal=causal)
    return _measure_values(model, train, data), math.nan


def _measure_items(
    model: PartModel, train: Iterable[tuple[Tensor, ...]], data: Iterable[tuple[Tensor, ...]], *, causal: bool
) -> tuple[float, float]:
    counts = torch.ones(model.shape.items, dtype=torch.float64)
    repeated = False
    for items, known in train:
        counts += torch.bincount(items[known], minlength=len(counts))
        repeated = repeated or _has_repeats(items, known)
    chances = counts / counts.sum()
    alone, rest, rows = 0.0, 0.0, 0
    for items, known in data:
        own = chances[items] * known
        seen = (own.cumsum(1) if causal else own.sum(1, keepdim=True)) - own
        alone += float(own[known].log().sum())
        rest += float((own / (1 - seen))[known].log().sum())
        rows += int(known.sum())
        repeated = repeated or _has_repeats(items, known)
    return alone / rows, math.nan if repeated else rest / rows


def _has_repeats(items: Tensor, known: Tensor) -> bool:
    """Whether a sequence has an item twice."""
    numbers = torch.where(known, items, -1 - torch.arange(items.shape[1])).sort(1).values
    return bool((numbers[:, 1:] == numbers[:, :-1]).any())


def _measure_values(model: PartModel, train: Iterable[tuple[Tensor, ...]], data: Iterable[tuple[Tensor, ...]]) -> float:
    family = copy.deepcopy(model.family).cpu().double()
    pairs = (_pick(model, part) for part in train)
    if isinstance(family, Gaussian):
        natural = _fit_normal(family, pairs, model.shape.items)
    elif _is_of_sums(family):
        natural = _fit_sums(family, pairs, model.shape.items)
    else:
        natural = _fit_pairs(family, pairs, model.shape.items)
    total, rows = 0.0, 0
    with torch.no_grad():
        for pair in (_pick(model, part) for part in data):
            for values, items in zip(*(torch.split(each, ROWS) for each in pair), strict=True):
                total += float(family.log_prob(natural[items], values).sum())
                rows += len(values)
    return total / rows


def _is_of_sums(family: ExponentialFamily) -> bool:
    """Whether the best parameter follows from the sum of t(y): η·t(y) − A(η) is all that depends on it."""
    states_more = any(
        getattr(type(family), name) is not getattr(ExponentialFamily, name) for name in ("log_prob", "log_likelihood")
    )
    return not states_more and not list(family.parameters())


def _fit_sums(family: ExponentialFamily, pairs: Iterable[tuple[Tensor, Tensor]], items: int) -> Tensor:
    """The natural parameter of each item, by the sums of t(y)."""
    counts, sums = torch.zeros(2, max(items, 1), dtype=torch.float64)
    for values, of in pairs:
        counts += torch.bincount(of, minlength=len(counts))
        sums.index_add_(0, of, family.sufficient(values).double())
    known = counts > 0
    means = sums[known] / counts[known]

    def log_prob(natural: Tensor) -> Tensor:
        """The mean over items, whose best parameters do not depend on each other, and so not on their counts."""
        found: Tensor = (natural[known] * means - family.log_partition(natural[known])).mean()
        return found

    common = sums.sum() / counts.sum()
    alone = _climb(family, lambda natural: (natural * common - family.log_partition(natural)).sum(), torch.zeros(1))
    raw = _climb(family, log_prob, alone.expand(len(counts)))
    return family.natural(torch.where(known, raw, alone)).detach()


def _fit_pairs(family: ExponentialFamily, pairs: Iterable[tuple[Tensor, Tensor]], items: int) -> Tensor:
    """The same by the different values of each item, which may be as many as there are rows."""
    found = torch.zeros(0, 2, dtype=torch.float64)
    counts = torch.zeros(0, dtype=torch.float64)
    for values, of in pairs:
        both = torch.cat([found, torch.stack([values, of.double()], 1)])
        weights = torch.cat([counts, torch.ones(len(values), dtype=torch.float64)])
        found, at = torch.unique(both, dim=0, return_inverse=True)
        counts = torch.zeros(len(found), dtype=torch.float64).index_add(0, at, weights)
    values, of = found[:, 0], found[:, 1].long()

    def log_prob(natural: Tensor) -> Tensor:
        return (counts * family.log_prob(natural.expand(max(items, 1))[of], values)).sum() / counts.sum()

    alone = _climb(family, log_prob, torch.zeros(1))
    raw = _climb(family, log_prob, alone.expand(max(items, 1)))
    known = torch.bincount(of, minlength=len(raw)) > 0
    return family.natural(torch.where(known, raw, alone)).detach()


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
        found: Tensor = -log_prob(family.natural(raw)) + 1e-6 * around
        found.backward()  # type: ignore[no-untyped-call]
        return found

    for _ in range(STEPS):
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return raw.detach()


def _fit_normal(family: Gaussian, pairs: Iterable[tuple[Tensor, Tensor]], items: int) -> Tensor:
    """The same for normal values, whose best means are those of the items; of all rows, for an item that has none.

    Sums are around the mean of an item in the first part that has it: squares of large numbers are not subtracted.
    """
    counts, sums, around = torch.zeros(3, max(items, 1), dtype=torch.float64)
    squares = 0.0
    for values, of in pairs:
        own = torch.bincount(of, minlength=len(counts))
        middle = values.mean()
        means = middle + torch.zeros_like(sums).index_add(0, of, values - middle) / own.clamp(1)
        around = torch.where(counts == 0, means, around)
        distances = values - around[of]
        counts += own
        sums.index_add_(0, of, distances)
        squares += float(distances.square().sum())
    means = around + sums / counts.clamp(1)
    means = torch.where(counts == 0, (means * counts).sum() / counts.sum(), means)
    if family.log_variance is not None:
        variance = (squares - (sums.square() / counts.clamp(1)).sum()) / counts.sum()
        nn.init.constant_(family.log_variance, float(variance.clamp(LEAST).log()))
    return family.natural(means).detach()


def _pick(model: PartModel, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Known values of a part, and the numbers of their items; 0 for all if there are none."""
    given = dict(zip(model.fields, tensors, strict=True))
    known = given["known"]
    values = given["values"][known].double()
    return values, given["items"][known] if "items" in given else torch.zeros(len(values), dtype=torch.long)
