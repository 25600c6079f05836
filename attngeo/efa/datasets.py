"""Data of the paper's experiments as tidy tables: one row for each observation.

Columns: sequence (a user), position (from 0 in each sequence), item (a movie), value (a rating).

Source: Wibisono and Wang 2025 (arXiv 2501.16790), sections 6.1 and 6.2, appendix H.1, and the code that made its tables
for what the text leaves open.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.choices import whole
from attngeo.errors import DataError, DataUnavailableError, first_line

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

COLUMNS = ("sequence", "position", "item", "value")
MOVIELENS = ("user", "item", "rating", "time")
# Of MovieLens: the movies that are kept, the lowest rating of the second experiment, and what is subtracted from it.
TOP_MOVIES, LOWEST_RATING, RATING_SHIFT = 50, 3, 2
# The seed of the published runs.
PUBLISHED_SEED = 42
SYNTHETIC_MOVIES = 5


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


def read_movielens(path: str | Path) -> pd.DataFrame:
    """The file u.data of MovieLens-100K: user, item, rating (1 to 5), time (seconds).

    Raises DataUnavailableError if it cannot be read, and DataError if it is another table.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path, sep="\t", names=list(MOVIELENS), dtype="int64", encoding="utf-8")
    except OSError as error:
        raise DataUnavailableError(f"{path} cannot be read ({error.strerror or error}), expected u.data") from None
    except ValueError as error:
        raise DataError(f"{path} is not u.data of MovieLens-100K ({first_line(error)})") from None
    wrong = frame.index[~frame["rating"].between(1, 5)]
    if not len(frame) or len(wrong):
        what = f"row {wrong[0] + 1} has rating {frame['rating'][wrong[0]]}" if len(wrong) else "it has no rows"
        raise DataError(f"{path} is not u.data of MovieLens-100K: {what}, expected ratings from 1 to 5")
    return frame


def movielens_sequences(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> pd.DataFrame:
    """The movies that each user rated, in order of time (section 6.2.1).

    frame: rows of `read_movielens`. Kept are the 50 movies with most ratings (of equal counts, that with the lowest
    number) and users with less than two ratings for each time. Of several ratings at one time one is taken: at random
    with the seed, or the one that the published runs took.
    """
    return _order(_keep_top(frame), seed, published=published)


def movielens_ratings(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> pd.DataFrame:
    """The same for ratings of 3, 4 and 5, whose values are 1, 2 and 3 (section 6.2.2); users with one are left out."""
    kept = frame[frame["rating"] >= LOWEST_RATING]
    kept = _keep_top(kept.assign(rating=kept["rating"] - RATING_SHIFT))
    return _order(kept[kept.groupby("user")["item"].transform("size") > 1], seed, published=published)


def _keep_top(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the movies with most ratings, and of users who do not rate many of them at once."""
    counts = frame.groupby("item").size()
    top = counts.sort_values(ascending=False, kind="stable").index[:TOP_MOVIES]
    frame = frame[frame["item"].isin(top)]
    times = frame.groupby("user")["time"]
    return frame[times.transform("size") < 2 * times.transform("nunique")]


def _order(frame: pd.DataFrame, seed: int, *, published: bool) -> pd.DataFrame:
    """One rating for each time of each user, in order."""
    import numpy as np

    groups = frame.groupby(["user", "time"])
    sizes = groups["item"].transform("size")
    if published:  # there, each time starts the same random numbers, so that the choice follows from its size
        draw = np.random.RandomState
        picks = {int(n): int(draw(PUBLISHED_SEED).choice(n, 1, replace=False)[0]) for n in sizes.unique()}
        chosen = frame[groups.cumcount() == sizes.map(picks)]
    else:
        order = np.random.default_rng(seed).permutation(len(frame))
        chosen = frame.iloc[order].drop_duplicates(["user", "time"])
    chosen = chosen.sort_values(["user", "time"])
    named = chosen.rename(columns={"user": "sequence", "rating": "value"})
    return named.assign(position=named.groupby("sequence").cumcount())[list(COLUMNS)].reset_index(drop=True)
