"""MovieLens-100K: its ratings, the sequences of movies and of ratings of its users, and their division.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 6.2, and the code that made its tables for what the text
leaves open.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from attngeo.errors import DataError
from attngeo.papers.wibisono2025.files import find_file, folder_of, look_for, read_content, read_table, require_once
from attngeo.papers.wibisono2025.splits import PUBLISHED_SEED, Split, hold_out, start_draws, take_sequences

RATINGS = ("user", "item", "rating", "time")
MOVIELENS_ARCHIVE = "ml-100k.zip"
MEMBER = "ml-100k/u.data"
TITLES = "ml-100k/u.item"
# The genres in the order of their marks in u.item, the last fields of a movie.
GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
# The movies that are kept, the lowest rating of the second experiment, and what is subtracted from it.
TOP_MOVIES = 50
LOWEST_RATING = 3
RATING_SHIFT = 2


def read_movielens(path: str | Path) -> pd.DataFrame:
    """The ratings of MovieLens-100K: user, item, rating (1 to 5), time (seconds).

    path: the file u.data, the archive ml-100k.zip, or a folder with one of them.
    Raises DataUnavailableError if the file cannot be read, and DataError if it is another table.
    """
    file = find_file(path, "u.data", MEMBER, MOVIELENS_ARCHIVE)
    frame = read_table(file, RATINGS, member=MEMBER, sep="\t", names=list(RATINGS), dtype="int64")
    if not frame["rating"].between(1, 5).all():
        raise DataError(f"{file} is not u.data of MovieLens-100K: ratings are not from 1 to 5")
    require_once(file, frame, ["user", "item"])
    return frame


def read_movie_titles(path: str | Path) -> dict[int, str]:
    """Movie number → title, from u.item of MovieLens-100K; empty without that file.

    path: as for `read_movielens`; u.item is in the archive, or beside u.data. Raises DataError for another table.
    """
    return {number: fields[0].strip() for number, fields in _list_movies(path)}


def read_movie_genres(path: str | Path) -> dict[int, str]:
    """Movie number → genres, such as Drama|War, from u.item of MovieLens-100K; empty without that file.

    path: as for `read_movie_titles`. Movies without a genre are left out. Raises DataError for another table.
    """
    genres = {}
    for number, fields in _list_movies(path):
        marks = [field.strip() for field in fields[-len(GENRES) :]]
        if len(fields) <= len(GENRES) or not set(marks) <= {"0", "1"}:
            raise DataError(
                f"movie {number} of u.item does not have {len(GENRES)} genre flags, each 0 or 1",
                subject=path,
            )
        named = [genre for genre, mark in zip(GENRES, marks, strict=True) if mark == "1"]
        if named:
            genres[number] = "|".join(named)
    return genres


def _list_movies(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """The number of each movie of u.item, and the fields after it, of which the first is its title."""
    folder = folder_of(path)
    archive = folder / MOVIELENS_ARCHIVE
    file = Path(path).expanduser()
    if not _has_titles(file):
        beside = look_for(folder, "u.item", TITLES)
        if beside is None and not _has_titles(archive):
            return
        file = beside or archive
    for row, line in enumerate(read_content(file, member=TITLES).decode("latin-1").split("\n"), 1):
        if not line.strip():
            continue
        number, *fields = f"{line}|".split("|")
        if not (number.isascii() and number.isdecimal() and fields[0].strip()):
            raise DataError(
                f"row {row} is {line!r:.40}, expected a movie's number and its title: 1|Title|", subject=file
            )
        yield int(number), fields[:-1]


def _has_titles(path: Path) -> bool:
    """Whether a path is a zip archive with the titles."""
    try:
        if not path.is_file():
            return False
        with zipfile.ZipFile(path) as archive:
            return TITLES in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def movielens_sequences(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> pd.DataFrame:
    """The movies that each user rated, in order of time (section 6.2.1).

    frame: rows of `read_movielens`. Only the 50 movies with the most ratings are kept (lower numbers first if counts
    are equal), and users with fewer than two ratings per time on average. If a user has several ratings at the same
    time, one is kept: a random one by the seed, or the one of the published runs.
    """
    return _order(_keep_top(frame), seed, published=published)


def movielens_ratings(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> pd.DataFrame:
    """The same for ratings 3, 4 and 5, as values 1, 2 and 3 (section 6.2.2), without users with a single rating."""
    high = frame[frame["rating"] >= LOWEST_RATING]
    top = _keep_top(high.assign(rating=high["rating"] - RATING_SHIFT))
    return _order(top[top.groupby("user")["item"].transform("size") > 1], seed, published=published)


def _keep_top(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the movies with most ratings, and of users who do not rate many of them at once."""
    counts = frame.groupby("item").size()
    top = counts.sort_values(ascending=False, kind="stable").index[:TOP_MOVIES]
    frame = frame[frame["item"].isin(top)]
    times = frame.groupby("user")["time"]
    return frame[times.transform("size") < 2 * times.transform("nunique")]


def _order(frame: pd.DataFrame, seed: int, *, published: bool) -> pd.DataFrame:
    """One rating for each time of each user, in order."""
    groups = frame.groupby(["user", "time"])
    sizes = groups["item"].transform("size")
    if published:  # there, each time starts the same random numbers, so that the choice follows from its size
        choices = {size: np.random.RandomState(PUBLISHED_SEED).choice(size, 1, replace=False)[0] for size in set(sizes)}
        chosen = frame[groups.cumcount() == sizes.map(choices)]
    else:
        order = np.random.default_rng(seed).permutation(len(frame))
        chosen = frame.iloc[order].drop_duplicates(["user", "time"])
    chosen = chosen.sort_values(["user", "time"]).rename(columns={"user": "sequence", "rating": "value"})
    chosen = chosen.assign(position=chosen.groupby("sequence").cumcount())
    return chosen[["sequence", "position", "item", "value"]].reset_index(drop=True)


def split_movielens_sequences(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """Split `movielens_sequences` by random users: 56.25 % train, 18.75 % validate, 25 % test (section 6.2.1).

    frame: rows of `read_movielens`. published: as the authors ran it, mistaking positions in the list of users for user
    numbers: of 902 users, 480 train, 161 validate and 219 test, and 42 are in no part.
    """
    return _split_users(movielens_sequences(frame, seed, published=published), seed, published=published)


def split_movielens_ratings(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """The same for `movielens_ratings`.

    published: as the authors ran it: of 893 users, 631 train or validate, 211 test, and 51 are in no part. Here, the
    631 users are divided as in `split_movielens_sequences`; the authors divided masked copies of their ratings.
    """
    return _split_users(movielens_ratings(frame, seed, published=published), seed, published=published)


def _split_users(frame: pd.DataFrame, seed: int, *, published: bool) -> Split:
    """The rows of users at random; with `published`, positions in the list of users are taken for their numbers."""
    users = np.sort(frame["sequence"].unique())
    draw = start_draws(seed, published=published)
    if published:
        order = draw.permutation(len(users))
        count = 3 * len(users) // 4
        development = np.intersect1d(users, order[order[:count]])
        test = order[order[count:]]
        draw = start_draws(seed, published=True)  # each division starts the same random numbers
    else:
        development, test = hold_out(users, draw)
    train, validation = hold_out(development, draw)
    return take_sequences(frame, train, validation, test)
