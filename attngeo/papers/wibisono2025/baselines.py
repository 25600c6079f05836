"""Baselines without a network, which each model must be compared with. Each learns from training rows only.

A baseline is called with the split of a tidy table of `datasets`, a direction and a setting; it returns the metrics of
the experiment on test rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.special import softmax

from attngeo.bounds.machine import require_memory
from attngeo.papers.wibisono2025.splits import Split

if TYPE_CHECKING:
    from sklearn.linear_model import Ridge

# Penalties of ridge regression that validation data choose from.
PENALTIES = tuple(10.0**power for power in range(-1, 7))
# The same of softmax regression, the largest first, and how long each is optimised.
SOFTMAX_PENALTIES = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
CLIMB = {"maxiter": 100, "ftol": 1e-7}
Metrics = dict[str, float]
# Split, direction, setting → metrics.
Measure = Callable[[Split, str, str], Metrics]


def measure_unigram(split: Split, _direction: str, _setting: str) -> Metrics:
    """Item frequencies of the training rows, whatever the context, with one added to each count."""
    probabilities = _count_items(split)[split.test["item"]]
    return {"cross_entropy": float(-np.log(probabilities).mean())}


def measure_without_repeats(split: Split, direction: str, _setting: str) -> Metrics:
    """Item frequencies of the training rows, except that items of the context have probability 0."""
    probabilities = split.test["item"].map(_count_items(split))
    sequences = probabilities.groupby(split.test["sequence"])
    sums = sequences.cumsum() if direction == "uni" else sequences.transform("sum")
    of_context = sums - probabilities
    return {"cross_entropy": float(-np.log(probabilities / (1 - of_context)).mean())}


def _count_items(split: Split) -> pd.Series[float]:
    """The probability of each item of any part."""
    items = pd.concat(split)["item"].unique()
    counts: pd.Series[float] = split.train["item"].value_counts().reindex(np.sort(items), fill_value=0) + 1.0
    return counts / counts.sum()


def measure_regression(split: Split, direction: str, _setting: str) -> Metrics:
    """Softmax regression on the items of the context, which do not occur again.

    The logit of item d is b_d + Σ_j W_{x_j, d} over the context j; items of the context have probability 0. Validation
    rows choose the penalty on squares of W.
    """
    items = np.sort(pd.concat(split)["item"].unique())
    train, validation, test = (count_context(rows, items, direction) for rows in split)
    shape = (len(items) + 1, len(items))  # b is the last row of W
    weights = np.zeros(shape)
    fits = []
    for penalty in SOFTMAX_PENALTIES:

        def measure(flat: np.ndarray, penalty: float = penalty) -> tuple[float, np.ndarray]:
            weights = flat.reshape(shape)
            loss, slope = train.measure(weights)
            loss += penalty * float((weights[:-1] ** 2).sum())
            slope[:-1] += 2 * penalty * weights[:-1]
            return loss, slope.ravel()

        # Each starts where the one before ended.
        weights = minimize(measure, weights.ravel(), jac=True, method="L-BFGS-B", options=CLIMB).x.reshape(shape)
        fits.append((validation.measure(weights)[0], test.measure(weights)[0]))
    _, cross_entropy = min(fits)
    return {"cross_entropy": cross_entropy}


class ContextCounts(NamedTuple):
    """What a regression reads of rows.

    item: its number, [rows]. context: how often each item is in the context, and a 1, [rows, D + 1].
    """

    item: np.ndarray
    context: np.ndarray

    def measure(self, weights: np.ndarray) -> tuple[float, np.ndarray]:
        """The cross-entropy, and its slope. weights, slope: [D + 1, D]."""
        logits = self.context @ weights.astype(np.float32)
        logits[self.context[:, :-1] > 0] = -np.inf
        chances = softmax(logits, axis=1)
        rows = np.arange(len(self.item))
        loss = -np.log(chances[rows, self.item]).mean(dtype=np.float64)
        chances[rows, self.item] -= 1
        slope = (self.context.T @ chances / len(rows)).astype(np.float64)
        return float(loss), slope


def count_context(rows: pd.DataFrame, items: np.ndarray, direction: str) -> ContextCounts:
    """The items in the context of each row. items: all items, sorted. Raises NotEnoughMemoryError."""
    require_memory(16 * len(rows) * len(items), f"counts of {len(items):,} items for {len(rows):,} rows")
    item = np.searchsorted(items, rows["item"])
    own = np.zeros((len(rows), len(items)), np.float32)
    own[np.arange(len(rows)), item] = 1
    sequences = pd.DataFrame(own).groupby(rows["sequence"].to_numpy())
    sums = sequences.cumsum() if direction == "uni" else sequences.transform("sum")
    return ContextCounts(item, np.column_stack([sums.to_numpy() - own, np.ones(len(rows), np.float32)]))


def measure_means(split: Split, _direction: str, setting: str) -> Metrics:
    """The mean value of each item in training rows."""
    by_item = split.train.groupby("item")["value"].mean()
    means = split.test["item"].map(by_item).fillna(split.train["value"].mean())
    return measure_ratings(split.test["value"], means, setting)


def measure_truth(split: Split, _direction: str, setting: str) -> Metrics:
    """The means that the data were drawn with: no model can be better."""
    return measure_ratings(split.test["value"], split.test["mean"], setting)


def measure_ratings(value: pd.Series[float], mean: pd.Series[float], setting: str) -> Metrics:
    """The metrics of predicted means: mse; or, for the Poisson settings v1 and v2, loss and means by true rating.

    loss: rate − y·log(rate), without the log-factorial, as the paper has it; v1 has y − 1 and its rate in place of y.
    """
    if not setting:
        return {"mse": float(((value - mean) ** 2).mean())}
    shift = 1.0 if setting == "v1" else 0.0
    rate = mean - shift
    count = value - shift
    metrics = {"loss": float((rate - count * np.log(rate.clip(lower=1e-8))).mean())}
    for rating, predicted in mean.groupby(value).mean().items():
        metrics[f"mean_prediction_of_{rating:g}"] = float(predicted)
    return metrics


def measure_ridge(split: Split, _direction: str, setting: str) -> Metrics:
    """Linear regression of each city on the others, and if the setting has earlier days, on all cities on these days.

    Training days determine the coefficients of each city, validation days the penalty on their squares.
    """
    from sklearn.linear_model import Ridge

    last = setting.rpartition(", ")[2].split()  # of "4 layers, 1 day"
    days = int(last[0]) if last[-1:] in (["day"], ["days"]) else 0
    lags = ["lag_1", "lag_2"][:days]
    train, validation, test = (_spread_days(rows, lags) for rows in split)
    errors = []
    for city in range(train.values.shape[1]):
        inputs = train.inputs_of(city)
        fits = [Ridge(penalty).fit(inputs, train.values[:, city]) for penalty in PENALTIES]
        losses = [np.mean(_square_errors(fit, validation, city)) for fit in fits]
        best = fits[int(np.argmin(losses))]
        errors.append(_square_errors(best, test, city))
    return {"mse": float(np.mean(errors))}


def measure_persistence(split: Split, _direction: str, _setting: str) -> Metrics:
    """The temperature of the same city on the day before."""
    return {"mse": float(((split.test["value"] - split.test["lag_1"]) ** 2).mean())}


class Days(NamedTuple):
    """Temperatures. values: [days, cities]. before: those of earlier days, [days, lags·cities]."""

    values: np.ndarray
    before: np.ndarray

    def inputs_of(self, city: int) -> np.ndarray:
        """The inputs for a city: the other cities, and all cities on the days before."""
        return np.hstack([np.delete(self.values, city, 1), self.before])


def _spread_days(frame: pd.DataFrame, lags: list[str]) -> Days:
    """The temperatures of tidy rows, and those of the days before in the columns `lags`."""
    wide = frame.pivot(index="sequence", columns="position", values=["value", *lags])
    return Days(wide["value"].to_numpy(), wide[lags].to_numpy())


def _square_errors(fit: Ridge, days: Days, city: int) -> np.ndarray:
    """The squared errors of a city's regression, [days]."""
    errors: np.ndarray = (fit.predict(days.inputs_of(city)) - days.values[:, city]) ** 2
    return errors


TRIVIAL: Mapping[str, Measure] = {
    "unigram": measure_unigram,
    "unigram-without-repeats": measure_without_repeats,
    "softmax-regression": measure_regression,
    "mean-per-item": measure_means,
    "bayes": measure_truth,
    "ridge-per-city": measure_ridge,
    "day-before": measure_persistence,
}
