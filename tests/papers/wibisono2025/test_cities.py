"""The script that predicts the temperatures of cities without training rows."""

from __future__ import annotations

import runpy
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from support.readme import ROOT

from attngeo.papers.wibisono2025.splits import Split

PLACES = np.array([[40.0, -100.0], [41.0, -100.0], [45.0, -90.0], [30.0, -80.0]])


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "reports/efa/cities.py"))


def make_split(shift: dict[str, float] | None = None, parts: tuple[str, ...] = ()) -> Split:
    """Twelve, four and three days of six cities; some cities of some parts have values that are higher by a number."""
    shift = shift or {}
    cities = [f"city {number}" for number in range(6)]
    random = np.random.default_rng(1)
    latitude, longitude = random.uniform(30, 48, 6), random.uniform(-120, -70, 6)
    tables = []
    for part, days in (("train", 12), ("validation", 4), ("test", 3)):
        values = 60 - latitude + random.normal(0, 5, (days, 1)) + random.normal(0, 1, (days, 6))
        if part in parts:
            values = values + np.array([shift.get(city, 0.0) for city in cities])
        names = [f"{part} {day}" for day in range(days)]
        day, city = np.indices(values.shape).reshape(2, -1)
        table = {"sequence": np.array(names)[day], "position": city, "item": np.array(cities)[city]}
        table |= {"value": values.ravel(), "latitude": latitude[city], "longitude": longitude[city]}
        tables.append(pd.DataFrame(table))
    return Split(*tables)


def make_field(script: dict[str, Any], new: np.ndarray) -> Any:
    random = np.random.default_rng(0)
    return script["Field"](PLACES, new, random.normal(50, 9, (4, 30)), random.normal(50, 9, (4, 3)))


def test_choices_of_cities_are_disjoint_and_always_the_same(script: dict[str, Any]) -> None:
    cities = np.array([f"city {number}" for number in range(44)])
    chosen = script["choose_cities"](cities)
    assert chosen.shape == (6, 5)
    assert len(set(chosen.ravel())) == 30
    assert (chosen == script["choose_cities"](cities)).all()


def test_nearest_city_and_weights_by_distance(script: dict[str, Any]) -> None:
    """A new place on the meridian of two cities, three and one parts of a degree away, with the others far from it."""
    field = make_field(script, np.array([[40.75, -100.0]]))
    assert script["predict_nearest"](field) == pytest.approx(field.test[[1]])
    assert script["predict_mean"](field) == pytest.approx(field.test.mean(0, keepdims=True))
    near = field._replace(places=PLACES[:2], train=field.train[:2], test=field.test[:2])
    # Each of two cities is predicted by the other one, whatever the power: the first of them is chosen.
    power = script["POWERS"][0]
    weights = np.array([0.75**-power, 0.25**-power])
    expected = weights @ near.test / weights.sum()
    assert script["predict_by_distance"](near)[0] == pytest.approx(expected, rel=1e-6)


def test_power_of_distance_is_the_best_on_training_days(script: dict[str, Any]) -> None:
    """With two near cities and a far one: the largest if only near cities are alike, the least if none are."""
    field = make_field(script, np.array([[40.75, -100.0]]))
    field = field._replace(places=PLACES[:3], train=field.train[:3], test=field.test[:3])
    alike = field._replace(train=np.stack([field.train[0], field.train[0], field.train[0] + 30]))
    opposite = field._replace(train=np.stack([field.train[0], -field.train[0], 0 * field.train[0]]))
    distances = script["measure_to"](field)[0]
    for data, power in ((alike, script["POWERS"][-1]), (opposite, script["POWERS"][0])):
        weights = distances**-power
        expected = weights @ field.test / weights.sum()
        assert script["predict_by_distance"](data)[0] == pytest.approx(expected, rel=1e-9)


