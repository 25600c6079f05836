"""Names, panels, ticks and guides that figures share."""

from __future__ import annotations

import pandas as pd
import pytest
from support.frames import one_model

from attngeo.figures.names import escape_name, shorten_names
from attngeo.figures.style import (
    DASHES,
    MOST_MODELS_TOGETHER,
    ROLES,
    SYMBOLS,
    chance_of,
    choose_ticks,
    split_panels,
    tell_apart,
)
from attngeo.scores.spec import score_names


def test_panels_are_named_by_what_differs(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:encoder")
    stacks = pd.concat([own, own.assign(stack="cross")])
    assert [panel.name for panel in split_panels(stacks)] == ["encoder", "cross"]
    both = split_panels(pd.concat([stacks, stacks.assign(model="b")]))
    assert (both[-1].model, both[-1].stack, both[-1].name) == ("b", "cross", "b · cross")
    assert [panel.name for panel in split_panels(own)] == [""]


def test_stacks_of_one_model_have_the_colour_of_their_role_and_then_a_lighter_one(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:encoder")
    stacks = [own.assign(stack=f"encoder{number}") for number in range(len(DASHES) + 1)]
    looks = tell_apart(split_panels(pd.concat(stacks)))
    assert looks[1] == (ROLES["encoder"], DASHES[1], SYMBOLS[1])
    assert looks[-1] == ("#8cc0dc", DASHES[0], SYMBOLS[len(DASHES)])


def test_models_of_different_roles_have_the_colours_of_roles(rows: pd.DataFrame) -> None:
    two = rows[rows["model"] != "demo:minilm"]
    assert [look.colour for look in tell_apart(split_panels(two))] == [ROLES["encoder"], ROLES["decoder"]]


def test_models_of_one_role_have_a_colour_each_and_kinds_of_stacks_a_dash(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:encoder")
    frames = []
    for number in range(MOST_MODELS_TOGETHER // 2):
        frames += [own.assign(model=f"m{number}", stack=stack) for stack in ("encoder", "cross")]
    panels = split_panels(pd.concat(frames))
    looks = tell_apart(panels)
    assert len(set(looks)) == len(looks) == MOST_MODELS_TOGETHER
    for model in range(MOST_MODELS_TOGETHER // 2):
        encoder, cross = looks[2 * model : 2 * model + 2]
        assert encoder.colour == cross.colour
        assert (encoder.dash, cross.dash) == DASHES[:2]


def test_names_lose_their_organisation_where_they_have_no_room() -> None:
    names = ["google-bert/bert-base-uncased", "1 openai-community/gpt2"]
    assert shorten_names(names, 60) == names
    assert shorten_names(names, 20) == ["bert-base-uncased", "1 gpt2"]
    assert shorten_names(["one/same-long-name", "two/same-long-name"], 14) == ["one/sa…ng-name", "two/sa…ng-name"]


def test_ticks_are_whole_numbers_and_about_twenty_at_most() -> None:
    for last in (0, 5, 23, 79, 200):
        ticks = choose_ticks(pd.Index([last]))["tickvals"]
        assert ticks[0] == 0
        assert len(ticks) <= 21
        assert ticks[-1] <= last
    assert choose_ticks(pd.Index([23]), 5)["tickvals"] == [0, 5, 10, 15, 20]


def test_names_are_plain_and_short() -> None:
    assert escape_name("a\u202eb\nc") == r"a\u202eb\nc"
    assert len(escape_name("x" * 61)) == 60
    assert escape_name("x" * 60) == "x" * 60
    assert escape_name("<b>&{") == "&lt;b&gt;&amp;&#123;"


def test_chance_levels_are_limits_of_wide_forms() -> None:
    assert [chance_of(score) for score in score_names()] == pytest.approx([0, 0], abs=0)
