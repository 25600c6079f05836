"""Does the time of a rating help to predict it? Ratings of MovieLens-100K with and without it as a covariate.

python reports/efa/covariates.py U_DATA    # the file u.data; writes covariates.csv beside this file; 10 minutes
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from attngeo.estimators import ExponentialFamilyAttention
from attngeo.papers.wibisono2025.movielens import read_movielens

TARGET = Path(__file__).with_name("covariates.csv")
FEWEST_RATINGS = 200
SEEDS = range(3)
OPTIONS: dict[str, Any] = {
    "sequence": "user", "value": "rating:ordinal:5", "n_layers": 1, "width": 16, "learning_rate": 0.005,
    "batch_size": 16, "max_epochs": 25, "averaging": 0.0, "short": "keep", "order": False,
}  # fmt: skip


def read_ratings(path: str) -> pd.DataFrame:
    """The ratings, from 0 to 4, of movies that have enough, those of a user in the order of time."""
    ratings = read_movielens(path)
    ratings = ratings[ratings.groupby("item")["user"].transform("size") >= FEWEST_RATINGS]
    ratings = ratings.sort_values(["user", "time"], kind="stable", ignore_index=True)
    return ratings.assign(rating=ratings["rating"] - 1)


def fit_ratings(ratings: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """A row for each direction, seed and covariate: mean log p of held-out ratings, and that of the item's own."""
    for direction in ("bi", "uni"):
        for seed in SEEDS:
            for covariates in ([], ["time:time"]):
                fit = ExponentialFamilyAttention(
                    **OPTIONS, direction=direction, covariates=covariates, random_state=seed
                ).fit(ratings)
                measured = fit.measure_columns()["held-out"]["values", "rating"]
                yield {
                    "direction": direction,
                    "covariates": " ".join(covariates),
                    "seed": seed,
                    "movies": len(fit.items_),
                    "held_out": measured.log_prob,
                    "mean_of_each_item": measured.without_context,
                }


if __name__ == "__main__":
    pd.DataFrame(fit_ratings(read_ratings(sys.argv[1]))).to_csv(TARGET, index=False, float_format="%.6f")
