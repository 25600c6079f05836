"""What `attngeo efa fit` learns from small tables by the options that its defaults were chosen from.

    python reports/efa/defaults.py INSTACART MOVIELENS TEMPERATURE    # folders or files of `attngeo efa run --data`

writes defaults.csv beside this file, a row for each data set, fit and seed. Rows that it has already are kept, so that
the same command resumes it. All of them take about forty minutes on one core.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from attngeo.estimators import ExponentialFamilyAttention
from attngeo.papers.wibisono2025.baselines import measure_regression
from attngeo.papers.wibisono2025.datasets import EXPERIMENTS, load_dataset
from attngeo.papers.wibisono2025.splits import Split, take_sequences
from attngeo.training.loop import draw_generator

TARGET = Path(__file__).with_name("defaults.csv")
COLUMNS = ("data", "fit", "seed", "epochs", "held_out", "test")
BASKETS = 3000
HELD_OUT = 0.2
REGRESSION, MEANS = "softmax regression", "mean of each item"
Rows = tuple[pd.DataFrame, pd.DataFrame]


def read_baskets(path: str) -> Rows:
    """The training baskets with the lowest numbers, and all test baskets: in the order in which they were filled."""
    rows = load_dataset("instacart", path)
    train = rows[rows["part"] == "train"]
    chosen = np.sort(train["sequence"].unique())[:BASKETS]
    return train[train["sequence"].isin(chosen)].drop(columns="part"), rows[rows["part"] == "test"].drop(columns="part")


def read_experiment(experiment: str, path: str) -> Rows:
    """The training and validation rows of an experiment together, and its test rows, as the text divides them."""
    division = EXPERIMENTS[experiment]
    train, validation, test = division.split(load_dataset(division.dataset, path), published=False)
    return pd.concat([train, validation], ignore_index=True), test


def read_sequences(path: str) -> Rows:
    """The movies of each user in the order of time."""
    train, test = read_experiment("movielens-sequence", path)
    return train.drop(columns="value"), test.drop(columns="value")


def read_ratings(path: str) -> Rows:
    """The ratings of each user, as a set."""
    return forget_order(read_experiment("movielens-ratings", path))


def read_temperatures(path: str) -> Rows:
    """The temperatures of each day in all cities."""
    return read_experiment("temperature", path)


def forget_order(rows: Rows) -> Rows:
    """The same rows without their positions."""
    train, test = (part.drop(columns="position") for part in rows)
    return train, test


# Data set → the argument of its file, the function that reads it, and options of each of its fits.
ITEMS: dict[str, Any] = {"part": "items"}
MOVIES = ITEMS | {"short": "keep"}
PLACES: dict[str, Any] = {"coordinates": ("latitude", "longitude"), "item_vectors": False, "order": False}
DATA: dict[str, tuple[int, Callable[[str], Rows], dict[str, Any]]] = {
    "baskets": (1, lambda path: forget_order(read_baskets(path)), ITEMS),
    "baskets in order": (1, read_baskets, ITEMS),
    "movies": (2, lambda path: forget_order(read_sequences(path)), MOVIES),
    "movies in order": (2, read_sequences, MOVIES),
    "ratings": (2, read_ratings, {}),
    "temperatures": (3, read_temperatures, PLACES),
}
ONE = {"n_layers": 1, "learning_rate": 0.003, "averaging": 0.0}
TWO = {"n_layers": 2, "learning_rate": 0.001, "averaging": 0.0}
AVERAGED = ONE | {"averaging": 0.995}
# Of items and of values: fit → its options, and how many seeds it has.
OF_ITEMS: dict[str, tuple[dict[str, Any], int]] = {
    REGRESSION: ({}, 3),
    "one layer, averaged": (AVERAGED, 3),
    "one layer": (ONE, 3),
    "two layers": (TWO, 3),
    "two layers, all rows seen": (TWO | {"context_dropout": 0.0}, 1),
    "two layers, all rows seen, repeats": (TWO | {"context_dropout": 0.0, "repeats": True}, 1),
}
OF_VALUES: dict[str, tuple[dict[str, Any], int]] = {
    MEANS: ({}, 3),
    "one layer, averaged": (AVERAGED, 3),
    "one layer": (ONE, 3),
    "two layers": (TWO, 3),
    "two layers, 30% not seen": (TWO | {"context_dropout": 0.3}, 1),
}
# Of temperatures.
OF_PLACES: dict[str, tuple[dict[str, Any], int]] = {
    MEANS: ({}, 1),
    "one layer, averaged": (AVERAGED, 1),
    "one layer": (ONE, 1),
    "one layer, learning rate 0.001": (ONE | {"learning_rate": 0.001}, 1),
    "one layer, learning rate 0.001, 30% not seen": (ONE | {"learning_rate": 0.001, "context_dropout": 0.3}, 1),
}

# Seeds of fits that take minutes.
FEWER = {
    ("baskets", "two layers"): 1,
    ("baskets in order", "two layers"): 1,
    ("movies in order", "two layers"): 1,
}


def divide(train: pd.DataFrame, test: pd.DataFrame, seed: int) -> Split:
    """The rows that a fit with this seed learns from, those that it holds out, and the test rows."""
    names = train["sequence"].unique()
    order = torch.randperm(len(names), generator=draw_generator(seed, 2)).numpy()
    count = round(HELD_OUT * len(names))
    return take_sequences(
        pd.concat([train, test]), names[order[count:]], names[order[:count]], test["sequence"].unique()
    )


def measure_baseline(name: str, rows: Rows, seed: int) -> dict[str, float]:
    """Mean log p of held-out and of test rows by softmax regression, whose penalty the former choose; or by the means.

    The means are distributions of the family of the values, one for each item, as `efa fit` prints them.
    """
    if name == REGRESSION:
        train, held_out, test = divide(*rows, seed)
        return {
            "held_out": -measure_regression(Split(train, held_out, held_out), "bi", "")["cross_entropy"],
            "test": -measure_regression(Split(train, held_out, test), "bi", "")["cross_entropy"],
        }
    train, test = rows
    is_of_places = "latitude" in train
    fit = ExponentialFamilyAttention(**PLACES if is_of_places else {}, random_state=seed, max_epochs=1)
    measured = fit.fit(train, test=test).measure_columns()
    return {
        "held_out": measured["held-out"]["values", "value"].without_context,
        "test": measured["test"]["values", "value"].without_context,
    }


def measure_fit(options: dict[str, Any], rows: Rows, seed: int) -> dict[str, float]:
    """Mean log p of held-out and of test rows by a model, and the epochs of its training."""
    train, test = rows
    fit = ExponentialFamilyAttention(**options, random_state=seed).fit(train, test=test)
    epochs = len(fit.history_.train)
    measured = fit.measure_columns()
    held_out, of_test = (next(iter(measured[name].values())).log_prob for name in ("held-out", "test"))
    return {"epochs": epochs, "held_out": held_out, "test": of_test}


def list_fits(data: str, options: dict[str, Any]) -> dict[str, tuple[dict[str, Any], int]]:
    """The fits of a data set; those in order have no baseline, which reads no order.

    With a third seed, a user who is held out has rated more movies than any who trains.
    """
    if options == PLACES:
        return OF_PLACES
    if data.endswith("in order"):
        return {name: (OF_ITEMS[name][0], 2) for name in ("one layer, averaged", "one layer", "two layers")}
    return OF_ITEMS if options.get("part") == "items" else OF_VALUES


def main(paths: list[str]) -> None:
    """Write the rows that the table lacks, each as soon as it is known."""
    known = set[tuple[str, str, int]]()
    if TARGET.exists():
        table = pd.read_csv(TARGET)
        known.update(zip(table["data"], table["fit"], table["seed"], strict=True))
    else:
        TARGET.write_text(",".join(COLUMNS) + "\n", "utf-8")
    for data, (argument, read, options) in DATA.items():
        rows = read(paths[argument - 1])
        for fit, (further, seeds) in list_fits(data, options).items():
            for seed in range(FEWER.get((data, fit), seeds)):
                if (data, fit, seed) in known:
                    continue
                if fit in (REGRESSION, MEANS):
                    measured = measure_baseline(fit, rows, seed)
                else:
                    measured = measure_fit(options | further, rows, seed)
                row = {"data": data, "fit": fit, "seed": seed} | measured
                with TARGET.open("a", encoding="utf-8", newline="") as file:
                    csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(
                        {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in row.items()}
                    )


if __name__ == "__main__":
    main(sys.argv[1:])
