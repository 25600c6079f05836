"""W_qk as a picture, against the matrix itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from attngeo.figures.kinds import PlotOptions
from attngeo.figures.matrix import MARGIN_POINTS, draw_matrix, draw_outliers
from attngeo.figures.style import MARKED
from attngeo.scores.matrices import count_outliers, query_key_matrix

Build = Callable[[str], Any]


def test_the_picture_of_a_wide_matrix_stays_small() -> None:
    """D = 8,192, where W_qk itself would take 270 MB."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(hidden_size=8_192, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                         head_dim=16, intermediate_size=8, vocab_size=8)  # fmt: skip
    torch.manual_seed(0)
    figure = draw_matrix(*query_key_matrix(LlamaModel(config)), options=PlotOptions())
    assert len(figure.to_json()) < 2_000_000
    [cells] = figure.select_traces({"type": "heatmap"})
    assert np.shape(cells.z) == (373, 373)  # squares of 22 entries


def test_margins_show_the_norms_and_mark_the_outliers() -> None:
    cells, norms = query_key_matrix("demo:minilm", layer=2)
    figure = draw_matrix(cells, norms, PlotOptions())
    [column_marks] = figure.select_traces({"xaxis": "x", "mode": "markers"})
    [rows] = figure.select_traces({"xaxis": "x4", "mode": "lines"})
    [row_marks] = figure.select_traces({"xaxis": "x4", "mode": "markers"})
    of_rows = norms[norms["axis"] == "row"]
    assert len(rows.y) == len(of_rows) <= MARGIN_POINTS
    assert list(rows.x) == pytest.approx(of_rows["norm"].tolist(), rel=1e-6)
    assert list(row_marks.y) == of_rows.loc[of_rows["outlier"], "index"].tolist()
    assert list(column_marks.x) == norms.query("axis == 'column' and outlier")["index"].tolist()
    assert re.search(r"29 rows and 28 columns .* 2·std", figure.layout.title.text)


@pytest.mark.parametrize(("over", "total"), [("layers", 6), ("heads", 72)])
def test_outliers_that_are_shared_more_often_than_by_chance_are_marked(over: Any, total: int) -> None:
    counts = count_outliers("demo:minilm")
    figure = draw_outliers(counts, PlotOptions(over=over))
    for axis, panel in (("row", "x"), ("column", "x2")):
        of_axis = counts[(counts["axis"] == axis) & (counts[over] > 0)]
        marked = of_axis[of_axis[f"{over}_chance"] < 1]
        [points] = figure.select_traces({"xaxis": panel, "marker.color": MARKED})
        [usual] = [trace for trace in figure.select_traces({"xaxis": panel}) if trace is not points]
        assert list(points.x) == marked["index"].tolist()
        assert list(points.y) == marked[over].tolist()
        assert len(usual.x) == len(of_axis) - len(marked)
        assert f"{len(marked)} {axis}s" in figure.layout.title.text
    assert figure.layout.yaxis.range[1] > total
    assert f"in {total} {over}" in figure.layout.title.text


def test_a_model_without_outliers_has_an_empty_figure() -> None:
    counts = count_outliers("demo:encoder", gamma=100.0)
    assert counts.empty
    assert "0 rows and 0 columns" in draw_outliers(counts, PlotOptions()).layout.title.text


def test_margins_of_a_wide_matrix_keep_the_largest_norms() -> None:
    from attngeo.figures.style import GUIDE

    norms = pd.DataFrame({
        "axis": ["row"] * 3000 + ["column"] * 3000, "index": [*range(3000)] * 2,
        "norm": np.random.default_rng(0).random(6000), "outlier": False,
    })  # fmt: skip
    cells = pd.DataFrame(np.eye(4), index=range(0, 3000, 750), columns=range(0, 3000, 750))
    cells.attrs = {"model": "m", "stack": "encoder", "layer": 1, "head": 0, "gamma": 2.0, "edge": 750}
    figure = draw_matrix(cells, norms, PlotOptions())
    [picture] = figure.select_traces({"type": "heatmap"})
    [columns] = figure.select_traces({"xaxis": "x", "mode": "lines"})
    [rows] = figure.select_traces({"xaxis": "x4", "mode": "lines"})
    assert len(rows.x) == len(columns.y) == 1000
    assert (max(rows.x), max(columns.y)) == pytest.approx(tuple(norms.groupby("axis")["norm"].max())[::-1], rel=1e-6)
    assert rows.line.color == GUIDE
    assert "head 0 of layer 1" in figure.layout.title.text
    assert "row %{y} and the next 749" in picture.hovertemplate
    assert figure.layout.xaxis3.range == (-0.5, 2999.5)
    assert picture.zmax == pytest.approx(np.quantile(cells, 0.995))
