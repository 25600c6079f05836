"""The style that all figures share: colours, panels, guides, titles and legends.

Colours of roles, objectives and initialisations have one meaning in all figures. Several models of one role are told
apart by colours of their own. Colour-blind readers can tell all of them apart. Source: Okabe & Ito 2008, "Color
Universal Design", https://jfly.uni-koeln.de/color/; indigo, wine, olive, green and brown from Tol's notes,
https://personal.sron.nl/~pault/.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go
from plotly.colors import hex_to_rgb, sample_colorscale

from attngeo.figures.fit import TITLE_HEIGHT, list_ticks
from attngeo.figures.kinds import LOSS
from attngeo.figures.names import escape_name
from attngeo.questions.spread import QUANTILES, QUARTILES
from attngeo.scores.spec import SCORES

# From this number on, ticks are thinned out.
MOST_TICKS = 20
# Chance levels of forms as wide as this are their limits, to the digits that a figure shows.
WIDE = 2**20
# The opacity of a band, and of all bands of a panel together.
FAINT, TOGETHER = 0.2, 0.8
DIGITS = 3


class Panel(NamedTuple):
    """The rows of one stack of one model.

    Attributes:
        model: name of the model.
        stack: name of the stack.
        name: label that distinguishes it from the others; "" for a single one.
        number: position among the panels of its role, from 0.
        rows: rows of the stack.
    """

    model: str
    stack: str
    name: str
    number: int
    rows: pd.DataFrame

    @property
    def label(self) -> str:
        """Its name in a legend; a single one has the name of its stack."""
        return self.name or escape_name(self.stack)

    @property
    def hover(self) -> str:
        """The model and the stack, with which hover texts begin."""
        return f"{escape_name(self.model)}<br>{escape_name(self.stack)}"


def split_panels(rows: pd.DataFrame) -> list[Panel]:
    """Every stack of every model, in the order of the rows; names contain the model, the stack, or both."""
    groups = list(rows.groupby(["model", "stack"], sort=False))
    models = rows["model"].nunique()
    panels = []
    panels_of_role = Counter[str]()
    for (model, stack), stack_rows in groups:
        names = []
        if models > 1:
            names.append(escape_name(model))
        if len(groups) > models:
            names.append(escape_name(stack))
        role = role_of(str(stack))
        panels.append(Panel(str(model), str(stack), " · ".join(names), panels_of_role[role], stack_rows))
        panels_of_role[role] += 1
    return panels


def compose_title(rows: pd.DataFrame, shown: str) -> str:
    """A title: the subject of the figure, after the model's name if there is only one model."""
    models = rows["model"].unique()
    return f"{escape_name(models[0])}: {shown}" if len(models) == 1 else shown


def finish_figure(figure: go.Figure, title: str, details: str = "", top: int = TITLE_HEIGHT) -> go.Figure:
    """The figure with a title, details in smaller type below it, and a legend if there are traces to tell apart.

    top: pixels above the panels, which may have titles of their own.
    """
    text = f"{title}<br><sup>{details}</sup>" if details else title
    named = sum(trace.showlegend is not False and bool(trace.name) for trace in figure.data)
    return figure.update_layout(
        title=text,
        template="plotly_white",
        showlegend=named > 1,
        margin={"t": top, "r": 30},
        hoverlabel={"align": "left"},
    )


def choose_ticks(numbers: pd.Index, most: int = MOST_TICKS) -> dict[str, list[int]]:
    """Ticks of an axis of layers or heads: whole numbers from 0, at most this many."""
    return {"tickvals": list_ticks(int(numbers.max()), most)}


def label_of(score: str) -> str:
    """The name of a score, or of the loss, in figures."""
    return LOSS if score == LOSS else SCORES[score].label


def axis_title_of(score: str) -> str:
    """The title of an axis of the loss, or of a score, with the meaning of its ends in small type below."""
    if score == LOSS:
        return "loss (nats per prediction)"
    label, parenthesis, ends = SCORES[score].axis_title.partition(" (")
    return f'{label}<br><span style="font-size:0.7em">({ends}</span>' if parenthesis else label


def number_format_of(score: str) -> str:
    """The d3 format of a score: with a sign if it can be negative."""
    spec = SCORES[score]
    sign = "+" if spec.low < 0 else ""
    return f".{spec.digits}g" if spec.is_size else f"{sign}.{spec.digits}f"


def hover_of(score: str, field: str = "y") -> str:
    """The part of a hover text that shows a score, which is a field of the trace: its name and its value."""
    return f"{label_of(score)} %{{{field}:{number_format_of(score)}}}"


def chance_of(score: str) -> float | None:
    """The score of random forms, in the limit of wide forms; None if it depends on more than their width."""
    chance = SCORES[score].chance
    return None if chance is None else round(chance(WIDE).mean, SCORES[score].digits)


def add_chance_line(figure: go.Figure, score: str, axis: str = "y") -> None:
    """Add a dotted line across the figure at the chance level of the score, if any, on this axis, "x" or "y"."""
    line = {"color": GUIDE, "width": 1, "dash": "dot"}
    chance = chance_of(score)
    if chance is None:
        return
    if axis == "y":
        figure.add_hline(y=chance, line=line)
    else:
        figure.add_vline(x=chance, line=line)


def quartiles_by(rows: pd.DataFrame, key: str, score: str) -> pd.DataFrame:
    """The quartiles of a score for each value of a column: columns lower, median and upper."""
    grouped = rows.groupby(key)[score]
    return pd.DataFrame({name: grouped.quantile(QUANTILES[name]) for name in QUARTILES})


