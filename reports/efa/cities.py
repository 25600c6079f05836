"""Temperatures of cities that no training row has: attention, the nearest city, distances and kriging.

    python reports/efa/cities.py TEMPERATURE    # a folder or file of `attngeo efa run temperature --data`

writes cities.csv beside this file. A random order of the 44 cities, drawn once, gives disjoint choices of five. For
each choice, all methods learn from the other 39 cities and predict the five from the 39 on the same day. Days are
divided as in the paper: 2007 to 2012 train, 2013 to 2016 decide when attention stops, 2017 to 2019 test. Rows that the
file has already are kept, so that the same command resumes it. All of them take about three minutes on one core.
"""

from __future__ import annotations

import csv
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern, WhiteKernel

from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa.making import measure_distances
from attngeo.papers.wibisono2025.datasets import EXPERIMENTS, load_dataset
from attngeo.papers.wibisono2025.splits import Split

TARGET = Path(__file__).with_name("cities.csv")
COLUMNS = ("choice", "method", "city", "mse")
SEED = 0
CHOICES, LEFT_OUT = 6, 5
COORDINATES = ["latitude", "longitude"]
# What the coordinates need, and epochs enough for its patience to end each training; all others are the defaults of
# `attngeo efa fit`.
OPTIONS: dict[str, Any] = {"coordinates": COORDINATES, "item_vectors": False, "order": False, "max_epochs": 400}
# Powers of the inverse distance that training days choose from.
POWERS = (1.0, 2.0, 3.0, 4.0, 6.0)
ATTENTION, KNOWN = "attention", "the other 39 cities"
# Exponential covariance, and a share that is of each city alone: length scale and variances are learned.
KERNEL = ConstantKernel(1.0) * Matern(0.3, (0.01, 100.0), nu=0.5) + WhiteKernel(0.1, (1e-5, 10.0))


class Field(NamedTuple):
    """Temperatures of places on training and on test days.

    Attributes:
        places: latitude and longitude of each known city, [n, 2].
        new: the same of the cities to predict, [k, 2].
        train: known cities on training days, [n, days].
        test: known cities on test days, [n, days].
    """

    places: np.ndarray
    new: np.ndarray
    train: np.ndarray
    test: np.ndarray


def choose_cities(cities: np.ndarray) -> np.ndarray:
    """The disjoint choices of cities, [choices, 5]."""
    order: np.ndarray = np.random.default_rng(SEED).permutation(cities)[: CHOICES * LEFT_OUT]
    return order.reshape(CHOICES, LEFT_OUT)


def make_field(split: Split, chosen: np.ndarray) -> Field:
    """What the methods without a network read. chosen: the cities to predict."""
    train, test = (rows.pivot(index="item", columns="sequence", values="value") for rows in (split.train, split.test))
    known = train.index.difference(list(chosen))
    places = split.train.drop_duplicates("item").set_index("item")[COORDINATES]
    return Field(
        places=places.loc[known].to_numpy(),
        new=places.loc[list(chosen)].to_numpy(),
        train=train.loc[known].to_numpy(),
        test=test.loc[known].to_numpy(),
    )


def measure_to(field: Field) -> np.ndarray:
    """Great-circle distances in km from the cities to predict to the known ones, [k, n]."""
    between: np.ndarray = measure_distances(np.concatenate([field.new, field.places]), "haversine")
    return between[: len(field.new), len(field.new) :]


def predict_mean(field: Field) -> np.ndarray:
    """The mean of the known cities on the day, [k, days]."""
    return np.repeat(field.test.mean(0, keepdims=True), len(field.new), axis=0)


def predict_nearest(field: Field) -> np.ndarray:
    """The nearest known city, [k, days]."""
    nearest: np.ndarray = field.test[measure_to(field).argmin(1)]
    return nearest


def predict_by_distance(field: Field) -> np.ndarray:
    """A mean with weights 1/distance^power, [k, days].

    The power has the least squared error on training days, when each known city is predicted from the others.
    """
    between = measure_distances(field.places, "haversine")
    np.fill_diagonal(between, np.inf)
    errors = [np.square(_weigh(between, power) @ field.train - field.train).mean() for power in POWERS]
    means: np.ndarray = _weigh(measure_to(field), POWERS[int(np.argmin(errors))]) @ field.test
    return means


def _weigh(distances: np.ndarray, power: float) -> np.ndarray:
    """Weights that fall with distance, and whose sum over each row is 1."""
    weights = distances**-power
    normed: np.ndarray = weights / weights.sum(1, keepdims=True)
    return normed


