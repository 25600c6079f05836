"""The scores of attention, layer by layer and head by head.

Every function takes rows of `attngeo.score(model, per_head=True)`, of one model or of several joined.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError
from attngeo.figures.common import (
    add_chance_line,
    axis_title_of,
    chance_of,
    choose_ticks,
    compose_title,
    escape_name,
    finish_figure,
    label_of,
    name_panels,
    number_format_of,
    quartile_shares,
    split_panels,
)
from attngeo.figures.options import PlotOptions
from attngeo.figures.palette import DASHES, MISSING, SIGNED, SYMBOLS, fade, role_of, tell_apart

# Pixels: the height of a cell, the least height of a panel, and the room between panels and around them.
CELL_HEIGHT, LEAST_HEIGHT, BETWEEN, AROUND = 18, 160, 70, 130
# With more points than this, a browser draws on a canvas instead of making one element for each.
MANY_POINTS = 5_000
# The column of a pivot table that holds whole layers, which have no head.
WHOLE = -1


def draw_heatmap(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """One score as a map of layers × heads, with the whole layers beside it; one panel for each stack and model.

    White is the chance level; the colours end at the value that is furthest from it. Missing scores are grey.
    """
    score, names = options.score, name_panels(rows)
    panels = list(split_panels(rows))
    heights = [max(own["layer"].nunique() * CELL_HEIGHT, LEAST_HEIGHT) for _, _, own in panels]
    figure = make_subplots(
        rows=len(panels), cols=2, column_widths=[0.06, 0.94], horizontal_spacing=0.012,
        vertical_spacing=min(0.9 / max(len(panels) - 1, 1), 90 / (sum(heights) + AROUND)),
        row_heights=heights, shared_yaxes=True,
        subplot_titles=[part for name in names.values() for part in ("", name)],
    )  # fmt: skip
    for row, (model, stack, own) in enumerate(panels, 1):
        _add_map(figure, own, score, row, f"{escape_name(model)}<br>{escape_name(stack)}")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    middle, reach = chance_of(score), _furthest(rows[score], chance_of(score))
    figure.update_layout(
        coloraxis={
            "colorscale": SIGNED, "cmin": middle - reach, "cmax": middle + reach,
            "colorbar": {"title": {"text": label_of(score), "side": "right"}},
        },
        height=sum(heights) + AROUND + BETWEEN * (len(panels) - 1), plot_bgcolor=MISSING,
    )  # fmt: skip
    return finish_figure(figure, compose_title(rows, f"{label_of(score)} of W_qk"))


def _add_map(figure: go.Figure, own: pd.DataFrame, score: str, row: int, name: str) -> None:
    """The whole layers of one stack in the first column of subplots, its heads in the second."""
    table = own.assign(head=own["head"].astype("Float64").fillna(WHOLE)).pivot_table(
        index="layer", columns="head", values=score, aggfunc="first", dropna=False
    )
    is_layer = table.columns == WHOLE
    layers, heads = table.loc[:, is_layer], table.loc[:, ~is_layer]
    for column, part in ((1, layers), (2, heads)):
        if part.empty:
            continue
        hovered = "whole layer" if column == 1 else "head %{x}"
        figure.add_heatmap(
            z=part.to_numpy(dtype="float32", na_value=np.nan), y=[int(layer) for layer in part.index],
            x=["all"] if column == 1 else [int(head) for head in part.columns],
            coloraxis="coloraxis", hoverongaps=False, row=row, col=column,
            hovertemplate=f"{name}, layer %{{y}}, {hovered}<br>{label_of(score)} %{{z:{number_format_of(score)}}}"
            "<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(showgrid=False, tickvals=["all"], row=row, col=1)
    if not heads.empty:
        figure.update_xaxes(title="head", showgrid=False, **choose_ticks(heads.columns), row=row, col=2)
    figure.update_yaxes(title="layer", **choose_ticks(table.index), row=row, col=1)


def _furthest(values: pd.Series, middle: float) -> float:
    """The largest distance from the middle, rounded up to a tenth; 1 if there is no value."""
    largest = (values - middle).abs().max()
    return math.ceil(float(largest) * 10) / 10 if largest > 0 else 1.0


def draw_layers(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """One score against the layer: a line for the whole layers of each stack, a band for the quartiles of its heads."""
    score, names = options.score, name_panels(rows)
    figure = go.Figure()
    used: Counter[str] = Counter()
    for model, stack, own in split_panels(rows):
        colour, dash = tell_apart(stack, used[role_of(stack)], DASHES)
        used[role_of(stack)] += 1
        name = names[model, stack] or escape_name(stack)
        heads = _head_quartiles(own, score)
        _add_head_band(figure, heads, colour, name)
        layers = own[own["head"].isna()].set_index("layer")[score].astype("float32")
        number = number_format_of(score)
        figure.add_scatter(
            x=layers.index, y=layers, name=name, legendgroup=name, mode="lines+markers",
            line={"color": colour, "width": 2.5, "dash": dash}, marker={"size": 6},
            customdata=heads.reindex(layers.index).to_numpy(dtype="float32", na_value=np.nan),
            hovertemplate=f"{escape_name(model)}<br>{escape_name(stack)}, layer %{{x}}<br>"
            f"{label_of(score)} %{{y:{number}}}<br>its heads: median %{{customdata[1]:{number}}}, "
            f"quartiles %{{customdata[0]:{number}}} to %{{customdata[2]:{number}}}<extra></extra>",
        )  # fmt: skip
    add_chance_line(figure, score)
    figure.update_layout(
        xaxis={"title": "layer", **choose_ticks(pd.Index(rows["layer"]))}, yaxis={"title": axis_title_of(score)}
    )
    return finish_figure(figure, compose_title(rows, f"{label_of(score)} of each layer, with quartiles over its heads"))


def _head_quartiles(own: pd.DataFrame, score: str) -> pd.DataFrame:
    """The quartiles over the heads of each layer: columns lower, median and upper; empty without heads."""
    by_layer = own[own["head"].notna()].groupby("layer")[score]
    return pd.DataFrame({place: by_layer.quantile(share) for place, share in quartile_shares().items()}).astype(
        "float32"
    )


def _add_head_band(figure: go.Figure, heads: pd.DataFrame, colour: str, group: str) -> None:
    if heads.empty:
        return
    edge = {"mode": "lines", "line_width": 0, "showlegend": False, "hoverinfo": "skip", "legendgroup": group}
    figure.add_scatter(x=heads.index, y=heads["upper"], **edge)
    figure.add_scatter(x=heads.index, y=heads["lower"], fill="tonexty", fillcolor=fade(colour), **edge)


def draw_heads(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """One point for each head: its directionality against its symmetry. Raises DataError if there are no heads."""
    heads = rows[rows["head"].notna()]
    if heads.empty:
        raise DataError("the rows of heads are missing; write them with attngeo score --per-head")
    names = name_panels(rows)
    figure = go.Figure()
    used: Counter[str] = Counter()
    trace = go.Scattergl if len(heads) > MANY_POINTS else go.Scatter
    for model, stack, own in split_panels(heads):
        colour, symbol = tell_apart(stack, used[role_of(stack)], SYMBOLS)
        used[role_of(stack)] += 1
        figure.add_trace(trace(
            x=own["symmetry"].astype("float32"), y=own["directionality"].astype("float32"), mode="markers",
            name=names[model, stack] or escape_name(stack),
            marker={"color": colour, "symbol": symbol, "size": 7, "opacity": 0.65},
            customdata=own[["layer", "head"]].to_numpy(dtype="int32"),
            hovertemplate=f"{escape_name(model)}<br>{escape_name(stack)}, layer %{{customdata[0]}}, "
            "head %{customdata[1]}<br>symmetry %{x:+.3f}<br>directionality %{y:+.3f}<extra></extra>",
        ))  # fmt: skip
    add_chance_line(figure, "directionality")
    add_chance_line(figure, "symmetry", axis="x")
    figure.update_layout(xaxis_title=axis_title_of("symmetry"), yaxis_title=axis_title_of("directionality"))
    return finish_figure(figure, compose_title(rows, "symmetry and directionality of each head"))
