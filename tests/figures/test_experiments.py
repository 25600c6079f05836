"""The figure of errors in the experiments of exponential family attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Command
from support.messages import assert_fails, refuses

import attngeo
from attngeo.errors import DataError
from attngeo.figures.experiments import draw_test_errors
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.style import GUIDE, MARKED

COLUMNS = ("experiment", "model", "direction", "setting", "seed", "metric", "value", "published")


def frame(*rows: tuple[Any, ...]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(COLUMNS))


@pytest.fixture
def ratings() -> pd.DataFrame:
    """Two models and a baseline, two directions, two families; two seeds of attention in one of them."""
    return frame(
        *(("ratings", "efa", "bi", "v1", seed, "loss", 1.0 + 0.2 * seed, 0.9) for seed in (0, 1)),
        ("ratings", "efa", "uni", "v1", 0, "loss", 1.5, 1.4), ("ratings", "efa", "bi", "v2", 0, "loss", 0.5, 0.4),
        ("ratings", "efa", "bi", "v1", 0, "mean_prediction_of_1", 2.0, 2.1),
        ("ratings", "efa", "bi", "v1", 0, "epochs", 100.0, None),
        ("ratings", "fm", "bi", "v1", 0, "loss", 1.6, 1.7),
        ("ratings", "mean-per-item", "bi", "v1", 0, "loss", 1.9, None),
    )  # fmt: skip


@pytest.fixture
def temperature() -> pd.DataFrame:
    return frame(
        *(("temperature", "fm", "bi", f"k={k}", seed, "mse", 20.0 + k + seed, 30.0 + k) for k in (10, 2)
          for seed in (0, 2)),
        ("temperature", "efa", "bi", "1 layer", 0, "mse", 17.0, 16.0),
        ("temperature", "efa", "bi", "4 layers, 1 day", 0, "mse", 9.0, None),
        ("temperature", "ridge-per-city", "bi", None, 0, "mse", 8.0, None),
    )  # fmt: skip


def test_each_model_has_its_mean_and_interval_for_each_direction(ratings: pd.DataFrame) -> None:
    figure = draw_test_errors(ratings, PlotOptions(published=False))
    points = {(trace.name, trace.yaxis): trace for trace in figure.data}
    assert set(points) == {("EFA", "y"), ("factor model", "y"), ("mean-per-item", "y"), ("EFA", "y2")}
    first = points["EFA", "y"]
    assert list(first.y) == pytest.approx([1.1, 1.5])
    assert first.error_y.array[0] == pytest.approx(2 * np.std([1.0, 1.2], ddof=1) / np.sqrt(2))
    assert np.isnan(first.error_y.array[1])  # one run has no interval
    assert list(first.customdata) == [2, 1]
    assert list(figure.layout.xaxis.ticktext) == ["bidirectional", "unidirectional"]
    assert [note.text for note in figure.layout.annotations] == ["ratings, v1", "ratings, v2"]
    assert (first.marker.color, points["EFA", "y2"].showlegend) == (MARKED, False)
    places = [points[name, "y"].x[0] for name in ("EFA", "factor model", "mean-per-item")]
    assert places == sorted(set(places))
    assert places[1] == pytest.approx(0)


def test_the_numbers_of_the_paper_are_open_symbols(ratings: pd.DataFrame) -> None:
    figure = draw_test_errors(ratings, PlotOptions())
    hollow = [trace for trace in figure.data if trace.marker.symbol == "circle-open"]
    assert {(trace.legendgroup, y) for trace in hollow for y in trace.y} == {
        ("efa", 0.9), ("efa", 1.4), ("efa", 0.4), ("fm", 1.7),
    }  # fmt: skip
    assert "paper" in figure.layout.title.text
    assert "paper" not in draw_test_errors(ratings.drop(columns="published"), PlotOptions()).layout.title.text


def test_neighbours_are_an_axis_and_other_models_are_lines(temperature: pd.DataFrame) -> None:
    figure = draw_test_errors(temperature, PlotOptions())
    named = {trace.name: trace for trace in figure.data if trace.name}
    assert list(named) == ["factor model", "EFA, 1 layer: 17", "EFA, 4 layers, 1 day: 9", "ridge-per-city: 8"]
    assert (list(named["factor model"].x), list(named["factor model"].y)) == ([2, 10], [23, 31])
    line = named["EFA, 1 layer: 17"]
    assert list(line.y) == [17, 17]
    assert line.x[0] < 2
    assert line.x[1] > 10
    assert line.line.color == MARKED
    assert named["ridge-per-city: 8"].line.color == GUIDE
    assert line.line.dash != named["EFA, 4 layers, 1 day: 9"].line.dash
    hollow = {(x, y) for trace in figure.data if trace.marker.symbol == "circle-open"
              for x, y in zip(trace.x, trace.y, strict=True)}  # fmt: skip
    assert hollow == {(2, 32), (10, 40), (line.x[1], 16)}
    assert "log" in figure.layout.yaxis.title.text
    assert figure.layout.yaxis.dtick == pytest.approx(np.log10(2))
    wide = draw_test_errors(
        temperature.assign(value=temperature["value"] * [*[1] * (len(temperature) - 1), 1e4]), PlotOptions()
    )
    assert wide.layout.yaxis.dtick == 1


def test_experiments_are_panels_and_a_model_has_one_colour(ratings: pd.DataFrame, temperature: pd.DataFrame) -> None:
    other = ratings[ratings["setting"] == "v1"].assign(experiment="other", setting=None, metric="mse")
    figure = draw_test_errors(pd.concat([ratings, other, temperature]), PlotOptions())
    colours = {}
    for trace in figure.data:
        if trace.marker.color:
            colours.setdefault(trace.legendgroup, set()).add(trace.marker.color)
    assert {len(each) for each in colours.values()} == {1}
    assert [note.text for note in figure.layout.annotations] == ["ratings, v1", "ratings, v2", "other", "temperature"]


def test_files_are_drawn_and_others_refused(ratings: pd.DataFrame, inside: Command, tmp_path: object) -> None:
    path = f"{tmp_path}/errors.csv"
    ratings.to_csv(path, index=False)
    run = inside("plot", "test-errors", path, "--where", "setting=v1", "-o", f"{tmp_path}/figure.json")
    assert (run.returncode, run.stderr) == (0, "")
    same = attngeo.plot("test-errors", ratings).to_json() == attngeo.plot("test-errors", path).to_json()
    assert same
    with refuses(DataError, "mse", "loss", "cross_entropy", "table"):
        attngeo.plot("test-errors", ratings.assign(metric="epochs"))
    ratings.drop(columns="metric").to_csv(path, index=False)
    assert_fails(
        inside("plot", "test-errors", path, "-o", f"{tmp_path}/f.json"), DataError, "errors.csv", "metric", "efa run"
    )


def test_numbers_of_sequences_are_an_axis_too() -> None:
    rows = pd.DataFrame(
        {
            "experiment": "recovery", "direction": "uni", "metric": "cross_entropy", "seed": 0,
            "model": ["efa", "efa", "bayes"], "setting": ["N=100", "N=10000", ""], "value": [1.3, 1.1, 1.0],
        }
    )  # fmt: skip
    figure = draw_test_errors(rows, PlotOptions())
    named = {trace.name: trace for trace in figure.data}
    assert list(named["EFA"].x) == [2, 4]
    assert figure.layout.xaxis.ticktext == ("100", "10000")
    assert list(named["bayes: 1"].y) == [1, 1]
    assert figure.layout.yaxis.type != "log"
