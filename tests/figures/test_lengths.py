"""Lengths on a screen and on paper."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from attngeo.errors import UsageError
from attngeo.figures.kinds import FigureSize, PlotOptions
from attngeo.figures.lengths import describe_pixels, is_on_paper, parse_length, to_pixels

parse = partial(parse_length, "width", 100, 10_000)


@pytest.mark.parametrize(
    ("length", "pixels"),
    [
        ("3.4in", 326.4), ("245pt", 326.666667), ("245 pt", 326.666667), ("8.6cm", 325.03937), ("86mm", 325.03937),
        ("2.54CM", 96), (".5in", 48), ("600", 600), ("600px", 600), (600, 600), (600.5, 600.5), (np.int64(600), 600),
    ],
)  # fmt: skip
def test_a_length_is_a_number_of_pixels(length: float | str, pixels: float) -> None:
    parsed = parse_length("width", 10, 10_000, length)
    assert to_pixels(parsed) == pytest.approx(pixels, abs=1e-6)
    assert is_on_paper(parsed) == (isinstance(length, str) and not length.startswith("600"))


@pytest.mark.parametrize(
    "length", ["3.4inch", "in", "", "3,4in", "-3in", "1e3", "3.4.5in", True, [3], "nan", "9" * 400]
)
def test_other_texts_are_refused_with_the_units(length: object) -> None:
    with pytest.raises(UsageError, match=r"width is .*3\.4in, 8\.6cm, 86mm or 245pt") as raised:
        parse(length)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("length", ["1in", 99, "74pt", "200in", 10_001, 3.4])
def test_lengths_outside_the_limits_are_refused_with_these(length: object) -> None:
    with pytest.raises(UsageError, match=r"width is .* 100 to 10,000 pixels \(75pt to 7,500pt\)"):
        parse(length)
    with pytest.raises(UsageError) as raised:
        parse(length)
    is_bare = not isinstance(length, str)
    assert ("without a unit is in pixels" in str(raised.value)) == is_bare
    for allowed in (100, 10_000, "75pt", "7500pt"):
        assert parse(allowed) == allowed


def test_a_size_is_given_in_its_own_unit() -> None:
    assert describe_pixels(288, "2.4in") == "3in"
    assert describe_pixels(288, "60mm") == "76.2mm"
    assert describe_pixels(288, 250) == "288 pixels"


def test_a_figure_on_paper_is_lower_than_wide() -> None:
    import plotly.graph_objects as go

    figure = go.Figure(layout={"height": 720})
    FigureSize(width=600).resize(figure)
    assert (figure.layout.width, figure.layout.height) == (600, 720)
    FigureSize(width="5in").resize(figure)
    assert (figure.layout.width, figure.layout.height) == (480, pytest.approx(336))
    FigureSize(width="5in", height="2in").resize(figure)
    assert (figure.layout.width, figure.layout.height) == (480, 192)
    FigureSize().resize(figure)
    assert (figure.layout.width, figure.layout.height) == (480, 192)


def test_the_type_has_limits() -> None:
    assert PlotOptions(font_size="8pt").font_size == "8pt"
    with pytest.raises(UsageError, match=r"font_size is '1pt', expected 4 to 100 pixels \(3pt to 75pt\)"):
        PlotOptions(font_size="1pt")
