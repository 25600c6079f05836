"""Conditions over summaries: what they mean, what is refused, and that no code runs."""

from __future__ import annotations

import math
import re

import pytest

import attngeo
from attngeo.errors import UsageError
from attngeo.scores.conditions import Condition, Outcome, condition_names
from attngeo.scores.summary import summarise

VALUES = dict.fromkeys(condition_names(), 0.25) | {
    "symmetry.median": 0.5,
    "layers": 6.0,
    "heads.directionality.min": -0.75,
}


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("symmetry.median < 0.5", False),
        ("symmetry.median <= 0.5", True),
        ("0.4 < symmetry.median < 0.6", True),
        ("0.4 < symmetry.median < 0.45", False),
        ("symmetry.median == 1/2 and layers != 7", True),
        ("symmetry.median > 1 or layers >= 6", True),
        ("not (symmetry.median > 1 or layers >= 6)", False),
        ("abs(heads.directionality.min) > 0.7", True),
        ("-heads.directionality.min * 2 - 1 == symmetry.median", True),
        ("symmetry.median - symmetry.lower > 0.3", False),
        ("  layers   >5 ", True),
    ],
)
def test_what_conditions_mean(expression: str, holds: bool) -> None:
    assert Condition(expression).holds(VALUES) is holds


@pytest.mark.parametrize(
    ("expression", "fact"),
    [
        ("", "''"),
        ("symmetry.median <", "symmetry.median <"),
        ("symmetry.median", "symmetry.median"),
        ("1", "'1'"),
        ("symmetry.medain < 1", "symmetry.median"),
        ("symmetry < 0.3", "symmetry.median"),
        ("model < 1", "'model'"),
        ("__import__('os').system('true') < 1", "__import__"),
        ("symmetry.median.__class__ < 1", "symmetry.median.__class__"),
        ("symmetry['median'] < 1", "symmetry["),
        ("(lambda: 1)() < 1", "lambda"),
        ("[x for x in ()] < 1", "for x in"),
        ("symmetry.median < 'a'", "'a'"),
        ("symmetry.median < True", "True"),
        ("symmetry.median < 9**9**9", "9 ** 9 ** 9"),
        ("symmetry.median < " + "9" * 400, "99999"),
        ("symmetry.median in (1, 2)", "in (1, 2)"),
        ("symmetry.median is 1", "is 1"),
        ("abs(1, 2) < 3", "abs(1, 2)"),
        ("abs(layers, x=2) < 3", "abs(layers, x=2)"),
        ("layers < 1 and layers", "'layers'"),
        ("layers < 1\nlayers < 2", "\\n"),
        ("layers < 1; layers < 2", ";"),
        ("layers < 1 # `<img src=x>`", "'#'"),
        ("layers < `1`", "'`'"),
        ("~" * 400 + "layers < 2", "'~'"),
        ("+" * 400 + "layers < 2", "layers < 2"),
        ("(" * 240 + "layers" + ")" * 240 + " < 2", "parsed"),
        ("1 < 2", "1 < 2"),
        ("layers = 3", "=="),
        ("layers > 1 && heads > 1", "and"),
        ("layers > 1 || heads > 1", "or"),
        ("1 < " * 200 + "2", "500"),
        ("layers > 99 or layers/0 < 1", "layers/0"),
        ("1e299*1e299*layers - 1e299*1e299 > 0", "1e299"),
    ],
)
def test_anything_else_is_refused_in_one_line_that_names_it(expression: str, fact: str) -> None:
    with pytest.raises(UsageError, match=re.escape(fact)) as error:
        Condition(expression)
    assert "\n" not in str(error.value)


def test_missing_values_hold_nothing_and_fail() -> None:
    frame = attngeo.score("demo:minilm", layers=[0])  # no heads
    outcome = next(Condition("heads.symmetry.median > -2").outcomes(summarise(frame)))
    assert (outcome.holds, outcome.failed) == (None, True)
    assert "heads.symmetry.median" in outcome.reason
    half = next(Condition("symmetry.median > 2 or heads.symmetry.median != 1").outcomes(summarise(frame)))
    assert (half.holds, half.failed) == (None, True)


@pytest.mark.parametrize(
    "expression",
    ["1/(layers - 6) > 1", "layers > 9 and 1/(layers - 6) > 1", "1/(layers - 6) > 1 or layers > 1"],
)
def test_what_gives_no_number_fails(expression: str) -> None:
    """A division by zero lets no model slip by, whatever else the condition says, and in whatever order."""
    assert Condition(expression).holds(VALUES) is None
    outcome = Outcome(expression, "org/name", "encoder", None, {"layers": 6.0})
    assert outcome.failed
    assert "layers is 6" in outcome.reason


def test_a_condition_may_divide_by_the_difference_of_two_names() -> None:
    assert Condition("1/(layers - symmetry.median) > 0").holds(VALUES) is True


def test_infinities_are_compared() -> None:
    assert Condition("1e299*1e299 > -1e299*1e299*layers").holds(VALUES) is True


def test_names_are_listed_once() -> None:
    assert Condition("layers > 1 and layers < heads and layers < 9").names == ["layers", "heads"]


def test_outcomes_are_of_each_stack_of_each_model() -> None:
    summary = summarise(attngeo.score("demo:minilm", per_head=True))
    outcome = next(Condition("symmetry.median > 0.4 and layers == 6 and heads == 72").outcomes(summary))
    assert (outcome.model, outcome.stack, outcome.failed) == ("demo:minilm", "encoder", True)
    assert outcome.values["symmetry.median"] == pytest.approx(summary["symmetry_median"].item())
    assert list(outcome.values) == ["symmetry.median", "layers", "heads"]
    assert not any(map(math.isnan, outcome.values.values()))
