"""Scores as a notebook shows them."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from support.messages import refuses

import attngeo
from attngeo.errors import DataError


def test_a_notebook_sees_the_scores_with_bars() -> None:
    rows = attngeo.score("demo:encoder", per_head=True)
    page = attngeo.style(rows).to_html()
    titles = re.findall(r"<th id=[^>]*>(\w+)</th>", page)
    assert titles == ["model", "stack", "layer", "head", "symmetry", "directionality", "frobenius_norm"]
    symmetries = re.findall(r'<td id="[^"]*_col4"[^>]*>([^<]*)</td>', page)
    assert [float(text) for text in symmetries] == pytest.approx(rows["symmetry"].tolist(), abs=5e-4)
    assert len(re.findall("linear-gradient", page)) >= 2 * len(rows) - 5
    assert "nan" not in page.lower()


def test_columns_without_values_are_left_out_and_notes_are_shown() -> None:
    layers = attngeo.score("demo:encoder")
    assert "head" not in attngeo.style(layers).data
    noted = attngeo.score("demo:encoder", gamma=3.0)
    assert attngeo.style(noted).data["note"].unique().tolist() == ["gamma 3"]


def test_rows_without_scores_are_refused() -> None:
    with refuses(DataError, "symmetry", "attngeo.score"):
        attngeo.style(pd.DataFrame({"model": ["a"]}))
