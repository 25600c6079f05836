"""The weights of attention at masked positions, by one pass for each position."""

from __future__ import annotations

import torch
from torch import Tensor

from attngeo.efa.attention import MaskedAttention
from attngeo.efa.network import Tokens


@torch.no_grad()
def read_weights(attention: MaskedAttention, given: Tokens, *, causal: bool) -> Tensor:
    """How much each position, when it is masked, attends to each token: [B, layers, H, I, J].

    Softmax weights of a position sum to 1; its own one is that of its mask. Those of unknown positions are meaningless.
    """
    shape, (sequences, total) = attention.shape, given.known.shape
    positions = given.masked.shape[1]
    found = torch.zeros(sequences, shape.layers, shape.heads, positions, total, device=given.tokens.device)
    for i in range(positions):
        for number, (_, weights) in enumerate(attention.step_copy(given, i, causal=causal)):
            found[:, number, :, i] = weights[:, :, i]
    return found
