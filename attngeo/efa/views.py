"""What a fitted model has learned, as tables that figures are drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from attngeo.errors import UsageError

if TYPE_CHECKING:
    from attngeo.efa.estimator import ExponentialFamilyAttention

VECTORS = ("query", "key", "value")
# Sequences whose weights are in memory at once: a pair of rows has one for each layer and head.
BLOCK = 16


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
        size = tables[name].shape[1] // model.options.heads
        number = long["number"].astype("int64")
        parts.append(long.assign(vector=name, head=number // size, number=number % size))
    return pd.concat(parts, ignore_index=True)[["item", "vector", "head", "number", "value"]]


def tabulate_places(model: ExponentialFamilyAttention, data: pd.DataFrame) -> pd.DataFrame:
    """How much each place, when it is masked, attends to each place: the mean over sequences and heads.

    data: rows of a model with two coordinates, of which the first is the latitude; places are its items, or else its
    positions. Columns: place (that is masked), other (that it attends to), latitude and longitude (of the other one),
    layer, lag (0, or which of the earlier times), weight. Raises UsageError if the model has no two coordinates, and as
    `attention_weights`.
    """
    names = model.options.coordinate_names
    if len(names) != 2:
        raise UsageError(f"the model has {len(names)} coordinates, expected two: latitude and longitude")
    keys = ["place", "other", "layer", "lag"]
    data = data[model.log_prob(data).notna()]  # all rows are read first: errors have their numbers; some are left out
    sums = [_sum_weights(model, block, keys) for block in _split_blocks(data, model.options.sequence)]
    total = pd.concat(sums).groupby(keys, sort=False).sum()
    found = (total["sum"] / total["count"]).rename("weight").reset_index()
    of_place = data.assign(other=_name_places(model, data)).drop_duplicates("other").set_index("other")
    for target, name in zip(("latitude", "longitude"), names, strict=True):
        found[target] = of_place[name].loc[found["other"]].to_numpy()
    return found[["place", "other", "latitude", "longitude", "layer", "lag", "weight"]]


def _sum_weights(model: ExponentialFamilyAttention, block: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Sum and count of the weights of each pair of places in some sequences."""
    weights, places = model.attention_weights(block), _name_places(model, block).to_numpy()
    named = weights.assign(place=places[weights["row"]], other=places[weights["other"]])
    return named.groupby(keys, sort=False)["weight"].agg(["sum", "count"])


def _name_places(model: ExponentialFamilyAttention, data: pd.DataFrame) -> pd.Series:
    """The name of the place of each row."""
    options = model.options
    if options.item in data:
        return data[options.item]
    if options.position is not None or "position" in data:
        return data[options.position or "position"]
    return data.groupby(options.sequence).cumcount()


def _split_blocks(data: pd.DataFrame, sequence: str) -> Iterator[pd.DataFrame]:
    """Rows of some sequences at a time."""
    numbers = pd.factorize(data[sequence])[0]
    for start in range(0, int(numbers.max()) + 1, BLOCK):
        yield data[(numbers >= start) & (numbers < start + BLOCK)]
