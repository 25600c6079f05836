"""Attention, logistic regression and boosted trees on five tables such as users have: log loss and seconds.

    python reports/tabular/ordinary.py ordinary.csv

The tables have the columns, the kinds of cells and the sizes of public data sets; their relations are made up, by
`ordinary_tables`. Attention reads the files as `attngeo tabular fit` does, by its defaults. The others get
the parts of dates and no names of rows, numbers as they are (logistic regression: standardised, and the mean in place
of a missing one), and texts one-hot or, of trees, as numbers.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from ordinary_tables import TABLES, make_table  # type: ignore[import-not-found]
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from attngeo.estimators.tabular.classifier import AttentionClassifier
from attngeo.estimators.tabular.files import read_tables
from attngeo.estimators.tabular.measuring import SplitTable, measure_chances
from attngeo.estimators.tabular.options import ClassifierOptions, FitOptions

SEEDS = 3
METHODS = ("frequencies", "lr", "hgb", "atn", "atn-hidden")
# The share of cells that atn-hidden masks beside the one that is predicted.
HIDDEN = 0.25


def build_model(method: str, options: FitOptions) -> Any:
    """A method that is not fitted."""
    if method == "atn-hidden":
        options = options.replace(hidden_share=HIDDEN)
    if method.startswith("atn"):
        return AttentionClassifier(**{name: getattr(options, name) for name in ClassifierOptions.model_fields})
    numbers = make_column_selector(dtype_include="number")
    others = make_column_selector(dtype_exclude="number")
    if method == "lr":
        columns = ColumnTransformer(
            [
                ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), numbers),
                ("others", OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5), others),
            ]
        )
        return make_pipeline(columns, LogisticRegression(max_iter=2000))
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan, max_categories=200)
    columns = ColumnTransformer([("numbers", "passthrough", numbers), ("others", encoder, others)])
    return make_pipeline(columns, HistGradientBoostingClassifier(random_state=options.random_state))


def as_plain(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame for the other methods: categories that are numbers as numbers, texts as they are."""
    plain = frame.copy()
    for name in frame.columns:
        if isinstance(frame[name].dtype, pd.CategoricalDtype):
            plain[name] = frame[name].astype(object)
        elif frame[name].dtype == "Int64":
            plain[name] = frame[name].astype(float)
    return plain


def measure(method: str, tables: SplitTable, options: FitOptions) -> dict[str, Any]:
    """The scores of a method on the test rows, and the seconds of the processor that fitted it."""
    assert tables.train_y is not None
    assert tables.test_y is not None
    labels = np.unique(tables.train_y)
    truth = np.searchsorted(labels, tables.test_y)
    numbers = np.full(len(labels), np.nan)
    if method == "frequencies":
        shares = tables.train_y.value_counts(normalize=True)[labels].to_numpy()
        return {"seconds": 0.0, **measure_chances(numbers, truth, np.tile(shares, (len(truth), 1)))}
    train, test = tables.train_x, tables.test_x
    if not method.startswith("atn"):
        train, test = as_plain(train), as_plain(test)
    model = build_model(method, options)
    start = time.process_time()
    model.fit(train, tables.train_y)
    seconds = time.process_time() - start
    return {"seconds": seconds, **measure_chances(numbers, truth, model.predict_proba(test))}


def main(output: str) -> None:
    """Write a row for each table, seed and method."""
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in TABLES:
            for seed in range(SEEDS):
                table, target = make_table(name, seed)
                path = Path(folder) / f"{name}.csv"
                table.to_csv(path, index=False)
                options = FitOptions(target=target, random_state=seed, device="cpu")
                tables = read_tables(str(path), options)
                for method in METHODS:
                    sizes = {"table": name, "seed": seed, "method": method, "rows": len(table)}
                    rows.append({**sizes, **measure(method, tables, options)})
                    print(rows[-1], flush=True)
    pd.DataFrame(rows).drop(columns="mse").to_csv(output, index=False, float_format="%.6g")


if __name__ == "__main__":
    main(*sys.argv[1:])
