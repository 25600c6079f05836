"""Attention and the baselines on a user's own table: fitted to training rows, measured on test rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attngeo.bounds import list_names
from attngeo.errors import TableError, UsageError
from attngeo.options import COMPUTATION, INPUT, OPTIMISATION, Options, missing_option, option
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.tables.own import list_missing, list_texts, read_own_table
from attngeo.tabular.experiment_options import check_methods, methods_of_table_1, methods_option
from attngeo.tabular.methods import METHODS
from attngeo.tabular.options import ClassifierOptions, Unseen
from attngeo.tabular.summary import OURS

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from attngeo.tabular.classifier import AttentionClassifier

CALIBRATION_BINS = 10


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Options):
    """How the rows of a file are read that a saved model predicts. Raises UsageError."""

    missing: Iterable[str] | None = missing_option("as fitted")
    unseen: Unseen | None = option(
        None, "What a value that no training row has is: an error, or masked as a missing one", panel=COMPUTATION,
        shown_default="as fitted",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FitOptions(ClassifierOptions):
    """What is fitted to a table, and how it is measured. Raises UsageError."""

    target: str | None = option(None, "Column that is predicted; required", panel=INPUT, metavar="COLUMN")
    test: str | None = option(None, "File of the test rows; without it, some rows are held out", panel=INPUT,
                              metavar="FILE")  # fmt: skip
    test_size: float = option(
        0.25, "Fraction of the rows that are held out to test, without --test", panel=INPUT, least=0.01, most=0.99
    )
    missing: Iterable[str] | None = missing_option()
    methods: Iterable[str] | None = methods_option("Methods, for example atn,lr")
    seed: int = option(0, "Seed of everything that is random", panel=OPTIMISATION, least=0, most=2**32 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "methods", self.method_names)

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods, each once."""
        known = methods_of_table_1()
        return check_methods(self.methods or known, known)


class OwnTables(NamedTuple):
    """Features and responses of the training rows and of the test rows."""

    train_x: pd.DataFrame
    train_y: pd.Series[Any]
    test_x: pd.DataFrame
    test_y: pd.Series[Any]


class OwnFit(NamedTuple):
    """The scores of each method on the test rows, and the attention classifier; None if it was not among them."""

    rows: pd.DataFrame
    model: AttentionClassifier | None


def read_tables(path: str, options: FitOptions) -> OwnTables:
    """The rows of a file that train, and those that test. Raises UsageError, DataUnavailableError, TableError."""
    frame = read_own_table(path, options.missing)
    if options.target is None:
        raise UsageError(f"target is required: the column to predict, one of: {', '.join(frame.columns)}")
    x, y = take_target(frame, options.target, path)
    if options.test is not None:
        test = read_own_table(options.test, options.missing, list_texts(frame))
        test_x, test_y = take_target(test, options.target, options.test)
        absent = [name for name in x.columns if name not in test_x.columns]
        if absent:
            raise TableError(f"{options.test}: no column {absent[0]!r}, which the training rows have")
        return OwnTables(x, y, test_x[list(x.columns)], test_y)
    import numpy as np
    from sklearn.model_selection import train_test_split

    labelled = y.notna().to_numpy().nonzero()[0]
    if len(labelled) - math.ceil(options.test_size * len(labelled)) < 1:
        raise TableError(
            f"{path} has {len(labelled)} rows with a label in {options.target!r}, of which a fraction of "
            f"{options.test_size:g} cannot be held out; give more, or a smaller --test-size"
        )
    train, held_out = train_test_split(labelled, test_size=options.test_size, random_state=options.seed)
    # A label that no training row has could not be predicted.
    test_rows = held_out[y.iloc[held_out].isin(y.iloc[train].unique()).to_numpy()]
    kept = np.delete(np.arange(len(frame)), test_rows)
    return OwnTables(x.iloc[kept], y.iloc[kept], x.iloc[test_rows], y.iloc[test_rows])


def take_target(frame: pd.DataFrame, target: str, path: str | Path) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """The features, and the response. Raises TableError if there is no such column, or no other one."""
    import pandas as pd

    if target not in frame.columns:
        near = get_close_matches(target, list(frame.columns), 1)
        advice = f"did you mean {near[0]}?" if near else f"expected one of: {', '.join(frame.columns)}"
        raise TableError(f"{path}: no column {target!r}; {advice}")
    if frame.shape[1] < 2:
        raise TableError(f"{path} has the column {target!r} only, expected one or more features beside it")
    labels = frame[target]
    if pd.api.types.is_float_dtype(labels.dtype) and labels.isna().any() and (labels.dropna() % 1 == 0).all():
        labels = labels.astype("Int64")  # whole numbers, which pandas reads as others because some are missing
    return frame.drop(columns=target), labels


