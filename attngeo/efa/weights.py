"""The weights of attention at masked positions, by one pass for each position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attngeo.efa.attention import MaskedAttention, MaskedLayer, find_seen
from attngeo.efa.network import Tokens


@torch.no_grad()
def read_weights(attention: MaskedAttention, given: Tokens, *, causal: bool) -> Tensor:
    """How much each position, when it is masked, attends to each token: [B, layers, H, I, J].

    Softmax weights of a position sum to 1; its own one is that of its mask. Those of unknown positions are meaningless.
    """
    layers: Sequence[MaskedLayer] = list(attention.layers)  # type: ignore[arg-type]
    tokens, masked, known = given
    positions, total = masked.shape[1], tokens.shape[1]
    seen = (find_seen(positions, total, causal=causal, device=tokens.device) & known[:, None])[:, None]
    found = torch.zeros(len(tokens), len(layers), attention.shape.heads, positions, total, device=tokens.device)
    for i in range(positions):
        copy = tokens.clone()
        copy[:, i] = masked[:, i]
        for number, layer in enumerate(layers):
            keys = layer.keys(copy)
            weights = layer.weigh(layer.queries(copy) @ keys.key.mT, seen)
            found[:, number, :, i] = weights[:, :, i]
            copy = layer.join(copy, layer.add(weights @ keys.value))
    return found
