"""How the heads of a layer add up: rows of `attngeo score` with the growths of whole layers."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError
from attngeo.figures.fit import BELOW, PANEL_TITLE_HEIGHT, TITLE_HEIGHT
from attngeo.figures.grid import PANEL_TITLE
from attngeo.figures.kinds import GROWTHS, SHARES, PlotOptions
from attngeo.figures.names import name_form
from attngeo.figures.style import (
    GUIDE,
    MAGNITUDE,
    MOST_TICKS,
    OTHER,
    SIGNED,
    Panel,
    choose_ticks,
    compose_title,
    finish_figure,
    hover_of,
    label_of,
    split_panels,
)

# Pixels: the height of a line of panels, the room between two of them and around all.
PANEL_HEIGHT, BETWEEN, AROUND = 200, 50, 200
# What belongs to the symmetric parts of heads has the colour of symmetric forms, what belongs to the others that of
# skew-symmetric ones.
COLOURS = {
    "symmetric_growth": SIGNED[-1][1],
    "antisymmetric_growth": SIGNED[0][1],
    "own_symmetry": MAGNITUDE[1][1],
    "agreement": SIGNED[-1][1],
    "cancellation": SIGNED[0][1],
}
MARKERS = {"symmetric_growth": "circle", "antisymmetric_growth": "diamond"}


def draw_growths(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The growths of whole layers against the layer, and beside them the three shares of the symmetry of each layer.

    Args:
        rows: rows of `attngeo.score`: model, stack, layer, head, symmetry, and the scores in `GROWTHS` and `SHARES`.
        options: unused; all kinds accept them.

    Returns:
        A figure with a line of two panels for each stack of each model. At the left, a dotted line is at 1, the growth
        of unrelated heads. At the right, bars are stacked: what is above 0 and what is below it add up to the symmetry
        of the layer, the line.

    Raises:
        DataError: no layer has growths.
    """
    layers = rows[rows["head"].isna()].sort_values("layer", kind="stable")
    if layers[[*GROWTHS, *SHARES]].isna().all(axis=None):
        raise DataError('no layer has growths; the column "note" says why')
    panels = split_panels(layers)
    height = len(panels) * (PANEL_HEIGHT + BETWEEN) - BETWEEN + AROUND
    titles: list[str] = []
    for panel in panels:
        titles += [panel.name or "growths", "" if panel.name else "shares of the symmetry"]
    figure = make_subplots(
        rows=len(panels),
        cols=2,
        shared_xaxes="all",
        shared_yaxes="columns",
        horizontal_spacing=0.09,
        vertical_spacing=BETWEEN / (height - AROUND) if len(panels) > 1 else 0,
        subplot_titles=titles,
    )
    figure.update_annotations(font_size=PANEL_TITLE)
    for number, panel in enumerate(panels, 1):
        _add_growths(figure, panel, number)
        _add_shares(figure, panel, number)
    figure.add_hline(y=1, line={"color": GUIDE, "width": 1, "dash": "dot"}, col=1)
    figure.update_yaxes(title="growth", rangemode="tozero", col=1)
    figure.update_yaxes(title="symmetry", zerolinecolor=GUIDE, col=2)
    figure.update_xaxes(choose_ticks(pd.Index(layers["layer"]), MOST_TICKS // 2))
    figure.update_xaxes(title="layer", row=len(panels))
    figure.update_layout(barmode="relative", legend=BELOW)
    if len(panels) > 1:
        figure.update_layout(height=height)
    title = compose_title(rows, f"how the heads of {name_form(rows)} add up in each layer")
    details = "growth: 1 if heads are unrelated; own + agreement + cancellation = symmetry"
    return finish_figure(figure, title, details, top=TITLE_HEIGHT + PANEL_TITLE_HEIGHT)


def _add_growths(figure: go.Figure, panel: Panel, number: int) -> None:
    """Add the growths of one stack, in the left panel of a line."""
    for score in GROWTHS:
        figure.add_scatter(
            x=[int(layer) for layer in panel.rows["layer"]],
            y=panel.rows[score].astype("float32"),
            mode="lines+markers",
            line={"color": COLOURS[score], "width": 2},
            marker={"symbol": MARKERS[score], "size": 7},
            hovertemplate=f"{panel.hover}, layer %{{x}}<br>{hover_of(score)}<extra></extra>",
            name=label_of(score),
            legendgroup=score,
            showlegend=number == 1,
            row=number,
            col=1,
        )


def _add_shares(figure: go.Figure, panel: Panel, number: int) -> None:
    """Add the shares of the symmetry of one stack, stacked, and the symmetry, in the right panel of a line."""
    layers = [int(layer) for layer in panel.rows["layer"]]
    for score in SHARES:
        figure.add_bar(
            x=layers,
            y=panel.rows[score].astype("float32"),
            marker={"color": COLOURS[score], "opacity": 0.75},
            hovertemplate=f"{panel.hover}, layer %{{x}}<br>{hover_of(score)}<extra></extra>",
            name=label_of(score),
            legendgroup=score,
            showlegend=number == 1,
            row=number,
            col=2,
        )
    figure.add_scatter(
        x=layers,
        y=panel.rows["symmetry"].astype("float32"),
        mode="lines+markers",
        line={"color": OTHER, "width": 1.5},
        marker={"symbol": "square", "size": 6},
        hovertemplate=f"{panel.hover}, layer %{{x}}<br>{hover_of('symmetry')}<extra></extra>",
        name=label_of("symmetry"),
        legendgroup="symmetry",
        showlegend=number == 1,
        row=number,
        col=2,
    )
