"""Names, panels, ticks and guides that figures share."""

from __future__ import annotations

import pandas as pd
import pytest
from support.frames import one_model

from attngeo.figures.style import DASHES, ROLES, chance_of, choose_ticks, escape_name, split_panels, tell_apart
from attngeo.scores.spec import score_names


def test_panels_are_named_by_what_differs(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:encoder")
    stacks = pd.concat([own, own.assign(stack="cross")])
    assert [panel.name for panel in split_panels(stacks)] == ["encoder", "cross"]
    both = split_panels(pd.concat([stacks, stacks.assign(model="b")]))
    assert (both[-1].model, both[-1].stack, both[-1].name) == ("b", "cross", "b · cross")
    assert [panel.name for panel in split_panels(own)] == [""]


def test_models_of_one_role_have_its_colour_and_then_a_lighter_one(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:encoder")
    panels = split_panels(pd.concat([own.assign(model=f"m{number}") for number in range(len(DASHES) + 1)]))
    looks = [tell_apart(panel, DASHES) for panel in panels]
    assert looks[1] == (ROLES["encoder"], DASHES[1])
    assert looks[-1] == ("#8cc0dc", DASHES[0])


def test_ticks_are_whole_numbers_and_about_twenty_at_most() -> None:
    for last in (0, 5, 23, 79, 200):
        ticks = choose_ticks(pd.Index([last]))["tickvals"]
        assert ticks[0] == 0
        assert len(ticks) <= 21
        assert ticks[-1] <= last


def test_names_are_plain_and_short() -> None:
    assert escape_name("a\u202eb\nc") == r"a\u202eb\nc"
    assert len(escape_name("x" * 61)) == 60
    assert escape_name("x" * 60) == "x" * 60
    assert escape_name("<b>&{") == "&lt;b&gt;&amp;&#123;"


def test_chance_levels_are_limits_of_wide_forms() -> None:
    assert [chance_of(score) for score in score_names()] == pytest.approx([0, 0], abs=0)
