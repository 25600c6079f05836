"""Baselines without a network, which each model must be compared with. Each learns from training rows only.

train, validation, test: tidy tables of `datasets`. The result has the metrics of the experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from attngeo.papers.wibisono2025.files import Split

# Penalties of ridge regression that validation data choose from.
PENALTIES = tuple(10.0**power for power in range(-1, 7))
Metrics = dict[str, float]
# Split, direction, setting → metrics.
Measure = Callable[[Split, str, str], Metrics]


def measure_unigram(split: Split, _direction: str, _setting: str) -> Metrics:
    """Items as frequent as in training rows, whatever the context; one is added to each count."""
    return {"cross_entropy": float(-np.log(_count_items(split)[split.test["item"]]).mean())}


def measure_rest(split: Split, direction: str, _setting: str) -> Metrics:
    """The same, but an item does not occur again: those of the context have probability 0, the rest sum to 1."""
    chances = split.test["item"].map(_count_items(split))
    groups = chances.groupby(split.test["sequence"])
    seen = groups.cumsum() - chances if direction == "uni" else groups.transform("sum") - chances
    return {"cross_entropy": float(-np.log(chances / (1 - seen)).mean())}


def _count_items(split: Split) -> pd.Series[float]:
    """The probability of each item of any part."""
    items = sorted({item for part in split for item in part["item"].unique()})
    counts: pd.Series[float] = split.train["item"].value_counts().reindex(items, fill_value=0) + 1.0
    return counts / counts.sum()


def measure_means(split: Split, _direction: str, setting: str) -> Metrics:
    """The mean value of each item in training rows."""
    means = split.test["item"].map(split.train.groupby("item")["value"].mean()).fillna(split.train["value"].mean())
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
    rate, count = mean - shift, value - shift
    loss = {"loss": float((rate - count * np.log(rate.clip(lower=1e-8))).mean())}
    by_rating = mean.groupby(value).mean()
    return loss | {f"mean_prediction_of_{rating:g}": float(predicted) for rating, predicted in by_rating.items()}


def measure_ridge(split: Split, _direction: str, setting: str) -> Metrics:
    """Linear regression of each city on the others, and on all cities the days before if the setting has such.

    With a penalty of squares, which validation days choose; the city's coefficients are learned from training days.
    """
    from sklearn.linear_model import Ridge

    lags = ["lag_1", "lag_2"][: count_days(setting)]
    wide = [_spread(part, lags) for part in split]
    errors = []
    for city in range(wide[0][0].shape[1]):
        train, validation, test = (_divide(values, before, city) for values, before in wide)
        fits = [Ridge(penalty).fit(*train) for penalty in PENALTIES]
        losses = [float(((fit.predict(validation[0]) - validation[1]) ** 2).mean()) for fit in fits]
        errors.append((fits[int(np.argmin(losses))].predict(test[0]) - test[1]) ** 2)
    return {"mse": float(np.mean(errors))}


def measure_persistence(split: Split, _direction: str, _setting: str) -> Metrics:
    """The temperature of the same city on the day before."""
    return {"mse": float(((split.test["value"] - split.test["lag_1"]) ** 2).mean())}


def count_days(setting: str) -> int:
    """The earlier days that a setting such as "4 layers, 1 day" has."""
    last = setting.rpartition(", ")[2].split()
    return int(last[0]) if last and last[-1] in ("day", "days") else 0


def _spread(frame: pd.DataFrame, lags: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Values, [days, cities], and those of earlier days, [days, lags·cities]."""
    wide = frame.pivot(index="sequence", columns="position", values=["value", *lags])
    return wide["value"].to_numpy(), wide[lags].to_numpy()


def _divide(values: np.ndarray, before: np.ndarray, city: int) -> tuple[np.ndarray, np.ndarray]:
    return np.hstack([np.delete(values, city, 1), before]), values[:, city]


TRIVIAL: Mapping[str, Measure] = {
    "unigram": measure_unigram,
    "unigram-of-the-rest": measure_rest,
    "mean-per-item": measure_means,
    "bayes": measure_truth,
    "ridge-per-city": measure_ridge,
    "day-before": measure_persistence,
}
