"""Where heads look by position alone: rows of `attngeo positions`, of one model or of several joined."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from attngeo.choices import one_of
from attngeo.errors import DataError
from attngeo.figures.kinds import KERNEL, PlotOptions
from attngeo.figures.maps import lay_out, room_above, stack_panels
from attngeo.figures.style import (
    MAGNITUDE,
    SIGNED,
    choose_ticks,
    compose_title,
    finish_figure,
    split_panels,
)


def draw_position_map(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The share of fast rotary pairs as a map of layers × heads; one panel per stack and model.

    Missing values are grey.

    Args:
        rows: rows of `attngeo positions`: model, stack, layer, head, fast_share.
        options: unused; all kinds accept them.

    Raises:
        DataError: no head has a share, as in models without rotary embeddings.
    """
    if rows["fast_share"].isna().all():
        raise DataError("no head has a fast share, which only rotary embeddings have; draw position-kernel instead")
    panels = split_panels(rows)
    figure, heights = stack_panels(panels)
    for number, panel in enumerate(panels, 1):
        table = panel.rows.pivot_table(index="layer", columns="head", values="fast_share", dropna=False)
        figure.add_heatmap(
            z=table.to_numpy(dtype="float32", na_value=np.nan),
            x=[int(head) for head in table.columns],
            y=[int(layer) for layer in table.index],
            coloraxis="coloraxis",
            hoverongaps=False,
            hovertemplate=f"{panel.hover}, layer %{{y}}, head %{{x}}<br>fast share %{{z:.3f}}<extra></extra>",
            row=number,
            col=1,
        )
        figure.update_xaxes(choose_ticks(table.columns), row=number, col=1)
        figure.update_yaxes(choose_ticks(table.index), title="layer", row=number, col=1)
    bar = {"title": {"text": "fast share", "side": "right"}}
    largest = float(rows["fast_share"].max())
    lay_out(figure, heights, {"colorscale": MAGNITUDE, "cmin": 0, "cmax": largest, "colorbar": bar}, "head")
    title = compose_title(rows, "share of the fastest quarter of the rotary pairs")
    return finish_figure(figure, title, top=room_above(panels))


def draw_kernels(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """The position kernel of the heads of one layer as a map of heads × offsets; one panel per stack and model.

    Each head's kernel is shown relative to its mean over these offsets, in units of its largest distance from that
    mean, because heads differ far more in size than in shape. Hover texts show the kernel itself.

    Args:
        rows: rows of `attngeo positions`: model, stack, layer, head, kernel_0 … kernel_8.
        options: `layer` chooses the layer.

    Raises:
        UsageError: the rows lack the layer.
        DataError: no head of the layer has a kernel.
    """
    layers = [str(known) for known in sorted(rows["layer"].unique())]
    one_of("layer", str(options.layer), layers)
    heads = rows[rows["layer"] == options.layer]
    if heads[list(KERNEL)].isna().all(axis=None):
        raise DataError(f'no head of layer {options.layer} has a position kernel; the column "note" says why')
    panels = split_panels(heads)
    figure, heights = stack_panels(panels)
    for number, panel in enumerate(panels, 1):
        kernel = panel.rows[list(KERNEL)].to_numpy(dtype="float64", na_value=np.nan)
        figure.add_heatmap(
            z=_compare_offsets(kernel).astype("float32"),
            x=list(range(len(KERNEL))),
            y=[int(head) for head in panel.rows["head"]],
            customdata=kernel.astype("float32"),
            coloraxis="coloraxis",
            hoverongaps=False,
            hovertemplate=f"{panel.hover}, head %{{y}}<br>κ(%{{x}}) %{{customdata:.4g}}<extra></extra>",
            row=number,
            col=1,
        )
        figure.update_xaxes(tickvals=list(range(len(KERNEL))), row=number, col=1)
        figure.update_yaxes(choose_ticks(pd.Index(panel.rows["head"])), title="head", row=number, col=1)
    bar = {"title": {"text": "κ relative to its mean", "side": "right"}, "tickvals": [-1, 0, 1]}
    offset = "tokens back: query position − key position"
    lay_out(figure, heights, {"colorscale": SIGNED, "cmin": -1, "cmax": 1, "colorbar": bar}, offset)
    title = compose_title(heads, f"position kernel of the heads of layer {options.layer}")
    return finish_figure(figure, title, top=room_above(panels))


def _compare_offsets(kernel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each row [heads, offsets] less its mean, over the largest distance from it; 0 if all are equal."""
    is_known = ~np.isnan(kernel)
    counts = np.maximum(is_known.sum(axis=1, keepdims=True), 1)
    means = np.where(is_known, kernel, 0).sum(axis=1, keepdims=True) / counts
    distances = kernel - means
    largest = np.where(is_known, abs(distances), 0).max(axis=1, keepdims=True)
    shares: NDArray[np.float64] = distances / np.where(largest > 0, largest, 1)
    return shares
