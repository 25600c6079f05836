"""Figures in a page, as the browser gets them."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from attngeo.papers.saponati2025.published import published_scores
from attngeo.reporting.page import encode_figure, pack_figures, render_page
from attngeo.reporting.plots import plot
from attngeo.reporting.results import ReportContent, ReportFigure, ReportSection


def unpack(text: str) -> list[Any]:
    """The figures of a payload."""
    return [json.loads(line) for line in gzip.decompress(base64.b64decode(text)).decode().split("\n")]


def as_array(values: Any) -> np.ndarray:
    """An array of plotly's JSON: a list, or base64 with its type and shape."""
    if isinstance(values, list):
        return np.array(values)
    shape = [int(size) for size in str(values["shape"]).split(",")] if "shape" in values else [-1]
    return np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"]).reshape(shape)


def test_scores_of_heat_maps_have_three_decimals_and_all_else_is_as_it_is() -> None:
    scores = np.array([[0.1234567, np.nan], [-1, 1]])
    figure = go.Figure().add_heatmap(z=scores, coloraxis="coloraxis").add_heatmap(z=scores)
    figure.add_scatter(x=np.arange(20.0), y=[1, 2])
    heat, own_scale, line = json.loads(encode_figure(figure))["data"]
    assert heat["z"] == [[0.123, None], [-1, 1]]
    assert as_array(own_scale["z"]).tolist()[1] == [-1, 1]
    assert as_array(line["x"]).tolist() == list(range(20))


def test_the_same_figures_give_the_same_text() -> None:
    figures = [plot("heatmap", "demo:encoder"), plot("layers", "demo:encoder")]
    assert pack_figures(figures) == pack_figures(figures)
    assert len(unpack(pack_figures(figures))) == 2


@pytest.mark.parametrize(
    "values",
    [
        np.array([405_000_000_000, -5, *range(20)]),
        np.array([2**31, *range(20)], dtype="uint32"),
        np.array([2**31 - 1, -(2**31), *range(20)]),
        np.linspace(1e-7, 1, 20, dtype="float32"),
    ],
)
def test_numbers_of_every_size_arrive_in_the_page(values: np.ndarray) -> None:
    """Also those past 32 bits, for which plotly has no typed array."""
    (figure,) = unpack(pack_figures([go.Figure().add_scatter(x=values, y=values)]))
    [trace] = figure["data"]
    assert as_array(trace["x"]).tolist() == values.tolist()


def test_the_parameters_of_published_models_arrive_in_the_page() -> None:
    figure = plot("size", "demo:encoder")
    section = ReportSection("a", "", [ReportFigure("sizes", "", None, [("", figure)])], [])
    about = {"date": "", "command": "", "recipe": "", "software": {"attngeo": "0"}, "machine": {}, "results": []}
    page = render_page(ReportContent("a", "", [section], [], [], about))
    text = re.search(r'id="figures">([^<]*)<', page)
    assert text is not None
    (size,) = unpack(text[1])
    published = published_scores()
    for trace, role in zip(size["data"], ("encoder", "decoder"), strict=False):
        own = published[published["role"] == role]
        assert sorted(as_array(trace["x"]).tolist()) == sorted(own["parameters"].tolist())
