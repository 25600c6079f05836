"""The shift simulation: its distribution, settings and seeds. The cars: formats, division, download, bad files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, strategies as st
from support.data import DATA, make_cars, needs, write_uci
from support.file_server import Answer, serve
from support.messages import refuses

from attngeo.errors import DataError, DataUnavailableError
from attngeo.estimators.tabular.baselines import fit_baseline
from attngeo.papers.wibisono2023 import data as data_sets
from attngeo.papers.wibisono2023.data import (
    FEATURES,
    NUMBER_FEATURES,
    digest_cars,
    divide_cars,
    load_auto_mpg,
    quantile_codes,
    read_cars,
    seeds_of_data_sets,
    simulate,
)
from attngeo.papers.wibisono2023.options import ShiftSetting
from attngeo.papers.wibisono2023.tables import published_scores

MANY = 20_000


@given(
    n_features=st.integers(1, 6), n_classes=st.integers(2, 12), rows=st.integers(12, 60),
    noise=st.floats(0, 3), corr=st.floats(0, 1), seed=st.integers(0, 2**32 - 1), data=st.data(),
)  # fmt: skip
def test_any_setting_gives_tables_of_categories(
    n_features: int, n_classes: int, rows: int, noise: float, corr: float, seed: int, data: Any
) -> None:
    setting = ShiftSetting(data.draw(st.integers(1, n_features)), noise, corr)
    shape = {
        "features": n_features, "classes": n_classes, "rows": rows,
        "settings": data.draw(st.sampled_from(["text", "code"])),
    }  # fmt: skip
    table = simulate(setting, seed, **shape)
    for part in table:
        assert part.x.shape == (rows, n_features)
        assert part.y.shape == (rows,)
        assert min(part.x.min(), part.y.min()) >= 0
        assert max(part.x.max(), part.y.max()) < n_classes
    again = simulate(setting, seed, **shape)
    assert all(
        np.array_equal(a, b) for one, two in zip(table, again, strict=True) for a, b in zip(one, two, strict=True)
    )
    if shape["settings"] == "text":  # each part has its own quantiles: all categories are equally frequent
        for part in table:
            for column in (*part.x.T, part.y):
                assert np.ptp(np.bincount(column, minlength=n_classes)) <= 1


@given(st.lists(st.integers(-1000, 1000), min_size=12, max_size=50, unique=True), st.integers(2, 12))
def test_bins_are_those_of_pandas(values: list[int], n_classes: int) -> None:
    assume(
        all(j * (len(values) - 1) % n_classes for j in range(1, n_classes))
    )  # else pandas rounds values that are edges
    assert list(quantile_codes(np.array(values), n_classes)) == list(pd.qcut(values, n_classes, labels=False))


def test_a_value_that_is_an_edge_belongs_to_the_bin_below() -> None:
    assert list(quantile_codes(np.array([0.1, 0.2, 0.3, 0.4, 0.7]), 2)) == [0, 0, 0, 1, 1]
    assert list(quantile_codes(np.array([4, 4, 4, 6, 8, 8]), 3)) == [0, 0, 0, 1, 2, 2]


@pytest.mark.parametrize("settings", ["text", "code"])
@pytest.mark.parametrize("corr", [0.1, 0.9])
def test_correlations_shift_and_the_first_two_features_are_flipped(settings: Any, corr: float) -> None:
    """Of Gaussian variables, the rank correlation is 6/π·asin(ρ/2); ten bins change it a little."""
    table = simulate(ShiftSetting(5, 0.0, corr), 1, rows=MANY, settings=settings)
    signs = np.array([-1, -1, 1, 1, 1])
    for part, rho, flipped in ((table.train, corr, True), (table.test, 1 - corr, settings == "code")):
        expected = 6 / np.pi * np.arcsin(rho / 2) * (np.outer(signs, signs) if flipped else np.ones((5, 5)))
        found = np.corrcoef(part.x.T)
        np.testing.assert_allclose(found - np.eye(5), expected * (1 - np.eye(5)), atol=0.03)


def test_the_settings_of_the_code_bin_both_parts_together() -> None:
    table = simulate(ShiftSetting(5, 0.0, 0.9), 2, rows=MANY, settings="code")
    assert np.ptp(np.bincount(np.concatenate([table.train.y, table.test.y]))) <= 1
    assert np.ptp(np.bincount(table.train.y)) > MANY / 50  # the responses of the two parts differ in their variance


def test_the_response_depends_on_the_first_features_and_on_noise_of_two() -> None:
    """With one cause, the correlation of its category with the response follows from the coefficient and the noise."""
    for seed in (3, 4):
        table = simulate(ShiftSetting(1, 0.0, 0.1), seed, classes=200, rows=MANY)
        draw = np.random.RandomState(seed)
        draw.normal(size=(4 * MANY, 5))  # features of both parts, and their noise
        coefficient = 10 * draw.uniform()
        rho = coefficient / np.hypot(coefficient, 2)
        assert np.corrcoef(table.train.x[:, 0], table.train.y)[0, 1] == pytest.approx(
            6 / np.pi * np.arcsin(rho / 2), abs=0.02
        )
        given_cause = table.train.x[:, 0] < 100
        for other in range(1, 5):  # independent of the response, given the cause, up to the width of half the range
            at = given_cause & (table.train.x[:, 0] >= 90)
            assert abs(np.corrcoef(table.train.x[at, other], table.train.y[at])[0, 1]) < 0.1


def test_noise_hides_the_features_and_not_the_response() -> None:
    def agreement(noise: float) -> tuple[float, float, bool]:
        exact = simulate(ShiftSetting(1, 0.0, 0.9), 5, rows=MANY).train
        noisy = simulate(ShiftSetting(1, noise, 0.9), 5, rows=MANY).train
        by_feature = [np.corrcoef(exact.x[:, at], noisy.x[:, at])[0, 1] for at in (0, 4)]
        return by_feature[0], by_feature[1], np.array_equal(exact.y, noisy.y)

    for noise in (0.5, 1.5):
        cause, other, is_equal = agreement(noise)
        assert is_equal
        for found, scale in ((cause, 0.4), (other, 0.3)):
            rho = 1 / np.hypot(1, scale * noise)
            assert found == pytest.approx(6 / np.pi * np.arcsin(rho / 2), abs=0.02)


def test_the_seeds_are_those_of_the_published_tables() -> None:
    """The first and last of the 20 seeds that the authors' stored results list."""
    seeds = seeds_of_data_sets(20)
    assert [*seeds[:4], *seeds[-2:]] == [4951, 5657, 2743, 6049, 4295, 8433]
    assert seeds_of_data_sets(300)[:20] == seeds
    assert len(set(seeds_of_data_sets(300))) == 300


