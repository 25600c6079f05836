"""The attention of a place on other places, on a map of longitude and latitude.

Maps of coasts and borders are not drawn: plotly downloads them, and pages must open offline.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError, UsageError
from attngeo.figures.common import escape_name, finish_figure
from attngeo.figures.options import PlotOptions
from attngeo.figures.palette import GUIDE, MAGNITUDE, MARKED

# Names that an error lists; names of the places of a panel, if it is the only one of its line.
MOST_LISTED, MOST_NAMES, NAME_LENGTH = 10, 16, 30
# Pixels: a line of panels, the diameters of the least and the largest point if a line has one panel, and of the masked
# place, a letter, and the room around panels.
LINE, SMALLEST, LARGEST, STAR = 800, 4, 18, 15
LETTER, LETTER_HEIGHT, BETWEEN, AROUND = 6.5, 14, 90, 180
LEAST_HEIGHT, MOST_HEIGHT = 160, 700
# Layers that are below each other; more are in two columns.
MOST_LINES = 2
# The room beside the outermost places, as a share of the distance between them; and between panels, of their line.
EDGE, SPACING = 0.1, 0.08
# Where a name may be beside its point, the best first: to the right and up.
SIDES = ((0, 1), (1, 0), (-1, 0), (0, -1))


@dataclass(frozen=True)
class _Map:
    """How places are drawn. low, high: longitude and latitude of the edges. ratio: of the lengths of both degrees.

    width, height: pixels of a panel. largest: the diameter of a point.
    """

    low: tuple[float, float]
    high: tuple[float, float]
    ratio: float
    width: float
    largest: float

    @classmethod
    def of(cls, places: pd.DataFrame, across: int) -> _Map:
        """Around the places; a degree of longitude is as long as at the middle latitude."""
        found = places[["longitude", "latitude"]].astype("float64")
        edge = EDGE * (found.max() - found.min()).clip(lower=1.0)
        low, high = (tuple(each) for each in (found.min() - edge, found.max() + edge))
        ratio = 1 / max(math.cos(math.radians((low[1] + high[1]) / 2)), 0.1)
        return cls(low, high, ratio, LINE * (1 - SPACING * (across - 1)) / across, LARGEST / across**0.5)

    @property
    def spans(self) -> tuple[float, float]:
        """The width and the height that are shown, both in degrees of longitude."""
        return self.high[0] - self.low[0], self.ratio * (self.high[1] - self.low[1])

    @property
    def height(self) -> int:
        across, up = self.spans
        return round(min(max(self.width * up / across, LEAST_HEIGHT), MOST_HEIGHT))

    def find_pixels(self, place: Mapping[Hashable, Any]) -> tuple[float, float]:
        """Where a place is in a panel, in whose middle the map is as large as it can be."""
        across, up = self.spans
        scale = min(self.width / across, self.height / up)
        x = place["longitude"] - (self.low[0] + self.high[0]) / 2
        y = self.ratio * (place["latitude"] - (self.low[1] + self.high[1]) / 2)
        return self.width / 2 + scale * x, self.height / 2 + scale * y

    def holds(self, box: _Box) -> bool:
        """Whether a box is in a panel."""
        return box.left >= 0 and box.right <= self.width and box.lower >= 0 and box.upper <= self.height


class _Box(NamedTuple):
    """Edges in pixels."""

    left: float
    right: float
    lower: float
    upper: float

    @classmethod
    def around(cls, x: float, y: float, width: float, height: float) -> _Box:
        return cls(x - width / 2, x + width / 2, y - height / 2, y + height / 2)

    def meets(self, other: _Box) -> bool:
        beside = self.right <= other.left or other.right <= self.left
        return not (beside or self.upper <= other.lower or other.upper <= self.lower)


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
    shape = _Map.of(sums, across)
    shares = (sums["weight"] / others.max()) ** 0.5 if others.max() > 0 else 0 * sums["weight"]
    sums = sums.assign(size=(shape.largest * shares).clip(lower=SMALLEST).where(~is_own, STAR), is_own=is_own)
    total = (shape.height + BETWEEN) * down + AROUND - BETWEEN
    figure = make_subplots(
        rows=down, cols=across, horizontal_spacing=SPACING,
        vertical_spacing=BETWEEN / (total - AROUND) if down > 1 else 0,
        subplot_titles=[f"layer {layer}" for layer in layers] if len(layers) > 1 else None,
    )  # fmt: skip
    for at, layer in enumerate(layers):
        panel = {"row": at // across + 1, "col": at % across + 1}
        own = sums[sums["layer"] == layer]
        _add_places(figure, own[~own["is_own"]], own[own["is_own"]], panel)
        _add_names(figure, own, shape, MOST_NAMES // across, panel)
    figure.update_xaxes(title="longitude", range=[shape.low[0], shape.high[0]], ticksuffix="°", zeroline=False)
    figure.update_yaxes(range=[shape.low[1], shape.high[1]], ticksuffix="°", zeroline=False)
    figure.update_yaxes(title="latitude", col=1)
    for number, axis in enumerate(figure.select_yaxes(), 1):
        axis.update(scaleanchor=f"x{number if number > 1 else ''}", scaleratio=shape.ratio)
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


def _add_places(figure: go.Figure, others: pd.DataFrame, masked: pd.DataFrame, panel: dict[str, int]) -> None:
    """The places of one panel, the largest points first, so that none is hidden; and the masked place."""
    others = others.sort_values("weight", ascending=False)
    figure.add_scatter(
        x=others["longitude"], y=others["latitude"], mode="markers",
        customdata=[escape_name(name) for name in others["other"]],
        marker={
            "size": others["size"], "color": others["weight"], "coloraxis": "coloraxis", "opacity": 1,
            "line": {"color": GUIDE, "width": 1},
        },
        hovertemplate="%{customdata}: %{marker.color:.1%}<extra></extra>", **panel,
    )  # fmt: skip
    figure.add_scatter(
        x=masked["longitude"], y=masked["latitude"], mode="markers", customdata=masked["weight"],
        text=[escape_name(name) for name in masked["other"]],
        marker={"size": STAR, "symbol": "star", "color": MARKED},
        hovertemplate="%{text}, masked: %{customdata:.1%} to itself<extra></extra>", **panel,
    )  # fmt: skip


def _add_names(figure: go.Figure, own: pd.DataFrame, shape: _Map, most: int, panel: dict[str, int]) -> None:
    """The name of the masked place, and those of the places with the largest weights if they have room."""
    places = own.sort_values(["is_own", "weight"], ascending=False).to_dict("records")
    centres = [shape.find_pixels(each) for each in places]
    taken = [_Box.around(*at, each["size"], each["size"]) for each, at in zip(places, centres, strict=True)]
    for each, centre in zip(places[: most + 1], centres, strict=False):
        name = escape_name(each["other"], NAME_LENGTH)
        box = _find_room(centre, each["size"], LETTER * len(name), shape, taken)
        if box is None:
            continue
        taken.append(box)
        figure.add_annotation(
            x=each["longitude"], y=each["latitude"], text=f"<b>{name}</b>" if each["is_own"] else name,
            showarrow=False, borderpad=0, xshift=(box.left + box.right) / 2 - centre[0],
            yshift=(box.lower + box.upper) / 2 - centre[1],
            font={"size": 11, "color": MARKED} if each["is_own"] else {"size": 11}, **panel,
        )  # fmt: skip


def _find_room(
    centre: tuple[float, float], size: float, width: float, shape: _Map, taken: Sequence[_Box]
) -> _Box | None:  # fmt: skip
    """The first place for a name beside a point where nothing else is. size: the point's. width: the name's."""
    for across, up in SIDES:
        x = centre[0] + across * (size + width) / 2
        y = centre[1] + up * (size + LETTER_HEIGHT) / 2
        box = _Box.around(x, y, width, LETTER_HEIGHT)
        if shape.holds(box) and not any(box.meets(each) for each in taken):
            return box
    return None
