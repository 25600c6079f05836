"""Colours and what they mean."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from plotly.colors import hex_to_rgb

from attngeo.figures import style as palette
from attngeo.figures.style import role_of

# What readers without red, green or blue cones see of linear RGB. Source: Machado et al. 2009, severity 1.
READERS = {
    "all cones": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
WHITE = [0.95047, 1, 1.08883]
# CIELAB distance of colours that readers tell apart at a glance; a just noticeable one is about 2.3.
TOLD_APART = 10
# Contrast with white paper; WCAG 2.2 asks 3 of graphics, and Okabe & Ito's lighter colours have less.
LEAST_CONTRAST = 2.2


def linear(colour: str) -> np.ndarray:
    """The linear RGB of a colour, from 0 to 1."""
    levels = np.array(hex_to_rgb(colour)) / 255
    return np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)


def cielab(levels: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB."""
    x, y, z = np.cbrt(np.maximum(np.array(XYZ) @ levels.clip(0, 1) / WHITE, 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(
    ("stack", "role"),
    [
        ("encoder", "encoder"),
        ("cross", "cross"),
        ("cross:x.y", "cross"),
        ("vision_pooling", "vision"),
        ("mapper", "mapper"),
    ],
)
def test_stacks_have_the_colour_of_their_role(stack: str, role: str) -> None:
    assert role_of(stack) == role


def test_every_colour_has_one_meaning() -> None:
    used = [*palette.ROLES.values(), *palette.INITIALISATIONS.values(), palette.MARKED, palette.GUIDE, palette.MISSING,
            palette.OTHER, palette.INTERVAL, palette.SIGNED[0][1], palette.SIGNED[-1][1]]  # fmt: skip
    assert len(set(used)) == len(used)


@pytest.mark.parametrize("reader", READERS)
def test_colours_of_models_are_told_apart(reader: str) -> None:
    seen = {colour: cielab(np.array(READERS[reader]) @ linear(colour)) for colour in palette.MODEL_COLOURS}
    distances = {pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]) for pair in combinations(seen, 2)}
    assert min(distances.values()) >= TOLD_APART, min(distances, key=lambda pair: distances[pair])


def test_colours_of_models_are_seen_on_white() -> None:
    for colour in palette.MODEL_COLOURS:
        luminance = float(np.array(XYZ)[1] @ linear(colour))
        assert 1.05 / (luminance + 0.05) >= LEAST_CONTRAST, colour
