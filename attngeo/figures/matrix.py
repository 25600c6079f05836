"""The entries of one query-key matrix with the norms of its rows and columns, and the outliers of many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.figures.kinds import PlotOptions
from attngeo.figures.names import FORM, escape_name
from attngeo.figures.style import GUIDE, MAGNITUDE, MARKED, finish_figure

# Points of the line in a margin; every outlier has a point of its own besides.
MARGIN_POINTS = 1024
# The quantile at which the shades end, so that a few large entries do not leave all others white.
DARKEST = 0.995


def draw_matrix(cells: pd.DataFrame, norms: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001
    """|W_qk| as shades, with row norms at the right and column norms on top; outliers are marked.

    The shades end at the 99.5th percentile; all larger entries are black.
    Source: Saponati et al. 2025, Fig. 2 (examples).

    Args:
        cells: the first table of `attngeo.query_key_matrix`, whose `attrs` name the matrix.
        norms: the second table of `attngeo.query_key_matrix`.
        options: unused; all kinds accept them.

    Returns:
        A figure of the matrix and its two margins.
    """
    matrix = cells.attrs
    figure = make_subplots(
        rows=2,
        cols=2,
        column_widths=[0.84, 0.16],
        row_heights=[0.16, 0.84],
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.015,
        vertical_spacing=0.015,
    )
    edge = matrix["edge"]
    span = f" and the next {edge - 1}" if edge > 1 else ""
    figure.add_heatmap(
        z=cells.to_numpy(dtype="float32"),
        x=cells.columns,
        y=cells.index,
        colorscale=MAGNITUDE,
        zmin=0,
        zmax=float(np.quantile(cells.to_numpy(), DARKEST)),
        colorbar={"title": "largest |entry|", "x": 1.02},
        hovertemplate=f"row %{{y}}{span}<br>column %{{x}}{span}<br>largest |entry| %{{z:.3g}}<extra></extra>",
        row=2,
        col=1,
    )
    _add_margin(figure, norms[norms["axis"] == "column"], "column", {"row": 1, "col": 1})
    _add_margin(figure, norms[norms["axis"] == "row"], "row", {"row": 2, "col": 2})
    width = len(cells) * edge
    figure.update_xaxes(title="column (key dimension)", row=2, col=1)
    figure.update_yaxes(title="row (query dimension)", row=2, col=1)
    figure.update_xaxes(range=[-0.5, width - 0.5], col=1)
    figure.update_yaxes(range=[width - 0.5, -0.5], row=2)
    # The label 0 of this axis would cover that of the rows.
    figure.update_yaxes(title="norm", rangemode="tozero", ticklabelshift=-7, row=1, col=1)
    figure.update_xaxes(title="norm", rangemode="tozero", nticks=2, tickangle=0, row=2, col=2)
    figure.update_layout(height=720)
    outliers = norms[norms["outlier"]]["axis"].value_counts()
    name = f"layer {matrix['layer']}"
    if matrix["head"] is not None:
        name = f"head {matrix['head']} of {name}"
    title = f"{escape_name(matrix['model'])}: |{FORM}| of {name} ({escape_name(matrix['stack'])})"
    details = (
        f"outliers: {outliers.get('row', 0)} rows and {outliers.get('column', 0)} columns with a norm above "
        f"mean + {matrix['gamma']:g}·std"
    )
    return finish_figure(figure, title, details)


def _add_margin(figure: go.Figure, norms: pd.DataFrame, axis: str, subplot: dict[str, int]) -> None:
    """Add norms as a line, of every few the largest, and each outlier as a point."""
    step = -(-len(norms) // MARGIN_POINTS)
    largest = norms.loc[norms.groupby(norms["index"] // step)["norm"].idxmax()]
    line: dict[str, Any] = {"mode": "lines", "line": {"color": GUIDE, "width": 1}}
    markers: dict[str, Any] = {"mode": "markers", "marker": {"color": MARKED, "size": 5}}
    for rows, style in ((largest, line), (norms[norms["outlier"]], markers)):
        positions = rows["index"].to_numpy("int32")
        values = rows["norm"].to_numpy("float32")
        if axis == "column":
            points = {"x": positions, "y": values, "hovertemplate": "column %{x}<br>norm %{y:.4g}<extra></extra>"}
        else:
            points = {"x": values, "y": positions, "hovertemplate": "row %{y}<br>norm %{x:.4g}<extra></extra>"}
        figure.add_scatter(showlegend=False, **points, **style, **subplot)


def draw_outliers(counts: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """The number of layers or heads in which each row and column of W_qk is an outlier.

    Points are marked if chance gives less than one.

    Args:
        counts: table of `attngeo.scores.matrices.count_outliers`, whose `attrs` name the model.
        options: `over` chooses layers or heads.

    Returns:
        A figure of two panels: rows, and columns.
    """
    unit = options.over
    total = counts.attrs[f"of_{unit}"]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    marked = []
    for panel, axis in enumerate(("row", "column"), 1):
        outliers = counts[(counts["axis"] == axis) & (counts[unit] > 0)]
        is_marked = outliers[f"{unit}_chance"] < 1
        marked.append(f"{int(is_marked.sum())} {axis}s")
        for rows, colour in ((outliers[~is_marked], GUIDE), (outliers[is_marked], MARKED)):
            figure.add_scatter(
                x=rows["index"],
                y=rows[unit],
                mode="markers",
                marker={"color": colour, "size": 5},
                showlegend=False,
                customdata=rows[["layers", "heads", f"{unit}_chance"]],
                hovertemplate=f"{axis} %{{x}}<br>outlier in %{{customdata[0]}} of {counts.attrs['of_layers']} layers, "
                f"%{{customdata[1]}} of {counts.attrs['of_heads']} heads<br>"
                f"expected by chance in this many {unit}: %{{customdata[2]:.2g}} {axis}s<extra></extra>",
                row=panel,
                col=1,
            )
        figure.update_yaxes(title=f"{unit} ({axis}s)", range=[0, total * 1.05], row=panel, col=1)
        figure.update_xaxes(range=[-0.5, counts.attrs["d_model"] - 0.5], row=panel, col=1)
    figure.update_xaxes(title="row (query dimension), column (key dimension)", row=2, col=1)
    details = (
        f"norm above mean + {counts.attrs['gamma']:g}·std; "
        f"marked: {' and '.join(marked)} that are outliers in more {unit} than chance explains (expected: fewer than 1)"
    )
    stack = escape_name(counts["stack"].iloc[0]) if len(counts) else ""
    title = f"{escape_name(counts.attrs['model'])}: outliers of {FORM} in {total} {unit} ({stack})"
    return finish_figure(figure, title, details)
