"""The weights of attention at masked positions, by one pass for each position; and as a table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attngeo.efa.attention import MaskedAttention
from attngeo.efa.network import Tokens
from attngeo.efa.sequences import Sequences


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


def tabulate_weights(sequences: Sequences, weights: np.ndarray, *, causal: bool) -> pd.DataFrame:
    """The weights [B, layers, H, I, J] of pairs of known positions, as rows."""
    known, rows = (sequences.pad(each).numpy() for each in (sequences.known, torch.as_tensor(sequences.rows)))
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
