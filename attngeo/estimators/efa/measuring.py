"""How well the rows of a table are predicted: by a fitted model, and without a context.

Without a context, items have their frequencies, and each item's values have one distribution of their family.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from attngeo.errors import UsageError
from attngeo.estimators.efa.families import ExponentialFamily, Gaussian
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.options import EfaOptions
from attngeo.estimators.efa.prediction import read_all
from attngeo.estimators.efa.sequences import Sequences

# Steps of the optimizer; one suffices for most families. Smaller gradients and changes end it.
STEPS = 20
TOLERANCE = 1e-12
# Rows of data whose log p is computed at once.
ROWS = 2**16
# The smallest variance, of values that are all equal.
LEAST = 1e-12
# The rows of an item with the mean of all, so that none has an infinite parameter.
PRIOR = 1e-6
# Weight of the deviation between the parameters of items, which keeps those finite that would be infinite.
SHRINKAGE = 1e-6


class Measured(NamedTuple):
    """How well a table is predicted: its size, the mean log p of its rows, and errors.

    Measures for values are NaN for items, and the reverse. Both errors are NaN if the family has no mean.

    Attributes:
        sequences: number of sequences.
        rows: number of rows.
        log_prob: mean log p under the model.
        without_context: mean log p under the best distribution that ignores the context.
        without_repeats: mean log p under item frequencies that leave out the context's items; NaN for values, and if an
            item occurs twice in a sequence.
        rmse: root mean squared error of the predicted means.
        item_mean_rmse: the same if each item's training mean is predicted, or without items, the mean of all values.
        accuracy: share of rows whose item is the most probable one.
        popularity_accuracy: share of rows whose item is the most frequent one; if no item occurs twice, the most
            frequent one that the context lacks.
    """

    sequences: int
    rows: int
    log_prob: float
    without_context: float
    without_repeats: float = math.nan
    rmse: float = math.nan
    item_mean_rmse: float = math.nan
    accuracy: float = math.nan
    popularity_accuracy: float = math.nan


def measure_rows(
    model: PartModel, data: Sequences, train: Sequences, options: EfaOptions
) -> dict[tuple[str, str], Measured]:
    """Measure a table by part and value column. train: the rows from which the baselines learn.

    Without context, the baseline for items is their frequencies, with one added to each count; for values it is one
    parameter of the family per item, or a single one if there are no items. Without repeats, items of the context have
    probability 0, and the other frequencies sum to 1.
    """
    log_prob = read_all(model, data, model.log_prob, options).double()
    if model.is_of_items:
        return {("items", ""): _measure_items(model, data, train, log_prob, options)}
    means = None
    with suppress(UsageError):  # of a family that has no mean
        means = read_all(model, data, model.mean, options).double()
    measured = {}
    for number, column in enumerate(options.families):
        known, values, items = _select_known(data, number)
        if not len(values):
            measured["values", column] = Measured(len(data), 0, math.nan, math.nan)
            continue
        _, train_values, train_items = _select_known(train, number)
        count = max(model.shape.items, 1)
        family = copy.deepcopy(model.families[number]).cpu().double()
        natural = _fit_family(family, train_values, train_items, count)
        measured["values", column] = Measured(
            sequences=len(data),
            rows=len(values),
            log_prob=float(log_prob[:, number].sum()) / len(values),
            without_context=_average_log_prob(family, natural, values, items),
            rmse=math.nan if means is None else _measure_error(means[known, number], values),
            item_mean_rmse=_measure_error(_average_items(train_values, train_items, count)[items], values),
        )
    return measured


def add_up(measured: Mapping[tuple[str, str], Measured], rows: int) -> Measured:
    """Log p of whole rows, added up from parts and columns. rows: number of rows."""
    columns = [column for column in measured.values() if column.rows]
    log_prob = sum(column.log_prob * column.rows for column in columns) / rows
    without_context = sum(column.without_context * column.rows for column in columns) / rows
    return Measured(columns[0].sequences, rows, log_prob, without_context)


def _measure_items(
    model: PartModel, data: Sequences, train: Sequences, log_prob: Tensor, options: EfaOptions
) -> Measured:
    """The items of a table. log_prob: of its entries by the model, [P, 1]."""
    assert train.items is not None
    assert data.items is not None
    counts = torch.bincount(train.items[train.known], minlength=model.shape.items).double() + 1
    chances = (counts / counts.sum())[data.items] * data.known
    guesses = read_all(model, data, model.summarize, options)[:, 1]
    rank = torch.empty_like(counts, dtype=torch.long)
    rank[counts.argsort(descending=True, stable=True)] = torch.arange(len(counts))
    is_popular = rank[data.items] == 0
    without_repeats = math.nan
    if not (train.find_repeats().any() or data.find_repeats().any()):
        in_context = _add_context(chances, data, causal=options.causal)
        # Rounding may give the only item that is left a probability above 1.
        without_repeats = float((chances / (1 - in_context))[data.known].log().clamp(max=0).mean())
        is_popular = _find_popular(rank[data.items], data, causal=options.causal)
    return Measured(
        sequences=len(data),
        rows=int(data.known.sum()),
        log_prob=float(log_prob[data.known].mean()),
        without_context=float(chances[data.known].log().mean()),
        without_repeats=without_repeats,
        accuracy=float((guesses == data.items)[data.known].double().mean()),
        popularity_accuracy=float(is_popular[data.known].double().mean()),
    )


def _add_context(chances: Tensor, data: Sequences, *, causal: bool) -> Tensor:
    """The sum of the chances of the items in the context of each entry, [P]. chances: of the items of entries, [P]."""
    sequence, _ = data.index
    if causal:
        before = chances.cumsum(0) - chances
        starts = torch.as_tensor(data.starts[:-1])
        return before - before[starts][sequence]
    totals = torch.zeros(len(data), dtype=torch.float64).index_add(0, sequence, chances)
    return totals[sequence] - chances


def _find_popular(rank: Tensor, data: Sequences, *, causal: bool) -> Tensor:
    """Whether the item of each entry is the most frequent one that its context lacks, [P].

    It is, if all items that are more frequent are in the context. rank: of each entry's item, 0 for the most frequent
    one, [P]. No item occurs twice in a sequence.
    """
    sequence, position = data.index
    table = pd.DataFrame({"sequence": sequence, "position": position, "rank": rank})[data.known.numpy()]
    table = table.sort_values(["sequence", "rank"])
    sequences = table.groupby("sequence")
    is_popular = table["rank"] == sequences.cumcount()
    if causal:
        is_popular &= table["position"] == sequences["position"].cummax()
    return torch.tensor(is_popular.reindex(range(len(rank)), fill_value=False).to_numpy())


def _select_known(table: Sequences, column: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which entries have a known value of a column, [P]; these values; the numbers of their items, 0 without items."""
    assert table.values is not None
    values = table.values[:, column].float().double()  # as the model reads them
    known = table.known & ~values.isnan()
    items = torch.zeros_like(values, dtype=torch.long) if table.items is None else table.items
    return known, values[known], items[known]


