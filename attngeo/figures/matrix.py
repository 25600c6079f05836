"""One W_qk as a picture, with the norms of its rows and columns at the margins."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.figures.common import finished, plain
from attngeo.figures.palette import GUIDE, MAGNITUDE, MARKED

# Points of a margin's line; outliers are marked besides, each of them.
MARGIN_POINTS = 1024


def matrix_map(cells: pd.DataFrame, norms: pd.DataFrame) -> go.Figure:
    """|W_qk| as shades, row norms to its right and column norms above it, those that stand out marked.

    cells, norms: of `attngeo.scores.matrix.query_key_matrix`. Shades run to the 99.5th percentile, beyond which all is
    black, so that a few large entries do not leave the rest white.
    Source: Saponati et al. 2025, Fig. 2 (examples).
    """
    about = cells.attrs
    figure = make_subplots(
        rows=2, cols=2, column_widths=[0.84, 0.16], row_heights=[0.16, 0.84], shared_xaxes=True, shared_yaxes=True,
        horizontal_spacing=0.015, vertical_spacing=0.015,
    )  # fmt: skip
    edge = about["edge"]
    span = f" and the {edge - 1} after it" if edge > 1 else ""
    figure.add_heatmap(
        z=cells.to_numpy(dtype="float32"), x=cells.columns, y=cells.index, colorscale=MAGNITUDE, zmin=0,
        zmax=float(np.quantile(cells.to_numpy(), 0.995)), colorbar={"title": "largest |entry|", "x": 1.02},
        hovertemplate=f"row %{{y}}{span}<br>column %{{x}}{span}<br>largest |entry| %{{z:.3g}}<extra></extra>",
        row=2, col=1,
    )  # fmt: skip
    for axis, place in (("column", {"row": 1, "col": 1}), ("row", {"row": 2, "col": 2})):
        own = norms[norms["axis"] == axis]
        _margin(figure, own, axis, place)
    side = "layer" if about["head"] is None else f"head {about['head']} of layer"
    figure.update_xaxes(title="column (key dimension)", row=2, col=1)
    figure.update_yaxes(title="row (query dimension)", row=2, col=1)
    width = len(cells) * edge
    figure.update_xaxes(range=[-0.5, width - 0.5], col=1)
    figure.update_yaxes(range=[width - 0.5, -0.5], row=2)
    # The 0 of this axis would lie on that of the rows.
    figure.update_yaxes(title="norm", rangemode="tozero", ticklabelshift=-7, row=1, col=1)
    figure.update_xaxes(title="norm", rangemode="tozero", row=2, col=2)
    counts = {axis: int(norms.loc[norms["axis"] == axis, "outlier"].sum()) for axis in ("row", "column")}
    figure.update_layout(height=720)
    return finished(
        figure, f"{plain(about['model'])}: |W_qk| of {side} {about['layer']} ({plain(about['stack'])})",
        f"{counts['row']} rows and {counts['column']} columns stand out, by {about['gamma']:g} standard deviations",
    )  # fmt: skip


def _margin(figure: go.Figure, norms: pd.DataFrame, axis: str, place: dict[str, int]) -> None:
    """The largest norm of every few, as a line, and every outlier as a point."""
    width = -(-len(norms) // MARGIN_POINTS)
    largest = norms.loc[norms.groupby(norms["index"] // width)["norm"].idxmax()]
    outliers = norms[norms["outlier"]]
    for some, look in (
        (largest, {"mode": "lines", "line": {"color": GUIDE, "width": 1}}),
        (outliers, {"mode": "markers", "marker": {"color": MARKED, "size": 5}}),
    ):
        at, norm = some["index"].to_numpy("int32"), some["norm"].to_numpy("float32")
        x, y = (at, norm) if axis == "column" else (norm, at)
        where, value = ("%{x}", "%{y:.4g}") if axis == "column" else ("%{y}", "%{x:.4g}")
        figure.add_scatter(
            x=x, y=y, showlegend=False, hovertemplate=f"{axis} {where}<br>norm {value}<extra></extra>", **look, **place
        )
