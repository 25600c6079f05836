"""Rows that pictures of a fitted model are drawn from: the vectors of its items, and the attention between places."""

from __future__ import annotations

from typing import Any

import pandas as pd

from attngeo.errors import UsageError
from attngeo.estimators.efa.estimator import ExponentialFamilyAttention
from attngeo.estimators.efa.sequences import POSITION
from attngeo.estimators.efa.vectors import LAYER_VECTORS

# Sequences whose weights are in a table at once.
BLOCK = 16


def tabulate_vectors(model: ExponentialFamilyAttention) -> pd.DataFrame:
    """The query, key and value of each item in each head of the first layer; one row per number.

    Args:
        model: an attention model, fitted to items.

    Returns:
        Columns: item, vector (query, key or value), head, number (from 0), value.

    Raises:
        UsageError: the model has no such vectors: a factor model, or a model of values.
    """
    tables = model.embeddings()
    if any(name not in tables for name in LAYER_VECTORS):
        raise UsageError("the model has no queries and keys of items, expected a model of items with attention")
    vectors = []
    for name in LAYER_VECTORS:
        long = tables[name].rename_axis("item").melt(var_name="number", ignore_index=False).reset_index()
        size = tables[name].shape[1] // model.options_.n_heads
        number = long["number"].astype("int64")
        vectors.append(long.assign(vector=name, head=number // size, number=number % size))
    return pd.concat(vectors, ignore_index=True)[["item", "vector", "head", "number", "value"]]


def tabulate_places(model: ExponentialFamilyAttention, data: pd.DataFrame) -> pd.DataFrame:
    """How much each place attends to each place while it is masked: the mean over sequences and heads.

    Args:
        model: fitted to values with two coordinates, latitude first.
        data: rows as in training; their items name the places, or without items, their positions.

    Returns:
        Columns: place (the masked one), attended_place, latitude and longitude (of the attended place), layer, lag
        (0, or the number of the earlier time), weight.

    Raises:
        UsageError: the model does not have two coordinates, or `attention_weights` raises it.
    """
    options = model.options_
    if len(options.coordinates) != 2:
        raise UsageError(f"the model has {len(options.coordinates)} coordinates, expected two: latitude and longitude")
    data = data[model.log_prob(data).notna()]  # all rows are read first: errors have their numbers; some are left out
    places = _name_places(model, data)
    keys = ["place", "attended_place", "layer", "lag"]
    sequence, _ = pd.factorize(data[options.sequence])
    sums = []
    for start in range(0, int(sequence.max()) + 1, BLOCK):
        is_in_block = (sequence >= start) & (sequence < start + BLOCK)
        weights = model.attention_weights(data[is_in_block])
        if "part" in weights:
            weights = weights[weights["part"] == "values"]
        names = places[is_in_block].to_numpy()
        weights = weights.assign(place=names[weights["row"]], attended_place=names[weights["attended_row"]])
        sums.append(weights.groupby(keys, sort=False)["weight"].agg(["sum", "count"]))
    total = pd.concat(sums).groupby(keys, sort=False).sum()
    means = (total["sum"] / total["count"]).rename("weight").reset_index()
    named = data.set_index(places.to_numpy())
    rows_of_places = named[~named.index.duplicated()].loc[means["attended_place"]]
    latitude, longitude = options.coordinates
    means = means.assign(latitude=rows_of_places[latitude].to_numpy(), longitude=rows_of_places[longitude].to_numpy())
    return means[["place", "attended_place", "latitude", "longitude", "layer", "lag", "weight"]]


def _name_places(model: ExponentialFamilyAttention, data: pd.DataFrame) -> pd.Series[Any]:
    """The place of each row: its item, its position, or its number in the sequence, whichever the table has first."""
    options = model.options_
    for column in (options.item, options.position or POSITION):
        if column in data:
            return data[column]
    return data.groupby(options.sequence).cumcount()
