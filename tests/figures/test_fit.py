"""Figures that fit their size."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import pytest
from support.frames import one_model

from attngeo.figures.fit import LETTER, LOW, SMALL, SMALL_TITLE, TITLE_HEIGHT, count_letters, fit_figure
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.scores import draw_heads, draw_heatmap, draw_layers
from attngeo.figures.sizes import draw_sizes
from attngeo.papers.saponati2025.published import published_scores

OPTIONS = PlotOptions()
LONG = "organisation-of-models/a-model-with-a-name-as-long-as-on-the-hub"
SMALL_SIZE = {"width": 600, "height": 300}


def rename(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """The scores of the demo encoder, as those of models with long names."""
    own = one_model(rows, "demo:encoder")
    return pd.concat([own.assign(model=f"{LONG}-{number}") for number in range(count)])


@pytest.mark.parametrize("width", [300, 600, 1000])
def test_titles_are_wrapped_to_the_width_and_panels_begin_below_them(rows: pd.DataFrame, width: int) -> None:
    figure = draw_layers(rename(rows, 1), OPTIONS).update_layout(width=width, height=300)
    title = fit_figure(figure).layout.title
    lines = title.text.split("<br>")
    assert title.font.size == SMALL_TITLE
    for line in lines:
        size = SMALL_TITLE * (0.7 if line.startswith("<sup>") else 1)
        is_word = " " not in line
        assert is_word or count_letters(line) * LETTER * size <= width
    assert "W<sub>qk</sub>" in title.text
    assert fit_figure(figure).layout.margin.t >= 12 * len(lines)


def test_a_large_figure_keeps_its_names_and_its_type(rows: pd.DataFrame) -> None:
    figure = draw_layers(rename(rows, 2), OPTIONS)
    fitted = fit_figure(figure)
    assert [trace.name for trace in fitted.data] == [trace.name for trace in figure.data]
    assert fitted.layout.font.size is None
    assert fitted.layout.height is None
    assert fitted.layout.margin.t == figure.layout.margin.t > TITLE_HEIGHT
    assert figure.layout.title.font.size is None  # the figure itself stays as it is


def test_a_small_figure_has_small_type_and_short_names_below(rows: pd.DataFrame) -> None:
    figure = draw_layers(rename(rows, 3), OPTIONS).update_layout(**SMALL_SIZE)
    fitted = fit_figure(figure)
    assert fitted.layout.font.size == SMALL
    assert (fitted.layout.legend.orientation, fitted.layout.legend.y) == ("h", 0)
    names = {trace.name for trace in fitted.data if trace.name}
    # Two of these names have no room beside each other, and they are long: a line each, without the organisation.
    assert {name.partition("…")[0] for name in names} == {"a-mode"}
    assert {name[-1] for name in names} == {"0", "1", "2"}
    assert max(map(count_letters, names)) * LETTER * SMALL <= 600 - 50 - 40
    assert fitted.layout.yaxis.title.text == "symmetry"  # its ends are longer than the panel is high


@pytest.mark.parametrize("width", [326.4, 672])
def test_a_few_names_of_a_legend_are_whole(rows: pd.DataFrame, width: float) -> None:
    own = one_model(rows, "demo:encoder")
    for count, name in ((4, "a model of forty letters, symmetric"), (8, "encoder (mlm), symmetric")):
        models = [f"{name} {number}" for number in range(count)]
        figure = draw_layers(pd.concat([own.assign(model=model) for model in models]), OPTIONS)
        fitted = fit_figure(figure.update_layout(width=width, height=300))
        assert [trace.name for trace in fitted.data if trace.name and trace.showlegend] == models
    figure = draw_layers(pd.concat([own.assign(model=f"{name} {number}") for number in range(9)]), OPTIONS)
    fitted = fit_figure(figure.update_layout(width=326.4, height=300))
    assert all("…" in trace.name for trace in fitted.data if trace.name)


def test_the_details_of_a_title_are_in_lines_of_their_own_type() -> None:
    text = "the title<br><sup>" + "details of what is shown " * 5 + "</sup>"
    for width in (326, 1000):
        fitted = fit_figure(go.Figure(go.Scatter(x=[1], y=[1]), layout={"width": width, "title": text}))
        title = fitted.layout.title
        assert title.text == "the title"
        assert title.subtitle.font.size == pytest.approx(0.7 * title.font.size)
        lines = title.subtitle.text.split("<br>")
        assert max(map(count_letters, lines)) * LETTER * title.subtitle.font.size <= width
        assert (len(lines) > 1) == (width == 326)
        assert fitted.layout.margin.t >= 1.3 * (title.font.size + len(lines) * title.subtitle.font.size)


def test_a_scale_of_colours_is_not_higher_than_a_small_figure() -> None:
    scale = {"colorbar": {"lenmode": "pixels", "len": 260, "y": 1, "yanchor": "top"}}
    figure = go.Figure(go.Heatmap(z=[[0, 1]], coloraxis="coloraxis"), layout={"coloraxis": scale, **SMALL_SIZE})
    bar = fit_figure(figure).layout.coloraxis.colorbar
    assert (bar.lenmode, bar.len, bar.yanchor) == ("fraction", 1, "middle")
    assert fit_figure(figure.update_layout(width=1000, height=600)).layout.coloraxis.colorbar.len == 260


@pytest.mark.parametrize(("count", "make"), [(12, draw_heads), (13, draw_layers), (12, draw_heatmap)])
def test_a_figure_is_higher_if_its_panels_need_it(rows: pd.DataFrame, count: int, make: object) -> None:
    assert callable(make)
    figure = make(rename(rows, count), OPTIONS).update_layout(**SMALL_SIZE)
    fitted = fit_figure(figure)
    lines = len({axis.domain for axis in fitted.select_yaxes()})
    assert fitted.layout.height >= 85 * lines > 300 - 100
    assert fit_figure(make(rename(rows, 1), OPTIONS).update_layout(**SMALL_SIZE)).layout.height == 300


def test_names_of_panels_beside_each_other_do_not_touch(rows: pd.DataFrame) -> None:
    fitted = fit_figure(draw_heads(rename(rows, 12), OPTIONS).update_layout(**SMALL_SIZE))
    columns = len({axis.domain for axis in fitted.select_xaxes()})
    pitch = (600 - 110) / columns
    names = [annotation.text for annotation in fitted.layout.annotations if annotation.xref == "paper"]
    assert len(set(names)) == 12
    assert max(map(count_letters, names)) * LETTER * SMALL <= pitch - 12


def test_a_large_figure_is_higher_if_half_of_it_has_no_room_for_the_legend(rows: pd.DataFrame) -> None:
    figure = draw_layers(rename(rows, 12), OPTIONS).update_layout(width=800)
    assert fit_figure(figure).layout.height == 2 * 12 * 29  # a line for each name
    assert fit_figure(figure.update_layout(width=2000)).layout.height is None
    assert fit_figure(figure.update_layout(width=800, height=900)).layout.height == 900


def test_a_legend_of_numbers_has_room_and_keeps_them(rows: pd.DataFrame) -> None:
    figure = draw_sizes(rename(rows, 12), published_scores(), OPTIONS).update_layout(width=600, height=250)
    fitted = fit_figure(figure)
    assert fitted.layout.height > 250
    numbered = [trace.name.split()[0] for trace in fitted.data if trace.name[0].isdigit()]
    assert numbered == [str(number) for number in range(1, 13)]


def test_titles_of_axes_are_wrapped_to_narrow_panels_and_lose_ends_without_room(rows: pd.DataFrame) -> None:
    column = {"width": 326.4, "height": 450}
    several = fit_figure(draw_heads(rows, OPTIONS).update_layout(**column))
    assert {axis.title.text for axis in several.select_xaxes()} == {"symmetry"}
    alone = fit_figure(draw_heads(one_model(rows, "demo:minilm"), OPTIONS).update_layout(**column))
    assert "skew" in alone.layout.xaxis.title.text
    figure = go.Figure(go.Scatter(x=[1], y=[1]), layout=column)
    figure.update_xaxes(title="accuracy (share of known questions, with 95% confidence intervals)")
    lines = fit_figure(figure).layout.xaxis.title.text.split("<br>")
    assert len(lines) == 2
    assert max(map(len, lines)) * LETTER * SMALL <= 326 - 50


def test_a_small_figure_has_room_for_every_category_and_every_name(rows: pd.DataFrame) -> None:
    figure = go.Figure(go.Bar(x=[1], y=["a"], orientation="h"), layout=SMALL_SIZE)
    figure.update_yaxes(categoryarray=[f"category {number}" for number in range(30)])
    assert fit_figure(figure).layout.height >= 30 * 1.3 * SMALL + 100
    column = {"width": 326.4, "height": 230.4}
    few = fit_figure(draw_layers(rename(rows, 2), OPTIONS).update_layout(**column))
    many = fit_figure(draw_layers(rename(rows, 12), OPTIONS).update_layout(**column))
    assert few.layout.height < 250
    assert many.layout.height >= few.layout.height + 5 * 20  # two names in a line
    assert many.layout.margin.b < 20


def test_a_figure_without_a_title_or_with_marks_in_its_names_is_left() -> None:
    assert fit_figure(go.Figure()).layout.title.text is None
    figure = go.Figure(go.Scatter(x=[1], y=[1], name="a <b>bold</b> name " * 5), layout=SMALL_SIZE)
    (trace,) = fit_figure(figure).data
    assert trace.name == "a <b>bold</b> name " * 5
    assert LOW > 300


def test_ticks_of_a_small_figure_are_not_over_each_other() -> None:
    figure = go.Figure(go.Heatmap(z=[[0] * 24] * 24))
    figure.update_layout(width=326, height=200)
    figure.update_xaxes(tickvals=list(range(24)))
    figure.update_yaxes(tickvals=list(range(24)), domain=[0, 0.5])
    fitted = fit_figure(figure)
    assert list(fitted.layout.yaxis.tickvals) == [0, 8, 16]
    assert 3 < len(fitted.layout.xaxis.tickvals) < 24
    names = [f"token {number}" for number in range(24)]
    figure.update_xaxes(ticktext=names, tickangle=-90)
    figure.update_yaxes(ticktext=names)
    named = fit_figure(figure)
    assert list(named.layout.yaxis.ticktext) == ["token 0", "token 8", "token 16"]
    assert list(named.layout.xaxis.ticktext) == [names[tick] for tick in named.layout.xaxis.tickvals]
    assert 3 < len(named.layout.xaxis.ticktext) * 1.3 * SMALL <= 326 - 50
    figure.update_layout(width=1000, height=600)
    assert len(fit_figure(figure).layout.yaxis.tickvals) == 24
