"""The scores of attention layer by layer and head by head.

Functions take rows of `attngeo.score(model, per_head=True)`, of one model or of several joined.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.style import (
    DASHES,
    MISSING,
    SIGNED,
    SYMBOLS,
    Panel,
    add_band,
    add_chance_line,
    axis_title_of,
    chance_of,
    choose_ticks,
    compose_title,
    escape_name,
    finish_figure,
    hover_of,
    label_of,
    number_format_of,
    quartiles_by,
    split_panels,
    tell_apart,
)

# Pixels: the height of a cell, the least height of a panel, and the room between panels and around them.
CELL_HEIGHT, LEAST_HEIGHT, BETWEEN, AROUND = 18, 160, 70, 130
# With more points than this, a browser draws on a canvas instead of making one element for each.
MANY_POINTS = 5_000
# The column of a pivot table that holds whole layers, which have no head.
WHOLE_LAYER = -1


def draw_heatmap(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """One score as a map of layers × heads, with the whole layers beside it; one panel for each stack and model.

    White is the chance level; the colours end at the value that is furthest from it, rounded up to a tenth. Missing
    scores are grey.

    Args:
        rows: rows of `attngeo.score`: model, stack, layer, head, and the score.
        options: `score` names the score.

    Returns:
        A figure of two columns: whole layers, and heads.
    """
    score = options.score
    panels = split_panels(rows)
    heights = [max(panel.rows["layer"].nunique() * CELL_HEIGHT, LEAST_HEIGHT) for panel in panels]
    titles = []
    for panel in panels:
        titles += ["", panel.name]
    widest_spacing = 0.9 / max(len(panels) - 1, 1)
    figure = make_subplots(
        rows=len(panels),
        cols=2,
        column_widths=[0.06, 0.94],
        horizontal_spacing=0.012,
        vertical_spacing=min(widest_spacing, 90 / (sum(heights) + AROUND)),
        row_heights=heights,
        shared_yaxes=True,
        subplot_titles=titles,
    )
    for row, panel in enumerate(panels, 1):
        _add_map(figure, panel, score, row)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    middle = chance_of(score)
    largest = float((rows[score] - middle).abs().max())
    reach = math.ceil(largest * 10) / 10 if largest > 0 else 1.0
    bar = {"title": {"text": label_of(score), "side": "right"}}
    figure.update_layout(
        coloraxis={"colorscale": SIGNED, "cmin": middle - reach, "cmax": middle + reach, "colorbar": bar},
        height=sum(heights) + AROUND + BETWEEN * (len(panels) - 1),
        plot_bgcolor=MISSING,
    )
    return finish_figure(figure, compose_title(rows, f"{label_of(score)} of W_qk"))


def _add_map(figure: go.Figure, panel: Panel, score: str, row: int) -> None:
    """Add the whole layers of one stack in the first column of subplots, its heads in the second."""
    heads_or_whole = panel.rows["head"].astype("Float64").fillna(WHOLE_LAYER)
    table = panel.rows.assign(head=heads_or_whole).pivot_table(
        index="layer", columns="head", values=score, aggfunc="first", dropna=False
    )
    layers = table.loc[:, table.columns == WHOLE_LAYER]
    heads = table.loc[:, table.columns != WHOLE_LAYER]
    for column, cells, names, hover in (
        (1, layers, ["all"], "whole layer"),
        (2, heads, [int(head) for head in heads.columns], "head %{x}"),
    ):
        if cells.empty:
            continue
        figure.add_heatmap(
            z=cells.to_numpy(dtype="float32", na_value=np.nan),
            y=[int(layer) for layer in cells.index],
            x=names,
            coloraxis="coloraxis",
            hoverongaps=False,
            row=row,
            col=column,
            hovertemplate=f"{panel.hover}, layer %{{y}}, {hover}<br>{hover_of(score, 'z')}<extra></extra>",
        )
    figure.update_xaxes(showgrid=False, tickvals=["all"], row=row, col=1)
    if not heads.empty:
        figure.update_xaxes(title="head", showgrid=False, **choose_ticks(heads.columns), row=row, col=2)
    figure.update_yaxes(title="layer", **choose_ticks(table.index), row=row, col=1)


def draw_layers(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """One score against the layer: a line for the whole layers of each stack, a band for the quartiles of its heads.

    Args:
        rows: rows of `attngeo.score`: model, stack, layer, head, and the score.
        options: `score` names the score.

    Returns:
        A figure of one line for each stack of each model.
    """
    score = options.score
    number_format = number_format_of(score)
    figure = go.Figure()
    for panel in split_panels(rows):
        colour, dash = tell_apart(panel, DASHES)
        name = panel.name or escape_name(panel.stack)
        is_head = panel.rows["head"].notna()
        heads = quartiles_by(panel.rows[is_head], "layer", score).astype("float32")
        if not heads.empty:
            add_band(figure, heads["lower"], heads["upper"], colour, name)
        layers = panel.rows[~is_head].set_index("layer")[score].astype("float32")
        figure.add_scatter(
            x=layers.index,
            y=layers,
            name=name,
            legendgroup=name,
            mode="lines+markers",
            line={"color": colour, "width": 2.5, "dash": dash},
            marker={"size": 6},
            customdata=heads.reindex(layers.index).to_numpy(dtype="float32", na_value=np.nan),
            hovertemplate=f"{panel.hover}, layer %{{x}}<br>"
            f"{hover_of(score)}<br>its heads: median %{{customdata[1]:{number_format}}}, "
            f"quartiles %{{customdata[0]:{number_format}}} to %{{customdata[2]:{number_format}}}<extra></extra>",
        )
    add_chance_line(figure, score)
    figure.update_layout(
        xaxis={"title": "layer", **choose_ticks(pd.Index(rows["layer"]))}, yaxis={"title": axis_title_of(score)}
    )
    return finish_figure(figure, compose_title(rows, f"{label_of(score)} of each layer, with quartiles over its heads"))


def draw_heads(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """One point for each head: its directionality against its symmetry.

    Args:
        rows: rows of `attngeo.score(model, per_head=True)`: model, stack, layer, head, symmetry, directionality.
        options: unused; every kind takes them.

    Returns:
        A figure of one colour and symbol for each stack of each model.

    Raises:
        DataError: there are no heads.
    """
    heads = rows[rows["head"].notna()]
    if heads.empty:
        raise DataError("the rows of heads are missing; write them with attngeo score --per-head")
    figure = go.Figure()
    trace = go.Scattergl if len(heads) > MANY_POINTS else go.Scatter
    for panel in split_panels(heads):
        colour, symbol = tell_apart(panel, SYMBOLS)
        points = trace(
            x=panel.rows["symmetry"].astype("float32"),
            y=panel.rows["directionality"].astype("float32"),
            mode="markers",
            name=panel.name or escape_name(panel.stack),
            marker={"color": colour, "symbol": symbol, "size": 7, "opacity": 0.65},
            customdata=panel.rows[["layer", "head"]].to_numpy(dtype="int32"),
            hovertemplate=f"{panel.hover}, layer %{{customdata[0]}}, "
            "head %{customdata[1]}<br>symmetry %{x:+.3f}<br>directionality %{y:+.3f}<extra></extra>",
        )
        figure.add_trace(points)
    add_chance_line(figure, "directionality")
    add_chance_line(figure, "symmetry", axis="x")
    figure.update_layout(xaxis_title=axis_title_of("symmetry"), yaxis_title=axis_title_of("directionality"))
    return finish_figure(figure, compose_title(rows, "symmetry and directionality of each head"))
