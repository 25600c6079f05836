"""Saved estimators: attention between cells, items and places, and encodings and vectors of what they attend to."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError, UsageError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.style import (
    GUIDE,
    MAGNITUDE,
    MARKED,
    MODELS,
    SIGNED,
    SYMBOLS,
    choose_ticks,
    escape_name,
    finish_figure,
    sample_colours,
)

# The format of shares on a colour bar: as many digits as its ticks need.
SHARE = ".3~%"
# The largest number of items in a line of panels at which cells have room for their number; characters of a name.
LARGEST_SQUARE, LARGEST_LINE, NAME_LENGTH = 12, 24, 28
# Pixels: the height of an item and of a vector, the least and the largest height of a panel, the room between and
# around panels, the height that a letter of a slanted name takes, and the colour bar.
ITEM_HEIGHT, VECTOR_HEIGHT, LEAST_HEIGHT, MOST_HEIGHT = 26, 15, 220, 1400
BETWEEN, AROUND, LETTER, BAR = 60, 140, 6, {"lenmode": "pixels", "len": 260, "y": 1, "yanchor": "top"}


def draw_row_attention(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The attention of each cell of a row, when it is masked, on all cells, as a map; the mean over heads and rows.

    rows: of `attngeo tabular predict --attention-output`. The values of the cells are shown if there is one row only.
    """
    means = rows.groupby(["cell", "on"], sort=False)["attention"].mean().unstack("on")
    means = means.loc[rows["cell"].unique(), rows["on"].unique()]
    count = rows["row"].nunique() if "row" in rows else 1
    columns = {name: escape_name(name) for name in means.columns}
    if "value" in rows and count == 1:
        pairs = zip(rows["on"], rows["value"], strict=True)
        columns |= {name: f"{escape_name(name)} = {escape_name(value)}" for name, value in pairs}
    figure = go.Figure(
        go.Heatmap(
            z=means.to_numpy(), x=[columns[name] for name in means.columns],
            y=[escape_name(name) for name in means.index], colorscale=MAGNITUDE, zmin=0, zmax=means.to_numpy().max(),
            colorbar={"title": "attention", "tickformat": SHARE},
            texttemplate="%{z:.1%}" if len(means) <= LARGEST_SQUARE else None,
            hovertemplate="%{y}, masked, attends %{z:.1%} to %{x}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed", title="masked cell", automargin=True)
    figure.update_xaxes(title="attends to", automargin=True)
    shown = "mean over heads" if count == 1 else f"mean over heads and {count} rows"
    return finish_figure(figure, "attention between the cells of a row", shown)


def draw_encodings(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The encodings of categories in two dimensions, with one colour and symbol for each column; categories that are
    numbers are joined in their order.

    rows: of `tabulate_encodings`.
    """
    columns = list(rows.groupby("column", sort=False))
    colours = sample_colours(MODELS, len(columns), 0.1, 0.9)
    figure = go.Figure()
    for at, ((column, part), colour) in enumerate(zip(columns, colours, strict=True)):
        numbers = pd.to_numeric(part["value"], errors="coerce")
        has_order = numbers.notna().all()
        part = part.iloc[numbers.to_numpy().argsort(kind="stable")] if has_order else part
        labels = [escape_name(value) for value in part["value"]]
        figure.add_scatter(
            x=part["x"], y=part["y"], mode="lines+markers+text" if has_order else "markers+text",
            name=escape_name(column), text=labels, textposition="top center", customdata=labels,
            line={"color": colour, "width": 1},
            marker={"color": colour, "size": 9, "symbol": SYMBOLS[at % len(SYMBOLS)]},
            hovertemplate=f"{escape_name(column)} = %{{customdata}}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="first principal component")
    figure.update_yaxes(title="second principal component", scaleanchor="x")
    return finish_figure(figure, "encodings of categories")


# Sequences that one figure has room for.
MOST_SEQUENCES = 4


def draw_item_attention(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The attention of each item of a sequence, when it is masked, on each item that it sees: a panel for each layer.

    rows: of `attngeo efa attention -o`; means over heads. Pairs that are not seen are blank. Raises UsageError for
    more sequences than a figure has room for, and for both parts of a model.
    """
    if "part" in rows and rows["part"].nunique() > 1:
        raise UsageError("attention of items and of values, expected one part; choose it by where, part = items")
    sequences, layers = list(rows["sequence"].unique()), sorted(rows["layer"].unique())
    if len(sequences) > MOST_SEQUENCES:
        raise UsageError(
            f"{len(sequences):,} sequences, expected at most {MOST_SEQUENCES}; choose one by where, such as sequence = "
            f"{sequences[0]}"
        )
    rows = rows.assign(lag=rows.get("lag", 0))
    tables = {  # means over the heads: [positions, (lag, other position)]
        (sequence, layer): part.pivot_table(index="position", columns=["lag", "other_position"], values="weight")
        for sequence in sequences for layer, part in rows[rows["sequence"] == sequence].groupby("layer")
    }  # fmt: skip
    names = {key: _name_items(rows[rows["sequence"] == key[0]], table) for key, table in tables.items()}
    heights = [_limit(len(tables[sequence, layers[0]]) * ITEM_HEIGHT) for sequence in sequences]
    between = BETWEEN + LETTER * max(len(name) for _, columns in names.values() for name in columns)
    inside = sum(heights) + between * (len(sequences) - 1)
    several = len(sequences) > 1
    figure = make_subplots(
        rows=len(sequences), cols=len(layers), row_heights=heights, horizontal_spacing=0.03,
        vertical_spacing=between / inside if several else 0,
        subplot_titles=[
            f"sequence {escape_name(sequence)}, layer {layer}" if several else f"layer {layer}"
            for sequence in sequences for layer in layers
        ],
    )  # fmt: skip
    widest = max(table.shape[1] for table in tables.values()) * len(layers)
    for (sequence, layer), table in tables.items():
        lines, columns = names[sequence, layer]
        panel = {"row": sequences.index(sequence) + 1, "col": layers.index(layer) + 1}
        figure.add_heatmap(
            z=table.to_numpy(), coloraxis="coloraxis", hoverongaps=False, **panel,
            customdata=[[(line, column) for column in columns] for line in lines],
            texttemplate="%{z:.0%}" if widest <= LARGEST_LINE else None,
            hovertemplate="%{customdata[0]}, masked, attends %{z:.1%} to %{customdata[1]}<extra></extra>",
        )  # fmt: skip
        # An item may occur twice, so that axes have numbers.
        figure.update_xaxes(tickvals=list(range(len(columns))), ticktext=columns, tickangle=-60, **panel)
        figure.update_yaxes(tickvals=list(range(len(lines))), ticktext=lines, showticklabels=panel["col"] == 1, **panel)
    figure.update_xaxes(showgrid=False, zeroline=False, automargin=True)
    figure.update_yaxes(showgrid=False, zeroline=False, automargin=True, autorange="reversed")
    figure.update_yaxes(title="masked item", col=1)
    most = max(table.max().max() for table in tables.values())
    figure.update_layout(coloraxis=_share_axis(most, SHARE), height=inside + between - BETWEEN + AROUND)
    shown = "a line: an item, masked; a column: what it attends to; blank: not seen; mean over heads"
    return finish_figure(figure, "attention between the items of a sequence", shown, top=100)


def _limit(height: int) -> int:
    return min(max(height, LEAST_HEIGHT), MOST_HEIGHT)


def _share_axis(most: float, form: str) -> dict[str, Any]:
    """The colours of weights from 0 to the largest, with their bar."""
    bar = {"title": "attention", "tickformat": form, **BAR}
    return {"colorscale": MAGNITUDE, "cmin": 0, "cmax": most, "colorbar": bar}


def _name_items(part: pd.DataFrame, table: pd.DataFrame) -> tuple[list[str], list[str]]:
    """How the lines and the columns of a table are called: items, or positions if there are none."""
    items = dict(zip(part["position"], part["item"], strict=True)) if "item" in part else {}
    if "other_item" in part:
        items |= dict(zip(part["other_position"], part["other_item"], strict=True))
    lines = [escape_name(items.get(position, position), NAME_LENGTH) for position in table.index]
    columns = [
        escape_name(items.get(position, position), NAME_LENGTH) + (f", {lag:g} before" if lag else "")
        for lag, position in table.columns.to_frame().to_numpy()
    ]
    return lines, columns


VECTORS = ("query", "key", "value")
# More rows of a map of vectors than this are not all named.
MOST_NAMED = 80


def draw_item_vectors(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The query, key and value of each item in the first layer, as maps of items × numbers; a line of panels for each
    head.

    rows: of `attngeo.estimators.efa.tabulate_vectors`.
    """
    heads, vectors = sorted(rows["head"].unique()), [name for name in VECTORS if name in set(rows["vector"])]
    if not vectors:
        raise UsageError(f"no row has a vector that is one of: {', '.join(VECTORS)}")
    items = list(dict.fromkeys(rows["item"]))
    total = len(heads) * (_limit(len(items) * VECTOR_HEIGHT) + BETWEEN) + AROUND
    figure = make_subplots(
        rows=len(heads), cols=len(vectors), shared_yaxes=True, horizontal_spacing=0.02,
        vertical_spacing=BETWEEN / total if len(heads) > 1 else 0,
        subplot_titles=[f"{vector}, head {head}" for head in heads for vector in vectors],
    )  # fmt: skip
    for (head, vector), part in rows[rows["vector"].isin(vectors)].groupby(["head", "vector"]):
        table = part.pivot_table(index="item", columns="number", values="value", sort=False).reindex(items)
        place = {"row": heads.index(head) + 1, "col": vectors.index(str(vector)) + 1}
        figure.add_heatmap(
            z=table.to_numpy("float32"), x=[int(number) for number in table.columns],
            customdata=[[escape_name(item)] * table.shape[1] for item in items], coloraxis="coloraxis", **place,
            hovertemplate=f"%{{customdata}}: {vector} in head {head}, number %{{x}}: %{{z:.3f}}<extra></extra>",
        )  # fmt: skip
        figure.update_xaxes(showgrid=False, tickangle=0, tickfont={"size": 9}, **choose_ticks(table.columns), **place)
    ticks = choose_ticks(pd.RangeIndex(len(items)))["tickvals"] if len(items) > MOST_NAMED else range(len(items))
    figure.update_xaxes(title="number", row=len(heads))
    figure.update_yaxes(
        autorange="reversed", showgrid=False, zeroline=False, automargin=True, tickvals=list(ticks),
        ticktext=[escape_name(items[at], NAME_LENGTH) for at in ticks], tickfont={"size": 10},
    )  # fmt: skip
    reach = float(rows["value"].abs().max()) or 1.0
    colours = {"colorscale": SIGNED, "cmin": -reach, "cmax": reach, "colorbar": {"title": "value", **BAR}}
    figure.update_layout(coloraxis=colours, height=total)
    shown = "first layer; a line of panels for each head"
    return finish_figure(figure, "queries, keys and values of items", shown, top=100)


# Places that an error lists; places of a panel that have their names beside them.
MOST_LISTED, MOST_PLACES = 10, 16
# Pixels: the height of a map, and the diameters of the least and the largest point and of the masked place.
MAP_HEIGHT, SMALLEST, LARGEST, STAR = 640, 4, 18, 15


def draw_place_attention(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """Places at longitude and latitude; size and colour are the attention that one place, masked, pays to each.

    rows: of `attngeo efa attention --places-output`. A panel for each layer; the weights of earlier times are added.
    Coasts and borders are not drawn: plotly downloads them, and pages must open offline.
    Raises UsageError for several masked places: `where` chooses one; DataError if there is no other place.
    """
    places, layers = list(rows["place"].unique()), sorted(rows["layer"].unique())
    if len(places) > 1:
        listed = "; ".join(map(str, places[:MOST_LISTED])) + (" …" if len(places) > MOST_LISTED else "")
        raise UsageError(f"{len(places):,} masked places, expected one; choose it by where, place = one of: {listed}")
    place, several = places[0], len(layers) > 1
    sums = rows.groupby(["layer", "other", "latitude", "longitude"], sort=False)["weight"].sum().reset_index()
    # The largest points are drawn first, so that none is hidden.
    others = sums[sums["other"] != place].sort_values("weight", ascending=False)
    if others.empty:
        raise DataError(f"no row has another place than {place}, expected the places that it attends to")
    most = others["weight"].max()
    others = others.assign(size=(LARGEST * (others["weight"] / (most or 1)) ** 0.5).clip(lower=SMALLEST))
    height = (MAP_HEIGHT + BETWEEN) * len(layers)
    figure = make_subplots(
        rows=len(layers), cols=1, vertical_spacing=BETWEEN / height if several else 0,
        subplot_titles=[f"layer {layer}" for layer in layers] if several else None,
    )  # fmt: skip
    for row, layer in enumerate(layers, 1):
        _add_places(figure, others[others["layer"] == layer], row)
        _add_masked(figure, sums[(sums["layer"] == layer) & (sums["other"] == place)], row)
    figure.update_xaxes(title="longitude", ticksuffix="°", zeroline=False)
    figure.update_yaxes(title="latitude", ticksuffix="°", zeroline=False)
    # A degree of longitude is as long as at the middle latitude.
    middle = math.radians((sums["latitude"].min() + sums["latitude"].max()) / 2)
    for axis in figure.select_yaxes():
        axis.update(scaleanchor=axis.anchor, scaleratio=1 / max(math.cos(middle), 0.1))
    figure.update_layout(coloraxis=_share_axis(most, ".2~p"), height=height + AROUND - BETWEEN)
    layer = "" if several else f"layer {layers[0]}, "
    times = "; earlier times are added" if "lag" in rows and rows["lag"].nunique() > 1 else ""
    shown = f"{layer}mean over sequences and heads; area and colour: attention; star: the masked place{times}"
    return finish_figure(figure, f"attention of {escape_name(place)}, masked, on other places", shown, top=100)


def _add_places(figure: go.Figure, others: pd.DataFrame, row: int) -> None:
    """The places of one panel; those of the largest weights have their names beside them."""
    names = [escape_name(name, NAME_LENGTH) for name in others["other"]]
    figure.add_scatter(
        x=others["longitude"], y=others["latitude"], mode="markers+text", cliponaxis=False, row=row, col=1,
        customdata=[escape_name(name) for name in others["other"]],
        text=[name if at < MOST_PLACES else "" for at, name in enumerate(names)],
        textposition="top center", textfont={"size": 11},
        marker={
            "size": others["size"], "color": others["weight"], "coloraxis": "coloraxis", "opacity": 1,
            "line": {"color": GUIDE, "width": 1},
        },
        hovertemplate="%{customdata}: %{marker.color:.1%}<extra></extra>",
    )  # fmt: skip


def _add_masked(figure: go.Figure, masked: pd.DataFrame, row: int) -> None:
    figure.add_scatter(
        x=masked["longitude"], y=masked["latitude"], mode="markers+text", cliponaxis=False, row=row, col=1,
        customdata=masked["weight"], text=[f"<b>{escape_name(name, NAME_LENGTH)}</b>" for name in masked["other"]],
        textposition="top center", textfont={"size": 11, "color": MARKED},
        marker={"size": STAR, "symbol": "star", "color": MARKED},
        hovertemplate="%{text}, masked: %{customdata:.1%} to itself<extra></extra>",
    )  # fmt: skip
