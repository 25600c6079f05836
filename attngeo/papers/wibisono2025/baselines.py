"""Baselines without a network, which each model must be compared with. Each learns from training rows only.

A baseline is called with the split of a tidy table of `datasets`, a direction and a setting; it returns the metrics of
the experiment on test rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from attngeo.papers.wibisono2025.splits import Split

if TYPE_CHECKING:
    from sklearn.linear_model import Ridge

# Penalties of ridge regression that validation data choose from.
PENALTIES = tuple(10.0**power for power in range(-1, 7))
Metrics = dict[str, float]
# Split, direction, setting → metrics.
Measure = Callable[[Split, str, str], Metrics]


def measure_unigram(split: Split, _direction: str, _setting: str) -> Metrics:
    """Items as frequent as in training rows, whatever the context; one is added to each count."""
    probabilities = _count_items(split)[split.test["item"]]
    return {"cross_entropy": float(-np.log(probabilities).mean())}


def measure_rest(split: Split, direction: str, _setting: str) -> Metrics:
    """Items as frequent as in training rows, but none occurs again: those of the context have probability 0."""
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
    """Linear regression of each city on the others, and on all cities the days before if the setting has such.

    With a penalty of squares, which validation days choose; the city's coefficients are learned from training days.
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
        """What a city is predicted from: the other cities, and all cities the days before."""
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
    "unigram-of-the-rest": measure_rest,
    "mean-per-item": measure_means,
    "bayes": measure_truth,
    "ridge-per-city": measure_ridge,
    "day-before": measure_persistence,
}
