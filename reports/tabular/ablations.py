"""What holds attention back on tables like those of users: one setting changed at a time, measured on held-out rows.

    python reports/tabular/ablations.py ablations.csv

The tables are those of `ordinary.py` with fewer columns, of which at most 3,000 rows are taken, and of two of them
10,000, too. A quarter of these tests, as of `attngeo tabular fit`, and is not looked at here. A third of the others,
another one with each seed, is held out to measure each variant, which is fitted to the rest.

Rows that the file has already are kept, so that a stopped run resumes; without the file, all are measured.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from ordinary import MEASURES  # type: ignore[import-not-found]
from ordinary_tables import TABLES  # type: ignore[import-not-found]
from packaged_tables import PACKAGED  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.nn.utils import parametrize

from attngeo.estimators.tabular.classifier import AttentionClassifier
from attngeo.estimators.tabular.coding import hold_out
from attngeo.estimators.tabular.files import read_tables
from attngeo.estimators.tabular.fitting import fit_plans
from attngeo.estimators.tabular.measuring import SplitTable, measure_chances
from attngeo.estimators.tabular.network import TableAttention
from attngeo.estimators.tabular.options import ClassifierOptions, FitOptions
from attngeo.training.loop import draw_generator

SEEDS = 2
HELD_OUT = 1 / 3
DEFAULT = "default"
# The name of each variant, and the options that it changes.
VARIANTS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "line, bins 10": {},
    "bins 20": {"n_bins": 20},
    "bins 40": {"n_bins": 40},
    "learning rate 0.01": {"learning_rate": 1e-2},
    "labels only": {},
    "line, bins 40": {"n_bins": 40},
    "hidden units 40": {"feed_forward": 40},
    "category of 1 row": {"min_frequency": 1},
    "category of 20 rows": {"min_frequency": 20},
    "learning rate 0.002": {"learning_rate": 2e-3},
    "patience 20": {"patience": 20},
}
# The tables of each number of rows, at most, and the variants that they have.
SIZES: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {
    10_000: (("diamonds", "bikes"), (DEFAULT, "bins 20", "bins 40")),
    3_000: (("tumours", "weather", "titanic", "diamonds", "bikes", "credit", "churn", "adult"), tuple(VARIANTS)),
}
# Those that change nothing with the first seed, and have no other one.
WITHOUT_EFFECT = ("patience 20",)
KEYS = ("table", "table_rows", "seed", "variant")
Rows = tuple[pd.DataFrame, "pd.Series[Any]"]


class Line(nn.Module):
    """A path for numbers: the vector of a bin has a multiple of its standardised median added, one of each column.

    The parametrisation of the vectors of words. numbers: of each word, [words], 0 if it is none. columns: of each word.
    """

    numbers: Tensor
    columns: Tensor

    def __init__(self, numbers: Tensor, columns: Tensor, width: int) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.zeros(1, int(columns.max()) + 1, width))
        self.register_buffer("numbers", numbers, persistent=False)
        self.register_buffer("columns", columns, persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        """The vectors of words, [M, words, width], with the lines."""
        return words + self.numbers[:, None] * self.slopes[:, self.columns]


def add_line(model: AttentionClassifier, network: TableAttention) -> None:
    """Give a network that is not trained the path for numbers."""
    numbers = torch.zeros(network.weights["words"].shape[1])
    columns = torch.zeros(len(numbers), dtype=torch.int64)
    for number, coding in enumerate(model.coding_.features):
        words = network.layout.to_words(torch.arange(coding.size), torch.tensor(number))
        columns[words] = number
        if coding.edges is not None and coding.size > 1:
            medians = np.array(coding.values, dtype=float)
            numbers[words] = torch.tensor((medians - medians.mean()) / medians.std(), dtype=torch.float32)
    parametrize.register_parametrization(network.weights, "words", Line(numbers, columns, network.width), unsafe=True)


def fit_variant(variant: str, x: pd.DataFrame, y: pd.Series[Any], options: FitOptions) -> AttentionClassifier:
    """Attention with the options of a variant."""
    changed = dict(VARIANTS[variant])
    if variant == "labels only":
        changed["epoch_cells"] = len(y) - int(np.ceil(len(y) * options.validation_fraction))
    options = options.replace(**changed)
    model = AttentionClassifier(**{name: getattr(options, name) for name in ClassifierOptions.model_fields})
    if not variant.startswith("line"):
        return model.fit(x, y)
    plan = model.prepare(x, y)
    network = TableAttention(plan.layout, **options.sizes, generators=[draw_generator(plan.seed)])
    add_line(model, network)
    model._take(fit_plans([replace(plan, start=network)])[0])
    return model


def measure(
    variant: str,
    train: Rows,
    rows: Rows,
    options: FitOptions,
) -> dict[str, Any]:
    """The scores of a variant that is fitted to some rows and measured on others, and the seconds of the processor."""
    start = time.process_time()
    model = fit_variant(variant, *train, options)
    seconds = time.process_time() - start
    x, y = rows
    truth = np.searchsorted(model.classes_, y)
    scores = measure_chances(np.full(len(model.classes_), np.nan), truth, model.predict_proba(x))
    return {"epochs": model.n_iter_, "seconds": seconds, **{name: scores[name] for name in MEASURES}}


def read_rows(name: str, seed: int, most: int, folder: str) -> tuple[SplitTable, FitOptions, int]:
    """The rows of a table as `attngeo tabular fit` reads them, the options, and the number of rows of the table."""
    make, target = (TABLES | PACKAGED)[name]
    draw = np.random.default_rng(seed)
    table = make(draw)
    if len(table) > most:
        table = table.iloc[np.sort(draw.choice(len(table), most, replace=False))]
    path = Path(folder) / f"{name}.csv"
    table.to_csv(path, index=False)
    options = FitOptions(target=target, random_state=seed, device="cpu")
    return read_tables(str(path), options), options, len(table)


def hold_some_out(tables: SplitTable, seed: int) -> tuple[Rows, Rows]:
    """The rows that train, and those that measure."""
    x, y = tables.train_x, tables.train_y
    assert y is not None
    kept, out = hold_out(np.arange(len(y)), HELD_OUT, seed, "held_out")
    # A label that no row of the rest has could not be predicted.
    out = out[y.iloc[out].isin(y.iloc[kept].unique()).to_numpy()]
    return (x.iloc[kept], y.iloc[kept]), (x.iloc[out], y.iloc[out])


def main(output: str) -> None:
    """Write a row for each seed, table and variant that the file lacks."""
    torch.set_num_threads(1)
    rows: list[Any] = pd.read_csv(output).to_dict("records") if Path(output).exists() else []
    measured = {tuple(row[name] for name in KEYS) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for seed, (most, (names, variants)) in product(range(SEEDS), SIZES.items()):
            read = {name: read_rows(name, seed, most, folder) for name in names}
            for variant, name in product(variants, names):
                tables, options, count = read[name]
                key = {"table": name, "table_rows": count, "seed": seed, "variant": variant}
                if tuple(key.values()) in measured or (seed and variant in WITHOUT_EFFECT):
                    continue
                train, others = hold_some_out(tables, seed)
                rows.append({**key, "rows": len(train[1]), **measure(variant, train, others, options)})
                print(rows[-1], flush=True)
                pd.DataFrame(rows).to_csv(output, index=False, float_format="%.6g")


if __name__ == "__main__":
    main(*sys.argv[1:])