@pytest.mark.parametrize(("n_c", "noise", "corr"), [(1, 0.5, 0.9), pytest.param(5, 0.0, 0.1, marks=pytest.mark.slow)])
def test_logistic_regression_meets_the_published_means(n_c: int, noise: float, corr: float) -> None:
    """Coefficients are those of the published data sets, so that means differ by much less than their deviations."""
    scores = published_scores("simulation").query("n_c == @n_c and noise == @noise and corr == @corr")
    published = scores.set_index("method").loc["lr"]
    found = []
    for seed in seeds_of_data_sets(20):
        train, test = simulate(ShiftSetting(n_c, noise, corr), seed, settings="code")
        predicted = fit_baseline("lr", train.x, train.y, seed=seed).predict(test.x)
        found.append([np.mean(predicted == test.y), np.mean((predicted - test.y) ** 2)])
    accuracy, mse = np.mean(found, axis=0)
    assert accuracy == pytest.approx(published["published_accuracy"], abs=0.01)
    assert mse == pytest.approx(published["published_mse"], abs=0.3)


FILE = DATA / "auto-mpg.csv"
# Two cars in UCI's format, the second with an unknown horsepower.
UCI = """18.0   8   307.0      130.0      3504.      12.0   70  1\t"chevrolet chevelle malibu"
25.0   4   98.00      ?          2046.      19.0   71  1\t"ford pinto"
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A server in the place of UCI. text: what it answers, or None for 404. asked: how often it was."""
    state: dict[str, Any] = {"text": write_uci(make_cars()), "asked": 0}

    def answer(_: str) -> Answer | None:
        state["asked"] += 1
        return None if state["text"] is None else Answer(state["text"].encode())

    with serve(answer) as address:
        monkeypatch.setattr(data_sets, "ADDRESS", f"{address}/auto-mpg.data")
        monkeypatch.setattr(data_sets, "DIGEST", digest_cars(pd.DataFrame(make_cars())))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        yield state


def test_both_formats_have_the_same_numbers(tmp_path: Path) -> None:
    def read(text: str) -> pd.DataFrame:
        (tmp_path / "cars").write_text(text)
        return read_cars(tmp_path / "cars")

    cars = read(UCI)
    assert cars.loc[0].to_dict() == dict(zip(NUMBER_FEATURES, (18, 8, 307, 130, 3504, 12, 70, 1), strict=True))
    assert cars.isna().sum().to_dict() == {name: int(name == "horsepower") for name in NUMBER_FEATURES}
    header = "car name,origin,mpg,cylinders,displacement,horsepower,weight,acceleration,model year\n"
    text = header + "malibu,1,18,8,307,130,3504,12,70\npinto,1,25,4,98,?,2046,19,71\n"
    assert read(text).equals(cars)
    assert digest_cars(read(text)) == digest_cars(cars)
    assert digest_cars(read(text.replace("307", "308"))) != digest_cars(cars)


