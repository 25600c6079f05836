"""The vectors that a model has for its items, and the items that are alike by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from attngeo.efa.attention import MaskedLayer
from attngeo.efa.modelling import PartModel
from attngeo.efa.network import ValueAttention
from attngeo.errors import UsageError


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
        raise UsageError(f"item is {item!r:.60}, expected one of the {len(items):,} that the model was fitted to")
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
