"""The figure of a place's attention on others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.messages import refuses

import attngeo
from attngeo.errors import DataError, UsageError
from attngeo.figures.estimators import MOST_PLACES_NAMED, draw_place_attention
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.style import MARKED

PLACES = {"A": (30.0, -100.0), "B<1>": (50.0, -80.0), "C": (40.0, -120.0), "D": (40.01, -120.0)}


def list_rows(layers: int = 1, lags: int = 1) -> pd.DataFrame:
    """The weights of each masked place on each; the last place has the largest."""
    return pd.DataFrame(
        [
            {"place": place, "attended_place": other, "latitude": PLACES[other][0], "longitude": PLACES[other][1],
             "layer": layer, "lag": lag, "weight": (0.1 + 0.1 * at) / lags}
            for layer in range(layers) for lag in range(lags) for place in PLACES for at, other in enumerate(PLACES)
        ]
    )  # fmt: skip


def find_traces(figure: Any) -> tuple[Any, Any]:
    """The points of other places and that of the masked place, of the first layer."""
    traces = list(figure.select_traces({"xaxis": "x"}))
    [masked] = [trace for trace in traces if isinstance(trace.marker.color, str)]
    [others] = [trace for trace in traces if trace is not masked]
    return others, masked


def test_points_are_at_their_places_and_their_areas_are_weights() -> None:
    rows = list_rows()
    figure = attngeo.plot("place-attention", rows, where={"place": "A"})
    others, masked = find_traces(figure)
    assert {trace.type for trace in figure.data} == {"scatter"}  # maps of plotly are downloaded
    assert list(others.customdata) == ["D", "C", "B&lt;1&gt;"]
    assert list(zip(others.y, others.x, strict=True)) == [PLACES["D"], PLACES["C"], PLACES["B<1>"]]
    areas = np.square(others.marker.size)
    np.testing.assert_allclose(areas / areas[0], np.array([0.4, 0.3, 0.2]) / 0.4)
    np.testing.assert_allclose(others.marker.color, [0.4, 0.3, 0.2])
    assert (list(masked.y), list(masked.x), masked.marker.color) == ([30], [-100], MARKED)
    assert figure.layout.title.text.startswith("attention of A (masked)")
    middle = math.radians((30 + 50) / 2)
    assert figure.layout.yaxis.scaleratio == pytest.approx(1 / math.cos(middle))
    assert figure.layout.yaxis.scaleanchor == "x"


def test_the_places_of_the_largest_weights_are_named() -> None:
    rows = list_rows()
    others, masked = find_traces(attngeo.plot("place-attention", rows, where={"place": "A"}))
    assert (list(others.text), list(masked.text)) == (["D", "C", "B&lt;1&gt;"], ["<b>A</b>"])
    around = rows[rows["place"] == "A"].assign(weight=0.1)
    crowd = pd.concat([around.assign(attended_place=around["attended_place"] + str(at)) for at in range(6)])
    others, _ = find_traces(draw_place_attention(crowd.assign(place="A0"), PlotOptions()))
    assert len([name for name in others.text if name]) == MOST_PLACES_NAMED < len(others.text)


def test_layers_are_panels_and_earlier_times_are_added() -> None:
    rows = list_rows(layers=3, lags=2)
    own = rows[rows["place"] == "C"]
    figure = draw_place_attention(own, PlotOptions())
    assert [len(trace.x) for trace in figure.data] == [3, 1] * 3
    others, _ = find_traces(figure)
    np.testing.assert_allclose(others.marker.color, [0.4, 0.2, 0.1])
    assert {note.text for note in figure.layout.annotations} >= {"layer 0", "layer 1", "layer 2"}
    assert "earlier times" in figure.layout.title.text
    single = draw_place_attention(own[(own["layer"] == 1) & (own["lag"] == 0)], PlotOptions())
    assert "layer 1" in single.layout.title.text
    assert "earlier" not in single.layout.title.text


def test_one_masked_place_with_others_is_required() -> None:
    with refuses(UsageError, 4, "where", "place", "C"):
        draw_place_attention(list_rows(), PlotOptions())
    rows = list_rows()
    with refuses(DataError, "A"):
        draw_place_attention(rows[(rows["place"] == "A") & (rows["attended_place"] == "A")], PlotOptions())
