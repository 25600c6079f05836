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
from attngeo.figures.style import DASHES, ROLES
from attngeo.papers.saponati2025.published import published_scores

NASTY = "<b>x</b>&<script>alert(1)</script>%{x}"
SYMMETRY, DIRECTIONALITY = PlotOptions(score="symmetry"), PlotOptions(score="directionality")


def test_a_heat_map_has_a_cell_for_every_layer_and_head(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:minilm")
    whole, heads = draw_heatmap(own, SYMMETRY).data
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
    heads = draw_heatmap(own, SYMMETRY).data[1]
    assert np.isnan(np.asarray(heads.z, dtype=float)[:, 1]).all()
    assert math.isnan(heads.z[2][3])
    assert len(draw_layers(own, SYMMETRY).data) == 3
    nothing = own.assign(symmetry=math.nan)
    assert draw_heatmap(nothing, SYMMETRY).layout.coloraxis.cmax == 1


def test_lines_are_whole_layers_and_bands_quartiles_over_heads(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:minilm")
    upper, lower, line = draw_layers(own, SYMMETRY).data
    layers = own[own["head"].isna()]
    assert list(line.y) == pytest.approx(layers["symmetry"].tolist())
    heads = own[own["head"].notna() & (own["layer"] == 3)]["symmetry"]
    assert (lower.y[3], upper.y[3]) == pytest.approx((heads.quantile(0.25), heads.quantile(0.75)))
    assert line.customdata[3].tolist() == pytest.approx(heads.quantile([0.25, 0.5, 0.75]).tolist())
    assert line.line.color == ROLES["encoder"]


def test_models_of_one_role_look_different_and_a_single_one_has_no_legend(rows: pd.DataFrame) -> None:
    for make in (draw_layers, draw_heads):
        assert make(one_model(rows, "demo:minilm"), SYMMETRY).layout.showlegend is False
        figure = make(rows, SYMMETRY)
        assert figure.layout.showlegend is True
        named = [trace for trace in figure.data if trace.showlegend is not False]
        assert [trace.name for trace in named] == ["demo:minilm", "demo:encoder", "demo:decoder"]
        look = {
            (t.line.color, t.line.dash) if t.mode != "markers" else (t.marker.color, t.marker.symbol) for t in named
        }
        assert len(look) == 3


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


def test_more_models_than_dashes_start_again_with_a_lighter_colour(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:encoder")
    many = pd.concat([own.assign(model=f"m{i}") for i in range(2 * len(DASHES))])
    lines = [trace for trace in draw_layers(many, SYMMETRY).data if trace.showlegend is not False]
    assert [line.line.dash for line in lines] == [*DASHES, *DASHES]
    assert len({(line.line.color, line.line.dash) for line in lines}) == len(lines)
    points = draw_heads(many, SYMMETRY).data
    assert len({(trace.marker.color, trace.marker.symbol) for trace in points}) == len(points)


def test_many_points_are_drawn_on_a_canvas(rows: pd.DataFrame) -> None:
    heads = one_model(rows, "demo:minilm").query("head.notna()")
    many = pd.concat([heads.assign(layer=i) for i in range(MANY_POINTS // len(heads) + 1)])
    assert {trace.type for trace in draw_heads(many, SYMMETRY).data} == {"scattergl"}
    assert draw_heads(heads, SYMMETRY).data[0].type == "scatter"


def test_hovers_name_what_they_show(rows: pd.DataFrame) -> None:
    line = draw_layers(one_model(rows, "demo:minilm"), SYMMETRY).data[-1]
    assert (
        "median %{customdata[1]:+.3f}, quartiles %{customdata[0]:+.3f} to %{customdata[2]:+.3f}" in line.hovertemplate
    )
    figure = draw_heatmap(one_model(rows, "demo:minilm"), DIRECTIONALITY)
    assert "layer %{y}, whole layer" in figure.data[0].hovertemplate
    assert "layer %{y}, head %{x}<br>directionality %{z:+.3f}" in figure.data[1].hovertemplate


def test_rows_without_heads_have_no_points(rows: pd.DataFrame) -> None:
    layers = rows[rows["head"].isna()]
    with pytest.raises(DataError, match="--per-head"):
        draw_heads(layers, SYMMETRY)
    assert len(draw_heatmap(layers, SYMMETRY).data) == len(draw_layers(layers, SYMMETRY).data) == 3
