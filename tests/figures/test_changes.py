"""Figures of changes between models."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.messages import refuses

from attngeo.errors import DataError
from attngeo.figures.changes import draw_change_layers, draw_change_map
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.style import MOST_MODELS_TOGETHER

OPTIONS = PlotOptions()


def list_changes(others: int, layers: int = 3, heads: int = 2) -> pd.DataFrame:
    """Rows of layers and heads, whose changes tell the model, the layer and the head."""
    rows = [
        {"model": "base", "other": f"step{other}", "stack": "decoder", "layer": layer, "head": head,
         "change": other + 0.1 * layer + (0 if head is None else 0.01 * (head + 1)), "cosine": 0.5}
        for other in range(others) for layer in range(layers) for head in (None, *range(heads))
    ]  # fmt: skip
    return pd.DataFrame(rows).astype({"head": "Int64"})


def test_the_map_has_a_panel_for_each_other_model() -> None:
    rows = list_changes(2).sample(frac=1, random_state=0).sort_values("other")
    figure = draw_change_map(rows, OPTIONS)
    for other, trace in enumerate(figure.data):
        expected = [[other + 0.1 * layer + 0.01 * (head + 1) for head in (0, 1)] for layer in range(3)]
        np.testing.assert_allclose(trace.z, expected, rtol=1e-6)
    assert [note.text for note in figure.layout.annotations] == ["step0", "step1"]
    assert figure.layout.coloraxis.cmin == 0
    assert figure.layout.coloraxis.cmax == pytest.approx(1.22)
    assert figure.layout.title.text == "base: change of W<sub>qk</sub> of each head"
    alone = draw_change_map(list_changes(1), OPTIONS)
    assert alone.layout.title.text == "base → step0: change of W<sub>qk</sub> of each head"


def test_models_that_are_equal_have_a_white_map() -> None:
    figure = draw_change_map(list_changes(1).assign(change=0.0), OPTIONS)
    assert figure.layout.coloraxis.cmax > 0


@pytest.mark.parametrize("others", [1, 2, MOST_MODELS_TOGETHER, MOST_MODELS_TOGETHER + 8])
def test_lines_of_several_models_are_told_apart(others: int) -> None:
    figure = draw_change_layers(list_changes(others), OPTIONS)
    assert [list(trace.x) for trace in figure.data] == [[0, 1, 2]] * others
    looks = {(trace.line.color, trace.line.dash, trace.marker.symbol) for trace in figure.data}
    assert len(looks) == others
    assert [trace.name for trace in figure.data][1:] == [f"step{other}" for other in range(1, others)]
    assert figure.layout.showlegend == (others > 1)


def test_rows_without_changes_are_refused() -> None:
    rows = list_changes(1).assign(change=float("nan"))
    for draw in (draw_change_map, draw_change_layers):
        with refuses(DataError, "change"):
            draw(rows, OPTIONS)
    with refuses(DataError, "--per-head"):
        draw_change_map(rows[rows["head"].isna()], OPTIONS)
