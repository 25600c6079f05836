"""The baselines of appendix E: scikit-learn's classifiers on one-hot columns, chosen by 5-fold cross-validation.

    model = fit_baseline("gb", train_x, train_y, seed=4951)
    model.predict(test_x)

The search gives the model that `GridSearchCV` gives, with fewer fits: the first 50 trees of a forest or a boosting of
200 are those of one of 50.

Source: Wibisono and Wang 2023 (arXiv 2307.04057), appendix E, and the code that made its Table 1 for what the text
leaves open: folds are shuffled and stratified, the MLP's initial learning rate is 0.01.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ParameterGrid, StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import OneHotEncoder

from attngeo.errors import DataError

FOLDS = 5
# The number of trees; those of fewer are the first ones.
STAGES = "n_estimators"
# The warnings of scikit-learn if classes have few rows.
RARE_CLASSES = "The (least populated class|number of unique classes)"
# That of its MLP at Ctrl-C, after which it goes on.
STOPPED = "Training interrupted by user"
Grid = Mapping[str, tuple[Any, ...]]
# Called with the fits that are finished and their total.
ReportFits = Callable[[int, int], None]


@dataclass(frozen=True)
class Baseline:
    """A method to compare attention with.

    Attributes:
        make: seed → its classifier with default parameters.
        grid: parameter → the values to choose from.
        stages: classifier, rows → its predictions if it had 1, 2, … of its `n_estimators`; None if it has none.
        sparse: whether the classifier is faster with a sparse matrix.
    """

    make: Callable[[int], Any]
    grid: Grid = field(default_factory=dict)
    stages: Callable[[Any, Any], Iterator[np.ndarray]] | None = None
    sparse: bool = False


@dataclass(frozen=True)
class FittedBaseline:
    """A baseline fitted to a table.

    Attributes:
        encoder: encoder of the categories.
        classifier: classifier of one-hot columns.
        parameters: chosen parameters.
    """

    encoder: OneHotEncoder
    classifier: Any
    parameters: dict[str, Any]

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The class of each row of categories: [rows]. An unknown category counts as the first of its column."""
        return np.asarray(self.classifier.predict(self._encode(x)))

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """The probability of each class, in the order of `classifier.classes_`: [rows, classes]."""
        return np.asarray(self.classifier.predict_proba(self._encode(x)))

    def _encode(self, x: np.ndarray) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Found unknown categories", UserWarning)
            return self.encoder.transform(x)


def stages_of_forest(forest: Any, x: np.ndarray) -> Iterator[np.ndarray]:
    """The predictions of the first 1, 2, … trees of a random forest, averaged as `predict` does."""
    x = x.astype(np.float32)
    total = np.zeros((len(x), len(forest.classes_)))
    for count, tree in enumerate(forest.estimators_, 1):
        total += tree.predict_proba(x, check_input=False)
        yield forest.classes_.take(np.argmax(total / count, axis=1))


BASELINES: dict[str, Baseline] = {
    "lr": Baseline(lambda seed: LogisticRegression(random_state=seed, max_iter=2000)),
    "rf": Baseline(
        lambda seed: RandomForestClassifier(random_state=seed),
        {"criterion": ("gini", "entropy"), "n_estimators": (50, 100, 200), "max_depth": (1, 3, None)},
        stages=stages_of_forest,
    ),
    "gb": Baseline(
        lambda seed: GradientBoostingClassifier(random_state=seed),
        {"learning_rate": (0.01, 0.1, 1), "n_estimators": (50, 100, 200), "max_depth": (1, 3, 5)},
        stages=GradientBoostingClassifier.staged_predict,
        sparse=True,  # its trees pass over the ones of a column, not over all of its rows: a third less time
    ),
    "mlp": Baseline(
        lambda seed: MLPClassifier(random_state=seed, max_iter=2000, learning_rate_init=0.01),
        {
            "hidden_layer_sizes": ((50,), (100,), (100, 50)), "alpha": (0.0001, 0.001, 0.01),
            "learning_rate": ("constant",),  # "adaptive" changes nothing with the solver adam
        },
    ),
}  # fmt: skip


