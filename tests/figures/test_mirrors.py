"""The map of mirrors: its order, its marks, and what it cannot draw."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import attngeo
from attngeo.errors import DataError, UsageError

COSINE = "antisymmetric_cosine"


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Two layers of four heads: 0 and 2, 1 and 3 are partners in one; 1 and 2 in the other."""
    pairs = [
        (0, 0, 1, 0.1, False), (0, 0, 2, 0.3, True), (0, 0, 3, 0.0, False), (0, 1, 2, 0.2, False),
        (0, 1, 3, -0.9, True), (0, 2, 3, np.nan, False), (1, 0, 1, 0.1, False), (1, 0, 2, 0.1, False),
        (1, 0, 3, 0.1, False), (1, 1, 2, -0.4, True), (1, 1, 3, 0.1, False), (1, 2, 3, 0.1, False),
    ]  # fmt: skip
    frame = pd.DataFrame(pairs, columns=["layer", "head", "other_head", COSINE, "is_partner"])
    return frame.assign(model="m", stack="encoder", other_layer=frame["layer"], mirror=0.5, twin=0.25)


def test_partners_are_neighbours_the_strongest_first_and_marked(rows: pd.DataFrame) -> None:
    figure = attngeo.plot("mirror-map", rows, layer=0)
    heat, marks = figure.data
    assert figure.layout.xaxis.ticktext == figure.layout.yaxis.ticktext == ("1", "3", "0", "2")
    table = np.array(heat.z)
    np.testing.assert_array_equal(table, table.T)
    np.testing.assert_allclose(table[0], [np.nan, -0.9, 0.1, 0.2], rtol=1e-6)
    assert np.isnan(table[1, 3])
    assert sorted(zip(marks.x, marks.y, strict=True)) == [(0, 1), (1, 0), (2, 3), (3, 2)]
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (-0.9, 0.9)
    assert np.array(heat.customdata)[0, 1].tolist() == [1, 3, 0.5, 0.25]


def test_heads_without_partners_come_last_and_other_layers_are_left_out(rows: pd.DataFrame) -> None:
    across = rows.iloc[:1].assign(other_layer=1)
    figure = attngeo.plot("mirror-map", pd.concat([rows, across], ignore_index=True), layer=1)
    assert figure.layout.xaxis.ticktext == ("1", "2", "0", "3")
    assert "layer 0" in attngeo.plot("mirror-map", rows).layout.title.text


def test_what_cannot_be_drawn_says_why(rows: pd.DataFrame) -> None:
    with pytest.raises(UsageError, match="layer"):
        attngeo.plot("mirror-map", rows, layer=5)
    with pytest.raises(DataError, match="one layer"):
        attngeo.plot("mirror-map", rows.assign(other_layer=7))
    with pytest.raises(DataError, match="no pair"):
        attngeo.plot("mirror-map", rows.assign(**{COSINE: np.nan}))
    with pytest.raises(DataError, match="two rows"):
        attngeo.plot("mirror-map", pd.concat([rows, rows]))
