"""Baselines without a network, and the best distribution without a context, against numbers known otherwise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import LinearRegression
from support.data import DATA, needs

from attngeo.estimators import ExponentialFamilyAttention
from attngeo.papers.wibisono2025.baselines import (
    measure_means,
    measure_persistence,
    measure_ratings,
    measure_rest,
    measure_ridge,
    measure_truth,
    measure_unigram,
)
from attngeo.papers.wibisono2025.datasets import EXPERIMENTS, load_dataset
from attngeo.papers.wibisono2025.splits import Split
from attngeo.papers.wibisono2025.synthetic import split_synthetic, synthetic_ratings


def split_of(train: pd.DataFrame, test: pd.DataFrame) -> Split:
    return Split(train, train, test)


def test_items_by_their_frequency_and_without_those_of_the_context() -> None:
    train = pd.DataFrame({"sequence": 0, "item": list("aab")})  # with one added: a 3/6, b 2/6, c 1/6
    test = pd.DataFrame({"sequence": [1, 1, 2], "item": list("abc")})
    split = split_of(train, test)
    chances = np.array([3, 2, 1]) / 6
    assert measure_unigram(split, "bi", "")["cross_entropy"] == pytest.approx(-np.log(chances).mean())
    both = [(3 / 6) / (4 / 6), (2 / 6) / (3 / 6), 1 / 6]
    assert measure_rest(split, "bi", "")["cross_entropy"] == pytest.approx(-np.log(both).mean())
    before = [3 / 6, (2 / 6) / (3 / 6), 1 / 6]
    assert measure_rest(split, "uni", "")["cross_entropy"] == pytest.approx(-np.log(before).mean())


def test_means_and_their_truth_on_the_synthetic_ratings() -> None:
    split = split_synthetic(synthetic_ratings(), published=True)
    assert measure_means(split, "bi", "")["mse"] == pytest.approx(2.20, abs=0.01)
    assert measure_truth(split, "bi", "")["mse"] == pytest.approx(1.0226, abs=1e-4)


def test_the_loss_of_ratings_is_that_of_a_poisson_without_the_factorial() -> None:
    value, mean = pd.Series([1.0, 2.0, 3.0, 3.0]), pd.Series([1.5, 1.2, 2.5, 2.0])
    for setting, shift in (("v1", 1), ("v2", 0)):
        found = measure_ratings(value, mean, setting)
        exact = -stats.poisson.logpmf(value - shift, mean - shift)
        factorial = np.array([np.log(float(np.prod(range(1, int(y - shift) + 1)))) for y in value])
        assert found["loss"] == pytest.approx(float((exact - factorial).mean()))
        assert found["mean_prediction_of_3"] == pytest.approx(2.25)
    assert measure_ratings(value, mean, "")["mse"] == pytest.approx(float(((value - mean) ** 2).mean()))


def days(count: int, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    base = draw.normal(60, 10, (count, 1)) + draw.normal(0, 1, (count, 3))
    rows = [
        {"sequence": f"{seed}-{day}", "position": city, "value": base[day, city], "lag_1": base[day - 1, city]}
        for day in range(1, count)
        for city in range(3)
    ]
    return pd.DataFrame(rows)


def test_regression_of_each_city_is_that_of_least_squares_on_much_data() -> None:
    split = Split(days(400, 1), days(50, 2), days(100, 3))
    errors = []
    for city in range(3):
        wide = [part.pivot(index="sequence", columns="position", values="value") for part in split]
        fit = LinearRegression().fit(wide[0].drop(columns=city), wide[0][city])
        errors.append((fit.predict(wide[2].drop(columns=city)) - wide[2][city]) ** 2)
    assert measure_ridge(split, "bi", "")["mse"] == pytest.approx(float(np.mean(errors)), rel=1e-2)
    assert measure_persistence(split, "bi", "")["mse"] > 50


@needs("temperature")
def test_regression_is_better_than_the_published_model_of_temperatures() -> None:
    about = EXPERIMENTS["temperature"]
    split = about.split(load_dataset(about.dataset, DATA / "temperature"))
    assert measure_ridge(split, "bi", "4 layers")["mse"] == pytest.approx(9.107, abs=0.01)
    assert measure_ridge(split, "bi", "1 day")["mse"] < 9.107


@needs("movielens")
def test_frequencies_of_movies_are_those_of_the_design() -> None:
    about = EXPERIMENTS["movielens-sequence"]
    split = about.split(load_dataset(about.dataset, DATA / "movielens"), published=True)
    assert measure_rest(split, "uni", "")["cross_entropy"] == pytest.approx(3.626, abs=1e-3)
    assert measure_rest(split, "bi", "")["cross_entropy"] == pytest.approx(3.297, abs=1e-3)


@pytest.mark.parametrize("family", ["poisson", "gaussian", "gamma:2", "binomial:9", "negative-binomial:3", "items"])
def test_without_a_context_the_best_parameter_of_each_item_is_found(family: str) -> None:
    draw = np.random.default_rng(0)
    item = np.tile(list("ab"), 100)
    scale = np.where(item == "a", 1.0, 3.0)
    values = {
        "poisson": draw.poisson(scale), "gaussian": draw.normal(60 * scale, 5), "gamma:2": draw.gamma(2, scale),
        "binomial:9": draw.binomial(9, scale / 4), "negative-binomial:3": draw.negative_binomial(3, 1 / (1 + scale)),
        "items": scale,
    }  # fmt: skip
    frame = pd.DataFrame({"sequence": np.repeat(range(50), 4), "item": item, "value": values[family].astype(float)})
    options = {"part": "items"} if family == "items" else {"family": family}
    model = ExponentialFamilyAttention(max_epochs=1, width=4, **options).fit(frame)
    measured = model.measure(frame, frame)
    assert (measured.sequences, measured.rows) == (50, 200)
    assert measured.log_prob == pytest.approx(model.score(frame))
    value, mean = frame["value"], frame.groupby("item")["value"].transform("mean")
    exact = {
        "poisson": lambda: stats.poisson.logpmf(value, mean),
        "gaussian": lambda: stats.norm.logpdf(value, mean, np.sqrt(((value - mean) ** 2).mean())),
        "gamma:2": lambda: stats.gamma.logpdf(value, 2, scale=mean / 2),
        "binomial:9": lambda: stats.binom.logpmf(value, 9, mean / 9),
        "negative-binomial:3": lambda: stats.nbinom.logpmf(value, 3, 3 / (3 + mean)),
        "items": lambda: np.full(200, np.log(0.5)),
    }[family]()
    assert measured.without_context == pytest.approx(float(np.mean(exact)), abs=1e-4)
