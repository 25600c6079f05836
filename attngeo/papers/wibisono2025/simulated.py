"""Simulated data: ratings, some of which depend on the order of the movies, and sequences of a known model.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), sections 2.1 and 6.1 and appendix H.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.choices import whole
from attngeo.papers.wibisono2025.files import PUBLISHED_SEED, Split, hold_out, start_draws, take_sequences

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from attngeo.estimators.efa.networks import ItemAttention

SYNTHETIC_MOVIES = 5
# Of the known model, and of its sequences: those that train at most, that validate, and that test.
ITEMS, WIDTH, HEADS, LENGTH = 12, 8, 2, 8
TRAINING, VALIDATION, TEST = 6400, 1000, 2000


def synthetic_ratings(users: int = 10_000, seed: int = PUBLISHED_SEED) -> pd.DataFrame:
    """Ratings of five movies by users who saw them in a random order, which some ratings depend on (appendix H.1).

    A rating is normal with variance 1. Its mean is 3; but 1 for movie 2 after movie 1, and 5 for movie 2 before it; 1
    for movies 3 and 4 directly after each other; 5 for movie 5 if it is the last one. `mean` is a further column: the
    mean of the rating given the order. With the defaults these are the numbers of the published runs.
    """
    import numpy as np
    import pandas as pd

    whole("users", users, 1)
    draw = np.random.RandomState(seed)
    orders, values, means = np.empty((3, users, SYNTHETIC_MOVIES))
    for user in range(users):
        orders[user] = order = draw.permutation(SYNTHETIC_MOVIES) + 1
        means[user] = mean = _mean_ratings(order)
        values[user] = draw.normal(mean, 1)
    sequence, position = np.indices(orders.shape).reshape(2, -1)
    frame = pd.DataFrame({"sequence": sequence, "position": position, "item": orders.reshape(-1).astype(int)})
    return frame.assign(value=values.reshape(-1), mean=means.reshape(-1))


def _mean_ratings(order: np.ndarray) -> list[float]:
    means = []
    for at, movie in enumerate(order):
        before = order[at - 1] if at else 0
        if movie == 2:
            mean = 1.0 if 1 in order[:at] else 5.0
        elif (movie, before) in ((3, 4), (4, 3)):
            mean = 1.0
        else:
            mean = 5.0 if movie == 5 and at == len(order) - 1 else 3.0
        means.append(mean)
    return means


def split_synthetic(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """Of 10,000 users, 5,625 train, 1,875 validate and 2,500 test: the last quarter, and a random one of the others.

    frame: rows of `synthetic_ratings`. published: draw users with the seed of the published runs. These had the same
    test users, but divided masked copies of the others, not users: `mark_validated_copies` has their division.
    """
    users = frame["sequence"].unique()
    count = 3 * len(users) // 4
    train, validation = hold_out(users[:count], start_draws(seed, published=published))
    return take_sequences(frame, train, validation, users[count:])


def make_known_model(seed: int = 0) -> ItemAttention:
    """One layer of attention with a residual connection, in one direction, with random parameters of variance 1/width.

    Embeddings have variance 1, and queries are three times larger, so that a context says much about the next item.
    """
    import torch

    from attngeo.estimators.efa.attention import AttentionShape
    from attngeo.estimators.efa.networks import ItemAttention

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

    from attngeo.estimators.efa.networks import Batch

    whole("count", count, 1)
    model = make_known_model(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    items = torch.zeros(count, LENGTH, dtype=torch.long)
    log_probs = torch.zeros(count, LENGTH, dtype=torch.float64)
    with torch.no_grad():
        for position in range(LENGTH):
            seen = items[:, : position + 1]
            chances = model(Batch(torch.ones_like(seen, dtype=torch.bool), seen))[:, position].softmax(-1)
            drawn = torch.multinomial(chances, 1, generator=generator)
            items[:, position], log_probs[:, position] = drawn[:, 0], chances.gather(1, drawn)[:, 0].log()
    sequence, place = np.indices(items.shape).reshape(2, -1)
    return pd.DataFrame(
        {"sequence": sequence, "position": place, "item": items.flatten().numpy(),
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
