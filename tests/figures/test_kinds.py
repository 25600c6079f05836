"""The table of kinds of figures."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import pytest

from attngeo.errors import UsageError
from attngeo.figures.kinds import FIGURES, LOSS, SOURCES, FigureSpec, PlotOptions, drawable_scores
from attngeo.options import options_of
from attngeo.reporting.plots import plot
from attngeo.scores.spec import SCORES, score_names


@pytest.mark.parametrize("spec", FIGURES.values(), ids=lambda spec: spec.name)
def test_every_kind_uses_options_and_frames_that_exist(spec: FigureSpec) -> None:
    assert set(spec.options) <= set(options_of(PlotOptions))
    assert spec.source in SOURCES
    assert "{" not in spec.describe()
    assert set(spec.scores) <= set(drawable_scores())


def test_only_kinds_with_an_option_score_show_any_score() -> None:
    assert FIGURES["heads"].scores == ()
    assert FIGURES["heatmap"].scores == tuple(SCORES)
    assert FIGURES["training"].scores == (*score_names(), LOSS)
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
