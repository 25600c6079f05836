"""Synthetic ratings: those of the published runs, the process, and the division of users."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import train_test_split

from attngeo.papers.wibisono2025.synthetic import split_synthetic, synthetic_ratings


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


def test_the_last_quarter_of_the_users_tests() -> None:
    frame = synthetic_ratings(1000)
    split = split_synthetic(frame, seed=1)
    assert [part["sequence"].nunique() for part in split] == [562, 188, 250]
    assert split.test["sequence"].min() == 750
    assert set(split.train["sequence"]) | set(split.validation["sequence"]) == set(range(750))
    assert all((part.groupby("sequence").size() == 5).all() for part in split)
    other = split_synthetic(frame, seed=2)
    assert not split.train.equals(other.train)
    assert split.test.equals(other.test)


def test_the_published_division_is_that_of_scikit_learn() -> None:
    split = split_synthetic(synthetic_ratings(1000), published=True)
    train, validation = train_test_split(np.arange(750), test_size=0.25, random_state=42)
    assert [set(part["sequence"]) for part in split[:2]] == [set(train), set(validation)]
