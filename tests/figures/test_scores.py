"""Figures of scores: their traces, values and order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.frames import one_model

from attngeo.errors import DataError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.scores import MANY_POINTS, draw_heads, draw_heatmap, draw_layers
from attngeo.figures.sizes import draw_sizes
from attngeo.figures.style import MODEL_COLOURS, MOST_MODELS_TOGETHER, ROLES
from attngeo.papers.saponati2025.published import published_scores

NASTY = "<b>x</b>&<script>alert(1)</script>%{x}"
SYMMETRY, DIRECTIONALITY = PlotOptions(score="symmetry"), PlotOptions(score="directionality")


def test_a_heat_map_has_a_cell_for_every_layer_and_head(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:minilm")
    figure = draw_heatmap(own, SYMMETRY)
    [whole] = figure.select_traces({"xaxis": "x"})
    [heads] = figure.select_traces({"xaxis": "x2"})
    assert (np.shape(whole.z), np.shape(heads.z)) == ((6, 1), (6, 12))
    assert (list(heads.x), list(heads.y), list(whole.x)) == (list(range(12)), list(range(6)), ["all"])
    for row in own.itertuples():
        value = whole.z[row.layer][0] if pd.isna(row.head) else heads.z[row.layer][row.head]
        assert value == pytest.approx(row.symmetry, abs=1e-6)


def test_a_heat_map_has_a_panel_for_each_model_with_one_scale(rows: pd.DataFrame) -> None:
    figure = draw_heatmap(rows, DIRECTIONALITY)
    assert len(figure.data) == 2 * 3
    assert [each.text for each in figure.layout.annotations] == ["demo:minilm", "demo:encoder", "demo:decoder"]
    scale = figure.layout.coloraxis
    assert -scale.cmin == scale.cmax == math.ceil(rows["directionality"].abs().max() * 10) / 10
    assert figure.layout.yaxis.autorange == "reversed"  # layer 0 on top


def test_missing_scores_are_left_out_of_pictures(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:encoder").copy()
    own.loc[own["head"] == 1, ["symmetry", "directionality"]] = math.nan
    own = own[~((own["layer"] == 2) & (own["head"] == 3))]
    [heads] = draw_heatmap(own, SYMMETRY).select_traces({"xaxis": "x2"})
    assert np.isnan(np.asarray(heads.z, dtype=float)[:, 1]).all()
    assert math.isnan(heads.z[2][3])
    assert len(draw_layers(own, SYMMETRY).data) == 4
    nothing = own.assign(symmetry=math.nan)
    assert draw_heatmap(nothing, SYMMETRY).layout.coloraxis.cmax == 1


def test_whole_layers_and_heads_have_a_panel_each(rows: pd.DataFrame) -> None:
    """The line beside a band is the median of the same heads."""
    own = one_model(rows, "demo:minilm")
    figure = draw_layers(own, SYMMETRY)
    [line] = figure.select_traces({"xaxis": "x"})
    [median] = figure.select_traces({"xaxis": "x2", "mode": "lines+markers"})
    [lower] = figure.select_traces({"fill": "tonexty"})
    [upper] = [trace for trace in figure.select_traces({"mode": "lines"}) if trace is not lower]
    assert [title.text for title in figure.layout.annotations] == ["whole layers", "heads"]
    assert (upper.xaxis, lower.xaxis) == ("x2", "x2")
    layers = own[own["head"].isna()]
    assert list(line.y) == pytest.approx(layers["symmetry"].tolist())
    heads = own[own["head"].notna() & (own["layer"] == 3)]["symmetry"]
    quartiles = heads.quantile([0.25, 0.5, 0.75]).tolist()
    assert [lower.y[3], median.y[3], upper.y[3]] == pytest.approx(quartiles)
    assert median.customdata[3].tolist() == pytest.approx([quartiles[0], quartiles[2]], abs=5e-4)
    assert line.line.color == median.line.color == ROLES["encoder"]
    assert figure.layout.yaxis2.matches == "y"
    assert "whole layers: score of the sum over heads; heads: median, band of quartiles" in figure.layout.title.text


def test_rows_of_whole_layers_or_of_heads_alone_have_one_panel(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:minilm")
    for of_heads, traces in ((False, 1), (True, 3)):
        figure = draw_layers(own[own["head"].notna() == of_heads], SYMMETRY)
        assert (len(figure.data), len(figure.layout.annotations)) == (traces, 0)


def test_all_bands_are_below_all_lines(rows: pd.DataFrame) -> None:
    figure = draw_layers(rows, SYMMETRY)
    kinds = [trace.mode for trace in figure.data]
    assert kinds == ["lines"] * 6 + ["lines+markers"] * 6


def test_models_of_one_role_look_different_and_a_single_one_has_no_legend(rows: pd.DataFrame) -> None:
    assert draw_layers(one_model(rows, "demo:minilm"), SYMMETRY).layout.showlegend is False
    figure = draw_layers(rows, SYMMETRY)
    assert figure.layout.showlegend is True
    named = [trace for trace in figure.data if trace.showlegend is not False]
    assert [trace.name for trace in named] == ["demo:minilm", "demo:encoder", "demo:decoder"]
    assert [trace.line.color for trace in named] == list(MODEL_COLOURS[:3])
    assert [trace.line.dash for trace in named] == ["solid", "solid", "dash"]  # two encoders and a decoder
    assert len({trace.marker.symbol for trace in named}) == 3


def copy_model(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """The scores of the demo encoder under several names."""
    own = one_model(rows, "demo:encoder")
    return pd.concat([own.assign(model=f"org/m{number}") for number in range(count)])


def test_as_many_models_as_there_are_colours_are_in_one_panel(rows: pd.DataFrame) -> None:
    figure = draw_layers(copy_model(rows, MOST_MODELS_TOGETHER), SYMMETRY)
    assert {trace.xaxis for trace in figure.data} == {"x", "x2"}
    lines = [trace for trace in figure.data if trace.showlegend]
    assert [line.line.color for line in lines] == list(MODEL_COLOURS)
    assert len({(line.line.color, line.marker.symbol) for line in lines}) == MOST_MODELS_TOGETHER
    bands = [trace.fillcolor for trace in figure.data if trace.fill]
    assert {band.rpartition(",")[2] for band in bands} == {"0.0667)"}  # all together are no wall


def test_more_models_have_panels_of_their_own_with_shared_axes(rows: pd.DataFrame) -> None:
    count = MOST_MODELS_TOGETHER + 1
    figure = draw_layers(copy_model(rows, count), SYMMETRY)
    titles = [title.text for title in figure.layout.annotations]
    assert titles[:4] == ["org/m0", "heads", "org/m1", "heads"]
    assert len(titles) == 2 * count
    assert {trace.line.color for trace in figure.data if trace.mode == "lines+markers"} == {ROLES["encoder"]}
    for axes in (figure.select_xaxes(), figure.select_yaxes()):
        shared = [axis.matches for axis in axes]
        assert (shared.count(None), len(set(shared))) == (1, 2)
    assert figure.layout.showlegend is False  # all are encoders, and panels have names
    assert figure.layout.height > 600


def test_each_model_has_a_panel_of_its_heads(rows: pd.DataFrame) -> None:
    assert len(draw_heads(one_model(rows, "demo:minilm"), SYMMETRY).layout.annotations) == 0
    figure = draw_heads(rows, SYMMETRY)
    assert [title.text for title in figure.layout.annotations] == ["demo:minilm", "demo:encoder", "demo:decoder"]
    assert [trace.xaxis for trace in figure.data] == ["x", "x2", "x3"]
    assert figure.layout.yaxis3.matches == "y"
    assert [trace.marker.color for trace in figure.data] == [ROLES["encoder"], ROLES["encoder"], ROLES["decoder"]]
    assert [trace.name for trace in figure.data if trace.showlegend] == ["encoder", "decoder"]


def test_the_lowest_panel_of_each_column_has_ticks(rows: pd.DataFrame) -> None:
    """The last line of five panels has two."""
    figure = draw_heads(copy_model(rows, 5), SYMMETRY)
    ticked = [axis.title.text is not None for axis in figure.select_xaxes()]
    assert ticked == [False, False, True, True, True, False]


@pytest.mark.parametrize("make", [draw_layers, draw_heads, draw_heatmap])
def test_the_same_rows_give_the_same_figure(rows: pd.DataFrame, make: Any) -> None:
    assert make(rows, SYMMETRY).to_json() == make(rows.copy(), SYMMETRY).to_json()


def test_a_point_for_each_head(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:minilm")
    (points,) = draw_heads(own, SYMMETRY).data
    heads = own[own["head"].notna()]
    assert list(points.x) == pytest.approx(heads["symmetry"].tolist(), abs=1e-6)
    assert list(points.y) == pytest.approx(heads["directionality"].tolist(), abs=1e-6)
    assert points.customdata.tolist() == heads[["layer", "head"]].astype(int).to_numpy().tolist()


@pytest.mark.parametrize(
    "make",
    [
        draw_heatmap, draw_layers, draw_heads,
        lambda rows, options: draw_sizes(rows, published_scores(), options),
    ],
)  # fmt: skip
def test_names_are_shown_letter_for_letter(rows: pd.DataFrame, make: Any) -> None:
    own = one_model(rows, "demo:encoder")
    text = make(pd.concat([own.assign(model=NASTY), own.assign(model="b", stack=NASTY)]), SYMMETRY).to_json()
    assert "<script" not in text
    assert "\\u003cscript" not in text
    assert '%{x}"' not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;%&#123;x}" in text.replace("\\u0026", "&").replace("\\u002f", "/")


def test_many_points_are_drawn_on_a_canvas(rows: pd.DataFrame) -> None:
    heads = one_model(rows, "demo:minilm").query("head.notna()")
    many = pd.concat([heads.assign(layer=i) for i in range(MANY_POINTS // len(heads) + 1)])
    assert {trace.type for trace in draw_heads(many, SYMMETRY).data} == {"scattergl"}
    assert {trace.type for trace in draw_heads(heads, SYMMETRY).data} == {"scatter"}


def test_hovers_name_what_they_show(rows: pd.DataFrame) -> None:
    lines = draw_layers(one_model(rows, "demo:minilm"), SYMMETRY)
    [line] = lines.select_traces({"xaxis": "x"})
    [median] = lines.select_traces({"xaxis": "x2", "mode": "lines+markers"})
    assert line.hovertemplate.endswith("layer %{x}<br>symmetry %{y:+.3f}<extra></extra>")
    assert "median of heads: symmetry %{y:+.3f}<br>quartiles %{customdata[0]:+.3f} to" in median.hovertemplate
    figure = draw_heatmap(one_model(rows, "demo:minilm"), DIRECTIONALITY)
    [whole] = figure.select_traces({"xaxis": "x"})
    [heads] = figure.select_traces({"xaxis": "x2"})
    assert "layer %{y}, whole layer" in whole.hovertemplate
    assert "layer %{y}, head %{x}<br>directionality %{z:+.3f}" in heads.hovertemplate


def test_rows_without_heads_have_no_points(rows: pd.DataFrame) -> None:
    layers = rows[rows["head"].isna()]
    with pytest.raises(DataError, match="--per-head"):
        draw_heads(layers, SYMMETRY)
    assert len(draw_heatmap(layers, SYMMETRY).data) == len(draw_layers(layers, SYMMETRY).data) == 3
