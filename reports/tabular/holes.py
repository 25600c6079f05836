"""Confidence and accuracy of filled cells by the number of empty cells in a row.

Each for several shares of the cells that are hidden in training.

    python reports/tabular/holes.py holes.csv

The tables are those of `ordinary_tables`, all columns of which are filled, the response among them. Of each held-out
row, a number of random cells is emptied at once, and each of them is predicted from the others.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from ordinary_tables import make_table  # type: ignore[import-not-found]

from attngeo.estimators.tabular.classifier import AttentionImputer
from attngeo.estimators.tabular.files import read_tables
from attngeo.estimators.tabular.options import ClassifierOptions, FitOptions

# The table → the rows of it that are read.
ROWS = {"adult": 6000, "churn": 6000}
SHARES = (0.0, 0.25, 0.5, 1.0)
SEEDS = 2
# The largest number of rows that are emptied.
MOST_TESTED = 600


def empty_cells(draw: np.random.Generator, known: np.ndarray, holes: int) -> np.ndarray:
    """Which cells are emptied: so many random ones of the known cells of each row, or all of them but one."""
    order = np.where(known, draw.random(known.shape), 2.0).argsort(1).argsort(1)
    return np.asarray(known & (order < np.minimum(holes, known.sum(1, keepdims=True) - 1)))


def measure(model: AttentionImputer, rows: pd.DataFrame, holes: int, seed: int) -> dict[str, Any]:
    """The means over all emptied cells of the rows."""
    codes = model.coding_.encode(rows, None, "category")
    varies = np.array([column.size > 1 for column in model.coding_.columns])
    is_empty = empty_cells(np.random.default_rng(seed), (codes >= 0) & varies, holes)
    gaps = rows.astype(object).mask(is_empty)
    confidence, is_right, loss = [], [], []
    for number, name in enumerate(model.columns_):
        chosen = is_empty[:, number]
        if chosen.any():
            chances = model.predict_cell(gaps[chosen].infer_objects(), name).to_numpy()
            truth = codes[chosen, number]
            confidence += chances.max(1).tolist()
            is_right += (chances.argmax(1) == truth).tolist()
            loss += (-np.log(chances[np.arange(len(truth)), truth])).tolist()
    means = {"confidence": np.mean(confidence), "accuracy": np.mean(is_right), "log_loss": np.mean(loss)}
    return {"cells": len(loss), **means}


def main(output: str) -> None:
    """Write a row for each table, seed, share and number of empty cells."""
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, seed, share in product(ROWS, range(SEEDS), SHARES):
            table, _ = make_table(name, seed)
            path = Path(folder) / f"{name}.csv"
            table.sample(ROWS[name], random_state=seed).to_csv(path, index=False)
            options = FitOptions(random_state=seed, hidden_share=share, max_epochs=40, device="cpu")
            tables = read_tables(str(path), options)
            values = {field: getattr(options, field) for field in ClassifierOptions.model_fields}
            model = AttentionImputer(**values).fit(tables.train_x)
            columns = len(model.columns_)
            for holes in (1, 2, 4, 8, columns - 1):
                setting = {"table": name, "seed": seed, "hidden_share": share, "columns": columns, "holes": holes}
                found.append({**setting, **measure(model, tables.test_x[:MOST_TESTED], holes, seed)})
                print(found[-1], flush=True)
    pd.DataFrame(found).to_csv(output, index=False, float_format="%.6g")


if __name__ == "__main__":
    main(*sys.argv[1:])