def _average_items(values: Tensor, items: Tensor, count: int) -> Tensor:
    """The mean of the values of each item, [count]; of all for an item without any."""
    common = values.mean()
    sums = torch.zeros(count, dtype=torch.float64).index_add(0, items, values - common)
    return common + sums / torch.bincount(items, minlength=count).clamp(min=1)


def _measure_error(predicted: Tensor, values: Tensor) -> float:
    """The root mean squared error."""
    return float((predicted - values).square().mean().sqrt())


def _fit_family(family: ExponentialFamily, values: Tensor, items: Tensor, count: int) -> Tensor:
    """The natural parameter of each item, [count], that fits training values best; the family's own are set.

    values, items: of rows, [rows] each.
    """
    counts = torch.bincount(items, minlength=count).double()
    if list(family.parameters()) and not isinstance(family, Gaussian):
        return _climb_to_parameters(family, values, items, counts)
    # The best parameter is that with the mean of t(y); an item without rows has that of all.
    sufficient = family.sufficient(values).double()
    common = sufficient.mean()  # of large numbers, differences are added
    sums = torch.zeros_like(counts).index_add(0, items, sufficient - common)
    raw = family.find_raw(common + sums / (counts + PRIOR))
    if isinstance(family, Gaussian) and family.log_variance is not None:
        variance = (values - raw[items]).square().mean()
        nn.init.constant_(family.log_variance, float(variance.clamp(LEAST).log()))
    return family.natural(raw)


@torch.no_grad()
def _average_log_prob(family: ExponentialFamily, natural: Tensor, values: Tensor, items: Tensor) -> float:
    """The mean log p of values, [rows], by the natural parameters of their items."""
    total = 0.0
    for some_values, some_items in zip(torch.split(values, ROWS), torch.split(items, ROWS), strict=True):
        total += float(family.log_prob(natural[some_items], some_values).sum())
    return total / len(values)


def _climb_to_parameters(family: ExponentialFamily, values: Tensor, items: Tensor, rows: Tensor) -> Tensor:
    """`_fit_family` of a family with parameters of its own, by an optimizer. rows: of each item."""
    pairs, counts = torch.unique(torch.stack([values, items.double()], 1), dim=0, return_counts=True)
    values = pairs[:, 0]
    items = pairs[:, 1].long()

    def log_prob(natural: Tensor) -> Tensor:
        mean: Tensor = (counts * family.log_prob(natural.expand(len(rows))[items], values)).sum() / counts.sum()
        return mean

    common = _maximise(family, log_prob, torch.zeros(1))
    raw = _maximise(family, log_prob, common.expand(len(rows)))
    return family.natural(torch.where(rows > 0, raw, common)).detach()


def _maximise(family: ExponentialFamily, log_prob: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """The network's numbers, and parameters of the family, of the largest log p of natural parameters."""
    raw = start.double().clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [raw, *family.parameters()],
        max_iter=STEPS,
        tolerance_grad=TOLERANCE,
        tolerance_change=TOLERANCE,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        deviation = (raw - raw.mean()).square().mean()
        total: Tensor = -log_prob(family.natural(raw)) + SHRINKAGE * deviation
        total.backward()  # type: ignore[no-untyped-call]
        return total

    for _ in range(STEPS):
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return raw.detach()
