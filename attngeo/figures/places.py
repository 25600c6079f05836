"""The attention of a place on other places, on a map of longitude and latitude.

Maps of coasts and borders are not drawn: plotly downloads them, and pages must open offline.
"""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError, UsageError
from attngeo.figures.options import PlotOptions
from attngeo.figures.style import GUIDE, MAGNITUDE, MARKED, escape_name, finish_figure

# Names that an error lists; names of the places of a panel, if it is the only one of its line.
MOST_LISTED, MOST_NAMES, NAME_LENGTH = 10, 16, 30
# Pixels: a line of panels, the diameters of the least and the largest point if a line has one panel, and of the masked
# place, and the room between and around panels.
LINE, SMALLEST, LARGEST, STAR, BETWEEN, AROUND = 800, 4, 18, 15, 90, 180
LEAST_HEIGHT, MOST_HEIGHT = 160, 700
# Layers that are below each other; more are in two columns.
MOST_LINES = 2
# The room beside the outermost places, as a share of the distance between them; and between panels, of their line.
EDGE, SPACING = 0.1, 0.08


def draw_place_attention(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """Places at longitude and latitude; size and colour are the attention that one place, masked, pays to each.

    rows: of `attngeo efa attention --places-output`. A panel for each layer; the weights of earlier times are added.
    Raises UsageError for several masked places: `where` chooses one; DataError if there is no other place.
    """
    places = list(dict.fromkeys(rows["place"]))
    if len(places) > 1:
        listed = "; ".join(map(str, places[:MOST_LISTED])) + (" …" if len(places) > MOST_LISTED else "")
        raise UsageError(f"{len(places):,} masked places, expected one; choose it by where, place = one of: {listed}")
    place, layers = places[0], sorted(rows["layer"].unique())
    across = 1 if len(layers) <= MOST_LINES else 2
    down = math.ceil(len(layers) / across)
    sums = rows.groupby(["layer", "other", "latitude", "longitude"], sort=False)["weight"].sum().reset_index()
    is_own = sums["other"] == place
    others = sums.loc[~is_own, "weight"]
    if others.empty:
        raise DataError(f"no row has another place than {place}, expected the places that it attends to")
    edges = sums[["longitude", "latitude"]].astype("float64").agg(["min", "max"])
    room = EDGE * (edges.loc["max"] - edges.loc["min"]).clip(lower=1.0)
    low, high = edges.loc["min"] - room, edges.loc["max"] + room
    # A degree of longitude is as long as at the middle latitude.
    middle = float(edges["latitude"].mean())
    ratio = 1 / max(math.cos(math.radians(middle)), 0.1)
    up = ratio * (high["latitude"] - low["latitude"]) / (high["longitude"] - low["longitude"])
    width = LINE * (1 - SPACING * (across - 1)) / across
    height = round(min(max(width * up, LEAST_HEIGHT), MOST_HEIGHT))
    shares = (sums["weight"] / others.max()) ** 0.5 if others.max() > 0 else 0 * sums["weight"]
    sums = sums.assign(size=(LARGEST / across**0.5 * shares).clip(lower=SMALLEST).where(~is_own, STAR), is_own=is_own)
    total = (height + BETWEEN) * down + AROUND - BETWEEN
    figure = make_subplots(
        rows=down, cols=across, horizontal_spacing=SPACING,
        vertical_spacing=BETWEEN / (total - AROUND) if down > 1 else 0,
        subplot_titles=[f"layer {layer}" for layer in layers] if len(layers) > 1 else None,
    )  # fmt: skip
    for at, layer in enumerate(layers):
        panel = {"row": at // across + 1, "col": at % across + 1}
        own = sums[sums["layer"] == layer]
        _add_places(figure, own[~own["is_own"]], own[own["is_own"]], MOST_NAMES // across, panel)
    figure.update_xaxes(title="longitude", range=[low["longitude"], high["longitude"]], ticksuffix="°", zeroline=False)
    figure.update_yaxes(range=[low["latitude"], high["latitude"]], ticksuffix="°", zeroline=False)
    figure.update_yaxes(title="latitude", col=1)
    for number, axis in enumerate(figure.select_yaxes(), 1):
        axis.update(scaleanchor=f"x{number if number > 1 else ''}", scaleratio=ratio)
    figure.update_layout(
        coloraxis={
            "colorscale": MAGNITUDE, "cmin": 0, "cmax": others.max(),
            "colorbar": {"title": "attention", "tickformat": ".2~p", "lenmode": "pixels", "len": 260, "y": 1,
                         "yanchor": "top"},
        },
        height=total,
    )  # fmt: skip
    layer = "" if len(layers) > 1 else f"layer {layers[0]}, "
    times = "; earlier times are added" if "lag" in rows and rows["lag"].nunique() > 1 else ""
    shown = f"{layer}mean over sequences and heads; area and colour: attention; star: the masked place{times}"
    finished = finish_figure(figure, f"attention of {escape_name(place)}, masked, on other places", shown)
    return finished.update_layout(margin={"t": 100}, showlegend=False)


def _add_places(
    figure: go.Figure, others: pd.DataFrame, masked: pd.DataFrame, most_names: int, panel: dict[str, int]
) -> None:
    """The places of one panel, the largest points first, so that none is hidden; and the masked place.

    most_names: how many of the largest have their names beside them.
    """
    others = others.sort_values("weight", ascending=False)
    names = [escape_name(name, NAME_LENGTH) for name in others["other"]]
    figure.add_scatter(
        x=others["longitude"], y=others["latitude"], mode="markers+text",
        customdata=[escape_name(name) for name in others["other"]],
        text=[name if at < most_names else "" for at, name in enumerate(names)],
        textposition="top center", textfont={"size": 11},
        marker={
            "size": others["size"], "color": others["weight"], "coloraxis": "coloraxis", "opacity": 1,
            "line": {"color": GUIDE, "width": 1},
        },
        hovertemplate="%{customdata}: %{marker.color:.1%}<extra></extra>", **panel,
    )  # fmt: skip
    figure.add_scatter(
        x=masked["longitude"], y=masked["latitude"], mode="markers+text", customdata=masked["weight"],
        text=[f"<b>{escape_name(name, NAME_LENGTH)}</b>" for name in masked["other"]],
        textposition="top center", textfont={"size": 11, "color": MARKED},
        marker={"size": STAR, "symbol": "star", "color": MARKED},
        hovertemplate="%{text}, masked: %{customdata:.1%} to itself<extra></extra>", **panel,
    )  # fmt: skip
