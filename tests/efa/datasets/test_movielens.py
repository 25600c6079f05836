"""Data of the paper's experiments: the synthetic process, and the published counts of MovieLens where it is present."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.data import DATA, needs
from support.messages import refuses

from attngeo.efa.datasets import movielens_ratings, movielens_sequences, read_movielens, synthetic_ratings
from attngeo.errors import DataError, DataUnavailableError, UsageError


def test_synthetic_ratings_are_those_of_the_published_runs() -> None:
    """The first user, as the published code prints it."""
    first = synthetic_ratings(1)
    assert first["item"].tolist() == [2, 5, 3, 1, 4]
    np.testing.assert_allclose(first["value"], [5.47386083, 4.36845012, 2.08317316, 2.87585282, 0.98903711], atol=1e-8)


def test_synthetic_ratings_follow_the_process() -> None:
    frame = synthetic_ratings(4000, seed=1)
    frame["before"] = frame.groupby("sequence")["item"].shift().fillna(0)
    first = frame[frame["item"] == 1].set_index("sequence")["position"]
    is_after = frame["position"] > frame["sequence"].map(first)
    expected = np.select(
        [
            (frame["item"] == 2) & is_after, frame["item"] == 2, (frame["item"] == 3) & (frame["before"] == 4),
            (frame["item"] == 4) & (frame["before"] == 3), (frame["item"] == 5) & (frame["position"] == 4),
        ],
        [1, 5, 1, 1, 5],
        3,
    )  # fmt: skip
    np.testing.assert_array_equal(frame["mean"], expected)
    errors = frame["value"] - frame["mean"]
    assert abs(errors.mean()) < 0.03
    assert errors.std() == pytest.approx(1, abs=0.03)
    assert (frame.groupby("sequence")["item"].nunique() == 5).all()
    orders = frame.groupby("sequence")["item"].agg(tuple)
    assert orders.nunique() == 120
    pd.testing.assert_frame_equal(synthetic_ratings(10, seed=3), synthetic_ratings(10, seed=3))
    with refuses(UsageError, "users"):
        synthetic_ratings(0)


@needs("movielens/u.data")
def test_movielens_has_the_published_counts() -> None:
    frame = read_movielens(DATA / "movielens/u.data")
    sequences, ratings = movielens_sequences(frame, published=True), movielens_ratings(frame, published=True)
    assert (sequences["sequence"].nunique(), sequences["item"].nunique(), len(sequences)) == (902, 50, 13_757)
    assert (ratings["sequence"].nunique(), ratings["item"].nunique(), len(ratings)) == (893, 50, 12_465)
    assert sorted(ratings["value"].unique()) == [1, 2, 3]


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


def test_other_files_are_refused(tmp_path: Path) -> None:
    with refuses(DataUnavailableError, tmp_path / "no.data", "u.data"):
        read_movielens(tmp_path / "no.data")
    with refuses(DataError, "u.data", "row 2", "6"):
        read_movielens(write(tmp_path, [(1, 1, 3, 1), (1, 2, 6, 2)]))
    with refuses(DataError, "u.data", "no rows"):
        read_movielens(write(tmp_path, []))
    (tmp_path / "u.data").write_text("user,item\n1,2\n")
    with refuses(DataError, "u.data"):
        read_movielens(tmp_path / "u.data")
