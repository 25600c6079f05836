"""Attention and the baselines fitted to the training rows of a table, and measured on its test rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, roc_auc_score

from attngeo.errors import TableError
from attngeo.estimators.shared.dates import DateColumn
from attngeo.estimators.shared.files import list_missing, naming
from attngeo.estimators.tabular.baselines import BASELINES, fit_baseline, forecast_seconds
from attngeo.estimators.tabular.classifier import AttentionClassifier, AttentionImputer, TableModel, fit_together
from attngeo.estimators.tabular.kinds import list_parts
from attngeo.estimators.tabular.options import METHOD_LABELS, OURS, ClassifierOptions, FitOptions, Unseen
from attngeo.estimators.tabular.saving import describe_columns
from attngeo.progress import Progress, ProgressCallback, ignore_progress

Model = TypeVar("Model", bound=TableModel)

CALIBRATION_BINS = 10
# Whole numbers that occur so often, on average, may be codes.
OFTEN = 5
# The baseline of each column and of the response: its values as often as in the training rows.
FREQUENCIES = "frequencies"
# Seconds of the remaining methods from which on a note forecasts them.
LONG = 20.0
# The baseline that attention is compared with if it is the only method that is asked for.
PLAIN = "lr"
# The largest product of rows, one-hot columns and classes for which that one is fitted: some seconds.
CHEAP_NUMBERS = 50_000_000
# A difference of two log losses is clear from this number of its standard errors on.
CLEAR_ERRORS = 2


class SplitTable(NamedTuple):
    """Features and responses of the training rows and of the test rows.

    Attributes:
        train_x: features of the training rows.
        train_y: responses of the training rows; None without a target.
        test_x: features of the test rows.
        test_y: responses of the test rows; None without a target.
        dates: columns of the file whose parts are features.
        missing_in: column → texts that mark missing cells in it.
        partial_columns: columns of the files that some of them lack.
    """

    train_x: pd.DataFrame
    train_y: pd.Series[Any] | None
    test_x: pd.DataFrame
    test_y: pd.Series[Any] | None
    dates: Mapping[str, DateColumn] = MappingProxyType({})
    missing_in: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    partial_columns: tuple[str, ...] = ()


class InterruptedFit(KeyboardInterrupt):
    """Ctrl-C during the fits of the baselines. rows: the rows of `fit_table` for the methods measured before it."""

    def __init__(self, rows: pd.DataFrame) -> None:
        super().__init__()
        self.rows = rows


def fit_table(
    tables: SplitTable,
    options: FitOptions,
    progress: ProgressCallback = ignore_progress,
    keep: Callable[[AttentionClassifier], None] = lambda _: None,
) -> tuple[pd.DataFrame, AttentionClassifier]:
    """Fit each method to the training rows, and measure it on the labelled test rows.

    Baselines see the same categories, one-hot, with a separate category for missing cells. A note tells if a baseline
    has a lower log loss than attention. If attention is the only method, logistic regression is fitted just for that
    note, unless the table is large.

    Args:
        tables: the rows, with labels.
        options: the methods and how to fit them.
        progress: called with notes and epochs.
        keep: called with the fitted attention model, before the baselines are fitted.

    Returns:
        The scores and the attention model, which is fitted if it is among the methods. The scores have one row for the
        class frequencies and one per method: method, seed, train_rows, test_rows, accuracy, mse (if labels are numbers
        or ordered), log_loss; calibration_error, the mean difference between confidence and accuracy in ten bins of
        confidence; and auc, recall and majority, for unbalanced classes (see `measure_chances`). The class frequencies
        always predict the most frequent class.

    Raises:
        TableError: a table cannot be used, or a model to save has values that cannot be saved.
        InterruptedFit: at Ctrl-C, after at least one method was measured.
    """
    assert tables.train_y is not None
    assert tables.test_y is not None
    model = _prepare(AttentionClassifier, tables, options)
    _report_notes(_describe_bins(model, tables.train_x), progress)
    if options.test is not None:
        report_cells(model, tables.test_x, options.test, progress)
    numbers = _number_classes(model.classes_, tables.train_y.dtype)
    has_label = tables.test_y.notna()
    test_x = tables.test_x[has_label]
    test_y = tables.test_y[has_label]
    if not len(test_y):
        raise TableError("no test row has a label that occurs in the training rows; give labelled test rows")
    known = "mask" if options.unseen == "error" else options.unseen  # too rare values of training rows are no error
    train_codes = model.coding_.encode(tables.train_x, tables.train_y, known)
    with naming({"": options.test or "the test rows"}, test_x.index):
        test_codes = model.coding_.encode(test_x, test_y, options.unseen)

    losses: dict[str, np.ndarray] = {}

    def measure(name: str) -> dict[str, Any]:
        if name == FREQUENCIES:
            chances = _repeat_frequencies(train_codes[:, -1], len(model.classes_), len(test_y))
        elif name == OURS:
            fit_together([model], [(tables.train_x, tables.train_y)], progress)
            _report_notes(_describe_epoch(model), progress)
            keep(model)
            chances = model.predict_proba(test_x)
        else:
            chances = _predict_baseline(name, train_codes, test_codes, model, options.random_state, progress)
        losses[name] = _list_losses(test_codes[:, -1], chances)
        sizes = {"seed": options.random_state, "train_rows": len(train_codes), "test_rows": len(test_y)}
        return {"method": name, **sizes, **measure_chances(numbers, test_codes[:, -1], chances)}

    def forecast(names: list[str]) -> None:
        _report_notes(_forecast(names, train_codes, options.random_state), progress)

    rows = _measure_each([FREQUENCIES, *(options.methods or ())], measure, forecast)
    if losses.keys() == {FREQUENCIES, OURS} and _is_cheap(model, len(train_codes)):
        chances = _predict_baseline(PLAIN, train_codes, test_codes, model, options.random_state, progress)
        losses[PLAIN] = _list_losses(test_codes[:, -1], chances)
    _report_notes(describe_better(losses), progress)
    return rows, model


def _measure_each(
    methods: list[str], measure: Callable[[str], dict[str, Any]], forecast: Callable[[list[str]], None]
) -> pd.DataFrame:
    """The rows of all methods, in their order; baselines are fitted last, those with a grid after others.

    forecast: called with the baselines before they are fitted. Raises InterruptedFit.
    """
    baselines = [name for name in methods if name in BASELINES]
    baselines.sort(key=lambda name: len(BASELINES[name].grid) > 0)
    rows: dict[str, dict[str, Any]] = {}
    try:
        for name in methods:
            if name not in baselines:
                rows[name] = measure(name)
        forecast(baselines)
        for name in baselines:
            rows[name] = measure(name)
    except KeyboardInterrupt:
        if rows.keys() <= {FREQUENCIES}:
            raise
        raise InterruptedFit(pd.DataFrame([rows[name] for name in methods if name in rows])) from None
    return pd.DataFrame([rows[name] for name in methods])


def _forecast(baselines: list[str], train: np.ndarray, seed: int) -> list[str]:
    """A note of the time that baselines take, if it is long. train: codes of the training rows."""
    labelled = train[train[:, -1] >= 0]
    seconds = {}
    for name in baselines:
        seconds[name] = forecast_seconds(name, labelled[:, :-1], labelled[:, -1], seed=seed)
    if sum(seconds.values()) < LONG:
        return []
    listed = ", ".join(f"{METHOD_LABELS[name]} {_show_time(time)}" for name, time in seconds.items() if time)
    advice = "Ctrl-C stops here and reports the methods measured so far; --methods selects fewer"
    return [f"the other methods take about {_show_time(sum(seconds.values()))} ({listed}); {advice}"]


def _show_time(seconds: float) -> str:
    """Seconds as a text such as 20 s or 3 min."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def fit_columns(
    tables: SplitTable, options: FitOptions, progress: ProgressCallback = ignore_progress
) -> tuple[pd.DataFrame, TableModel]:
    """Fit attention to the training rows without a target, and measure it on each cell of the test rows.

    Args:
        tables: the rows, without labels.
        options: how to fit attention.
        progress: called with notes and epochs.

    Returns:
        The scores and the model. The scores have two rows per column: column, method (atn; or frequencies, from the
        training rows with one added to each count), seed, train_rows, test_rows (with a value in the column), and
        accuracy to majority as in `fit_table`. Columns with a single value, or with none in the test rows, are left
        out.

    Raises:
        TableError: as in `fit_table`, or no test row has a value in a column that varies.
    """
    model = _prepare(AttentionImputer, tables, options)
    _report_notes(_describe_bins(model, tables.train_x), progress)
    if options.test is not None:
        report_cells(model, tables.test_x, options.test, progress)
    unseen: Unseen = "mask" if options.test is None and options.unseen == "error" else options.unseen
    train_codes = model.coding_.encode(tables.train_x, None, "mask")
    with naming({"": options.test or "the test rows"}, tables.test_x.index):
        test_codes = model.coding_.encode(tables.test_x, None, unseen)
    fit_together([model], [(tables.train_x, None)], progress)
    _report_notes(_describe_epoch(model), progress)
    measured = copy(model).set_params(unseen=unseen)
    rows = []
    for number, coding in enumerate(model.coding_.columns):
        is_known = test_codes[:, number] >= 0
        if coding.size < 2 or not is_known.any():
            continue
        truth = test_codes[is_known, number]
        chances = {
            OURS: measured.predict_cell(tables.test_x[is_known], coding.name).to_numpy(),
            FREQUENCIES: _repeat_frequencies(train_codes[:, number], coding.size, len(truth)),
        }
        numbers = _number_classes(np.array(coding.decode_all()))
        sizes = {"seed": options.random_state, "train_rows": len(train_codes), "test_rows": len(truth)}
        for method, method_chances in chances.items():
            scores = measure_chances(numbers, truth, method_chances)
            rows.append({"column": coding.name, "method": method, **sizes, **scores})
    if not rows:
        raise TableError("no test row has a value in a column that varies; give other test rows")
    return pd.DataFrame(rows), model


