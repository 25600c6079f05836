"""MovieLens-100K: the movies that users rated, in order, and their ratings.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 6.2, and the code that made its tables for what the text
leaves open.
"""

from __future__ import annotations

import io
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.errors import DataError
from attngeo.papers.wibisono2025.files import (
    PUBLISHED_SEED,
    Split,
    explaining,
    find_file,
    folder_of,
    has_file,
    has_member,
    hold_out,
    read_content,
    require_once,
    start_draws,
    take_sequences,
)

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("sequence", "position", "item", "value")
MOVIELENS = ("user", "item", "rating", "time")
MOVIELENS_ARCHIVE, MEMBER = "ml-100k.zip", "ml-100k/u.data"
NAMES = ("u.data", MEMBER, MOVIELENS_ARCHIVE)
TITLES = "ml-100k/u.item"
TITLE_NAMES = ("u.item", TITLES)
# Of MovieLens: the movies that are kept, the lowest rating of the second experiment, and what is subtracted from it.
TOP_MOVIES, LOWEST_RATING, RATING_SHIFT = 50, 3, 2


def read_movielens(path: str | Path) -> pd.DataFrame:
    """The ratings of MovieLens-100K: user, item, rating (1 to 5), time (seconds).

    path: the file u.data, the archive ml-100k.zip, or a folder with one of them.
    Raises DataUnavailableError if it cannot be read, and DataError if it is another table.
    """
    import pandas as pd

    file = find_file(path, *NAMES)
    content = read_content(file, member=MEMBER)
    with explaining(file, "u.data of MovieLens-100K"):
        frame = pd.read_csv(io.BytesIO(content), sep="\t", names=list(MOVIELENS), dtype="int64")
        if not isinstance(frame.index, pd.RangeIndex):
            raise ValueError(f"row 1 has more than {len(MOVIELENS)} cells")
        if not len(frame) or not frame["rating"].between(1, 5).all():
            raise ValueError("ratings are not from 1 to 5" if len(frame) else "it has no rows")
    require_once(file, frame, ["user", "item"])
    return frame


def read_movie_titles(path: str | Path) -> dict[int, str]:
    """The titles of the movies by their numbers, from u.item of MovieLens-100K; none if it is not there.

    path: as for `read_movielens`; u.item is in the archive, or beside u.data. Raises DataError for another table.
    """
    file = _find_titles(Path(path).expanduser())
    if file is None:
        return {}
    titles: dict[int, str] = {}
    for row, line in enumerate(read_content(file, member=TITLES).decode("latin-1").split("\n"), 1):
        if not line.strip():
            continue
        number, title, *_ = [*line.split("|"), ""]
        if not (number.isascii() and number.isdecimal() and title.strip()):
            raise DataError(f"{file}: row {row} is {line!r:.40}, expected a movie's number and its title: 1|Title|")
        titles[int(number)] = title.strip()
    return titles


def _find_titles(place: Path) -> Path | None:
    """`place`, if it is an archive with the titles; or else their file in its folder, or an archive there."""
    folder = folder_of(place)
    plain = (find_file(folder, name) for name in TITLE_NAMES if has_file(folder, name))
    archives = (path for path in (place, folder / MOVIELENS_ARCHIVE) if has_member(path, TITLES))
    return next(archives if has_member(place, TITLES) else chain(plain, archives), None)


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


def split_movielens_sequences(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """`movielens_sequences` of users at random: 56.25 % train, 18.75 % validate and 25 % test (section 6.2.1).

    frame: rows of `read_movielens`. published: as it was run. There, positions in the list of users were taken for
    numbers of users: of 902, 480 train, 161 validate and 219 test, and 42 are in no part.
    """
    return _split_users(movielens_sequences(frame, seed, published=published), seed, published=published)


def split_movielens_ratings(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """The same of `movielens_ratings`: as it was run, of 893 users 631 train or validate, 211 test, 51 are in no part.

    published: here, the 631 users are divided as those of `split_movielens_sequences`. The published runs divided
    masked copies of them, not users: `mark_validated_copies` has their division.
    """
    return _split_users(movielens_ratings(frame, seed, published=published), seed, published=published)


def _split_users(frame: pd.DataFrame, seed: int, *, published: bool) -> Split:
    import numpy as np

    users = np.sort(frame["sequence"].unique())
    draw = start_draws(seed, published=published)
    if published:
        order = draw.permutation(len(users))
        count = 3 * len(users) // 4
        known, test = np.intersect1d(users, order[order[:count]]), order[order[count:]]
        draw = start_draws(seed, published=True)  # each division starts the same random numbers
    else:
        known, test = hold_out(users, draw)
    train, validation = hold_out(known, draw)
    return take_sequences(frame, train, validation, test)


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
