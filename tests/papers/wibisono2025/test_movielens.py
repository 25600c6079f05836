"""MovieLens-100K: the published counts where it is present, the rules of the paper, its division and bad files."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import train_test_split
from support.data import DATA, needs
from support.messages import refuses

from attngeo.errors import DataError, DataUnavailableError
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.papers.wibisono2025.movielens import (
    GENRES,
    movielens_ratings,
    movielens_sequences,
    read_movie_genres,
    read_movielens,
    split_movielens_ratings,
    split_movielens_sequences,
)
from attngeo.papers.wibisono2025.splits import Split


@needs("movielens/u.data")
def test_movielens_has_the_published_counts() -> None:
    frame = read_movielens(DATA / "movielens/u.data")
    sequences, ratings = movielens_sequences(frame, published=True), movielens_ratings(frame, published=True)
    assert (sequences["sequence"].nunique(), sequences["item"].nunique(), len(sequences)) == (902, 50, 13_757)
    assert (ratings["sequence"].nunique(), ratings["item"].nunique(), len(ratings)) == (893, 50, 12_465)
    assert sorted(ratings["value"].unique()) == [1, 2, 3]


def count_users(split: Split) -> list[int]:
    return [part["sequence"].nunique() for part in split]


@needs("movielens/u.data")
@pytest.mark.parametrize(
    ("divide", "make", "users", "test_rows"),
    [
        (split_movielens_sequences, movielens_sequences, [480, 161, 219], 3_408),
        (split_movielens_ratings, movielens_ratings, [473, 158, 211], 3_038),
    ],
)
def test_the_published_division_is_that_of_their_code(
    divide: Callable[..., Split], make: Callable[..., pd.DataFrame], users: list[int], test_rows: int
) -> None:
    """Positions of users are compared with their numbers, as there; the numbers of batches that it printed fit."""
    raw = read_movielens(DATA / "movielens")
    frame, split = make(raw, published=True), divide(raw, published=True)
    everyone = frame["sequence"].unique()
    order = np.random.RandomState(42).permutation(len(everyone))
    ids = sorted(set(order[order[: 3 * len(everyone) // 4]]) & set(everyone))
    train, validation = train_test_split(ids, test_size=0.25, random_state=42)
    assert [set(part["sequence"]) for part in split[:2]] == [set(train), set(validation)]
    assert (count_users(split), len(split.test)) == (users, test_rows)
    assert not set(split.test["sequence"]) & set(ids)


def test_users_are_divided_at_random_as_the_text_says(tmp_path: Path) -> None:
    rows = [(user, item, 4, item) for user in range(1, 102) for item in (1, 2, 3)]
    frame = read_movielens(write(tmp_path, rows))
    split = split_movielens_sequences(frame, seed=3)
    assert count_users(split) == [56, 19, 26]
    assert sum(len(part) for part in split) == len(rows)
    assert len({user for part in split for user in part["sequence"]}) == 101
    again, other = split_movielens_sequences(frame, seed=3), split_movielens_sequences(frame, seed=4)
    assert all(a.equals(b) for a, b in zip(split, again, strict=True))
    assert not split.test.equals(other.test)
    with refuses(DataError, "1 sequences", "give all the data"):
        split_movielens_sequences(frame[frame["user"] == 1])


def write(folder: Path, rows: list[tuple[int, int, int, int]]) -> Path:
    (folder / "u.data").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return folder / "u.data"


def test_one_rating_of_each_time_is_kept_and_users_who_rate_at_once_are_not(tmp_path: Path) -> None:
    rows = [(1, 7, 5, 30), (1, 8, 3, 10), (1, 9, 1, 20), (1, 6, 4, 20), (2, 7, 3, 10), (2, 8, 3, 10), (3, 9, 2, 5)]
    frame = read_movielens(write(tmp_path, rows))
    found = movielens_sequences(frame, seed=0)
    assert found["sequence"].tolist() == [1, 1, 1, 3]
    assert found["position"].tolist() == [0, 1, 2, 0]
    assert found["item"].tolist()[::2] == [8, 7]
    assert {movielens_sequences(frame, seed=seed)["item"][1] for seed in range(20)} == {6, 9}
    picked = pd.DataFrame({"item": [9, 6]}).sample(n=1, random_state=42)["item"].item()  # as the published code does
    assert movielens_sequences(frame, published=True)["item"][1] == picked
    # User 3 has no rating from 3, user 2 rates all at once.
    high = movielens_ratings(frame)
    assert high[["sequence", "item", "value"]].to_numpy().tolist() == [[1, 8, 1], [1, 6, 2], [1, 7, 3]]


def test_of_equal_counts_the_lowest_number_is_kept(tmp_path: Path) -> None:
    rows = [(user, item, 4, item) for item in range(60, 0, -1) for user in range(1, 3 if item > 20 else 2)]
    found = movielens_sequences(read_movielens(write(tmp_path, rows)))
    assert sorted(found["item"].unique()) == [*range(1, 11), *range(21, 61)]


def test_the_archive_a_packed_file_and_a_folder_are_read_as_well(tmp_path: Path) -> None:
    rows = [(1, 7, 5, 30), (1, 8, 3, 10)]
    plain = write(tmp_path, rows)
    expected = read_movielens(plain)
    (tmp_path / "zip").mkdir()
    with zipfile.ZipFile(tmp_path / "zip" / "ml-100k.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ml-100k/u.item", "no")
        archive.write(plain, "ml-100k/u.data")
    (tmp_path / "packed.gz").write_bytes(gzip.compress(plain.read_bytes()))
    for place in (str(tmp_path), tmp_path / "zip", tmp_path / "zip" / "ml-100k.zip", tmp_path / "packed.gz"):
        pd.testing.assert_frame_equal(read_movielens(place), expected)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a", "b")
    with refuses(DataError, "other.zip", "ml-100k/u.data"):
        read_movielens(tmp_path / "other.zip")
    (tmp_path / "cut.gz").write_bytes((tmp_path / "packed.gz").read_bytes()[:-9])
    with refuses(DataError, "cut.gz"):
        read_movielens(tmp_path / "cut.gz")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with refuses(DataUnavailableError, tmp_path / "no.data", "u.data"):
        read_movielens(tmp_path / "no.data")
    with refuses(DataError, "u.data", "from 1 to 5"):
        read_movielens(write(tmp_path, [(1, 1, 3, 1), (1, 2, 6, 2)]))
    with refuses(DataError, "u.data", "row 2", "user 1", "item 1"):
        read_movielens(write(tmp_path, [(1, 1, 3, 1), (1, 1, 4, 2)]))
    with refuses(DataError, "u.data", "no rows"):
        read_movielens(write(tmp_path, []))
    (tmp_path / "u.data").write_text("user,item\n1,2\n")
    with refuses(DataError, "u.data"):
        read_movielens(tmp_path / "u.data")
    for text in ("1\t2\t3\t4\t5\n", "1\t2\t3\n", "1\t2\t3\tnan\n", "1\t2\t3\t1.5\n"):
        (tmp_path / "u.data").write_text(text)
        with refuses(DataError, "u.data"):
            read_movielens(tmp_path / "u.data")


def write_movies(folder: Path, movies: dict[int, tuple[str, ...]]) -> Path:
    """ml-100k.zip with ratings of these movies and a u.item of the form that MovieLens ships."""
    lines = []
    for number, genres in movies.items():
        marks = "|".join("1" if genre in genres else "0" for genre in GENRES)
        lines.append(
            f"{number}|Movie {number}é (1995)|01-Jan-1995||http://us.imdb.com/M/title-exact?{number}|{marks}\n"
        )
    rows = [(user, number, 1 + (user + number) % 5, 60 * number) for user in range(1, 13) for number in movies]
    with zipfile.ZipFile(folder / "ml-100k.zip", "w") as archive:
        archive.writestr("ml-100k/u.item", "".join(lines).encode("latin-1"))
        archive.write(write(folder, rows), "ml-100k/u.data")
    (folder / "u.data").unlink()
    return folder / "ml-100k.zip"


def test_the_genres_of_the_archive_are_covariates_of_its_ratings(tmp_path: Path) -> None:
    archive = write_movies(tmp_path, {1: ("Drama", "War"), 2: ("Children's",), 3: (), 4: ("War", "Sci-Fi")})
    genres = read_movie_genres(archive)
    assert genres == {1: "Drama|War", 2: "Children's", 4: "Sci-Fi|War"}
    assert read_movie_genres(tmp_path) == genres
    ratings = read_movielens(archive)
    ratings = ratings.assign(genres=ratings["item"].map(genres).fillna("unknown"), rating=ratings["rating"] - 1)
    model = ExponentialFamilyAttention(
        sequence="user", value="rating:ordinal:5", covariates="genres:categories", width=4, max_epochs=1, device="cpu"
    ).fit(ratings)
    (covariate,) = model.model_.parts[0].shape.covariates
    assert covariate.categories == ("Children's", "Drama", "Sci-Fi", "War", "unknown")
    assert model.log_prob(ratings).notna().all()


@pytest.mark.parametrize("line", ["1|Title|0|1", "1|Title|" + "2|" * 18 + "0", "1|Title"])
def test_a_file_of_movies_without_marks_of_genres_is_refused(line: str, tmp_path: Path) -> None:
    write(tmp_path, [(1, 1, 3, 1)])
    (tmp_path / "u.item").write_text(line)
    with refuses(DataError, "movie 1", "19 genre flags"):
        read_movie_genres(tmp_path)