def _report_notes(notes: Iterable[str], progress: ProgressCallback) -> None:
    for note in notes:
        progress(Progress("note", note))


def _is_cheap(model: AttentionClassifier, rows: int) -> bool:
    """Whether logistic regression of these rows takes little time beside attention."""
    return rows * sum(model.coding_.sizes[:-1]) * len(model.classes_) <= CHEAP_NUMBERS


def _list_losses(truth: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """The log loss of each row, [rows]; a chance of 0 counts as the least one that `log_loss` of scikit-learn knows."""
    least = np.finfo(chances.dtype).eps
    return np.asarray(-np.log(chances[np.arange(len(truth)), truth].clip(min=least)))


def describe_better(losses: Mapping[str, np.ndarray]) -> list[str]:
    """A note about the method with the lowest log loss on the test rows, if that is not attention.

    Args:
        losses: method → the log loss of each test row, [rows].

    Returns:
        One note or none. The method is "better" if its difference from attention exceeds two standard errors over the
        rows, and "as good" otherwise.
    """
    best = min(losses, key=lambda name: float(losses[name].mean()))
    if OURS not in losses or best == OURS:
        return []
    more = losses[OURS] - losses[best]
    error = more.std(ddof=1) / np.sqrt(len(more)) if len(more) > 1 else np.inf
    verdict = "better" if more.mean() > CLEAR_ERRORS * error else "as good"
    label = METHOD_LABELS.get(best, f"the {best} of the classes")
    return [
        f"a plain model is {verdict}: log loss on the test rows {losses[best].mean():.3f} for {label}, "
        f"{losses[OURS].mean():.3f} for {METHOD_LABELS[OURS]} ({more.mean():.3f} ± {error:.3f} more)"
    ]


def _repeat_frequencies(codes: np.ndarray, categories: int, rows: int) -> np.ndarray:
    """The shares of the categories in the training rows, one added to each count, for each row: [rows, categories]."""
    counts = np.bincount(codes[codes >= 0], minlength=categories) + 1
    return np.tile(counts / counts.sum(), (rows, 1))


def _describe_epoch(model: TableModel) -> list[str]:
    """A note of the epoch that is kept of those that were trained, if held-out rows decided it."""
    losses = model.validation_loss_
    if not len(losses):
        return []
    best = int(np.nanargmin(losses))
    return [f"epoch {best + 1} of {len(losses)} is kept: it has the lowest loss on held-out rows, {losses[best]:.4f}"]


def _prepare(kind: type[Model], tables: SplitTable, options: FitOptions) -> Model:
    """A model that has learned the categories, so that bad rows are refused at once. Raises TableError."""
    model = kind(**{name: getattr(options, name) for name in ClassifierOptions.model_fields})
    with naming({}, tables.train_x.index):
        model.prepare(tables.train_x, tables.train_y)
    model.missing_texts = tuple(list_missing(options.missing))
    model.missing_in = tables.missing_in
    model.partial_columns = tables.partial_columns
    model.dates = tables.dates
    if options.save is not None:
        describe_columns(model.coding_)
    return model


def report_cells(model: TableModel, rows: pd.DataFrame, path: str, progress: ProgressCallback) -> None:
    """Note which cells of a file are read in another way than in training. rows: rows with the model's columns."""
    columns = rows.drop(columns=list_parts(model.dates), errors="ignore")  # a part may be rare in training, such as May
    with naming({"": path}):
        for note in model.coding_.describe_cells(columns, model.unseen):
            progress(Progress("note", f"{path}: {note}"))


def _describe_bins(model: TableModel, train: pd.DataFrame) -> list[str]:
    """A note of the columns of whole numbers in bins whose values occur often, as those of codes do."""
    counts = {}
    for name, coding in zip(model.coding_.names, model.coding_.features, strict=True):
        if coding.edges is not None and isinstance(coding.values[0], int):
            count = train[name].nunique()
            if coding.size < count and count * OFTEN <= len(train):
                counts[name] = count
    if not counts:
        return []
    listed = ", ".join(f"{name!s:.60} ({count} values)" for name, count in counts.items())
    advice = (
        f"--column-type {next(iter(counts))!s:.60}:category keeps each value as a category, which is right for codes"
    )
    return [f"whole numbers are cut into bins: {listed}; {advice}"]


def _predict_baseline(
    name: str, train: np.ndarray, test: np.ndarray, model: AttentionClassifier, seed: int, progress: ProgressCallback
) -> np.ndarray:
    """The chances of all classes, [rows, classes]. A baseline learns from labelled rows only."""

    def report(fits: int, total: int) -> None:
        progress(Progress("fit", METHOD_LABELS[name], fits, total, "steps"))

    labelled = train[train[:, -1] >= 0]
    fitted = fit_baseline(name, labelled[:, :-1], labelled[:, -1], seed=seed, report=report)
    chances = np.zeros((len(test), len(model.classes_)))
    chances[:, fitted.classifier.classes_] = fitted.predict_proba(test[:, :-1])
    return chances


def _number_classes(classes: np.ndarray, dtype: Any = None) -> np.ndarray:
    """The number of each class in a squared error: its rank in an ordered dtype, or itself; NaN for other classes."""
    if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered:
        used = set(classes.tolist())
        order = [value for value in dtype.categories if value in used]
        return np.array([order.index(value) for value in classes], dtype=float)
    if np.issubdtype(classes.dtype, np.number):
        return classes.astype(float)
    return np.full(len(classes), np.nan)


def measure_chances(numbers: np.ndarray, truth: np.ndarray, chances: np.ndarray) -> dict[str, float]:
    """Accuracy, mse, log_loss, calibration_error, auc, recall and majority of predicted class probabilities.

    Args:
        numbers: the class numbers that mse compares, [classes]; NaN if classes have none.
        truth: the right class of each row, from 0, [rows].
        chances: the predicted probabilities, [rows, classes].

    Returns:
        The measures by name. calibration_error is the mean over rows of |accuracy − mean confidence| in confidence bins
        of equal width (Guo et al. 2017, https://arxiv.org/abs/1706.04599, equation 3). auc is the area under the ROC
        curve, one class against the others; recall is the share of a class's rows that are predicted correctly. Both
        are means over the classes in the rows, so that rare classes count as much as others. auc is NaN if all rows
        have one class. majority is the share of rows in the most frequent class.
    """
    best = chances.argmax(1)
    is_right = best == truth
    confidence = chances[np.arange(len(best)), best]
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, is_right - confidence, CALIBRATION_BINS)
    return {
        "accuracy": float(is_right.mean()),
        "mse": float(np.mean((numbers[best] - numbers[truth]) ** 2)),
        "log_loss": float(log_loss(truth, chances, labels=np.arange(len(numbers)))),
        "calibration_error": float(np.abs(gaps).sum() / len(best)),
        **_measure_each_class(truth, chances),
    }


def _measure_each_class(truth: np.ndarray, chances: np.ndarray) -> dict[str, float]:
    """auc, recall and majority as of `measure_chances`."""
    best = chances.argmax(1)
    classes, counts = np.unique(truth, return_counts=True)
    recalls = [np.mean(best[truth == label] == label) for label in classes]
    areas = [np.nan]
    if len(classes) > 1:
        areas = [roc_auc_score(truth == label, chances[:, label]) for label in classes]
    return {
        "auc": float(np.mean(areas)),
        "recall": float(np.mean(recalls)),
        "majority": float(counts.max() / len(truth)),
    }
