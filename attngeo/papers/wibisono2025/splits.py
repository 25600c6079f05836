"""Training, validation and test rows of a tidy table, divided by whole sequences."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attngeo.errors import DataError

# The seed of the published runs.
PUBLISHED_SEED = 42


class Split(NamedTuple):
    """The rows of each part, in the order of the table.

    Attributes:
        train: training rows.
        validation: validation rows.
        test: test rows.
    """

    train: pd.DataFrame
    validation: pd.DataFrame
    test: pd.DataFrame


def take_sequences(
    frame: pd.DataFrame, train: Collection[Any], validation: Collection[Any], test: Collection[Any]
) -> Split:
    """The rows of these sequences. Raises DataError if a part is empty."""
    parts = []
    for sequences in (train, validation, test):
        rows = frame[frame["sequence"].isin(list(sequences))]
        parts.append(rows.reset_index(drop=True))
    split = Split(*parts)
    for name, rows in split._asdict().items():
        if rows.empty:
            count = frame["sequence"].nunique()
            raise DataError(f"the {name} part of the data is empty: there are {count} sequences; give all the data")
    return split


def start_draws(seed: int, *, published: bool) -> np.random.Generator | np.random.RandomState:
    """Random numbers from the seed; or the numbers of the published runs, which use their own seed."""
    return np.random.RandomState(PUBLISHED_SEED) if published else np.random.default_rng(seed)


def hold_out(
    values: np.ndarray[Any, Any], draw: np.random.Generator | np.random.RandomState
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Three quarters of the values, and a random quarter of them, rounded up.

    With the random numbers of the published runs, this is train_test_split(test_size=0.25, random_state=42) of
    scikit-learn.
    """
    order = draw.permutation(len(values))
    count = math.ceil(len(values) / 4)
    return values[order[count:]], values[order[:count]]
