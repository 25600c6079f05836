"""A fitted model: its numbers at all positions of sequences, its attention and its vectors as tables; what it draws.

How probable the rows of a table are, beside what is known without a context: one distribution of the family for each
item.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from attngeo.devices import explain_memory, pick_device
from attngeo.errors import DataError, UsageError
from attngeo.estimators.efa.batches import CHUNK, LARGEST, group_similar
from attngeo.estimators.efa.columns import TABLE, TRAINING
from attngeo.estimators.efa.families import ExponentialFamily, Gaussian
from attngeo.estimators.efa.model import JointModel, PartModel
from attngeo.estimators.efa.networks import Batch, ValueAttention
from attngeo.estimators.efa.options import EfaOptions
from attngeo.estimators.efa.sequences import POSITION, Sequences

if TYPE_CHECKING:
    from attngeo.estimators.efa.estimator import ExponentialFamilyAttention

# What to do if they need too much memory.
SMALLER = "give shorter sequences, or fit with layers 1 or direction uni"
# Vectors of items in the first layer of attention; and sequences whose weights are in a table at once.
VECTORS, BLOCK = ("query", "key", "value"), 16
# The largest mean of a value that is drawn: larger counts are not exact in single precision.
LARGEST_DRAWN = 2.0**24
# Steps of the optimizer; one suffices for most families. Smaller gradients and changes end it.
STEPS, TOLERANCE = 20, 1e-12
# Rows of data whose log p is computed at once.
ROWS = 2**16
# The smallest variance, of values that are all equal.
LEAST = 1e-12
# The rows of an item with the mean of all, so that none has an infinite parameter.
PRIOR = 1e-6


@torch.no_grad()
@explain_memory(SMALLER)
def read_all(
    model: PartModel, sequences: Sequences, function: Callable[[Batch], Tensor], options: EfaOptions
) -> Tensor:
    """A function of batches, such as `model.mean`, at all places: [P, …]."""
    device = pick_device(options.device)
    model.to(device).eval()
    results: Tensor | None = None
    for some in group_similar(model, sequences, options):
        chosen = sequences.take(some)
        result = function(model.batch(chosen).to(device)).cpu()[chosen.at]
        if results is None:
            results = torch.zeros(len(sequences.rows), *result.shape[1:], dtype=result.dtype)
        results[sequences.find_places(some)] = result
    assert results is not None
    return results


@torch.no_grad()
def draw_items(model: PartModel, batch: Batch, *, causal: bool, sweeps: int, seed: int) -> Tensor:
    """Items at each position, [N, I]. Those of the batch are not read. causal: one pass, instead of sweeps."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        items = torch.randint(0, model.shape.items, batch.known.shape)
        others = replace(batch, items=items)
        for position in [*range(items.shape[1])] * (1 if causal else sweeps):
            items[:, position] = model.change(model.natural_at(position, others), "sample")
    return items


@torch.no_grad()
def draw_values(model: PartModel, batch: Batch, *, causal: bool, sweeps: int, seed: int) -> Tensor:
    """Values at each position, [N, I, columns]. Those of the batch are not read.

    Raises DataError if values grow without limit: conditional distributions may have no joint one, as those of counts
    that raise each other.
    """
    known, length = batch.known, batch.known.shape[1]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        values = torch.zeros(*known.shape, len(model.families))
        if not causal:  # a start of each value that depends on no other one
            for position in range(length):
                alone = known & (torch.arange(length) == position)
                start = model.natural_at(position, replace(batch, known=alone, values=values))
                values[:, position] = _draw(model, start, known[:, position])
        others = replace(batch, values=values)
        for position in [*range(length)] * (1 if causal else sweeps):
            values[:, position] = _draw(model, model.natural_at(position, others), known[:, position])
    return values


def _draw(model: PartModel, natural: Tensor, known: Tensor) -> Tensor:
    """Values for known natural parameters, [N, columns], 0 for the others."""
    mean = model.change(natural[known], "mean")
    if not mean.isfinite().all() or bool((mean.abs() > LARGEST_DRAWN).any()):
        raise DataError(
            "the drawn values grow without limit: the model's conditional distributions have no joint one; draw with a "
            "model of direction uni, or of another family"
        )
    drawn = model.change(natural[known], "sample").float()
    return torch.zeros(natural.shape).masked_scatter(known[:, None], drawn)


@torch.no_grad()
def tabulate_attention(model: PartModel, sequences: Sequences, *, causal: bool) -> pd.DataFrame:
    """The weights of pairs of known positions, as rows; columns are those of `attention_weights`, without items."""
    shape = model.attention.shape
    costs = shape.layers * shape.heads * (1 + model.shape.lags) * sequences.lengths**2
    tables, at = [], 0
    while at < len(sequences):  # as many sequences as there is memory for when they are padded
        padded = np.maximum.accumulate(costs[at : at + CHUNK]) * np.arange(1, len(costs[at : at + CHUNK]) + 1)
        count = max(1, int((padded <= LARGEST).sum()))
        tables.append(_tabulate_weights(model, sequences.take(np.arange(at, at + count)), causal=causal))
        at += count
    return pd.concat(tables, ignore_index=True)


