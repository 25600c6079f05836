"""What changed between models: rows of `attngeo compare`, of one other model or of several."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from attngeo.errors import DataError
from attngeo.figures.fit import BELOW
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.maps import lay_out, room_above, stack_panels
from attngeo.figures.names import escape_name, name_form
from attngeo.figures.style import (
    MAGNITUDE,
    MODELS,
    MOST_MODELS_TOGETHER,
    Look,
    Panel,
    choose_ticks,
    finish_figure,
    sample_colours,
    split_panels,
    tell_apart,
)

# The part of the scale of colours that many models share, in their order.
FIRST_SHARE, LAST_SHARE = 0.0, 0.85


def draw_change_map(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The change of every head as a map of layers × heads; one panel per other model and stack.

    Missing values are grey.

    Args:
        rows: rows of `attngeo compare --per-head`: model, other, stack, layer, head, change, cosine.
        options: unused; all kinds accept them.

    Raises:
        DataError: no head has a change.
    """
    heads = rows[rows["head"].notna()]
    if heads.empty:
        raise DataError("there are no rows for heads; write them with attngeo compare --per-head")
    _require_changes(heads)
    panels = _split_others(heads)
    figure, heights = stack_panels(panels)
    for number, panel in enumerate(panels, 1):
        table = _pivot(panel.rows, "change")
        cosines = _pivot(panel.rows, "cosine")
        figure.add_heatmap(
            z=table.to_numpy(dtype="float32", na_value=np.nan),
            x=[int(head) for head in table.columns],
            y=[int(layer) for layer in table.index],
            customdata=cosines.to_numpy(dtype="float32", na_value=np.nan),
            coloraxis="coloraxis",
            hoverongaps=False,
            hovertemplate=f"{panel.hover}, layer %{{y}}, head %{{x}}<br>change %{{z:.3g}}<br>"
            "cosine %{customdata:.3f}<extra></extra>",
            row=number,
            col=1,
        )
        figure.update_xaxes(choose_ticks(table.columns), row=number, col=1)
        figure.update_yaxes(choose_ticks(table.index), title="layer", row=number, col=1)
    bar = {"title": {"text": "change", "side": "right"}}
    largest = float(heads["change"].max()) or 1.0
    lay_out(figure, heights, {"colorscale": MAGNITUDE, "cmin": 0, "cmax": largest, "colorbar": bar}, "head")
    return finish_figure(figure, _compose_title(rows, "of each head"), top=room_above(panels))


def draw_change_layers(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The change of whole layers against the layer: one line per other model and stack.

    Up to 12 lines have distinct colours; more lines take colours from a scale, in the order of the rows.

    Args:
        rows: rows of `attngeo compare`: model, other, stack, layer, head, change, cosine.
        options: unused; all kinds accept them.

    Raises:
        DataError: no layer has a change.
    """
    layers = rows[rows["head"].isna()]
    _require_changes(layers)
    panels = _split_others(layers)
    figure = go.Figure()
    for panel, look in zip(panels, _choose_looks(panels), strict=True):
        in_order = panel.rows.sort_values("layer")
        figure.add_scatter(
            x=[int(layer) for layer in in_order["layer"]],
            y=in_order["change"].astype("float32"),
            customdata=in_order["cosine"].astype("float32"),
            mode="lines+markers",
            line={"color": look.colour, "width": 2, "dash": look.dash},
            marker={"symbol": look.symbol},
            name=panel.label,
            hovertemplate=f"{panel.hover}, layer %{{x}}<br>change %{{y:.3g}}<br>"
            "cosine %{customdata:.3f}<extra></extra>",
        )
    figure.update_xaxes(choose_ticks(pd.Index(layers["layer"])), title="layer")
    figure.update_yaxes(title="change", rangemode="tozero")
    figure.update_layout(legend=BELOW)
    return finish_figure(figure, _compose_title(rows, "of each layer"))


def _require_changes(rows: pd.DataFrame) -> None:
    """Raise DataError if no row has a change."""
    if rows["change"].isna().all():
        raise DataError('no row has a change, expected models of the same sizes; the column "note" says why')


def _split_others(rows: pd.DataFrame) -> list[Panel]:
    """The stacks of each other model, under its name, or under both names if there are several first models."""
    names = rows["other"]
    if rows["model"].nunique() > 1:
        names = rows["model"].astype(str) + " → " + names.astype(str)
    return split_panels(rows.assign(model=names))


def _pivot(heads: pd.DataFrame, column: str) -> pd.DataFrame:
    return heads.pivot_table(index="layer", columns="head", values=column, dropna=False)


def _choose_looks(panels: list[Panel]) -> list[Look]:
    """What tells the lines apart."""
    if len(panels) <= MOST_MODELS_TOGETHER:
        return tell_apart(panels)
    return [Look(colour, "solid", "circle") for colour in sample_colours(MODELS, len(panels), FIRST_SHARE, LAST_SHARE)]


def _compose_title(rows: pd.DataFrame, place: str) -> str:
    """What changed, from which model, and to which one, if there is only one of each."""
    changed = f"change of {name_form(rows)} {place}"
    firsts = rows["model"].unique()
    if len(firsts) > 1:
        return changed
    ends = [escape_name(firsts[0])]
    others = rows["other"].unique()
    if len(others) == 1:
        ends.append(escape_name(others[0]))
    return f"{' → '.join(ends)}: {changed}"
