"""Attention and plain models on ten tables like those of users: log loss, calibration and seconds.

    python reports/tabular/ordinary.py ordinary.csv

Five tables have the columns, the kinds of cells and the sizes of public data sets; their relations are made up, by
`ordinary_tables`. Five are public data sets, by `packaged_tables`. Attention reads the files as `attngeo tabular fit`
does, by its defaults. The others get the parts of dates and no names of rows, numbers as they are (logistic
regression: standardised, and the mean in place of a missing one), and texts one-hot or, of trees, as numbers. The rule
of one feature has the categories that attention has.

Rows that the file has already are kept, so that a stopped run resumes; without the file, all are measured.
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
from ordinary_tables import TABLES  # type: ignore[import-not-found]
from packaged_tables import PACKAGED  # type: ignore[import-not-found]
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.naive_bayes import CategoricalNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from attngeo.estimators.tabular.cell_layout import MISSING, UNSEEN
from attngeo.estimators.tabular.classifier import AttentionClassifier
from attngeo.estimators.tabular.coding import learn_table
from attngeo.estimators.tabular.files import read_tables
from attngeo.estimators.tabular.measuring import SplitTable, measure_chances
from attngeo.estimators.tabular.options import ClassifierOptions, FitOptions

SEEDS = 3
METHODS = ("frequencies", "rule", "lr", "hgb", "atn", "atn-hidden")
MEASURES = ("accuracy", "log_loss", "calibration_error")
# The share of cells that atn-hidden masks beside the one that is predicted.
HIDDEN = 0.25
# The codes below 0, of missing cells and of values that no training row has.
SPECIAL = -min(MISSING, UNSEEN)


def build_model(method: str, options: FitOptions) -> Any:
    """A method that is not fitted."""
    if method == "atn-hidden":
        options = options.replace(hidden_share=HIDDEN)
    if method.startswith("atn"):
        return AttentionClassifier(**{name: getattr(options, name) for name in ClassifierOptions.model_fields})
    numbers = make_column_selector(dtype_include="number")
    others = make_column_selector(dtype_exclude="number")
    if method == "rule":
        return Rule(options)
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


class Rule:
    """The classes' shares in each category of one feature, one added to each count: OneR, with probabilities.

    The feature has the lowest log loss in a cross-validation of five folds. A missing cell is a category of its own.
    """

    def __init__(self, options: FitOptions) -> None:
        self._options = options

    def fit(self, x: pd.DataFrame, y: pd.Series[Any]) -> Rule:
        """Choose the feature."""
        least = self._options.min_frequency
        self._coding = learn_table(x, y, np.ones(len(x)), self._options.n_bins, min_frequency=least)
        codes = self._encode(x)
        losses = []
        rules = []
        for number, column in enumerate(self._coding.features):
            rule = CategoricalNB(alpha=1, min_categories=column.size + SPECIAL)
            scores = cross_val_score(rule, codes[:, [number]], y, scoring="neg_log_loss")
            losses.append(-scores.mean())
            rules.append(rule)
        self._number = int(np.argmin(losses))
        self._rule = rules[self._number].fit(codes[:, [self._number]], y)
        return self

    def predict_proba(self, x: pd.DataFrame) -> np.ndarray:
        """The probability of each class: [rows, classes]."""
        return np.asarray(self._rule.predict_proba(self._encode(x)[:, [self._number]]))

    def _encode(self, x: pd.DataFrame) -> np.ndarray:
        """The categories of cells, from 0: [rows, features]."""
        return self._coding.encode(x, None, self._options.unseen)[:, :-1] + SPECIAL


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
    if method in ("lr", "hgb"):
        train, test = as_plain(train), as_plain(test)
    model = build_model(method, options)
    start = time.process_time()
    model.fit(train, tables.train_y)
    seconds = time.process_time() - start
    return {"seconds": seconds, **measure_chances(numbers, truth, model.predict_proba(test))}


def main(output: str) -> None:
    """Write a row for each table, seed and method that the file lacks."""
    torch.set_num_threads(1)
    rows: list[Any] = pd.read_csv(output).to_dict("records") if Path(output).exists() else []
    measured = {(row["table"], row["seed"], row["method"]) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for name, (make, target) in (TABLES | PACKAGED).items():
            for seed in range(SEEDS):
                methods = [method for method in METHODS if (name, seed, method) not in measured]
                if not methods:
                    continue
                table = make(np.random.default_rng(seed))
                path = Path(folder) / f"{name}.csv"
                table.to_csv(path, index=False)
                options = FitOptions(target=target, random_state=seed, device="cpu")
                tables = read_tables(str(path), options)
                for method in methods:
                    sizes = {"table": name, "seed": seed, "method": method, "rows": len(table)}
                    rows.append({**sizes, **measure(method, tables, options)})
                    print(rows[-1], flush=True)
                frame = pd.DataFrame(rows)[["table", "seed", "method", "rows", "seconds", *MEASURES]]
                frame.to_csv(output, index=False, float_format="%.6g")


if __name__ == "__main__":
    main(*sys.argv[1:])
