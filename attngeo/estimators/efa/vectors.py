"""The vectors of the items of a fitted model: as tables, and the items that go with one by their products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from attngeo.errors import UsageError
from attngeo.estimators.efa.model import JointModel, PartModel
from attngeo.estimators.efa.networks import ValueAttention

# Vectors of items in the first layer of attention.
LAYER_VECTORS = ("query", "key", "value")


@torch.no_grad()
def tabulate_embeddings(model: PartModel, items: Sequence[Any]) -> dict[str, pd.DataFrame]:
    """DataFrames [items, numbers]: context, center; with attention, also query, key and value of the first layer.

    Queries, keys and values are computed from context embeddings, Wβ plus the bias, as in figure 4 of the paper. The
    value part has only the first two, because its tokens are never an item's vector alone. Raises UsageError for a
    model without items.
    """
    tables = _find_tables(model)
    attention = getattr(model.network, "attention", None)
    if attention is not None and model.is_of_items:
        for name in LAYER_VECTORS:
            tables[name] = getattr(attention.layers[0], name)(tables["context"])
    index = pd.Index(list(items))
    return {name: pd.DataFrame(table.cpu().numpy(), index=index) for name, table in tables.items()}


def rank_similar(
    model: PartModel | JointModel, items: Sequence[Any], item: Any, top: int | None = None
) -> pd.DataFrame:
    """Rank the items that go with an item, best first, without the item itself (table 3): rank, item, score.

    The score of items a and b is δ_a·β_b + β_a·δ_b, for center embeddings δ and context embeddings β; with both parts,
    from the part that predicts items. Section 6.3 of the paper prints δ_a·β_b + β_b·δ_a, the same product twice; its
    code has both products.

    Args:
        model: a fitted model, such as `ExponentialFamilyAttention.model_`.
        items: all items in the order of their numbers, such as `items_`.
        item: an item of these.
        top: number of rows; None for all.

    Raises:
        UsageError: the item is unknown, or the model is an attention model of values, which uses no such products.
    """
    part = model.parts[0]
    if isinstance(part.network, ValueAttention):
        raise UsageError(
            "an attention model of values has no products of items; fit a model of items "
            "(attngeo efa fit --part items), or a factor model (--model fm)"
        )
    tables = _find_tables(part)
    number = find_number(items, item)
    context = tables["context"].cpu().double()
    center = tables["center"].cpu().double()
    scores = (context @ center[number] + center @ context[number]).numpy()
    order = np.argsort(-scores, kind="stable")
    others = [other for other in order if items[other] != item][:top]
    return pd.DataFrame(
        {
            "rank": range(1, len(others) + 1),
            "item": [items[other] for other in others],
            "score": scores[others],
        }
    )


def find_number(items: Sequence[Any], item: Any) -> int:
    """The number of an item. Raises UsageError if it is unknown."""
    if item not in items:
        raise UsageError(
            f"$item is {item!r:.60}, expected one of the {len(items):,} items of the training rows", "item"
        )
    return list(items).index(item)


def _find_tables(model: PartModel) -> dict[str, Tensor]:
    """Context and center, [D, K]; without the mask's vector. Raises UsageError for a model without items."""
    tables = {}
    for name in ("context", "center"):
        module = getattr(model.network, name, None)
        if isinstance(module, nn.Embedding | nn.Linear):
            tables[name] = module.weight.detach()[: model.shape.items]
    if not tables:
        raise UsageError("the model has no items, expected a model of items, or of values that have items")
    return tables
