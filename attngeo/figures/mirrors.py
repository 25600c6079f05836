"""Mirrors among the heads of one layer: rows of `attngeo mirrors`, of one model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from attngeo.choices import one_of
from attngeo.errors import DataError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.maps import lay_out, room_above, stack_panels
from attngeo.figures.style import GUIDE, OTHER, SIGNED, Panel, compose_title, finish_figure, split_panels

COSINE = "antisymmetric_cosine"
HOVER = (
    "<br>heads %{customdata[0]} and %{customdata[1]}<br>cosine %{z:+.3f}<br>mirror %{customdata[2]:+.3f}"
    "<br>twin %{customdata[3]:+.3f}<extra></extra>"
)
# Pixels: the width of a mark in a layer of few heads, and in one of more than `MANY`.
MARK, SMALL_MARK, MANY = 7, 5, 40
# Pixels: the type of the numbers of more heads than `MANY`.
SMALL_TYPE = 9


def draw_mirror_map(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """The antisymmetric cosine of each pair of heads of one layer, as a map of heads × heads; one panel per stack.

    Partners of the sign test are neighbours, the strongest first, and are marked. Heads without partners come last.

    Args:
        rows: rows of `attngeo mirrors`: model, stack, layer, head, other_layer, other_head, mirror, twin,
            antisymmetric_cosine, is_partner.
        options: `layer` chooses the layer; without it, the first one.

    Raises:
        UsageError: the rows lack the layer.
        DataError: there are no rows within a layer, or the layer has no cosine.
    """
    within = rows[rows["layer"] == rows["other_layer"]]
    if within.empty:
        raise DataError("there are no pairs of heads of one layer")
    layers = sorted(within["layer"].unique())
    layer = options.layer if "layer" in options.model_fields_set else int(layers[0])
    one_of("layer", str(layer), [str(known) for known in layers])
    pairs = within[within["layer"] == layer]
    if pairs[COSINE].isna().all():
        raise DataError(f'no pair of heads of layer {layer} has a cosine; the column "note" says why')
    panels = split_panels(pairs)
    orders = [_order_heads(panel.rows) for panel in panels]
    # The height of a panel is that of its rows, one for each head.
    figure, heights = stack_panels(
        [panel._replace(rows=order) for panel, order in zip(panels, orders, strict=True)],
    )
    for number, (panel, order) in enumerate(zip(panels, orders, strict=True), 1):
        _add_map(figure, panel, [int(head) for head in order["head"]], number)
    reach = float(pairs[COSINE].abs().max())
    bar = {"title": {"text": "antisymmetric cosine<br>− mirror, + twin", "side": "right"}}
    lay_out(figure, heights, {"colorscale": SIGNED, "cmin": -reach, "cmax": reach, "colorbar": bar}, "head")
    for number, order in enumerate(orders, 1):  # without room for halves of marks
        end = len(order) - 0.5
        figure.update_xaxes(range=[-0.5, end], row=number, col=1)
        figure.update_yaxes(range=[end, -0.5], autorange=False, row=number, col=1)
    title = compose_title(pairs, f"mirrors among the heads of layer {layer}")
    return finish_figure(figure, title, "circles: partners of the sign test", top=room_above(panels))


def _order_heads(pairs: pd.DataFrame) -> pd.DataFrame:
    """The heads, partner beside partner and the strongest first, as the columns layer and head."""
    partners = pairs[pairs["is_partner"].astype("bool")]
    strongest = partners.sort_values(COSINE, key=abs, ascending=False, kind="stable")
    heads = [head for pair in zip(strongest["head"], strongest["other_head"], strict=True) for head in pair]
    heads += sorted({*pairs["head"], *pairs["other_head"]} - {*heads})
    return pd.DataFrame({"layer": pairs["layer"].iloc[0], "head": heads})


def _add_map(figure: go.Figure, panel: Panel, heads: list[int], row: int) -> None:
    """Add the map of one layer, with its heads in this order, and marks on partners."""
    tables = [_tabulate(panel.rows, column, heads) for column in (COSINE, "mirror", "twin")]
    numbers = np.array(heads)
    names = np.broadcast_arrays(numbers[:, None], numbers)
    places = list(range(len(heads)))
    figure.add_heatmap(
        z=tables[0].astype("float32"),
        x=places,
        y=places,
        customdata=np.stack([*names, *tables[1:]], axis=-1).astype("float32"),
        coloraxis="coloraxis",
        hoverongaps=False,
        hovertemplate=f"{panel.hover}{HOVER}",
        row=row,
        col=1,
    )
    is_partner = _tabulate(panel.rows, "is_partner", heads) == 1
    marked_rows, marked_columns = np.nonzero(is_partner)
    is_large = len(heads) > MANY
    figure.add_scatter(
        x=marked_columns,
        y=marked_rows,
        mode="markers",
        marker={
            "symbol": "circle",
            "size": SMALL_MARK if is_large else MARK,
            "color": GUIDE,
            "line": {"color": OTHER, "width": 1},
        },
        hoverinfo="skip",
        showlegend=False,
        row=row,
        col=1,
    )
    ticks = {"tickvals": places, "ticktext": [str(head) for head in heads]}
    if is_large:
        ticks["tickfont"] = {"size": SMALL_TYPE}
    figure.update_xaxes(ticks, tickangle=-90 if is_large else 0, row=row, col=1)
    figure.update_yaxes(ticks, title="head", row=row, col=1)


def _tabulate(pairs: pd.DataFrame, column: str, heads: list[int]) -> NDArray[np.float64]:
    """A column of pairs as a symmetric table of heads in this order; NaN without a value."""
    places = {head: place for place, head in enumerate(heads)}
    first = [places[int(head)] for head in pairs["head"]]
    second = [places[int(head)] for head in pairs["other_head"]]
    table = np.full((len(heads), len(heads)), np.nan)
    values = pairs[column].to_numpy(dtype="float64", na_value=np.nan)
    table[first, second] = values
    table[second, first] = values
    return table
