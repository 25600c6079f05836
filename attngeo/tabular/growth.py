"""A network that learns new columns and categories keeps what it knows about the old ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attngeo.tabular.network import CellLayout, TableAttention
from attngeo.training import draw_generator


@torch.no_grad()
def grow_network(old: TableAttention, layout: CellLayout, columns: Sequence[int], seed: int) -> TableAttention:
    """A network of a larger layout, with the weights of the old one where both have them.

    columns: the place of each old column in the new layout. Old categories keep their numbers. seed: of the rest.
    """
    new = TableAttention(layout, **old.shape, generators=[draw_generator(seed)]).to(old.weights["words"].dtype)
    places = torch.tensor(columns)
    words = torch.cat(
        [layout.to_words(torch.arange(size), at) for size, at in zip(old.layout.sizes, places, strict=True)]
    )
    before = torch.cat(
        [old.layout.to_words(torch.arange(size), torch.tensor(at)) for at, size in enumerate(old.layout.sizes)]
    )
    for name, weight in old.weights.items():
        target: Tensor = new.weights[name]
        if name == "words":
            target[:, words] = weight[:, before]
            target[:, -1] = weight[:, -1]
        elif name == "positions":
            target[:, places] = weight
        elif name in ("word", "word_bias"):
            target[..., words] = weight[..., before]
        else:
            target.copy_(weight)
    return new
