"""Colours and what they mean."""

from __future__ import annotations

import pytest

from attngeo.figures import style as palette
from attngeo.figures.style import role_of


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
