"""Colours: each has one meaning in all figures, and colour-blind readers can tell them apart.

Source: Okabe & Ito 2008, "Color Universal Design", https://jfly.uni-koeln.de/color/; indigo, wine and sand from
Tol's notes, https://personal.sron.nl/~pault/.
"""

from __future__ import annotations

from collections.abc import Sequence

ROLES = {
    "encoder": "#0072B2", "decoder": "#CC79A7", "cross": "#E69F00", "vision": "#009E73", "audio": "#56B4E9",
    "text": "#332288",
}  # fmt: skip
OBJECTIVES = {"mlm": ROLES["encoder"], "clm": ROLES["decoder"], "image": ROLES["vision"]}
OBJECTIVE_NAMES = {"mlm": "encoder (mlm)", "clm": "decoder (clm)", "image": "vision"}
INITIALISATIONS = {"default": "#56606B", "symmetric": "#D55E00", "identity": "#999933"}
OTHER = "#000000"
# Colour scales, from dark to light: of layers, and of models compared in something that has no role.
LAYERS, MODELS = "Cividis", "Viridis"
# Scores from -1 to 1: purple, white, green (ColorBrewer's PRGn). Magnitudes from 0 up: white to black.
SIGNED = ((0.0, "#762A83"), (0.25, "#C2A5CF"), (0.5, "#FFFFFF"), (0.75, "#A6DBA0"), (1.0, "#1B7837"))
MAGNITUDE = ((0.0, "#FFFFFF"), (0.4, "#B5BAC1"), (1.0, "#14171A"))
# Outliers, lines that guide the eye, and missing values.
MARKED = "#882255"
GUIDE = "#9AA1AB"
MISSING = "#D5D8DC"
# An interval over a bar, whatever the bar's colour.
INTERVAL = "#7F7F7F"
# Symbols and dashes distinguish models of one colour.
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


def colour_of(stack: str) -> str:
    """The colour of a stack of attention."""
    return ROLES.get(role_of(stack), OTHER)


def tell_apart(stack: str, number: int, styles: Sequence[str]) -> tuple[str, str]:
    """The colour and the dash or symbol of one of several models, by its number among those of the same role.

    The colour is lighter in each round of the styles, twice at most.

    >>> tell_apart("encoder", 1, DASHES), tell_apart("encoder", 6, DASHES)
    (('#0072B2', 'dash'), ('#8cc0dc', 'solid'))
    """
    rounds, at = divmod(number, len(styles))
    return _lighten(colour_of(stack), LIGHTER[min(rounds, len(LIGHTER) - 1)]), styles[at]


def _lighten(colour: str, share: float) -> str:
    """A colour with a share of white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts) if share else colour


def fade(colour: str, opacity: float = 0.2) -> str:
    """The colour of a band around a line of this colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
