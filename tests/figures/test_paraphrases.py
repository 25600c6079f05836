"""Error terms against cosine errors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from attngeo.figures.analogies import TERMS, draw_paraphrases
from attngeo.figures.kinds import PlotOptions
from attngeo.reporting.plots import plot


@pytest.fixture
def rows() -> pd.DataFrame:
    numbers = np.random.default_rng(0).uniform(size=(4, len(TERMS) + 1))
    words = pd.DataFrame([
        {"model": model, "a": "<a>", "b": "b{x}", "c": "c", "answer": answer}
        for model in ("cbow", "<attention>") for answer in ("d", "e")
    ])  # fmt: skip
    return words.join(pd.DataFrame(numbers, columns=["cosine_error", *TERMS]))


def test_a_point_for_each_question_and_a_panel_for_each_term(rows: pd.DataFrame) -> None:
    figure = draw_paraphrases(rows, PlotOptions())
    assert len(figure.data) == 2 * len(TERMS)
    panels = {(trace.name, trace.xaxis): trace for trace in figure.data}
    for number, term in enumerate(TERMS, 1):
        trace = panels["cbow", "x" if number == 1 else f"x{number}"]
        assert trace.x.tolist() == rows[term][:2].tolist()
        assert trace.y.tolist() == rows["cosine_error"][:2].tolist()
    assert [panel.text for panel in figure.layout.annotations] == list(TERMS.values())
    assert panels["cbow", "x"].marker.color != panels["&lt;attention&gt;", "x"].marker.color
    assert panels["cbow", "x"].text == ("&lt;a&gt; : b&#123;x} = c : d", "&lt;a&gt; : b&#123;x} = c : e")
    assert figure.layout.showlegend
    # The axes start at zero: a point of a term that is zero is whole, too.
    assert {trace.cliponaxis for trace in figure.data} == {False}


def test_one_model_and_missing_terms(rows: pd.DataFrame) -> None:
    rows.loc[0, "rho"] = float("nan")
    figure = plot("paraphrases", rows, where={"model": "cbow"})
    assert len(figure.data) == len(TERMS)
    [of_rho] = figure.select_traces({"xaxis": "x"})
    assert np.isnan(of_rho.x).tolist() == [True, False]
    assert not figure.layout.showlegend
    assert len(figure.layout.annotations) == len(TERMS)


def test_a_panel_without_points_says_why(rows: pd.DataFrame) -> None:
    figure = draw_paraphrases(rows.assign(sigma=np.nan), PlotOptions())
    note = figure.layout.annotations[-1]
    assert (note.text, note.xref) == ("not defined<br>for any question", "x2 domain")
