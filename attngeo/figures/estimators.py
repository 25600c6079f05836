"""Saved estimators: attention between cells, items and places, and encodings and vectors of what they attend to."""

from __future__ import annotations

import math
from collections.abc import Hashable
from itertools import product
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError, UsageError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.names import escape_name, escape_names
from attngeo.figures.style import (
    GUIDE,
    MAGNITUDE,
    MARKED,
    MODELS,
    SIGNED,
    SYMBOLS,
    choose_ticks,
    finish_figure,
    sample_colours,
)

# The format of shares on a colour bar: as many digits as its ticks need.
SHARE = ".3~%"
# The largest number of items in a line of panels at which cells have room for their number.
LARGEST_SQUARE, LARGEST_LINE = 12, 24
# Characters of a name.
NAME_LENGTH = 28
# Pixels: the height of an item and of a vector, and the least and the largest height of a panel.
ITEM_HEIGHT, VECTOR_HEIGHT, LEAST_HEIGHT, MOST_HEIGHT = 26, 15, 220, 1400
# Pixels: the room between and around panels, and the height that a letter of a slanted name takes.
BETWEEN, AROUND, LETTER = 60, 140, 6
PLAIN = {"showgrid": False, "zeroline": False, "automargin": True}
COLOUR_BAR = {"lenmode": "pixels", "len": 260, "y": 1, "yanchor": "top"}