def test_kriging_is_the_formula_written_out(script: dict[str, Any]) -> None:
    new = np.array([[40.5, -100.0], [35.0, -85.0]])
    field = make_field(script, new)
    kernel = ConstantKernel(2.0) * Matern(0.2, nu=0.5) + WhiteKernel(0.3)

    def measure_angles(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        a, b = np.radians(first)[:, None], np.radians(second)[None]
        return np.arccos(
            np.sin(a[..., 0]) * np.sin(b[..., 0])
            + np.cos(a[..., 0]) * np.cos(b[..., 0]) * np.cos(a[..., 1] - b[..., 1])
        )

    def covary(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        chord = 2 * np.sin(measure_angles(first, second) / 2)
        return 2.0 * np.exp(-chord / 0.2)

    between = covary(PLACES, PLACES)
    np.fill_diagonal(between, 2.3)
    mean = field.test.mean(0)
    expected = mean + covary(new, PLACES) @ np.linalg.solve(between, field.test - mean)
    assert script["krige"](kernel, PLACES, field.test, new) == pytest.approx(expected, rel=1e-6)
    at_known = script["krige"](kernel, PLACES, field.test, PLACES)
    assert np.abs(at_known - field.test).mean() < np.abs(field.test - mean).mean()


def test_kriging_of_deviations_adds_what_differs_between_cities_on_all_days(script: dict[str, Any]) -> None:
    """If cities are warmer by a number each, its predictions rise by the same on all days, by that of near cities."""
    near_and_far = np.array([[40.0, -100.0], [40.1, -100.0], [40.0, -99.9], [40.0, -80.0], [40.1, -80.0]])
    field = make_field(script, np.array([[40.1, -99.9], [40.1, -80.1]]))
    random = np.random.default_rng(3)
    field = field._replace(places=near_and_far, train=random.normal(50, 9, (5, 30)), test=random.normal(50, 9, (5, 3)))
    offsets = np.array([[20.0], [20.0], [20.0], [-70.0], [-70.0]])
    warmer = field._replace(train=field.train + offsets, test=field.test + offsets)
    rises = script["predict_by_deviations"](warmer) - script["predict_by_deviations"](field)
    assert rises == pytest.approx(np.repeat(rises[:, :1], 3, axis=1), abs=1e-6)
    assert rises[:, 0] == pytest.approx([20, -70], abs=15)


def test_attention_does_not_see_the_cities_that_it_predicts(script: dict[str, Any]) -> None:
    script["OPTIONS"] |= {"max_epochs": 2, "width": 4}
    chosen = np.array(["city 1", "city 4"])
    usual = script["measure_attention"](make_split(), chosen, 0)
    assert set(usual) == {"city 1", "city 4", script["KNOWN"]}
    learned = script["measure_attention"](make_split({"city 1": 40, "city 4": -9}, ("train", "validation")), chosen, 0)
    assert learned == usual
    tested = script["measure_attention"](make_split({"city 1": 40}, ("test",)), chosen, 0)
    assert tested["city 1"] != usual["city 1"]
    assert [tested["city 4"], tested[script["KNOWN"]]] == [usual["city 4"], usual[script["KNOWN"]]]
    known = script["measure_attention"](make_split({"city 0": 40}, ("test",)), chosen, 0)
    assert known["city 1"] != usual["city 1"]


def test_rows_of_a_choice_are_errors_by_method_and_city(script: dict[str, Any]) -> None:
    script["OPTIONS"] |= {"max_epochs": 1, "width": 4}
    split = make_split()
    chosen = np.array(["city 4", "city 1"])
    rows = pd.DataFrame(script["measure_choice"](split, 3, chosen))
    assert list(rows) == list(script["COLUMNS"])
    assert set(rows["choice"]) == {3}
    assert len(rows) == 2 * len(script["METHODS"]) + 3
    test = split.test.pivot(index="sequence", columns="item", values="value")
    mean_of_day = test.drop(columns=chosen).mean(axis=1)
    errors = rows[rows["method"] == "mean of the day"].set_index("city")["mse"]
    for city in chosen:
        assert errors[city] == pytest.approx(((test[city] - mean_of_day) ** 2).mean())
    assert list(pd.read_csv(script["TARGET"]).columns) == list(script["COLUMNS"])
