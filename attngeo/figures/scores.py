"""The scores of attention layer by layer and head by head.

Functions take rows of `attngeo.score(model, per_head=True)`, of one model or of several joined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError
from attngeo.figures.fit import BELOW, PANEL_TITLE_HEIGHT, TITLE_HEIGHT
from attngeo.figures.grid import NAME_LENGTH, PANEL_TITLE, Subplot, choose_columns, make_grid, title_axes
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.names import name_form, shorten_names
from attngeo.figures.style import (
    DIGITS,
    FAINT,
    MAGNITUDE,
    MISSING,
    MOST_MODELS_TOGETHER,
    MOST_TICKS,
    SIGNED,
    TOGETHER,
    Panel,
    add_band,
    add_chance_line,
    axis_title_of,
    chance_of,
    choose_ticks,
    compose_title,
    finish_figure,
    hover_of,
    label_of,
    number_format_of,
    quartiles_by,
    split_panels,
    tell_apart,
)
from attngeo.scores.spec import SCORES

# Pixels: the height of a cell, the least height of a panel, and the room between panels and around them.
CELL_HEIGHT, LEAST_HEIGHT, BETWEEN, AROUND = 18, 160, 70, 130
# With more points than this, a browser draws on a canvas instead of making one element for each.
MANY_POINTS = 5_000
# The column of a pivot table that holds whole layers, which have no head.
WHOLE_LAYER = -1


def draw_heatmap(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """One score as a map of layers × heads, with the whole layers beside it; one panel per stack and model.

    White is the chance level, or 0; the colours end at the value furthest from it, rounded up to a tenth. A score
    without a sign has shades of grey from its lowest to its highest value. Missing scores are grey.

    Args:
        rows: rows of `attngeo.score`: model, stack, layer, head, and the score.
        options: `score` names the score.

    Returns:
        A figure with two columns: whole layers, and heads.
    """
    score = options.score
    rows = _leave_out_heads(rows, score)
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
    if rows["head"].notna().any():
        figure.update_xaxes(title="head", row=len(panels), col=2)
    figure.update_annotations(font_size=PANEL_TITLE)
    bar = {"title": {"text": label_of(score), "side": "right"}}
    figure.update_layout(
        coloraxis=_choose_colours(rows[score], score) | {"colorbar": bar},
        height=sum(heights) + AROUND + BETWEEN * (len(panels) - 1),
        plot_bgcolor=MISSING,
    )
    title = compose_title(rows, f"{label_of(score)} of {name_form(rows)}")
    return finish_figure(figure, title, top=TITLE_HEIGHT + PANEL_TITLE_HEIGHT)


def _leave_out_heads(rows: pd.DataFrame, score: str) -> pd.DataFrame:
    """The rows without those of heads if only whole layers have the score."""
    return rows[rows["head"].isna()] if SCORES[score].is_of_layers else rows


def _choose_colours(values: pd.Series, score: str) -> dict[str, Any]:
    """The scale of the colours of a map, and its ends."""
    if SCORES[score].low >= 0 and chance_of(score) is None:
        return {"colorscale": MAGNITUDE, "cmin": values.min(), "cmax": values.max()}
    middle = chance_of(score) or 0.0
    largest = float((values - middle).abs().max())
    reach = math.ceil(largest * 10) / 10 if largest > 0 else 1.0
    return {"colorscale": SIGNED, "cmin": middle - reach, "cmax": middle + reach}


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
        figure.update_xaxes(showgrid=False, **choose_ticks(heads.columns), row=row, col=2)
    figure.update_yaxes(title="layer", **choose_ticks(table.index), row=row, col=1)


# The panels of a model's layers: of whole layers, and of heads.
ROW_KINDS = {False: "whole layers", True: "heads"}


class _Cell(NamedTuple):
    """One panel of a grid: the whole layers, or the heads, of some stacks.

    Attributes:
        title: title of the panel.
        panels: rows of each stack.
        of_heads: whether it shows heads; otherwise whole layers.
    """

    title: str
    panels: list[Panel]
    of_heads: bool


def draw_layers(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """One score against the layer: whole layers, and beside them the median over heads in a band of quartiles.

    All models share one panel if their lines can be told apart; otherwise each has its own panels.

    Args:
        rows: rows of `attngeo.score`: model, stack, layer, head, and the score.
        options: `score` names the score.

    Returns:
        A figure with one line per stack of each model, in panels for whole layers and for heads. All bands are below
        all lines.
    """
    score = options.score
    rows = _leave_out_heads(rows, score)
    parts = [of_heads for of_heads in ROW_KINDS if (rows["head"].notna() == of_heads).any()]
    together = split_panels(rows)
    if len(together) <= MOST_MODELS_TOGETHER:
        cells = [_Cell(ROW_KINDS[of_heads] if len(parts) > 1 else "", together, of_heads) for of_heads in parts]
        columns = len(cells)
    else:
        cells = _split_models(rows, parts)
        columns = choose_columns(len(cells))
    figure, subplots = make_grid([cell.title for cell in cells], columns)
    for cell, subplot in zip(cells, subplots, strict=True):
        if cell.of_heads:
            _add_bands(figure, cell, score, subplot)
    for cell, subplot in zip(cells, subplots, strict=True):
        _add_lines(figure, cell, score, subplot)
    add_chance_line(figure, score)
    name_axis = label_of if len(cells) > columns else axis_title_of
    title_axes(figure, subplots, "layer", name_axis(score))
    figure.update_xaxes(choose_ticks(pd.Index(rows["layer"]), MOST_TICKS // columns))
    figure.update_layout(legend=BELOW)
    details = []
    if False in parts:
        details.append("whole layers: score of the sum over heads")
    if True in parts:
        details.append("heads: median, band of quartiles")
    title = compose_title(rows, f"{label_of(score)} of {name_form(rows)} in each layer")
    top = TITLE_HEIGHT + PANEL_TITLE_HEIGHT if any(cell.title for cell in cells) else TITLE_HEIGHT
    return finish_figure(figure, title, "; ".join(details), top=top)


def _split_models(rows: pd.DataFrame, parts: Sequence[bool]) -> list[_Cell]:
    """Panels of each model: its name over the first, and what the second shows."""
    models = list(rows["model"].unique())
    cells = []
    for model, name in zip(models, shorten_names(models, NAME_LENGTH), strict=True):
        panels = split_panels(rows[rows["model"] == model])
        for of_heads in parts:
            title = name if of_heads == parts[0] else ROW_KINDS[of_heads]
            cells.append(_Cell(title, panels, of_heads))
    return cells


def _add_bands(figure: go.Figure, cell: _Cell, score: str, subplot: Subplot) -> None:
    """Add the quartiles over the heads of each stack, fainter if there are many."""
    opacity = min(FAINT, TOGETHER / len(cell.panels))
    for panel, look in zip(cell.panels, tell_apart(cell.panels), strict=True):
        heads = quartiles_by(panel.rows[panel.rows["head"].notna()], "layer", score).astype("float32")
        add_band(figure, heads["lower"], heads["upper"], look.colour, panel.label, subplot, opacity)


def _add_lines(figure: go.Figure, cell: _Cell, score: str, subplot: Subplot) -> None:
    """Add the whole layers of each stack, or the medians over its heads."""
    number_format = number_format_of(score)
    for panel, look in zip(cell.panels, tell_apart(cell.panels), strict=True):
        chosen = panel.rows[panel.rows["head"].notna() == cell.of_heads]
        quartiles = quartiles_by(chosen, "layer", score).astype("float32")
        hover = f"{panel.hover}, layer %{{x}}<br>"
        if cell.of_heads:
            hover += f"median of heads: {hover_of(score)}<br>"
            hover += f"quartiles %{{customdata[0]:{number_format}}} to %{{customdata[1]:{number_format}}}"
        else:
            hover += hover_of(score)
        figure.add_scatter(
            x=quartiles.index,
            y=quartiles["median"],
            mode="lines+markers",
            line={"color": look.colour, "width": 2, "dash": look.dash},
            marker={"symbol": look.symbol},
            # As many digits as a hover shows; more of them would make a page of many models larger.
            customdata=quartiles[["lower", "upper"]].round(DIGITS) if cell.of_heads else None,
            hovertemplate=f"{hover}<extra></extra>",
            **_name_in_legend(figure, panel),
            **subplot,
        )


def _name_in_legend(figure: go.Figure, panel: Panel) -> dict[str, Any]:
    """The name of a trace, which the legend shows once."""
    is_new = all(trace.legendgroup != panel.label or trace.showlegend is False for trace in figure.data)
    return {"name": panel.label, "legendgroup": panel.label, "showlegend": is_new}


def draw_heads(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """One point per head: its directionality against its symmetry. Each model has its own panel.

    Args:
        rows: rows of `attngeo.score(model, per_head=True)`: model, stack, layer, head, symmetry, directionality.
        options: unused; all kinds accept them.

    Returns:
        A figure with one colour and symbol per stack. All panels have the same ranges.

    Raises:
        DataError: there are no heads.
    """
    heads = rows[rows["head"].notna()]
    if heads.empty:
        raise DataError("there are no rows for heads; write them with attngeo score --per-head")
    cells = _split_models(heads, [True])
    if len(cells) == 1:
        cells = [cells[0]._replace(title="")]
    columns = choose_columns(len(cells))
    figure, subplots = make_grid([cell.title for cell in cells], columns)
    add_points = figure.add_scattergl if len(heads) > MANY_POINTS else figure.add_scatter
    for cell, subplot in zip(cells, subplots, strict=True):
        for panel, look in zip(cell.panels, tell_apart(cell.panels), strict=True):
            add_points(
                x=panel.rows["symmetry"].astype("float32"),
                y=panel.rows["directionality"].astype("float32"),
                mode="markers",
                marker={"color": look.colour, "symbol": look.symbol, "size": 7 if columns < 3 else 5, "opacity": 0.65},
                customdata=panel.rows[["layer", "head"]].to_numpy(dtype="int32"),
                hovertemplate=f"{panel.hover}, layer %{{customdata[0]}}, "
                "head %{customdata[1]}<br>symmetry %{x:+.3f}<br>directionality %{y:+.3f}<extra></extra>",
                **_name_in_legend(figure, panel),
                **subplot,
            )
    add_chance_line(figure, "directionality")
    add_chance_line(figure, "symmetry", axis="x")
    # The ends of an axis have no room beside several lines of panels.
    name_axis = label_of if len(cells) > columns else axis_title_of
    title_axes(figure, subplots, name_axis("symmetry"), name_axis("directionality"))
    figure.update_layout(legend=BELOW)
    top = TITLE_HEIGHT + PANEL_TITLE_HEIGHT if len(cells) > 1 else TITLE_HEIGHT
    return finish_figure(
        figure, compose_title(rows, f"symmetry and directionality of {name_form(rows)} in each head"), top=top
    )