def draw_row_attention(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The attention of each cell of a table row, when it is masked, to all cells, as a map.

    Args:
        rows: rows of `attngeo tabular predict --attention-output`: cell, on, head, attention, and optionally row and
            value.
        options: unused; all kinds accept them.

    Returns:
        A figure of means over heads and rows. If there is only one row, it shows the values of the cells.
    """
    means = rows.groupby(["cell", "on"], sort=False)["attention"].mean().unstack("on")
    means = means.loc[rows["cell"].unique(), rows["on"].unique()]
    count = rows["row"].nunique() if "row" in rows else 1
    columns = {name: escape_name(name) for name in means.columns}
    if "value" in rows and count == 1:
        for name, value in zip(rows["on"], rows["value"], strict=True):
            columns[name] = f"{escape_name(name)} = {escape_name(value)}"
    heatmap = go.Heatmap(
        z=means.to_numpy(),
        x=list(columns.values()),
        y=escape_names(means.index),
        colorscale=MAGNITUDE,
        zmin=0,
        zmax=means.to_numpy().max(),
        colorbar={"title": "attention", "tickformat": SHARE},
        texttemplate="%{z:.1%}" if len(means) <= LARGEST_SQUARE else None,
        hovertemplate="%{y} (masked): %{z:.1%} of its attention on %{x}<extra></extra>",
    )
    figure = go.Figure(heatmap)
    figure.update_yaxes(autorange="reversed", title="masked cell", automargin=True)
    figure.update_xaxes(title="attends to", automargin=True)
    details = "mean over heads" if count == 1 else f"mean over heads and {count} rows"
    return finish_figure(figure, "attention between the cells of a row", details)


def draw_encodings(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The encodings of categories in two dimensions, with one colour and symbol per column.

    A line joins categories that are numbers, in their order.

    Args:
        rows: rows of `tabulate_encodings`: column, value, x, y.
        options: unused; all kinds accept them.

    Returns:
        A figure with one trace per column.
    """
    groups = list(rows.groupby("column", sort=False))
    colours = sample_colours(MODELS, len(groups), 0.1, 0.9)
    figure = go.Figure()
    for number, (column, categories) in enumerate(groups):
        values = pd.to_numeric(categories["value"], errors="coerce")
        has_order = values.notna().all()
        if has_order:
            categories = categories.iloc[values.to_numpy().argsort(kind="stable")]
        labels = escape_names(categories["value"])
        figure.add_scatter(
            x=categories["x"],
            y=categories["y"],
            mode="lines+markers+text" if has_order else "markers+text",
            name=escape_name(column),
            text=labels,
            textposition="top center",
            cliponaxis=False,
            customdata=labels,
            line={"color": colours[number], "width": 1},
            marker={"color": colours[number], "size": 9, "symbol": SYMBOLS[number % len(SYMBOLS)]},
            hovertemplate=f"{escape_name(column)} = %{{customdata}}<extra></extra>",
        )
    figure.update_xaxes(title="first principal component")
    figure.update_yaxes(title="second principal component", scaleanchor="x")
    return finish_figure(figure, "encodings of categories")


# Sequences that one figure has room for.
MOST_SEQUENCES = 4


def draw_item_attention(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The attention of each item of a sequence, when it is masked, to each item it sees.

    Args:
        rows: rows of `attngeo efa attention -o`: sequence, layer, position, attended_position, weight, and optionally
            part, lag, item and attended_item.
        options: unused; all kinds accept them.

    Returns:
        A figure of means over heads, with one row of panels per sequence and one column per layer. Unseen pairs are
        blank.

    Raises:
        UsageError: there are more sequences than a figure has room for, or both parts of a model.
    """
    if "part" in rows and rows["part"].nunique() > 1:
        raise UsageError(
            "the rows have attention of items and of values, expected one part; choose one with $where, such as "
            "part=items",
            "where",
        )
    sequences = list(rows["sequence"].unique())
    layers = sorted(rows["layer"].unique())
    if len(sequences) > MOST_SEQUENCES:
        raise UsageError(
            f"{len(sequences):,} sequences, expected at most {MOST_SEQUENCES}; choose one with $where, "
            f"such as sequence={sequences[0]}",
            "where",
        )
    maps: list[_ItemMap] = []
    heights = []
    for sequence in sequences:
        layers_of_sequence = rows[rows["sequence"] == sequence].groupby("layer")
        maps_of_sequence = [_build_item_map(sequence, layer, part) for layer, part in layers_of_sequence]
        heights.append(_limit_height(len(maps_of_sequence[0].weights) * ITEM_HEIGHT))
        maps += maps_of_sequence
    longest_name = max(max(map(len, item_map.columns)) for item_map in maps)
    between = BETWEEN + LETTER * longest_name
    total = sum(heights) + between * (len(sequences) - 1)
    titles = [f"layer {layer}" for layer in layers]
    if len(sequences) > 1:
        titles = [f"sequence {escape_name(sequence)}, layer {layer}" for sequence, layer in product(sequences, layers)]
    figure = make_subplots(
        rows=len(sequences),
        cols=len(layers),
        row_heights=heights,
        horizontal_spacing=0.03,
        vertical_spacing=between / total,
        subplot_titles=titles,
    )
    widest = max(item_map.weights.shape[1] for item_map in maps) * len(layers)
    for item_map in maps:
        subplot = {"row": sequences.index(item_map.sequence) + 1, "col": layers.index(item_map.layer) + 1}
        _add_item_map(figure, item_map, subplot, has_numbers=widest <= LARGEST_LINE)
    figure.update_xaxes(PLAIN)
    figure.update_yaxes(PLAIN, autorange="reversed")
    figure.update_yaxes(title="masked item", col=1)
    largest = max(item_map.weights.max().max() for item_map in maps)
    figure.update_layout(coloraxis=_build_share_axis(largest, SHARE), height=total + between - BETWEEN + AROUND)
    details = "rows: masked items; columns: the items they attend to; blank: not seen; mean over heads"
    return finish_figure(figure, "attention between the items of a sequence", details, top=100)


class _ItemMap(NamedTuple):
    """The attention of one layer between the items of one sequence.

    Attributes:
        sequence: name of the sequence.
        layer: number of the layer.
        weights: means over heads, [masked positions, pairs of a lag and a position].
        lines: names of the items at the masked positions.
        columns: names of the items at the other positions.
    """

    sequence: Hashable
    layer: Hashable
    weights: pd.DataFrame
    lines: list[str]
    columns: list[str]


def _build_item_map(sequence: Hashable, layer: Hashable, rows: pd.DataFrame) -> _ItemMap:
    """The map of one layer and sequence. Items without names are called by their positions."""
    rows = rows.assign(lag=rows.get("lag", 0))
    weights = rows.pivot_table(index="position", columns=["lag", "attended_position"], values="weight")
    items: dict[Any, Any] = {}
    for position, item in (("position", "item"), ("attended_position", "attended_item")):
        if item in rows:
            items |= zip(rows[position], rows[item], strict=True)
    lines = escape_names((items.get(position, position) for position in weights.index), NAME_LENGTH)
    columns = []
    for lag, position in weights.columns.to_frame().to_numpy():
        name = escape_name(items.get(position, position), NAME_LENGTH)
        columns.append(f"{name}, {lag:g} earlier" if lag else name)
    return _ItemMap(sequence, layer, weights, lines, columns)


def _add_item_map(figure: go.Figure, item_map: _ItemMap, subplot: dict[str, int], *, has_numbers: bool) -> None:
    """Add one map to its panel. has_numbers: whether cells have room for their shares."""
    lines = item_map.lines
    columns = item_map.columns
    figure.add_heatmap(
        z=item_map.weights.to_numpy(),
        coloraxis="coloraxis",
        hoverongaps=False,
        customdata=[[(line, column) for column in columns] for line in lines],
        texttemplate="%{z:.0%}" if has_numbers else None,
        hovertemplate="%{customdata[0]} (masked): %{z:.1%} of its attention on %{customdata[1]}<extra></extra>",
        **subplot,
    )
    # An item may occur twice, so that axes have numbers.
    figure.update_xaxes(tickvals=list(range(len(columns))), ticktext=columns, tickangle=-60, **subplot)
    figure.update_yaxes(tickvals=list(range(len(lines))), ticktext=lines, showticklabels=subplot["col"] == 1, **subplot)


def _limit_height(height: int) -> int:
    """The height of a panel in pixels, within the limits."""
    return min(max(height, LEAST_HEIGHT), MOST_HEIGHT)


def _build_share_axis(largest: float, number_format: str) -> dict[str, Any]:
    """The colours of weights from 0 to the largest, with their bar."""
    bar = {"title": "attention", "tickformat": number_format, **COLOUR_BAR}
    return {"colorscale": MAGNITUDE, "cmin": 0, "cmax": largest, "colorbar": bar}


VECTORS = ("query", "key", "value")
# More rows of a map of vectors than this are not all named.
MOST_ROWS_NAMED = 80


def draw_item_vectors(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The query, key and value of each item in the first layer, as maps of items × vector entries.

    Args:
        rows: rows of `attngeo.estimators.efa.tabulate_vectors`: item, vector, head, number, value.
        options: unused; all kinds accept them.

    Returns:
        A figure with one row of panels per head.

    Raises:
        UsageError: the rows have no query, key or value.
    """
    heads = sorted(rows["head"].unique())
    vectors = [name for name in VECTORS if name in set(rows["vector"])]
    if not vectors:
        raise UsageError(f"no row has any of the vectors {', '.join(VECTORS)}")
    items = list(dict.fromkeys(rows["item"]))
    total = len(heads) * (_limit_height(len(items) * VECTOR_HEIGHT) + BETWEEN) + AROUND
    figure = make_subplots(
        rows=len(heads),
        cols=len(vectors),
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.02,
        vertical_spacing=BETWEEN / total,
        subplot_titles=[f"{vector}, head {head}" for head, vector in product(heads, vectors)],
    )
    for (head, vector), entries in rows[rows["vector"].isin(vectors)].groupby(["head", "vector"]):
        table = entries.pivot_table(index="item", columns="number", values="value", sort=False).reindex(items)
        subplot = {"row": heads.index(head) + 1, "col": vectors.index(str(vector)) + 1}
        figure.add_heatmap(
            z=table.to_numpy("float32"),
            x=table.columns.tolist(),
            customdata=[[escape_name(item)] * table.shape[1] for item in items],
            coloraxis="coloraxis",
            hovertemplate=f"%{{customdata}}: {vector} in head {head}, dimension %{{x}}: %{{z:.3f}}<extra></extra>",
            **subplot,
        )
        figure.update_xaxes(showgrid=False, tickangle=0, tickfont={"size": 9}, **choose_ticks(table.columns), **subplot)
    named_rows = list(range(len(items)))
    if len(items) > MOST_ROWS_NAMED:
        named_rows = choose_ticks(pd.RangeIndex(len(items)))["tickvals"]
    figure.update_xaxes(title="dimension", row=len(heads))
    figure.update_yaxes(
        autorange="reversed",
        **PLAIN,
        tickvals=named_rows,
        ticktext=escape_names((items[row] for row in named_rows), NAME_LENGTH),
        tickfont={"size": 10},
    )
    reach = float(rows["value"].abs().max()) or 1.0
    bar = {"title": "value", **COLOUR_BAR}
    colours = {"colorscale": SIGNED, "cmin": -reach, "cmax": reach, "colorbar": bar}
    figure.update_layout(coloraxis=colours, height=total)
    details = "first layer; one row of panels per head"
    return finish_figure(figure, "queries, keys and values of items", details, top=100)


# Places that an error lists, and places of a panel that have their names beside them.
MOST_PLACES_LISTED, MOST_PLACES_NAMED = 10, 16
# Pixels: the height of a map, and the diameters of the least and the largest point and of the masked place.
MAP_HEIGHT, SMALLEST, LARGEST, STAR = 640, 4, 18, 15


def draw_place_attention(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """Places by longitude and latitude; size and colour show the attention of one masked place to each.

    Coasts and borders are missing because plotly would download them, and pages must open offline.

    Args:
        rows: rows of `attngeo efa attention --places-output`: place, attended_place, latitude, longitude, layer,
            weight. The weights of earlier times are added.
        options: unused; all kinds accept them.

    Returns:
        A figure with a panel for each layer.

    Raises:
        UsageError: there are several masked places; `where` chooses one.
        DataError: there is no other place.
    """
    masked, sums = _sum_weights(rows)
    layers = sorted(sums["layer"].unique())
    # The largest points are drawn first, so that none is hidden.
    others = sums[sums["attended_place"] != masked].sort_values("weight", ascending=False)
    if others.empty:
        raise DataError(f"no row has a place other than {masked}, expected the places it attends to")
    largest = others["weight"].max()
    shares = others["weight"] / (largest or 1)
    others = others.assign(size=(LARGEST * shares**0.5).clip(lower=SMALLEST))
    height = (MAP_HEIGHT + BETWEEN) * len(layers)
    figure = make_subplots(
        rows=len(layers),
        cols=1,
        vertical_spacing=BETWEEN / height,
        subplot_titles=[f"layer {layer}" for layer in layers] if len(layers) > 1 else None,
    )
    for row, layer in enumerate(layers, 1):
        places = others[others["layer"] == layer]
        names = escape_names(places["attended_place"], NAME_LENGTH)
        _add_places(
            figure,
            places,
            row,
            customdata=escape_names(places["attended_place"]),
            text=names[:MOST_PLACES_NAMED] + [""] * len(names[MOST_PLACES_NAMED:]),
            textfont={"size": 11},
            marker={
                "size": places["size"],
                "color": places["weight"],
                "coloraxis": "coloraxis",
                "opacity": 1,
                "line": {"color": GUIDE, "width": 1},
            },
            hovertemplate="%{customdata}: %{marker.color:.1%}<extra></extra>",
        )
        itself = sums[(sums["layer"] == layer) & (sums["attended_place"] == masked)]
        _add_places(
            figure,
            itself,
            row,
            customdata=itself["weight"],
            text=[f"<b>{name}</b>" for name in escape_names(itself["attended_place"], NAME_LENGTH)],
            textfont={"size": 11, "color": MARKED},
            marker={"size": STAR, "symbol": "star", "color": MARKED},
            hovertemplate="%{text} (masked): %{customdata:.1%} of its attention on itself<extra></extra>",
        )
    figure.update_xaxes(title="longitude", ticksuffix="°", zeroline=False)
    figure.update_yaxes(title="latitude", ticksuffix="°", zeroline=False)
    # A degree of longitude is as long as at the middle latitude.
    middle = math.radians((sums["latitude"].min() + sums["latitude"].max()) / 2)
    for axis in figure.select_yaxes():
        axis.update(scaleanchor=axis.anchor, scaleratio=1 / max(math.cos(middle), 0.1))
    figure.update_layout(coloraxis=_build_share_axis(largest, ".2~p"), height=height + AROUND - BETWEEN)
    details = "mean over sequences and heads; area and colour: attention; star: the masked place"
    if len(layers) == 1:
        details = f"layer {layers[0]}, {details}"
    if "lag" in rows and rows["lag"].nunique() > 1:
        details += "; earlier times included"
    return finish_figure(figure, f"attention of {escape_name(masked)} (masked) to other places", details, top=100)


def _sum_weights(rows: pd.DataFrame) -> tuple[Hashable, pd.DataFrame]:
    """The one masked place, and the weights of each layer on each place, summed over times.

    Raises UsageError if there are several masked places.
    """
    masked_places = list(rows["place"].unique())
    if len(masked_places) > 1:
        listed = "; ".join(map(str, masked_places[:MOST_PLACES_LISTED]))
        more = " …" if len(masked_places) > MOST_PLACES_LISTED else ""
        raise UsageError(
            f"{len(masked_places):,} masked places, expected one; choose one with $where, such as "
            f"place={masked_places[0]}; the places are: {listed}{more}",
            "where",
        )
    sums = rows.groupby(["layer", "attended_place", "latitude", "longitude"], sort=False)["weight"].sum()
    return masked_places[0], sums.reset_index()


def _add_places(figure: go.Figure, places: pd.DataFrame, row: int, **style: Any) -> None:
    """Add places to one panel, with their names above them. style: of the trace."""
    figure.add_scatter(
        x=places["longitude"],
        y=places["latitude"],
        mode="markers+text",
        cliponaxis=False,
        textposition="top center",
        row=row,
        col=1,
        **style,
    )
