"""Joint training on two tables that share some of their columns, against training on one of them alone.

    python reports/tabular/joint.py auto-mpg.csv joint.csv

Source: Wibisono & Wang 2023 (arXiv 2307.04057), section 3.1, which names the use and does not measure it.

Two tables have the response, two features in common, and two features each that the other one lacks; which ones is
drawn with each seed. The test rows have the columns of table A. `attngeo tabular fit a.csv b.csv --target y` trains
jointly: on the rows of both files, in which a cell of a column that the file lacks is missing. Missing cells are
[MASK], and never predicted.

Cases: `cars`, auto-mpg with random training rows; `origin`, auto-mpg with the paper's training rows, American cars,
and test rows, all others; `planted`, a made-up table in which each feature is a noisy copy of the response, so that
table B must help. Each has 245 training rows: half of them for A, of which the first 25, 50, 100 or all are used, and
half for B.

Every training of attention has the same number of updates, whatever its number of rows. Rows that the file has already
are kept, so that a stopped run resumes; without the file, all are measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from torch import Tensor

from attngeo.estimators.tabular.classifier import AttentionClassifier, fit_together
from attngeo.estimators.tabular.fitting import fit_plans
from attngeo.estimators.tabular.network import TableAttention
from attngeo.estimators.tabular.options import ClassifierOptions
from attngeo.papers.wibisono2023.data import FEATURES, divide_cars, read_cars
from attngeo.training.loop import draw_generator

SEEDS = 10
TRAINING_ROWS = 245
SIZES = (25, 50, 100, TRAINING_ROWS // 2)
SHARED = 2
OWN = 2
BATCH = 128
# The learning rate of `tabular fit`. 560 updates match the published run, which has five times as many, at a fifth of
# the rate. With seeds 1000 to 1007, in `cars` and `planted`, 140 gave lower log losses in 15 of 16 trainings.
LEARNING_RATE = 5e-3
UPDATES = 140
# The levels of the made-up columns, the probability that a feature is a copy of the response, and the test rows.
LEVELS = 6
COPIED = 0.5
PLANTED_TEST_ROWS = 1000
# The least probability that the log loss counts.
LEAST_CHANCE = 1e-6
KEYS = ["case", "rows_a", "model", "trained_on", "variant"]


class Tables(NamedTuple):
    """Complete training rows of both tables, and test rows, with the names of the columns.

    Attributes:
        a: rows of table A, with the columns of both tables.
        a_y: their responses.
        b: rows of table B, with the columns of both tables.
        b_y: their responses.
        test: test rows.
        test_y: their responses.
        shared: columns of both tables.
        only_a: columns that only table A has.
        only_b: columns that only table B has.
        seed: seed of these tables, and of the models.
    """

    a: pd.DataFrame
    a_y: np.ndarray
    b: pd.DataFrame
    b_y: np.ndarray
    test: pd.DataFrame
    test_y: np.ndarray
    shared: list[str]
    only_a: list[str]
    only_b: list[str]
    seed: int

    @property
    def columns_a(self) -> list[str]:
        """The columns of table A."""
        return self.shared + self.only_a

    def select_training(self, trained_on: str) -> tuple[pd.DataFrame, np.ndarray]:
        """The training rows of a name of `TRAINED_ON`; a cell that a table lacks is NaN."""
        if trained_on == "A":
            return self.a[self.columns_a], self.a_y
        y = np.concatenate([self.a_y, self.b_y])
        if trained_on == "A and B":
            return pd.concat([self.a[self.columns_a], self.b[self.shared + self.only_b]], ignore_index=True), y
        both = pd.concat([self.a, self.b], ignore_index=True)
        names = {"shared columns": self.shared, "columns of A": self.columns_a, "all cells": list(both.columns)}
        return both[names[trained_on]], y


# What models are trained on: A alone; A and B as they are; the columns that both have; and, as if B had them, the
# columns of A of all rows, or all cells.
TRAINED_ON = ("A", "A and B", "shared columns", "columns of A", "all cells")


class WithoutAbsent(TableAttention):
    """Attention in which nothing attends to a missing cell; otherwise, missing cells are [MASK]."""

    def _attend(self, rows: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attention, values, masked = super()._attend(rows, column)
        is_read = (rows != self.masks) | (torch.arange(rows.shape[-1]) == column[..., None])  # [M, B, K]
        kept = attention * is_read.transpose(1, 2)[..., None]
        return kept / kept.sum(1, keepdim=True), values, masked


@dataclass(frozen=True)
class Run:
    """A model and the rows that train it, for all seeds of a case and a size of table A.

    Attributes:
        model: `atn`, a name of `PLAIN`, or `rule`, the rule that made the table.
        trained_on: a name of `TRAINED_ON`.
        variant: setting of attention that differs from the default; empty for none.
    """

    model: str
    trained_on: str
    variant: str = ""

    @property
    def updates(self) -> int:
        """The updates of attention."""
        return int(self.variant.removesuffix(" updates")) if self.variant.endswith(" updates") else UPDATES


MAIN = [Run("atn", name) for name in TRAINED_ON] + [
    *(Run(model, name) for model in ("lr", "rf", "hgb") for name in ("A", "A and B")),
    Run("lr", "shared columns"),
]
VARIANTS = {
    "without absent cells": ("A and B",),
    "shared vocabulary": ("A", "A and B"),
    "35 updates": ("A", "A and B"),
    "70 updates": ("A", "A and B"),
    "280 updates": ("A", "A and B"),
    "560 updates": ("A", "A and B"),
}
CHECKS = [Run("atn", name, variant) for variant, names in VARIANTS.items() for name in names]
RUNS = {
    "cars": MAIN + CHECKS,
    "planted": [*MAIN, Run("rule", "A"), *CHECKS],
    "origin": MAIN,
}


def make_plain(model: str, seed: int) -> Any:
    """A model of scikit-learn that is not fitted, for cells of which some are NaN.

    A missing cell is a category of its own for logistic regression, the most frequent one for a random forest.
    """
    one_hot = OneHotEncoder(handle_unknown="ignore")
    if model == "lr":
        fill = SimpleImputer(strategy="constant", fill_value=-1)
        return make_pipeline(fill, one_hot, LogisticRegression(max_iter=2000))
    if model == "rf":
        return make_pipeline(
            SimpleImputer(strategy="most_frequent"), one_hot, RandomForestClassifier(random_state=seed)
        )
    return HistGradientBoostingClassifier(random_state=seed)


def count_epochs(x: pd.DataFrame, updates: int) -> int:
    """The epochs with about this number of updates: each cell and each label is masked once in an epoch."""
    cells = int(x.notna().to_numpy().sum()) + len(x)
    return max(1, round(updates / -(-cells // BATCH)))


def fit_attention(run: Run, tables: Sequence[Tables]) -> list[AttentionClassifier]:
    """Attention with each seed."""
    training = [one.select_training(run.trained_on) for one in tables]
    cells = [(x.astype("category"), y) for x, y in training]
    options = ClassifierOptions(
        vocabulary="shared" if run.variant == "shared vocabulary" else "column",
        unseen="mask",
        learning_rate=LEARNING_RATE,
        batch_size=BATCH,
        max_epochs=count_epochs(training[0][0], run.updates),
        device="cpu",
    )
    values = {name: getattr(options, name) for name in ClassifierOptions.model_fields}
    models = [AttentionClassifier(**values | {"random_state": one.seed}) for one in tables]
    if run.variant != "without absent cells":
        fit_together(models, cells)
        return models
    for model, (x, y) in zip(models, cells, strict=True):
        plan = model.prepare(x, y)
        network = WithoutAbsent(plan.layout, **options.sizes, generators=[draw_generator(plan.seed)])
        model._take(fit_plans([replace(plan, start=network)])[0])
    return models


def find_chances(x: pd.DataFrame) -> np.ndarray:
    """The probability of each response of the planted table given features: [rows, LEVELS]."""
    same = x.to_numpy()[..., None] == np.arange(LEVELS)
    chances = (COPIED * same + (1 - COPIED) / LEVELS).prod(1)
    return np.asarray(chances / chances.sum(1, keepdims=True))


def predict(run: Run, tables: Sequence[Tables]) -> list[np.ndarray]:
    """The probabilities of the labels of the test rows with each seed, [rows, classes]; 0 for an unknown label."""
    if run.model == "rule":
        return [find_chances(one.test[one.columns_a]) for one in tables]
    attention = fit_attention(run, tables) if run.model == "atn" else []
    predictions = []
    for number, one in enumerate(tables):
        x, y = one.select_training(run.trained_on)
        known = [name for name in x.columns if name in one.columns_a]
        test = one.test[known].reindex(columns=x.columns)
        model = attention[number] if attention else make_plain(run.model, one.seed).fit(x, y)
        chances = np.zeros((len(test), int(max(y.max(), one.test_y.max())) + 1))
        chances[:, np.asarray(model.classes_, dtype=int)] = model.predict_proba(test)
        predictions.append(chances)
    return predictions


def measure(run: Run, tables: Sequence[Tables]) -> list[dict[str, Any]]:
    """The scores on the test rows with each seed."""
    rows = []
    for one, chances in zip(tables, predict(run, tables), strict=True):
        right = chances[np.arange(len(chances)), one.test_y]
        accuracy = float((chances.argmax(1) == one.test_y).mean())
        loss = float(-np.log(np.maximum(right, LEAST_CHANCE)).mean())
        rows.append({"seed": one.seed, "test_rows": len(chances), "accuracy": accuracy, "log_loss": loss})
    return rows


class Cells(NamedTuple):
    """Training rows, in random order, and test rows: features ([rows, columns]) and responses."""

    train: pd.DataFrame
    train_y: np.ndarray
    test: pd.DataFrame
    test_y: np.ndarray


def draw_cars(path: str, draw: np.random.Generator, *, by_origin: bool) -> Cells:
    """The cars with the categories of the paper; by_origin: American cars train, and the others test."""
    american, others = divide_cars(read_cars(Path(path)))
    x = pd.DataFrame(np.concatenate([american.x, others.x]), columns=list(FEATURES), dtype=float)
    y = np.concatenate([american.y, others.y])
    order = draw.permutation(len(american.y) if by_origin else len(y))
    train = order[:TRAINING_ROWS]
    test = np.setdiff1d(np.arange(len(y)), train)
    return Cells(x.iloc[train], y[train], x.iloc[test], y[test])


def draw_planted(draw: np.random.Generator) -> Cells:
    """Each feature is the response with the probability COPIED, and otherwise any level."""
    count = TRAINING_ROWS + PLANTED_TEST_ROWS
    y = draw.integers(LEVELS, size=count)
    shape = (count, SHARED + 2 * OWN)
    values = np.where(draw.random(shape) < COPIED, y[:, None], draw.integers(LEVELS, size=shape))
    x = pd.DataFrame(values, columns=[f"x{number}" for number in range(shape[1])], dtype=float)
    start = TRAINING_ROWS
    return Cells(x[:start], y[:start], x[start:], y[start:])


def draw_tables(cells: Cells, draw: np.random.Generator, rows_a: int, seed: int) -> Tables:
    """Divide columns and training rows between the tables; A has the first rows of its half."""
    names = [str(name) for name in draw.permutation(cells.train.columns)]
    middle = TRAINING_ROWS // 2
    return Tables(
        a=cells.train[:rows_a],
        a_y=cells.train_y[:rows_a],
        b=cells.train[middle:],
        b_y=cells.train_y[middle:],
        test=cells.test,
        test_y=cells.test_y,
        shared=names[:SHARED],
        only_a=names[SHARED : SHARED + OWN],
        only_b=names[SHARED + OWN :],
        seed=seed,
    )


def make_tables(case: str, path: str, rows_a: int, seed: int) -> Tables:
    """The tables of a case, of which those with a larger A have the rows of a smaller one."""
    draw = np.random.default_rng(seed)
    makers: dict[str, Callable[[], Cells]] = {
        "cars": lambda: draw_cars(path, draw, by_origin=False),
        "origin": lambda: draw_cars(path, draw, by_origin=True),
        "planted": lambda: draw_planted(draw),
    }
    return draw_tables(makers[case](), draw, rows_a, seed)


def main(cars: str, output: str) -> None:
    """Write a row for each case, size of table A, run and seed that the file lacks."""
    torch.set_num_threads(1)
    rows: list[Any] = pd.read_csv(output, keep_default_na=False).to_dict("records") if Path(output).exists() else []
    measured = {tuple(row[name] for name in KEYS) for row in rows}
    for case, rows_a in product(RUNS, SIZES):
        tables = [make_tables(case, cars, rows_a, seed) for seed in range(SEEDS)]
        for run in RUNS[case]:
            key = dict(zip(KEYS, (case, rows_a, run.model, run.trained_on, run.variant), strict=True))
            if tuple(key.values()) in measured:
                continue
            rows += [{**key, **scores} for scores in measure(run, tables)]
            print(key, f"accuracy {np.mean([row['accuracy'] for row in rows[-SEEDS:]]):.3f}", flush=True)
            pd.DataFrame(rows).to_csv(output, index=False, float_format="%.6g")


if __name__ == "__main__":
    main(*sys.argv[1:])
