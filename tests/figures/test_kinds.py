"""The table of kinds of figures."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import pytest

from attngeo.errors import UsageError
from attngeo.figures.fit import NO_TITLE, PANEL_TITLE_HEIGHT, fit_figure
from attngeo.figures.kinds import FIGURES, LOSS, SOURCES, FigureSpec, PlotOptions, drawable_scores
from attngeo.options import options_of
from attngeo.questions.table import QUESTIONS
from attngeo.reporting.plots import plot
from attngeo.scores.spec import SCORES, score_names


@pytest.mark.parametrize("spec", FIGURES.values(), ids=lambda spec: spec.name)
def test_every_kind_uses_options_and_frames_that_exist(spec: FigureSpec) -> None:
    assert set(spec.options) <= set(options_of(PlotOptions))
    assert spec.source in SOURCES or spec.source in QUESTIONS
    assert "{" not in spec.describe()
    assert set(spec.scores) <= set(drawable_scores())


def test_only_kinds_with_an_option_score_show_any_score() -> None:
    assert FIGURES["heads"].scores == ()
    assert FIGURES["heatmap"].scores == tuple(SCORES)
    assert FIGURES["training"].scores == (*SCORES, LOSS)
    assert FIGURES["updates"].scores == score_names()
    assert drawable_scores() == (*SCORES, LOSS)


def test_options_without_an_effect_are_refused() -> None:
    FIGURES["heatmap"].check_given(["score", "where"])
    with pytest.raises(UsageError, match=r"layer .*heatmap.*score, stack, where"):
        FIGURES["heatmap"].check_given(["score", "layer"])


def test_a_new_kind_is_a_function_and_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw_count(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
        return go.Figure(layout={"title": f"{len(rows)} rows of {options.score}"})

    spec = FigureSpec(
        name="count", description="number of rows", source="score", columns=("model", "layer"),
        options=("score", "where"), draw=draw_count,
    )  # fmt: skip
    monkeypatch.setitem(FIGURES, "count", spec)
    figure = plot("count", "demo:encoder", score="directionality", where={"layer": 1})
    assert figure.layout.title.text == "5 rows of directionality"


@pytest.mark.parametrize("kind", ["layers", "matrix", "size"])
def test_every_kind_takes_a_title_which_is_shown_letter_for_letter(kind: str) -> None:
    own = plot(kind, "demo:encoder").layout.title.text
    titled = plot(kind, "demo:encoder", title="My <b>models</b>").layout.title.text
    details = own.partition("<br>")[2]
    assert titled == f"My &lt;b&gt;models&lt;/b&gt;<br>{details}"
    FIGURES[kind].check_given(["title"])


def test_the_matrix_is_set_as_a_symbol(rows: pd.DataFrame) -> None:
    for kind in ("heatmap", "layers", "heads", "size"):
        assert "W<sub>qk</sub>" in plot(kind, rows).layout.title.text
    assert "|W<sub>qk</sub>| of layer 1" in plot("matrix", "demo:encoder", layer=1).layout.title.text


@pytest.mark.parametrize("kind", ["heatmap", "layers", "matrix", "size"])
def test_an_empty_title_leaves_no_title_no_details_and_no_room(kind: str, rows: pd.DataFrame) -> None:
    of = "demo:minilm" if kind == "matrix" else rows[rows["model"] == "demo:minilm"]
    figure = plot(kind, of, title="")
    assert figure.layout.title.text == ""
    has_names = kind == "layers"  # whole layers, and heads
    assert figure.layout.margin.t == (PANEL_TITLE_HEIGHT if has_names else NO_TITLE)
    for width in (326, 1000):
        assert fit_figure(figure.update_layout(width=width)).layout.margin.t == figure.layout.margin.t


def test_a_size_of_type_is_that_of_all_texts_but_the_title(rows: pd.DataFrame) -> None:
    figure = plot("layers", rows, font_size="8pt", width="3.4in", height="2.4in")
    assert (figure.layout.width, figure.layout.height) == (326.4, 230.4)
    eight = pytest.approx(32 / 3)
    for fitted in (fit_figure(figure), fit_figure(figure.update_layout(width=1000, height=600))):
        sizes = [fitted.layout.font.size, *(annotation.font.size for annotation in fitted.layout.annotations)]
        sizes += [axis.title.font.size for axis in (*fitted.select_xaxes(), *fitted.select_yaxes())]
        assert sizes == [eight] * len(sizes)
        assert fitted.layout.title.font.size > 11
    named = fit_figure(plot("size", "demo:minilm", font_size="6pt"))
    assert [trace.textfont.size for trace in named.data if trace.textfont.size] == [8]
