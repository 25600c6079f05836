"""What is known without a context: one distribution for each item, of the family of the model."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from attngeo.efa.families import Gaussian
from attngeo.efa.modelling import PartModel

# Steps of the optimizer; one suffices for most families.
STEPS = 20
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
    values, items = _pick(model, train)
    if isinstance(family, Gaussian):
        return _measure_normal(model, family, values, items, _pick(model, data))
    raw = torch.zeros(max(model.shape.items, 1), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([raw, *family.parameters()], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        """−log p, with a little that pulls the parameters of rare items together."""
        optimizer.zero_grad()
        around = (raw - raw.mean()).square().mean()
        found: Tensor = -family.log_prob(family.natural(raw[items]), values).mean() + 1e-6 * around
        found.backward()  # type: ignore[no-untyped-call]
        return found

    for _ in range(STEPS):
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        values, items = _pick(model, data)
        return float(family.log_prob(family.natural(raw[items]), values).mean())


def _measure_normal(
    model: PartModel, family: Gaussian, values: Tensor, items: Tensor, data: tuple[Tensor, Tensor]
) -> float:
    """The same for normal values, whose best means are those of the items; of all rows, for an item that has none."""
    counts = torch.bincount(items, minlength=max(model.shape.items, 1))
    center = values.mean()
    means = center + torch.zeros(len(counts), dtype=torch.float64).index_add(0, items, values - center) / counts.clamp(
        1
    )
    if isinstance(family.log_variance, nn.Parameter):
        nn.init.constant_(family.log_variance, float((values - means[items]).square().mean().clamp(LEAST).log()))
    with torch.no_grad():
        asked, of_items = data
        return float(family.log_prob(family.natural(means[of_items]), asked).mean())


def _pick(model: PartModel, parts: Iterable[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor]:
    """Known values, and the numbers of their items; 0 for all if there are none."""
    values, items = [], []
    for tensors in parts:
        given = dict(zip(model.fields, tensors, strict=True))
        known = given["known"]
        values.append(given["values"][known].double())
        items.append(given["items"][known] if "items" in given else torch.zeros(len(values[-1]), dtype=torch.long))
    return torch.cat(values), torch.cat(items)
