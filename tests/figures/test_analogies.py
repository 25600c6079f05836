"""Bars of word analogies, and lines over layers."""

from __future__ import annotations

import pandas as pd
import pytest
from support.messages import refuses

from attngeo.errors import DataError
from attngeo.figures.analogies import draw_analogies
from attngeo.figures.kinds import PlotOptions


@pytest.fixture
def scores() -> pd.DataFrame:
    names = [("category", "family"), ("category", "<currency>"), ("type", "semantic"), ("overall", "overall")]
    return pd.DataFrame([
        {"model": model, "level": level, "name": name, "asked": 10, "known": 8, "accuracy": accuracy + 0.1 * i,
         "accuracy_low": accuracy + 0.1 * i - 0.05, "accuracy_high": accuracy + 0.1 * i + 0.02, "questions": "own"}
        for model, accuracy in (("a", 0.2), ("b", 0.5)) for i, (level, name) in enumerate(names)
    ])  # fmt: skip


def test_a_bar_for_each_model_and_category_with_its_interval(scores: pd.DataFrame) -> None:
    figure = draw_analogies(scores, PlotOptions())
    first, second = figure.data
    assert (first.name, second.name) == ("a", "b")
    assert list(second.x) == pytest.approx([0.5, 0.6, 0.7, 0.8])
    assert list(second.error_x.array) == pytest.approx([0.02] * 4)
    assert list(second.error_x.arrayminus) == pytest.approx([0.05] * 4)
    order = ["<b>overall</b>", "semantic", "family", "&lt;currency&gt;"]
    assert list(figure.layout.yaxis.categoryarray) == order
    assert first.marker.color != second.marker.color
    assert "share of known questions" in figure.layout.xaxis.title.text
    common = draw_analogies(scores.assign(questions="common"), PlotOptions())
    assert "share of questions that all models know" in common.layout.xaxis.title.text


def test_rows_without_an_accuracy_are_refused(scores: pd.DataFrame) -> None:
    unknown = scores[scores["name"] == "family"].assign(accuracy=float("nan"))
    with refuses(DataError, "accuracy", "where"):
        draw_analogies(unknown, PlotOptions())


def test_unknown_categories_are_left_out_and_one_model_has_no_legend(scores: pd.DataFrame) -> None:
    own = scores[scores["model"] == "a"].copy()
    own.loc[own["name"] == "family", "accuracy"] = float("nan")
    figure = draw_analogies(own, PlotOptions())
    (bars,) = figure.data
    assert len(bars.x) == 3
    assert figure.layout.showlegend is False
    assert figure.layout.title.text == "a: word analogies<br><sup>8 questions</sup>"


def test_a_line_over_the_layers_for_each_model_with_its_intervals(scores: pd.DataFrame) -> None:
    """In a panel for all questions, then one for each type; categories have none."""
    layers = pd.concat([scores.assign(layer=layer, accuracy=scores["accuracy"] + 0.01 * layer) for layer in (1, -1, 0)])
    figure = draw_analogies(layers, PlotOptions())
    assert [title.text for title in figure.layout.annotations] == ["overall", "semantic"]
    assert [(line.name, line.xaxis) for line in figure.data] == [("a", "x"), ("a", "x2"), ("b", "x"), ("b", "x2")]
    assert {line.mode for line in figure.data} == {"lines+markers"}  # plotly leaves out markers of 20 points or more
    overall = figure.data[2]
    assert list(overall.x) == [-1, 0, 1]
    assert list(overall.y) == pytest.approx([0.79, 0.8, 0.81])
    assert list(overall.error_y.array) == pytest.approx([0.03, 0.02, 0.01])
    assert list(overall.error_y.arrayminus) == pytest.approx([0.04, 0.05, 0.06])
    assert "-1: the table" in figure.layout.xaxis.title.text
    assert figure.layout.showlegend
    # Rows of one layer are bars, as those without layers.
    assert draw_analogies(scores.assign(layer=-1), PlotOptions()).data[0].type == "bar"
