"""Synthetic ratings of five movies, and their division.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 6.1 and appendix H.1, and the code that made its tables.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from attngeo.papers.wibisono2025.splits import PUBLISHED_SEED, Split, hold_out, start_draws, take_sequences

SYNTHETIC_MOVIES = 5


def synthetic_ratings(users: int = 10_000, seed: int = PUBLISHED_SEED) -> pd.DataFrame:
    """Ratings of five movies by users who saw them in a random order, which some ratings depend on (appendix H.1).

    A rating is normal with variance 1. Its mean is 3; but 1 for movie 2 after movie 1, and 5 for movie 2 before it; 1
    for movies 3 and 4 directly after each other; 5 for movie 5 if it is the last one. `mean` is a further column: the
    mean of the rating given the order. With the defaults these are the numbers of the published runs.
    """
    draw = np.random.RandomState(seed)
    parts = []
    for user in range(users):
        order = draw.permutation(SYNTHETIC_MOVIES) + 1
        means = _mean_ratings(order.tolist())
        parts.append((np.full(len(order), user), range(len(order)), order, draw.normal(means, 1), means))
    sequence, position, item, value, mean = map(np.concatenate, zip(*parts, strict=True))
    return pd.DataFrame({"sequence": sequence, "position": position, "item": item, "value": value, "mean": mean})


def _mean_ratings(order: list[int]) -> list[float]:
    """The mean rating of each movie of a user, in the order in which they were seen."""
    means = []
    for index, movie in enumerate(order):
        before = order[:index]
        mean = 3.0
        if movie == 2:
            mean = 1.0 if 1 in before else 5.0
        elif (movie == 3 and before[-1:] == [4]) or (movie == 4 and before[-1:] == [3]):
            mean = 1.0
        elif movie == 5 and index == len(order) - 1:
            mean = 5.0
        means.append(mean)
    return means


def split_synthetic(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """Split 10,000 users: the last quarter, 2,500, tests; of the others, 5,625 train and a random quarter validates.

    frame: rows of `synthetic_ratings`. published: draw users with the seed of the published runs. These had the same
    test users, but divided masked copies of the others, not users.
    """
    users = frame["sequence"].unique()
    count = 3 * len(users) // 4
    train, validation = hold_out(users[:count], start_draws(seed, published=published))
    return take_sequences(frame, train, validation, users[count:])
