"""What a fitted model has learned, as tables that figures are drawn from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from attngeo.errors import UsageError
from attngeo.estimators.efa.attention import MaskedLayer
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.networks import ValueAttention
from attngeo.estimators.efa.sequences import Sequences

if TYPE_CHECKING:
    from attngeo.estimators.efa.estimator import ExponentialFamilyAttention

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
        size = tables[name].shape[1] // model.options_.heads
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
    names = model.options_.coordinate_names
    if len(names) != 2:
        raise UsageError(f"the model has {len(names)} coordinates, expected two: latitude and longitude")
    keys = ["place", "other", "layer", "lag"]
    data = data[model.log_prob(data).notna()]  # all rows are read first: errors have their numbers; some are left out
    sums = [_sum_weights(model, block, keys) for block in _split_blocks(data, model.options_.sequence)]
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
    options = model.options_
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


@torch.no_grad()
def tabulate_embeddings(model: PartModel, items: Sequence[Any]) -> dict[str, pd.DataFrame]:
    """DataFrames [items, numbers]: context, center; query, key and value of the first layer if there is attention.

    Queries, keys and values are those of context embeddings, Wβ plus the bias, as in figure 4 of the paper. The value
    part has them only if its tokens are nothing but an item's vector, which they never are; so it has the first two.
    """
    index = pd.Index(list(items))
    found = {name: pd.DataFrame(table.cpu().numpy(), index=index) for name, table in _find_tables(model).items()}
    attention = getattr(model.network, "attention", None)
    if attention is not None and model.is_of_items:
        layer = attention.layers[0]
        assert isinstance(layer, MaskedLayer)
        context = _find_tables(model)["context"]
        for name in ("query", "key", "value"):
            found[name] = pd.DataFrame(getattr(layer, name)(context).cpu().numpy(), index=index)
    return found


def rank_similar(model: PartModel, items: Sequence[Any], item: Any, top: int | None = None) -> pd.DataFrame:
    """The items that go with an item, best first: rank, item, score; the item itself is left out (table 3).

    The score of items a and b is δ_a·β_b + β_a·δ_b, for center embeddings δ and context embeddings β. Raises UsageError
    for an unknown item, and for a model of values by attention: no product of its embeddings is a part of it.
    """
    if isinstance(model.network, ValueAttention):
        raise UsageError(
            "the model is of values by attention, which has no products of items; fit a model of items (part items), "
            "or a factor model (model fm)"
        )
    if item not in items:
        raise UsageError(f"$item is {item!r:.60}, expected one of the {len(items):,} of the training rows", "item")
    tables, at = _find_tables(model), list(items).index(item)
    context, center = (tables[name].cpu().double() for name in ("context", "center"))
    scores = (context @ center[at] + center @ context[at]).numpy()
    order = np.argsort(-scores, kind="stable")
    others = [at for at in order if items[at] != item][:top]
    return pd.DataFrame(
        {"rank": range(1, len(others) + 1), "item": [items[at] for at in others], "score": scores[others]}
    )


def _find_tables(model: PartModel) -> dict[str, Tensor]:
    """Context and center, [D, K]; without the mask's vector."""
    found = {}
    for name in ("context", "center"):
        module = getattr(model.network, name, None)
        if isinstance(module, nn.Embedding | nn.Linear):
            found[name] = module.weight.detach()[: model.shape.items]
    if not found:
        raise UsageError("the model has no items, expected a model of items, or of values that have items")
    return found


def tabulate_weights(sequences: Sequences, weights: np.ndarray, *, causal: bool) -> pd.DataFrame:
    """The weights [B, layers, H, I, J] of pairs of known positions, as rows."""
    known, rows = (sequences.pad(part).numpy() for part in (sequences.known, torch.as_tensor(sequences.rows)))
    positions = known.shape[1]
    others = np.tile(known, weights.shape[-1] // positions)
    pairs = known[:, :, None] & others[:, None]
    if causal:
        pairs &= np.tile(np.tri(positions, dtype=bool), len(pairs[0, 0]) // positions)
    at, layer, head, i, j = np.nonzero(np.broadcast_to(pairs[:, None, None], weights.shape))
    return pd.DataFrame(
        {
            "sequence": sequences.names[at], "layer": layer, "head": head, "row": rows[at, i],
            "other": rows[at, j % positions], "position": i, "other_position": j % positions,
            "lag": j // positions, "weight": weights[at, layer, head, i, j],
        }
    )  # fmt: skip
