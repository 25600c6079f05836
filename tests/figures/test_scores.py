"""Figures of scores: their traces, values and order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import attngeo
from attngeo.errors import DataError
from attngeo.figures.common import counted, plain, titled
from attngeo.figures.palette import DASHES, ROLES, role_of
from attngeo.figures.scores import (
    MANY_POINTS,
    MOST_NAMED,
    heat_map,
    score_by_layer,
    score_by_size,
    symmetry_against_directionality,
)
from attngeo.scores.published import published_scores
from attngeo.scores.summary import COLUMNS, summarise

NASTY = "<b>x</b>&<script>alert(1)</script>%{x}"


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    frames = [attngeo.score(name, per_head=True) for name in ("demo:minilm", "demo:encoder", "demo:decoder")]
    return pd.concat(frames, ignore_index=True)


def one(rows: pd.DataFrame, model: str) -> pd.DataFrame:
    return rows[rows["model"] == model]


def test_a_heat_map_has_every_layer_and_head_where_it_belongs(rows: pd.DataFrame) -> None:
    own = one(rows, "demo:minilm")
    whole, heads = heat_map(own, "symmetry").data
    assert (np.shape(whole.z), np.shape(heads.z)) == ((6, 1), (6, 12))
    assert (list(heads.x), list(heads.y), list(whole.x)) == (list(range(12)), list(range(6)), ["all"])
    for row in own.itertuples():
        value = whole.z[row.layer][0] if pd.isna(row.head) else heads.z[row.layer][row.head]
        assert value == pytest.approx(row.symmetry, abs=1e-6)


def test_a_heat_map_has_a_panel_for_each_model_with_one_scale(rows: pd.DataFrame) -> None:
    figure = heat_map(rows, "directionality")
    assert len(figure.data) == 2 * 3
    assert [each.text for each in figure.layout.annotations] == ["demo:minilm", "demo:encoder", "demo:decoder"]
    scale = figure.layout.coloraxis
    assert -scale.cmin == scale.cmax == math.ceil(rows["directionality"].abs().max() * 10) / 10
    assert figure.layout.yaxis.autorange == "reversed"  # layer 0 on top


def test_missing_scores_are_left_out_of_pictures(rows: pd.DataFrame) -> None:
    own = one(rows, "demo:encoder").copy()
    own.loc[own["head"] == 1, ["symmetry", "directionality"]] = math.nan
    own = own[~((own["layer"] == 2) & (own["head"] == 3))]
    heads = heat_map(own, "symmetry").data[1]
    assert np.isnan(np.asarray(heads.z, dtype=float)[:, 1]).all()
    assert math.isnan(heads.z[2][3])
    assert len(score_by_layer(own, "symmetry").data) == 3
    nothing = own.assign(symmetry=math.nan)
    assert heat_map(nothing, "symmetry").layout.coloraxis.cmax == 1


def test_lines_are_whole_layers_and_bands_quartiles_over_heads(rows: pd.DataFrame) -> None:
    own = one(rows, "demo:minilm")
    upper, lower, line = score_by_layer(own, "symmetry").data
    layers = own[own["head"].isna()]
    assert list(line.y) == pytest.approx(layers["symmetry"].tolist())
    heads = own[own["head"].notna() & (own["layer"] == 3)]["symmetry"]
    assert (lower.y[3], upper.y[3]) == pytest.approx((heads.quantile(0.25), heads.quantile(0.75)))
    assert line.customdata[3].tolist() == pytest.approx(heads.quantile([0.25, 0.5, 0.75]).tolist())
    assert line.line.color == ROLES["encoder"]


def test_models_of_one_role_are_told_apart_and_a_single_one_has_no_legend(rows: pd.DataFrame) -> None:
    for make in (lambda r: score_by_layer(r, "symmetry"), symmetry_against_directionality):
        assert make(one(rows, "demo:minilm")).layout.showlegend is False
        figure = make(rows)
        assert figure.layout.showlegend is True
        named = [trace for trace in figure.data if trace.showlegend is not False]
        assert [trace.name for trace in named] == ["demo:minilm", "demo:encoder", "demo:decoder"]
        look = {
            (t.line.color, t.line.dash) if t.mode != "markers" else (t.marker.color, t.marker.symbol) for t in named
        }
        assert len(look) == 3


def test_a_point_for_each_head(rows: pd.DataFrame) -> None:
    own = one(rows, "demo:minilm")
    (points,) = symmetry_against_directionality(own).data
    heads = own[own["head"].notna()]
    assert list(points.x) == pytest.approx(heads["symmetry"].tolist(), abs=1e-6)
    assert list(points.y) == pytest.approx(heads["directionality"].tolist(), abs=1e-6)
    assert points.customdata.tolist() == heads[["layer", "head"]].astype(int).to_numpy().tolist()


def test_median_score_against_size_with_the_published_models_behind(rows: pd.DataFrame) -> None:
    summary = summarise(rows)
    figure = score_by_size(summary, "symmetry", published_scores())
    assert [trace.name for trace in figure.data] == ["published encoders", "published decoders", "encoder", "decoder"]
    own = figure.data[2]
    layers = one(rows, "demo:minilm").query("head.isna()")["symmetry"]
    assert own.x[0] == one(rows, "demo:minilm")["parameters"].iloc[0]
    assert own.y[0] == pytest.approx(layers.median())
    assert own.error_y.array[0] == pytest.approx(layers.quantile(0.75) - layers.median())
    assert own.error_y.arrayminus[0] == pytest.approx(layers.median() - layers.quantile(0.25))
    published = published_scores()
    place = published[published["role"] == "encoder"]["model"].tolist().index("bert-base-uncased")
    assert (figure.data[0].x[place], round(figure.data[0].y[place], 2)) == (109_482_240, 0.51)
    assert figure.data[0].marker.symbol[place] == "circle"
    assert "circle-open" in figure.data[1].marker.symbol
    assert len(score_by_size(summary, "symmetry").data) == 2
    assert figure.layout.xaxis.type == "log"


def test_the_published_scores() -> None:
    frame = published_scores()
    assert len(frame) == 223
    mistral = frame[frame["model"] == "mistralai/Mistral-7B-v0.1"].iloc[0]
    assert mistral["erratum"] == "query heads paired with key head h mod K"
    assert (mistral["symmetry_lower"] <= mistral["symmetry"] <= mistral["symmetry_upper"]).all()
    assert set(frame["role"]) == {"encoder", "decoder"}
    known = (frame["directionality"].abs() <= 1) | frame["erratum"].str.contains("outside")
    assert known.all()


def test_summaries(rows: pd.DataFrame) -> None:
    summary = summarise(rows)
    assert list(summary.columns) == list(COLUMNS)
    assert summary["model"].tolist() == ["demo:minilm", "demo:encoder", "demo:decoder"]
    assert summary[["layers", "heads"]].to_numpy().tolist() == [[6, 72], [3, 12], [3, 12]]
    own = one(rows, "demo:minilm")
    heads = own[own["head"].notna()]["directionality"]
    assert summary["heads_directionality_upper"][0] == pytest.approx(heads.quantile(0.75))
    assert summary["heads_directionality_min"][0] == heads.min()
    assert summarise(rows.drop(columns="parameters"))["parameters"].isna().all()


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: heat_map(rows, "symmetry"),
        lambda rows: score_by_layer(rows, "symmetry"),
        symmetry_against_directionality,
        lambda rows: score_by_size(summarise(rows), "symmetry"),
    ],
)
def test_names_are_shown_letter_for_letter(rows: pd.DataFrame, make: Any) -> None:
    own = one(rows, "demo:encoder")
    text = make(pd.concat([own.assign(model=NASTY), own.assign(model="b", stack=NASTY)])).to_json()
    assert "<script" not in text
    assert "\\u003cscript" not in text
    assert '%{x}"' not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;%&#123;x}" in text.replace("\\u0026", "&").replace("\\u002f", "/")


@pytest.mark.parametrize(
    ("stack", "role"),
    [
        ("encoder", "encoder"),
        ("cross", "cross"),
        ("cross:x.y", "cross"),
        ("vision_pooling", "vision"),
        ("mapper", "mapper"),
    ],
)
def test_stacks_have_the_colour_of_their_role(stack: str, role: str) -> None:
    assert role_of(stack) == role


def test_models_past_the_looks_that_there_are_begin_again(rows: pd.DataFrame) -> None:
    own = one(rows, "demo:encoder")
    many = pd.concat([own.assign(model=f"m{i}") for i in range(len(DASHES) + 1)])
    lines = [trace for trace in score_by_layer(many, "symmetry").data if trace.showlegend is not False]
    assert [line.line.dash for line in lines] == [*DASHES, DASHES[0]]


def test_many_points_are_drawn_on_a_canvas(rows: pd.DataFrame) -> None:
    heads = one(rows, "demo:minilm").query("head.notna()")
    many = pd.concat([heads.assign(layer=i) for i in range(MANY_POINTS // len(heads) + 1)])
    assert {trace.type for trace in symmetry_against_directionality(many).data} == {"scattergl"}
    assert symmetry_against_directionality(heads).data[0].type == "scatter"


def test_hovers_say_what_they_are_of(rows: pd.DataFrame) -> None:
    line = score_by_layer(one(rows, "demo:minilm"), "symmetry").data[-1]
    assert (
        "median %{customdata[1]:+.3f}, quartiles %{customdata[0]:+.3f} to %{customdata[2]:+.3f}" in line.hovertemplate
    )
    figure = heat_map(one(rows, "demo:minilm"), "directionality")
    assert "layer %{y}, whole layer" in figure.data[0].hovertemplate
    assert "layer %{y}, head %{x}<br>directionality %{z:+.3f}" in figure.data[1].hovertemplate


def test_sizes_name_a_few_models_and_leave_out_those_without_one(rows: pd.DataFrame) -> None:
    summary = summarise(rows)
    figure = score_by_size(summary, "symmetry", published_scores())
    assert list(figure.data[2].text) == ["demo:minilm", "demo:encoder"]
    assert "hollow" in figure.layout.title.text
    assert figure.layout.xaxis.exponentformat == "B"
    assert min(figure.data[1].y) >= -1
    summary.loc[0, "parameters"] = pd.NA
    encoder, decoder = score_by_size(summary, "symmetry").data
    assert (list(encoder.text), list(decoder.text)) == (["demo:encoder"], ["demo:decoder"])
    assert "hollow" not in score_by_size(summary, "symmetry").layout.title.text
    many = pd.concat([summarise(one(rows, "demo:minilm")).assign(model=f"m{i}") for i in range(MOST_NAMED + 1)])
    assert score_by_size(many, "symmetry").data[0].text is None


def test_panels_are_named_by_what_tells_them_apart(rows: pd.DataFrame) -> None:
    own = one(rows, "demo:encoder")
    stacks = pd.concat([own, own.assign(stack="cross")])
    assert titled(stacks) == {("demo:encoder", "encoder"): "encoder", ("demo:encoder", "cross"): "cross"}
    both = pd.concat([stacks, stacks.assign(model="b")])
    assert list(titled(both).values())[-1] == "b · cross"
    assert list(titled(own).values()) == [""]


def test_axes_have_whole_numbers_and_not_too_many() -> None:
    for last in (0, 5, 23, 79, 200):
        ticks = counted(pd.Index([last]))["tickvals"]
        assert ticks[0] == 0
        assert len(ticks) <= 21
        assert ticks[-1] <= last


def test_names_are_plain_and_short() -> None:
    assert plain("a\u202eb\nc") == "a\ufffdb\ufffdc"
    assert len(plain("x" * 61)) == 60
    assert plain("x" * 60) == "x" * 60
    assert plain("<b>&{") == "&lt;b&gt;&amp;&#123;"


def test_every_colour_has_one_meaning() -> None:
    from attngeo.figures import palette

    used = [*palette.ROLES.values(), *palette.INITIALISATIONS.values(), palette.MARKED, palette.GUIDE, palette.MISSING,
            palette.OTHER, palette.INTERVAL, palette.SIGNED[0][1], palette.SIGNED[-1][1]]  # fmt: skip
    assert len(set(used)) == len(used)


def test_a_layer_that_stands_there_twice_is_refused(rows: pd.DataFrame) -> None:
    own = one(rows, "demo:encoder")
    with pytest.raises(DataError, match=r"layer 0 of demo:encoder \(encoder\) is there twice, expected each"):
        summarise(pd.concat([own, own.assign(note="published convention")]))


def test_layers_without_a_score_are_not_counted(rows: pd.DataFrame) -> None:
    own = one(rows, "demo:encoder").copy()
    own.loc[own["layer"] == 1, "symmetry"] = math.nan
    assert summarise(own)[["layers", "heads"]].to_numpy().tolist() == [[2, 8]]