def test_cars_are_divided_by_origin_and_cut_at_pooled_terciles() -> None:
    cars = make_cars(90)
    odd = [cars[0] | {"cylinders": 3.0}, cars[1] | {"horsepower": np.nan}]
    train, test = divide_cars(pd.DataFrame([*cars, *odd]))
    american = [car for car in cars if car["origin"] == 1]
    assert (len(train.y), len(test.y)) == (30, 60)
    for at, name in enumerate(FEATURES[1:], 1):
        codes = np.concatenate([train.x[:, at], test.x[:, at]])
        assert np.ptp(np.bincount(codes, minlength=3)) <= 1
        rank = pd.Series([car[name] for car in cars]).rank(pct=True)
        assert train.x[0, at] == min(int(rank[0] * 3 - 1e-9), 2)
    assert list(train.x[:, 0]) == [int(car["cylinders"] / 2 - 2) for car in american]


@needs("auto-mpg.csv")
def test_the_division_is_that_of_the_paper() -> None:
    data = load_auto_mpg(FILE)
    assert data.is_of_paper
    train, test = data.table
    assert (train.x.shape, test.x.shape) == ((245, 6), (140, 6))
    predicted = fit_baseline("lr", train.x, train.y, seed=42).predict(test.x)
    published = published_scores("auto_mpg").set_index("method").loc["lr"]
    assert np.mean(predicted == test.y) == pytest.approx(published["published_accuracy"], abs=1e-6)
    assert np.mean((predicted - test.y) ** 2) == pytest.approx(published["published_mse"], abs=1e-6)


def test_a_changed_number_is_another_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cars = make_cars()
    monkeypatch.setattr(data_sets, "DIGEST", digest_cars(pd.DataFrame(cars)))
    for name, changes in {"same": {}, "changed": {"mpg": 9.0}}.items():
        (tmp_path / name).write_text(write_uci([cars[0] | changes, *cars[1:]]))
        assert load_auto_mpg(tmp_path / name).is_of_paper == (not changes)


def test_the_download_is_kept_and_checked(
    server: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "cache"))
    steps: list[str] = []
    first = load_auto_mpg(progress=lambda step: steps.append(step.what))
    second = load_auto_mpg()
    assert first.is_of_paper
    assert all(np.array_equal(a.x, b.x) for a, b in zip(first.table, second.table, strict=True))
    assert server["asked"] == len(steps) == 1
    (kept,) = (tmp_path / "cache").rglob("auto-mpg.data")
    kept.write_text(UCI)  # damaged: it is downloaded again
    load_auto_mpg()
    assert server["asked"] == 2
    assert kept.read_text() == server["text"]
    kept.unlink()
    server["text"] = write_uci(make_cars(seed=1))
    with refuses(DataError, data_sets.ADDRESS, "give the original file as data"):
        load_auto_mpg()
    server["text"] = None
    with refuses(DataUnavailableError, data_sets.ADDRESS, 404, "--data"):
        load_auto_mpg()
    assert not kept.exists()


def test_without_a_cache_nothing_is_kept(server: dict[str, Any]) -> None:
    load_auto_mpg()
    load_auto_mpg()
    assert server["asked"] == 2


def test_offline_says_where_the_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with refuses(DataUnavailableError, data_sets.ADDRESS, "HF_HUB_OFFLINE", "--data"):
        load_auto_mpg()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(data_sets, "ADDRESS", "http://127.0.0.1:9/auto-mpg.data")
    with refuses(DataUnavailableError, data_sets.ADDRESS, "--data"):
        load_auto_mpg()


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"", ["cars.data"]),
        (b"mpg,weight\n1,2\n", ["'cylinders'", "horsepower"]),
        (b"1 2 3\n", ["row 1", "3 cells"]),
        (write_uci(make_cars()).replace("4.0", "four").encode(), ["four"]),
        (b'18.0 "open\n', ["auto-mpg.data"]),
        (b"\xff\xfe", ["UTF-8"]),
        (UCI.encode(), ["1 of 1", "origin"]),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, content: bytes, facts: list[object]) -> None:
    path = tmp_path / "cars.data"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_auto_mpg(path)
    assert len(str(caught.value).splitlines()) == 1
    assert all(str(fact) in str(caught.value) for fact in facts), caught.value


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with refuses(DataUnavailableError, "nowhere.csv", data_sets.ADDRESS):
        read_cars(tmp_path / "nowhere.csv")
    with refuses(DataError, tmp_path.name):
        read_cars(tmp_path)