def fit_baseline(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    *,
    seed: int,
    report: ReportFits | None = None,
) -> FittedBaseline:
    """Fit a method of `BASELINES` to a table, with the parameters that score best.

    Args:
        name: a key of `BASELINES`.
        x: categories, [rows, columns].
        y: classes, [rows].
        seed: seed of folds and of classifiers.
        report: called with the number of finished fits and of all fits.

    Raises:
        DataError: there is only one class, or every class has fewer rows than folds.
        KeyboardInterrupt: at Ctrl-C, which scikit-learn does not always raise.
    """
    baseline = BASELINES[name]
    rows = np.unique(y, return_counts=True)[1]
    if len(rows) < 2 or (baseline.grid and rows.max() < FOLDS):
        raise DataError(
            f"the response has {len(rows)} classes of at most {rows.max(initial=0)} rows, expected at least 2 classes, "
            f"and {FOLDS} rows in one of them for cross-validation; give a larger table"
        )
    encoder = OneHotEncoder(drop="first", handle_unknown="ignore", sparse_output=baseline.sparse).fit(x)
    with _fitting():
        encoded = encoder.transform(x)
        chosen = _search(baseline, encoded, y, seed, report) if baseline.grid else {}
        classifier = baseline.make(seed).set_params(**chosen).fit(encoded, y)
    return FittedBaseline(encoder, classifier, chosen)


def forecast_seconds(name: str, x: np.ndarray, y: np.ndarray, *, seed: int) -> float:
    """Estimate the time of `fit_baseline`: the mean time of the first and the last candidate, times the number of fits.

    Parameters are as for `fit_baseline`. 0 for a method without candidates.
    """
    baseline = BASELINES[name]
    if not baseline.grid:
        return 0.0
    encoder = OneHotEncoder(drop="first", handle_unknown="ignore", sparse_output=baseline.sparse).fit(x)
    models = _list_models(baseline)
    start = time.monotonic()
    with _fitting():
        encoded = encoder.transform(x)
        for parameters in (models[0], models[-1]):
            baseline.make(seed).set_params(**parameters).fit(encoded, y)
    return (time.monotonic() - start) / 2 * (len(models) * FOLDS + 1)


@contextmanager
def _fitting() -> Iterator[None]:
    """Fit without checks and warnings that do not help here, and end at Ctrl-C, as scikit-learn does not always."""
    # Both checks would be made for each of some hundred thousand trees.
    with config_context(skip_parameter_validation=True, assume_finite=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", RARE_CLASSES, UserWarning)
        warnings.filterwarnings("error", STOPPED, UserWarning)
        try:
            yield
        except UserWarning as warning:
            if STOPPED not in str(warning):
                raise
            raise KeyboardInterrupt from None


def _list_models(baseline: Baseline) -> list[dict[str, Any]]:
    """The candidates that are fitted: of those that differ in stages only, the one with the most."""
    fitted = dict(baseline.grid)
    if STAGES in fitted:
        fitted[STAGES] = (max(fitted[STAGES]),)
    return list(ParameterGrid(fitted))


def _search(baseline: Baseline, x: Any, y: np.ndarray, seed: int, report: ReportFits | None) -> dict[str, Any]:
    """The first of the candidates with the highest mean accuracy over the folds, in the order of `ParameterGrid`."""
    folds = list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(x, y))
    counts = baseline.grid.get(STAGES, ())
    models = _list_models(baseline)
    accuracies: dict[frozenset[Any], list[float]] = defaultdict(list)
    for number, parameters in enumerate(models, 1):
        for train, test in folds:
            model = baseline.make(seed).set_params(**parameters).fit(x[train], y[train])
            for stage, predicted in _predict_stages(baseline, model, x[test], counts):
                key = frozenset((parameters | stage).items())
                accuracies[key].append(float(np.mean(predicted == y[test])))
        if report is not None:
            report(number, len(models))
    candidates = list(ParameterGrid(baseline.grid))
    means = np.average(np.array([accuracies[frozenset(candidate.items())] for candidate in candidates]), axis=1)
    return dict(candidates[int(np.argmax(means))])


def _predict_stages(
    baseline: Baseline, model: Any, x: Any, counts: tuple[int, ...]
) -> Iterator[tuple[dict[str, int], np.ndarray]]:
    """The predictions at each of these numbers of stages, with that number; without stages, those of the model."""
    if not counts or baseline.stages is None:
        yield {}, model.predict(x)
        return
    for count, predicted in enumerate(baseline.stages(model, x), 1):
        if count in counts:
            yield {STAGES: count}, predicted