def predict_by_kriging(field: Field) -> np.ndarray:
    """Kriging of each test day around its mean, [k, days]. All training days together give the covariance."""
    kernel = learn_kernel(field.places, field.train)
    return krige(kernel, field.places, field.test, field.new)


def predict_by_deviations(field: Field) -> np.ndarray:
    """Kriging of the cities' means over training days, plus that of the day's deviations from these, [k, days]."""
    means = field.train.mean(1, keepdims=True)
    of_means = krige(learn_kernel(field.places, means), field.places, means, field.new)
    kernel = learn_kernel(field.places, field.train - means)
    predicted: np.ndarray = of_means + krige(kernel, field.places, field.test - means, field.new)
    return predicted


def learn_kernel(places: np.ndarray, values: np.ndarray) -> Kernel:
    """The covariance with the largest likelihood of all days, each with mean 0 and variance 1. values: [n, days]."""
    process = GaussianProcessRegressor(KERNEL, normalize_y=True)
    with warnings.catch_warnings():  # if the share of each city alone is 0, its variance is at its bound
        warnings.simplefilter("ignore", ConvergenceWarning)
        return process.fit(to_sphere(places), values).kernel_


def krige(kernel: Kernel, places: np.ndarray, values: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The expected values at new places, [k, days].

    Args:
        kernel: covariance.
        places: latitude and longitude of the known values, [n, 2].
        values: known values, [n, days].
        new: the new places, [k, 2].
    """
    process = GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True).fit(to_sphere(places), values)
    return np.asarray(process.predict(to_sphere(new))).reshape(len(new), -1)


def to_sphere(places: np.ndarray) -> np.ndarray:
    """Points of the unit sphere, [n, 3], from latitude and longitude in degrees, [n, 2]."""
    latitude, longitude = np.radians(places).T
    x = np.cos(latitude) * np.cos(longitude)
    return np.stack([x, np.cos(latitude) * np.sin(longitude), np.sin(latitude)], 1)


METHODS: Mapping[str, Callable[[Field], np.ndarray]] = {
    "mean of the day": predict_mean,
    "nearest city": predict_nearest,
    "weighted by distance": predict_by_distance,
    "kriging": predict_by_kriging,
    "kriging of means and deviations": predict_by_deviations,
}


def measure_attention(split: Split, chosen: np.ndarray, seed: int) -> dict[str, float]:
    """Squared errors of attention: of each chosen city, and of the others, each predicted from all 38 others.

    The test table has all cities; the values of the chosen ones are missing, so that no row is predicted from them.
    """
    train, validation = (rows[~rows["item"].isin(chosen)] for rows in (split.train, split.validation))
    fit = ExponentialFamilyAttention(**OPTIONS, random_state=seed).fit(train, validation=validation)
    is_new = split.test["item"].isin(chosen)
    gaps = split.test.assign(value=split.test["value"].where(~is_new))
    errors = (fit.predict(gaps)["predicted_mean"] - split.test["value"]) ** 2
    by_city = errors[is_new].groupby(split.test["item"]).mean()
    measured = {str(city): float(error) for city, error in by_city.items()}
    return measured | {KNOWN: float(errors[~is_new].mean())}


def measure_choice(split: Split, choice: int, chosen: np.ndarray) -> Iterator[dict[str, Any]]:
    """The rows of a choice: the squared error of each method on test days, in °F², by city."""
    field = make_field(split, chosen)
    test = split.test.pivot(index="item", columns="sequence", values="value").loc[list(chosen)].to_numpy()
    for method, predict in METHODS.items():
        for city, error in zip(chosen, np.square(predict(field) - test).mean(1), strict=True):
            yield {"choice": choice, "method": method, "city": city, "mse": error}
    for city, error in measure_attention(split, chosen, seed=choice).items():
        yield {"choice": choice, "method": ATTENTION, "city": city, "mse": error}


def main(path: str) -> None:
    """Write the rows that the table lacks, those of each choice as soon as they are known."""
    if not TARGET.exists():
        TARGET.write_text(",".join(COLUMNS) + "\n", "utf-8")
    known = set(pd.read_csv(TARGET)["choice"])
    experiment = EXPERIMENTS["temperature"]
    split = experiment.split(load_dataset(experiment.dataset, path), published=False)
    for choice, chosen in enumerate(choose_cities(split.train["item"].unique())):
        if choice in known:
            continue
        rows = list(measure_choice(split, choice, chosen))
        with TARGET.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writerows(row | {"mse": f"{row['mse']:.3f}"} for row in rows)


if __name__ == "__main__":
    main(sys.argv[1])