def _tabulate_weights(model: PartModel, sequences: Sequences, *, causal: bool) -> pd.DataFrame:
    """The same of some sequences: a pass for each position, which is masked in it."""
    tokens, shape = model.embed(model.batch(sequences)), model.attention.shape
    known, rows = (sequences.pad(part).numpy() for part in (sequences.known, torch.as_tensor(sequences.rows)))
    positions, total = known.shape[1], tokens.known.shape[1]
    weights = torch.zeros(len(sequences), shape.layers, shape.heads, positions, total)
    for place in range(positions):
        for number, (_, of_layer) in enumerate(model.attention.step_copy(*tokens[:3], place, causal=causal)):
            weights[:, number, :, place] = of_layer[:, :, place]
    pairs = known[:, :, None] & np.tile(known, total // positions)[:, None]
    if causal:
        pairs &= np.tile(np.tri(positions, dtype=bool), total // positions)
    at, layer, head, i, j = np.nonzero(np.broadcast_to(pairs[:, None, None], weights.shape))
    return pd.DataFrame(
        {
            "sequence": sequences.names[at], "layer": layer, "head": head, "row": rows[at, i],
            "other": rows[at, j % positions], "position": i, "other_position": j % positions,
            "lag": j // positions, "weight": weights.numpy()[at, layer, head, i, j],
        }
    )  # fmt: skip


def tabulate_places(model: ExponentialFamilyAttention, data: pd.DataFrame) -> pd.DataFrame:
    """How much each place, when it is masked, attends to each place: the mean over sequences and heads.

    data: rows of a model with two coordinates, of which the first is the latitude; places are its items, or else its
    positions. Columns: place (that is masked), other (that it attends to), latitude and longitude (of the other one),
    layer, lag (0, or which of the earlier times), weight. Raises UsageError if the model has no two coordinates, and as
    `attention_weights`.
    """
    options, keys = model.options_, ["place", "other", "layer", "lag"]
    if len(options.coordinates) != 2:
        raise UsageError(f"the model has {len(options.coordinates)} coordinates, expected two: latitude and longitude")
    data = data[model.log_prob(data).notna()]  # all rows are read first: errors have their numbers; some are left out
    column = next((name for name in (options.item, options.position or POSITION) if name in data), None)
    names = data.groupby(options.sequence).cumcount() if column is None else data[column]
    numbers, sums = pd.factorize(data[options.sequence])[0], []
    for start in range(0, int(numbers.max()) + 1, BLOCK):
        some = (numbers >= start) & (numbers < start + BLOCK)
        weights, places = model.attention_weights(data[some]), names[some].to_numpy()
        weights = weights[weights["part"] == "values"] if "part" in weights else weights
        named = weights.assign(place=places[weights["row"]], other=places[weights["other"]])
        sums.append(named.groupby(keys, sort=False)["weight"].agg(["sum", "count"]))
    total = pd.concat(sums).groupby(keys, sort=False).sum()
    means = (total["sum"] / total["count"]).rename("weight").reset_index()
    of_place = data.assign(other=names).drop_duplicates("other").set_index("other").loc[means["other"]]
    latitude, longitude = (of_place[name].to_numpy() for name in options.coordinates)
    return means.assign(latitude=latitude, longitude=longitude)[
        ["place", "other", "latitude", "longitude", "layer", "lag", "weight"]
    ]


@torch.no_grad()
def tabulate_embeddings(model: PartModel, items: Sequence[Any]) -> dict[str, pd.DataFrame]:
    """DataFrames [items, numbers]: context, center; query, key and value of the first layer if there is attention.

    Queries, keys and values are those of context embeddings, Wβ plus the bias, as in figure 4 of the paper. The value
    part has them only if its tokens are nothing but an item's vector, which they never are; so it has the first two.
    """
    tables = _find_tables(model)
    attention = getattr(model.network, "attention", None)
    if attention is not None and model.is_of_items:
        tables |= {name: getattr(attention.layers[0], name)(tables["context"]) for name in VECTORS}
    return {name: pd.DataFrame(table.cpu().numpy(), index=pd.Index(list(items))) for name, table in tables.items()}


def tabulate_vectors(model: ExponentialFamilyAttention) -> pd.DataFrame:
    """The query, key and value of each item in each head of the first layer; one row for each number.

    Columns: item, vector (query, key or value), head, number (from 0), value. Raises UsageError if the model has no
    such vectors: a factor model, or a model of values.
    """
    tables = model.embeddings()
    if any(name not in tables for name in VECTORS):
        raise UsageError("the model has no queries and keys of items, expected a model of items with attention")
    parts = []
    for name in VECTORS:
        long = tables[name].rename_axis("item").melt(var_name="number", ignore_index=False).reset_index()
        size = tables[name].shape[1] // model.options_.n_heads
        number = long["number"].astype("int64")
        parts.append(long.assign(vector=name, head=number // size, number=number % size))
    return pd.concat(parts, ignore_index=True)[["item", "vector", "head", "number", "value"]]


def rank_similar(
    model: PartModel | JointModel, items: Sequence[Any], item: Any, top: int | None = None
) -> pd.DataFrame:
    """The items that go with an item, best first: rank, item, score; the item itself is left out (table 3).

    The score of items a and b is δ_a·β_b + β_a·δ_b, for center embeddings δ and context embeddings β, of the part of
    items if there are both. Raises UsageError for an unknown item, and for a model of values by attention: no product
    of its embeddings is a part of it.
    """
    part = model.parts[0]
    if isinstance(part.network, ValueAttention):
        raise UsageError(
            "the model is of values by attention, which has no products of items; fit a model of items "
            "(attngeo efa fit --part items), or a factor model (--model fm)"
        )
    if item not in items:
        raise UsageError(f"$item is {item!r:.60}, expected one of the {len(items):,} of the training rows", "item")
    tables, at = _find_tables(part), list(items).index(item)
    context, center = (tables[name].cpu().double() for name in ("context", "center"))
    scores = (context @ center[at] + center @ context[at]).numpy()
    order = np.argsort(-scores, kind="stable")
    others = [at for at in order if items[at] != item][:top]
    return pd.DataFrame(
        {"rank": range(1, len(others) + 1), "item": [items[at] for at in others], "score": scores[others]}
    )


def _find_tables(model: PartModel) -> dict[str, Tensor]:
    """Context and center, [D, K]; without the mask's vector."""
    modules = {name: getattr(model.network, name, None) for name in ("context", "center")}
    tables = {
        name: module.weight.detach()[: model.shape.items]
        for name, module in modules.items()
        if isinstance(module, nn.Embedding | nn.Linear)
    }
    if not tables:
        raise UsageError("the model has no items, expected a model of items, or of values that have items")
    return tables


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


def measure_rows(
    model: PartModel, data: Sequences, train: Sequences, options: EfaOptions
) -> dict[tuple[str, str], Measured]:
    """The rows of a table by part and column of values; train: those that the baselines learn from.

    Raises TableError for values of no family. Without a context: for items, their frequencies, one added to each count;
    for values, a parameter of the family for each item, or one for all if there are no items. Without repeats: the same
    frequencies, but items of the context have probability 0, and the rest sum to 1.
    """
    columns = [*options.families]
    model.check(data, columns, TABLE)
    model.check(train, columns, TRAINING)
    log_prob = read_all(model, data, model.log_prob, options).double()
    if model.is_of_items:
        rows = int(data.known.sum())
        baselines = _measure_items(model.shape.items, train, data, causal=options.causal)
        return {("items", ""): Measured(len(data), rows, float(log_prob.sum()) / rows, *baselines)}
    measured = {}
    for at, column in enumerate(columns):
        stated = [_pick(table, at) for table in (train, data)]
        rows = len(stated[1][0])
        alone = _measure_values(model.families[at], max(model.shape.items, 1), *stated) if rows else math.nan
        mean = float(log_prob[:, at].sum()) / rows if rows else math.nan
        measured["values", column] = Measured(len(data), rows, mean, alone, math.nan)
    return measured


def add_up(measured: Mapping[tuple[str, str], Measured], rows: int) -> Measured:
    """Log p of whole rows, of which there are so many, from that of parts and columns."""
    columns = [column for column in measured.values() if column.rows]
    log_prob = sum(column.log_prob * column.rows for column in columns) / rows
    alone = sum(column.without_context * column.rows for column in columns) / rows
    return Measured(columns[0].sequences, rows, log_prob, alone, math.nan)


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


def _measure_values(
    family: ExponentialFamily, count: int, train: tuple[Tensor, Tensor], data: tuple[Tensor, Tensor]
) -> float:
    """The mean log p of values without a context. count: of items. train, data: values and items of rows."""
    family = copy.deepcopy(family).cpu().double()
    values, items = train
    counts = torch.bincount(items, minlength=count).double()
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
        pairs = zip(*(torch.split(part, ROWS) for part in data), strict=True)
        total = sum(float(family.log_prob(natural[items], values).sum()) for values, items in pairs)
    return total / len(data[0])


def _pick(table: Sequences, column: int) -> tuple[Tensor, Tensor]:
    """Known values of a column, and the numbers of their items; 0 for all if there are none."""
    assert table.values is not None
    values = table.values[:, column].float().double()  # as the model reads them
    known = table.known & ~values.isnan()
    items = torch.zeros_like(values, dtype=torch.long) if table.items is None else table.items
    return values[known], items[known]


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
