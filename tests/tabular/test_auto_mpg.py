"""The auto-mpg data: both formats, the division of the paper, the download and bad files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.data import DATA, make_cars, needs, write_uci
from support.file_server import Answer, serve
from support.messages import refuses

from attngeo.errors import DataError, DataUnavailableError
from attngeo.tabular import auto_mpg
from attngeo.tabular.auto_mpg import FEATURES, NUMBERS, digest_cars, divide_cars, load_auto_mpg, parse_cars, read_cars
from attngeo.tabular.baselines import fit_baseline
from attngeo.tabular.published import auto_mpg_scores

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
        monkeypatch.setattr(auto_mpg, "ADDRESS", f"{address}/auto-mpg.data")
        monkeypatch.setattr(auto_mpg, "DIGEST", digest_cars(make_cars()))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        yield state


def test_both_formats_have_the_same_numbers() -> None:
    cars = parse_cars(UCI, "here")
    assert cars[0] == dict(zip(NUMBERS, (18, 8, 307, 130, 3504, 12, 70, 1), strict=True))
    assert cars[1]["horsepower"] is None
    header = "car name,origin,mpg,cylinders,displacement,horsepower,weight,acceleration,model year\n"
    text = header + "malibu,1,18,8,307,130,3504,12,70\npinto,1,25,4,98,?,2046,19,71\n"
    assert parse_cars(text, "here") == cars
    assert digest_cars(parse_cars(text, "here")) == digest_cars(cars)
    assert digest_cars(parse_cars(text.replace("307", "308"), "here")) != digest_cars(cars)


def test_cars_are_divided_by_origin_and_cut_at_pooled_terciles() -> None:
    cars = make_cars(90)
    odd = [cars[0] | {"cylinders": 3.0}, cars[1] | {"horsepower": None}]
    train, test = divide_cars([*cars, *odd])
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
    published = auto_mpg_scores()["lr"]
    assert np.mean(predicted == test.y) == pytest.approx(published.accuracy, abs=1e-6)
    assert np.mean((predicted - test.y) ** 2) == pytest.approx(published.mse, abs=1e-6)


def test_a_changed_number_is_another_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cars = make_cars()
    monkeypatch.setattr(auto_mpg, "DIGEST", digest_cars(cars))
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
    with refuses(DataError, auto_mpg.ADDRESS, "--data"):
        load_auto_mpg()
    server["text"] = None
    with refuses(DataUnavailableError, auto_mpg.ADDRESS, 404, "--data"):
        load_auto_mpg()
    assert not kept.exists()


def test_without_a_cache_nothing_is_kept(server: dict[str, Any]) -> None:
    load_auto_mpg()
    load_auto_mpg()
    assert server["asked"] == 2


def test_offline_says_where_the_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with refuses(DataUnavailableError, auto_mpg.ADDRESS, "HF_HUB_OFFLINE", "--data"):
        load_auto_mpg()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(auto_mpg, "ADDRESS", "http://127.0.0.1:9/auto-mpg.data")
    with refuses(DataUnavailableError, auto_mpg.ADDRESS, "--data"):
        load_auto_mpg()


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"", ["empty"]),
        (b"mpg,weight\n1,2\n", ["'cylinders'", "horsepower"]),
        (b"1 2 3\n", ["line 1", "3 cells"]),
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
    with refuses(DataUnavailableError, "nowhere.csv", auto_mpg.ADDRESS):
        read_cars(tmp_path / "nowhere.csv")
    with refuses(DataError, tmp_path.name):
        read_cars(tmp_path)
