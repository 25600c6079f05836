"""Colours, each with one meaning, told apart by colour-blind readers too.

Source: Okabe & Ito 2008, "Color Universal Design", https://jfly.uni-koeln.de/color/.
"""

from __future__ import annotations

OBJECTIVES = {"mlm": "#0072B2", "clm": "#CC79A7", "image": "#009E73"}
OBJECTIVE_NAMES = {"mlm": "encoder (mlm)", "clm": "decoder (clm)", "image": "vision"}
INITIALISATIONS = {"default": "#56606B", "symmetric": "#D55E00", "identity": "#E69F00"}
OTHER = "#000000"
# Layers run from light to dark.
LAYERS = "Cividis"


def faded(colour: str, opacity: float = 0.2) -> str:
    """The colour as a band is filled with it."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