def fit_own_table(
    tables: OwnTables, options: FitOptions, progress: ProgressCallback = ignore_progress, *, to_save: bool = False
) -> OwnFit:
    """Fit each method to the training rows, and measure it on the test rows that have a label.

    Rows: method, seed, train_rows, test_rows, accuracy, mse (of labels that are numbers or ordered), log_loss, and
    calibration_error, the mean difference of confidence and accuracy in ten bins of confidence. Baselines see the same
    categories, one-hot; a missing cell is a category of its own there. to_save: refuse what a saved model cannot keep.
    Raises TableError and UsageError.
    """
    import pandas as pd

    from attngeo.tabular.classifier import AttentionClassifier, fit_together
    from attngeo.tabular.saving import describe_columns

    own = {each.name: getattr(options, each.name) for each in fields(ClassifierOptions)}
    model = AttentionClassifier(**own, random_state=options.seed)
    model.prepare(tables.train_x, tables.train_y)  # learns the categories, so that bad rows are refused at once
    model.missing_texts = tuple(list_missing(options.missing))
    if to_save:
        describe_columns(model.coding_)
    kind = tables.train_y.dtype
    is_ordered = isinstance(kind, pd.CategoricalDtype) and bool(kind.ordered)
    known = tables.test_y.notna()
    test_x, test_y = tables.test_x[known], tables.test_y[known]
    if not len(test_y):
        raise TableError("no test row has a label, expected some that training rows have; give labelled test rows")
    train = model.coding_.encode(tables.train_x, tables.train_y, "mask")
    codes = model.coding_.encode(test_x, test_y, options.unseen)
    rows = []
    for name in options.method_names:
        if name == OURS:
            fit_together([model], [(tables.train_x, tables.train_y)], progress)
            chances = model.predict_proba(test_x)
        else:
            chances = _predict_baseline(name, train, codes, model, options.seed, progress)
        scores = measure_chances(model.classes_, codes[:, -1], chances, is_ordered=is_ordered)
        sizes = {"train_rows": len(tables.train_y), "test_rows": len(test_y)}
        rows.append({"method": name, "seed": options.seed, **sizes, **scores})
    return OwnFit(pd.DataFrame(rows), model if OURS in options.method_names else None)


def _predict_baseline(
    name: str, train: np.ndarray, test: np.ndarray, model: AttentionClassifier, seed: int, progress: ProgressCallback
) -> np.ndarray:
    """The chances of all classes, [rows, classes]. A baseline learns from labelled rows only."""
    import numpy as np

    from attngeo.tabular.baselines import fit_baseline

    labelled = train[train[:, -1] >= 0]
    fitted = fit_baseline(
        name, labelled[:, :-1], labelled[:, -1], seed=seed,
        report=lambda done, total: progress(Progress("fit", f"{METHODS[name].label}", done, total, "steps")),
    )  # fmt: skip
    chances = np.zeros((len(test), len(model.classes_)))
    chances[:, fitted.classifier.classes_] = fitted.predict_proba(test[:, :-1])
    return chances


def measure_chances(
    classes: np.ndarray, truth: np.ndarray, chances: np.ndarray, *, is_ordered: bool = False
) -> dict[str, float]:
    """Accuracy, mse, log_loss and calibration_error of the chances of classes, [rows, classes].

    truth: the number of the right class of each row. mse: of the ranks of ordered classes, or of classes that are
    numbers; otherwise NaN. calibration_error: the mean over rows of |accuracy − mean confidence| in bins of the
    confidence, of equal width (Guo et al. 2017, https://arxiv.org/abs/1706.04599, equation 3).
    """
    import numpy as np
    from sklearn.metrics import log_loss

    best = chances.argmax(1)
    right = best == truth
    if is_ordered:
        numbers = np.arange(len(classes), dtype=float)
    else:
        numbers = classes.astype(float) if np.issubdtype(classes.dtype, np.number) else np.full(len(classes), np.nan)
    confidence = chances[np.arange(len(best)), best]
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, right - confidence, CALIBRATION_BINS)
    return {
        "accuracy": float(right.mean()),
        "mse": float(np.mean((numbers[best] - numbers[truth]) ** 2)),
        "log_loss": float(log_loss(truth, chances, labels=np.arange(len(classes)))),
        "calibration_error": float(np.abs(gaps).sum() / len(best)),
    }


def read_rows(model: AttentionClassifier, path: str, options: PredictOptions = PredictOptions()) -> pd.DataFrame:
    """The rows of a file with the columns that a saved model knows. Gives the model the option `unseen`.

    Raises DataUnavailableError, UsageError, and TableError if a column of the training rows is absent.
    """
    if options.unseen is not None:
        model.set_params(unseen=options.unseen)
    coding = model.coding_
    texts = [str(each.name) for each in coding.columns[:-1] if all(isinstance(value, str) for value in each.values)]
    frame = read_own_table(path, options.missing or model.missing_texts, texts)
    names = [str(name) for name in coding.names]
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise TableError(
            f"{path}: no column {absent[0]!r:.60}; expected those of the training rows: {list_names(names)}"
        )
    return frame[names]


def predict_rows(model: AttentionClassifier, frame: pd.DataFrame) -> pd.DataFrame:
    """The predictions for rows: row (from 1), prediction, probability, and p(label) of each label.

    Raises TableError for values that no training row has, unless they are to be masked.
    """
    import pandas as pd

    chances = model.predict_proba(frame)
    best = chances.argmax(1)
    return pd.DataFrame(
        {
            "row": range(1, len(frame) + 1), "prediction": model.classes_[best], "probability": chances.max(1),
            **{f"p({label})": chances[:, at] for at, label in enumerate(model.classes_)},
        }
    )  # fmt: skip
