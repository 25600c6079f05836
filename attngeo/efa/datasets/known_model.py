"""Sequences drawn from a known model of exponential family attention, whose true log p each row has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.choices import whole
from attngeo.efa.datasets.splits import Split, take_sequences

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.efa.network import ItemAttention

ITEMS, WIDTH, HEADS, LENGTH = 12, 8, 2, 8
# Sequences that train at most, that validate, and that test.
TRAINING, VALIDATION, TEST = 6400, 1000, 2000


def make_known_model(seed: int = 0) -> ItemAttention:
    """One layer of attention with a residual connection, in one direction, with random parameters of variance 1/width.

    Embeddings have variance 1, and queries are three times larger, so that a context says much about the next item.
    """
    import torch

    from attngeo.efa.attention import AttentionShape
    from attngeo.efa.network import ItemAttention

    model = ItemAttention(ITEMS, AttentionShape(width=WIDTH, heads=HEADS, scale="head"), positions=LENGTH, causal=True)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = 1.0 if name.startswith(("context", "center")) else WIDTH**-0.5
            scale *= 3 if "query" in name else 1
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    return model.double().eval()


def draw_known_sequences(count: int = TRAINING + VALIDATION + TEST, seed: int = 0) -> pd.DataFrame:
    """Sequences of `make_known_model`: sequence, position, item, and log_prob, the true one of the item given those
    before it.
    """
    import numpy as np
    import pandas as pd
    import torch

    whole("count", count, 1)
    model = make_known_model(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    items = torch.zeros(count, LENGTH, dtype=torch.long)
    log_probs = torch.zeros(count, LENGTH, dtype=torch.float64)
    with torch.no_grad():
        for position in range(LENGTH):
            seen = items[:, : position + 1]
            chances = model(seen, torch.ones_like(seen, dtype=torch.bool))[:, position].softmax(-1)
            drawn = torch.multinomial(chances, 1, generator=generator)
            items[:, position], log_probs[:, position] = drawn[:, 0], chances.gather(1, drawn)[:, 0].log()
    sequence, position = (each.reshape(-1) for each in np.indices(items.shape))
    return pd.DataFrame(
        {"sequence": sequence, "position": position, "item": items.flatten().numpy(),
         "log_prob": log_probs.flatten().numpy()}
    )  # fmt: skip


def split_known(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """The first sequences train, the next 1,000 validate and the last 2,000 test.

    seed, published: change nothing; they are what all experiments take.
    """
    del seed, published
    names = frame["sequence"].unique()
    edge = len(names) - TEST - VALIDATION
    return take_sequences(frame, names[:edge], names[edge : edge + VALIDATION], names[edge + VALIDATION :])