def add_band(
    figure: go.Figure,
    lower: pd.Series,
    upper: pd.Series,
    colour: str,
    group: str,
    subplot: Mapping[str, int] | None = None,
    opacity: float = FAINT,
) -> None:
    """Add a band from one line to another, which a click on the group's name in the legend hides.

    subplot: row and column of a figure of several panels. Add all bands of a panel before its lines, to be below them.
    """
    edge: dict[str, Any] = {
        "mode": "lines", "line_width": 0, "showlegend": False, "hoverinfo": "skip", "legendgroup": group,
    }  # fmt: skip
    place = subplot or {}
    figure.add_scatter(x=upper.index, y=upper, **edge, **place)
    figure.add_scatter(x=lower.index, y=lower, fill="tonexty", fillcolor=fade(colour, opacity), **edge, **place)


def sample_colours(scale: str, count: int, first: float, last: float) -> list[str]:
    """Colours of a scale, from the share `first` of it to the share `last`."""
    shares = [first + (last - first) * number / max(count - 1, 1) for number in range(count)]
    colours = sample_colorscale(scale, shares, colortype="tuple")
    return [_format_colour(255 * level for level in colour) for colour in colours]


ROLES = {
    "encoder": "#0072B2", "decoder": "#CC79A7", "cross": "#E69F00", "vision": "#009E73", "audio": "#56B4E9",
    "text": "#332288",
}  # fmt: skip
OBJECTIVES = {"mlm": ROLES["encoder"], "clm": ROLES["decoder"], "image": ROLES["vision"]}
OBJECTIVE_NAMES = {"mlm": "encoder (mlm)", "clm": "decoder (clm)", "image": "vision"}
INITIALISATIONS = {"default": "#56606B", "symmetric": "#D55E00", "identity": "#999933", "published": "#44AA99"}
OTHER = "#000000"
# Colour scales, from dark to light.
LAYERS = "Cividis"
MODELS = "Viridis"  # compared in something that has no role
# Scores from -1 to 1: purple, white, green (ColorBrewer's PRGn). Magnitudes from 0 up: white to black.
SIGNED = ((0.0, "#762A83"), (0.25, "#C2A5CF"), (0.5, "#FFFFFF"), (0.75, "#A6DBA0"), (1.0, "#1B7837"))
MAGNITUDE = ((0.0, "#FFFFFF"), (0.4, "#B5BAC1"), (1.0, "#14171A"))
# Outliers, lines that guide the eye, and missing values.
MARKED = "#882255"
GUIDE = "#9AA1AB"
MISSING = "#D5D8DC"
# An interval over a bar, whatever the bar's colour.
INTERVAL = "#7F7F7F"
# Models of one role, side by side in one panel. More than these cannot be told apart.
MODEL_COLOURS = (
    "#0072B2", "#D55E00", "#56B4E9", "#882255", "#E69F00", "#332288", "#009E73", "#CC79A7", "#117733", "#999933",
    "#000000", "#662506",
)  # fmt: skip
MOST_MODELS_TOGETHER = len(MODEL_COLOURS)
# Symbols and dashes distinguish what has one colour.
SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up", "star", "x", "pentagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
# Shares of white in the colour of further models, when all symbols or dashes are used.
LIGHTER = (0.0, 0.55, 0.75)


def role_of(stack: str) -> str:
    """The role that gives a stack of attention its colour, or the stack itself if it has none.

    >>> role_of("cross:decoder.layers"), role_of("vision")
    ('cross', 'vision')
    """
    name = stack.partition(":")[0]
    return next((role for role in ROLES if name.startswith(role)), name)


class Look(NamedTuple):
    """The look that distinguishes a stack of attention from the others in its panel.

    Attributes:
        colour: colour of lines and points.
        dash: dash of lines.
        symbol: symbol of points.
    """

    colour: str
    dash: str
    symbol: str


def tell_apart(panels: Sequence[Panel]) -> list[Look]:
    """The look of each of the stacks that one panel of a figure shows, at most `MOST_MODELS_TOGETHER`.

    Stacks of one model, and of models of different roles, have the colours of their roles. Otherwise each model has a
    colour and a symbol, and each kind of stack a dash.
    """
    models = list(dict.fromkeys(panel.model for panel in panels))
    roles = {role_of(panel.stack) for panel in panels}
    if len(models) == 1 or len(roles) == len(panels):
        return [_look_by_role(panel) for panel in panels]
    stacks = list(dict.fromkeys(panel.stack for panel in panels))
    looks = []
    for panel in panels:
        model = models.index(panel.model)
        colour = MODEL_COLOURS[model % MOST_MODELS_TOGETHER]
        dash = DASHES[stacks.index(panel.stack) % len(DASHES)]
        looks.append(Look(colour, dash, SYMBOLS[model % len(SYMBOLS)]))
    return looks


def _look_by_role(panel: Panel) -> Look:
    """The colour of the stack's role; stacks of one role differ by dash and symbol, and are lighter in each round."""
    rounds, position = divmod(panel.number, len(DASHES))
    colour = ROLES.get(role_of(panel.stack), OTHER)
    white = LIGHTER[min(rounds, len(LIGHTER) - 1)]
    if white:
        colour = _format_colour(level + (255 - level) * white for level in hex_to_rgb(colour))
    return Look(colour, DASHES[position], SYMBOLS[panel.number % len(SYMBOLS)])


def _format_colour(levels: Iterable[float]) -> str:
    """The colour of these levels of red, green and blue, from 0 to 255."""
    return "#" + "".join(f"{round(level):02x}" for level in levels)


def fade(colour: str, opacity: float = FAINT) -> str:
    """The colour of a band around a line of this colour, and of bars of faint points."""
    red, green, blue = hex_to_rgb(colour)
    return f"rgba({red},{green},{blue},{opacity:.3g})"
