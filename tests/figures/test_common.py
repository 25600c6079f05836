"""Names, panels, ticks and guides that figures share."""

from __future__ import annotations

import pandas as pd
import pytest
from support.frames import one_model

from attngeo.figures.style import chance_of, choose_ticks, escape_name, name_panels
from attngeo.scores.spec import score_names


def test_panels_are_named_by_what_differs(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:encoder")
    stacks = pd.concat([own, own.assign(stack="cross")])
    assert name_panels(stacks) == {("demo:encoder", "encoder"): "encoder", ("demo:encoder", "cross"): "cross"}
    both = pd.concat([stacks, stacks.assign(model="b")])
    assert list(name_panels(both).values())[-1] == "b · cross"
    assert list(name_panels(own).values()) == [""]


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
