"""Baselines without a network, and the best distribution without a context, against numbers known otherwise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import LinearRegression, LogisticRegression
from support.data import DATA, needs
from support.sequences import measure_fit

from attngeo.estimators import ExponentialFamilyAttention
from attngeo.papers.wibisono2025.baselines import (
    count_context,
    measure_means,
    measure_persistence,
    measure_ratings,
    measure_regression,
    measure_ridge,
    measure_truth,
    measure_unigram,
    measure_without_repeats,
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
    assert measure_without_repeats(split, "bi", "")["cross_entropy"] == pytest.approx(-np.log(both).mean())
    before = [3 / 6, (2 / 6) / (3 / 6), 1 / 6]
    assert measure_without_repeats(split, "uni", "")["cross_entropy"] == pytest.approx(-np.log(before).mean())


def draw_baskets(count: int, seed: int) -> pd.DataFrame:
    """Baskets of three of six items, of which a and b, c and d, e and f go together."""
    draw = np.random.default_rng(seed)
    rows = []
    for basket in range(count):
        pair = draw.choice(["ab", "cd", "ef"])
        third = draw.choice([item for item in "abcdef" if item not in pair])
        rows += [{"sequence": basket, "item": item} for item in draw.permutation([*pair, third])]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("direction", ["bi", "uni"])
def test_the_slope_of_a_softmax_regression_is_that_of_its_loss(direction: str) -> None:
    rows = count_context(draw_baskets(5, 1), np.array(list("abcdef")), direction)
    weights = np.random.default_rng(0).normal(size=(7, 6))
    _, slope = rows.measure(weights)
    for place in ((0, 1), (6, 2), (3, 3)):
        step = np.zeros_like(weights)
        step[place] = 1e-2
        rise = rows.measure(weights + step)[0] - rows.measure(weights - step)[0]
        assert slope[place] == pytest.approx(rise / 2e-2, abs=1e-4)


@pytest.mark.parametrize("direction", ["bi", "uni"])
def test_a_softmax_regression_is_that_of_scikit_learn_among_items_that_the_context_lacks(direction: str) -> None:
    """Of much data, where no penalty matters. With two items left, the logits are those of a logistic regression."""
    split = Split(draw_baskets(800, 1), draw_baskets(200, 2), draw_baskets(200, 3))
    found = measure_regression(split, direction, "")["cross_entropy"]
    assert found < measure_without_repeats(split, direction, "")["cross_entropy"] - (0.1 if direction == "bi" else 0.03)
    items = np.array(list("abcdef"))
    train, _, test = (count_context(rows, items, direction) for rows in split)
    fit = LogisticRegression(C=1e3, max_iter=500).fit(train.context[:, :-1], train.item)
    chances = fit.predict_proba(test.context[:, :-1]) * (test.context[:, :-1] == 0)
    chances /= chances.sum(1, keepdims=True)
    alike = -np.log(chances[range(len(test.item)), test.item]).mean()
    assert found == pytest.approx(alike, abs=0.02)


def test_a_context_is_counted_by_sequence_and_direction() -> None:
    rows = pd.DataFrame({"sequence": [1, 1, 2, 1], "item": list("abba")})
    both = count_context(rows, np.array(["a", "b"]), "bi")
    assert both.context.tolist() == [[1, 1, 1], [2, 0, 1], [0, 0, 1], [1, 1, 1]]
    before = count_context(rows, np.array(["a", "b"]), "uni")
    assert before.context.tolist() == [[0, 0, 1], [1, 0, 1], [0, 0, 1], [1, 1, 1]]


@pytest.mark.slow
@needs("movielens")
def test_the_regression_is_better_than_the_published_models_of_sequences() -> None:
    about = EXPERIMENTS["movielens-sequence"]
    split = about.split(load_dataset(about.dataset, DATA / "movielens"), published=True)
    assert measure_regression(split, "bi", "")["cross_entropy"] == pytest.approx(3.072, abs=0.01)


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


@pytest.mark.slow
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
    assert measure_without_repeats(split, "uni", "")["cross_entropy"] == pytest.approx(3.626, abs=1e-3)
    assert measure_without_repeats(split, "bi", "")["cross_entropy"] == pytest.approx(3.297, abs=1e-3)


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
    model = ExponentialFamilyAttention(max_epochs=1, width=4, validation_fraction=0, **options).fit(frame)
    measured = measure_fit(model)["train"]
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
