"""Training, validation and test rows of a tidy table, divided by whole sequences."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from attngeo.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

# The seed of the published runs.
PUBLISHED_SEED = 42


class Split(NamedTuple):
    """The rows of each part, in the order of the table."""

    train: pd.DataFrame
    validation: pd.DataFrame
    test: pd.DataFrame


def take_sequences(
    frame: pd.DataFrame, train: Collection[Any], validation: Collection[Any], test: Collection[Any]
) -> Split:
    """The rows of these sequences. Raises DataError if a part has none."""
    parts = [frame[frame["sequence"].isin(list(chosen))].reset_index(drop=True) for chosen in (train, validation, test)]
    for name, part in zip(Split._fields, parts, strict=True):
        if part.empty:
            count = frame["sequence"].nunique()
            raise DataError(f"the {name} part of the data has no row: there are {count} sequences; give all the data")
    return Split(*parts)


def start_draws(seed: int, *, published: bool) -> np.random.Generator | np.random.RandomState:
    """Random numbers of the seed; or those of the published runs, which have their own seed."""
    import numpy as np

    return np.random.RandomState(PUBLISHED_SEED) if published else np.random.default_rng(seed)


def hold_out(
    values: npt.NDArray[Any], draw: np.random.Generator | np.random.RandomState
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Three quarters of the values, and a random quarter of them, rounded up.

    With the random numbers of the published runs, this is train_test_split(test_size=0.25, random_state=42) of
    scikit-learn.
    """
    order = draw.permutation(len(values))
    held = -(-len(values) // 4)
    return values[order[held:]], values[order[:held]]


def mark_validated_copies(split: Split) -> pd.DataFrame:
    """The training and validation rows, and in the column `validates` which of them validated in the published runs.

    In those of ratings, synthetic or not, a masked copy of a sequence was made for each of its rows, and the copies
    were divided: most sequences trained with some of their rows and validated with others.
    split: of `split_synthetic` or `split_movielens_ratings` with `published`.
    """
    import numpy as np
    import pandas as pd

    pool = pd.concat([split.train, split.validation]).sort_values(["sequence", "position"]).reset_index(drop=True)
    _, held = hold_out(np.arange(len(pool)), start_draws(0, published=True))
    return pool.assign(validates=pool.index.isin(held))
