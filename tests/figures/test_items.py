"""Figures of attention between items, and of their vectors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.messages import refuses

import attngeo
from attngeo.errors import UsageError
from attngeo.figures.estimators import draw_item_attention, draw_item_vectors
from attngeo.figures.kinds import PlotOptions

NAMES = ["tea", "milk", "tea<1>"]


def list_weights(sequence: object, items: list[str], layers: int = 2, lag: int = 0) -> pd.DataFrame:
    """Rows of two heads of a unidirectional model; a weight tells its layer, head, line and column."""
    return pd.DataFrame(
        [
            {"sequence": sequence, "layer": layer, "head": head, "row": i, "attended_row": j, "position": i,
             "attended_position": j, "lag": lag, "weight": 0.1 * layer + 0.02 * head + 0.01 * i + 0.001 * j,
             "item": items[i], "attended_item": items[j]}
            for layer in range(layers) for head in range(2) for i in range(len(items)) for j in range(i + 1)
        ]
    )  # fmt: skip


def test_each_layer_is_a_map_of_means_over_heads_and_unseen_pairs_are_blank() -> None:
    rows = list_weights("a", NAMES).sample(frac=1, random_state=0)
    figure = draw_item_attention(rows, PlotOptions())
    [first] = figure.select_traces({"xaxis": "x"})
    [second] = figure.select_traces({"xaxis": "x2"})
    expected = [[0.01, np.nan, np.nan], [0.02, 0.021, np.nan], [0.03, 0.031, 0.032]]
    np.testing.assert_allclose(first.z, expected)
    np.testing.assert_allclose(second.z, np.array(expected) + 0.1)
    assert list(figure.layout.xaxis.ticktext) == list(figure.layout.yaxis.ticktext) == ["tea", "milk", "tea&lt;1&gt;"]
    assert [note.text for note in figure.layout.annotations] == ["layer 0", "layer 1"]
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, pytest.approx(0.132))


def test_an_item_may_occur_twice_and_earlier_times_are_further_columns() -> None:
    items = ["tea", "tea"]
    rows = pd.concat([list_weights("a", items, 1), list_weights("a", items, 1, lag=1)])
    figure = draw_item_attention(rows, PlotOptions())
    (trace,) = figure.data
    assert np.shape(trace.z) == (2, 4)
    assert list(figure.layout.xaxis.ticktext) == ["tea", "tea", "tea, 1 earlier", "tea, 1 earlier"]
    assert list(figure.layout.yaxis.tickvals) == [0, 1]


def test_rows_without_items_are_named_by_their_positions() -> None:
    rows = list_weights("a", NAMES, 1).drop(columns=["item", "attended_item", "lag"])
    assert list(draw_item_attention(rows, PlotOptions()).layout.yaxis.ticktext) == ["0", "1", "2"]


def test_each_sequence_is_a_line_of_panels_and_where_chooses_one() -> None:
    rows = pd.concat([list_weights(number, NAMES[: 2 + number % 2]) for number in range(5)])
    with refuses(UsageError, 5, 4, "where", "sequence"):
        draw_item_attention(rows, PlotOptions())
    figure = draw_item_attention(rows[rows["sequence"] < 2], PlotOptions())
    assert [np.shape(trace.z) for trace in figure.data] == [(2, 2), (2, 2), (3, 3), (3, 3)]
    assert figure.layout.annotations[2].text == "sequence 1, layer 0"
    assert figure.layout.yaxis3.domain[1] < figure.layout.yaxis.domain[0]
    assert [np.shape(trace.z) for trace in attngeo.plot("item-attention", rows, where={"sequence": 3}).data] == [
        (3, 3)
    ] * 2


def test_vectors_are_maps_of_items_and_numbers_for_each_head() -> None:
    rows = pd.DataFrame(
        [
            {"item": item, "vector": vector, "head": head, "number": number,
             "value": (1 if vector == "key" else -1) * (at + 10 * head + 0.1 * number)}
            for vector in ("query", "key", "value") for head in range(2) for number in range(3)
            for at, item in enumerate(("tea", "<b>"))
        ]
    )  # fmt: skip
    figure = attngeo.plot("item-vectors", rows)
    assert [note.text for note in figure.layout.annotations] == [
        f"{vector}, head {head}" for head in range(2) for vector in ("query", "key", "value")
    ]
    maps = {(trace.xaxis, trace.yaxis): trace for trace in figure.data}
    np.testing.assert_allclose(maps["x5", "y5"].z, [[10, 10.1, 10.2], [11, 11.1, 11.2]], rtol=1e-6)  # key, head 1
    np.testing.assert_allclose(maps["x", "y"].z, [[0, -0.1, -0.2], [-1, -1.1, -1.2]], rtol=1e-6)  # query, head 0
    assert list(figure.layout.yaxis.ticktext) == ["tea", "&lt;b&gt;"]
    assert figure.layout.xaxis.showticklabels is False  # those of the lowest panels are for all
    assert figure.layout.xaxis4.showticklabels is not False
    assert figure.layout.coloraxis.cmax == -figure.layout.coloraxis.cmin == pytest.approx(11.2)
    keys = attngeo.plot("item-vectors", rows, where={"vector": "key"})
    assert len(keys.data) == 2
    with refuses(UsageError, "query", "key", "value"):
        draw_item_vectors(rows.assign(vector="center"), PlotOptions())
