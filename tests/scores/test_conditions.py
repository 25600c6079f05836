"""Conditions over summaries: what they mean, what is refused, and that no code runs."""

from __future__ import annotations

import math

import pytest

import attngeo
from attngeo.errors import UsageError
from attngeo.scores.conditions import NAMES, Condition, Outcome
from attngeo.scores.summary import summarise

VALUES = dict.fromkeys(NAMES, 0.25) | {"symmetry.median": 0.5, "layers": 6.0, "heads.directionality.min": -0.75}


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
    ("expression", "message"),
    [
        ("", "is no condition"),
        ("symmetry.median <", "is no condition"),
        ("symmetry.median", "compares nothing"),
        ("1", "compares nothing"),
        ("symmetry.medain < 1", r"did you mean symmetry\.median\?"),
        ("model < 1", "asks about 'model', which is not in the summary"),
        ("__import__('os').system('true') < 1", "where a number or a name is expected"),
        ("symmetry.median.__class__ < 1", "is not in the summary"),
        ("symmetry['median'] < 1", "where a number or a name is expected"),
        ("(lambda: 1)() < 1", "where a number or a name is expected"),
        ("[x for x in ()] < 1", "where a number or a name is expected"),
        ("symmetry.median < 'a'", "where a number or a name is expected"),
        ("symmetry.median < True", "where a number or a name is expected"),
        ("symmetry.median < 9**9**9", "where a number or a name is expected"),
        ("symmetry.median < " + "9" * 400, "where a number or a name is expected"),
        ("symmetry.median in (1, 2)", "where a comparison is expected"),
        ("symmetry.median is 1", "where a comparison is expected"),
        ("abs(1, 2) < 3", "where a number or a name is expected"),
        ("layers < 1 and layers", "where a comparison is expected"),
        ("layers < 1\nlayers < 2", "has the character '\\\\n'"),
        ("layers < 1 # `<img src=x>`", "has the character '#'"),
        ("layers < `1`", "has the character '`'"),
        ("~" * 400 + "layers < 2", "has the character '~'"),
        ("+" * 400 + "layers < 2", "is no condition"),
        ("(" * 240 + "layers" + ")" * 240 + " < 2", "is no condition"),
        ("1 < 2", "asks about no score"),
        ("layers = 3", "is no condition; two numbers are compared with =="),
        ("layers > 1 && heads > 1", "has the character '&', instead of which it takes and"),
        ("symmetry < 0.3", r"did you mean symmetry\.median\?$"),
        ("abs(layers, x=2) < 3", "where a number or a name is expected"),
        ("1 < " * 200 + "2", "of 801 characters, expected at most 500"),
        ("layers < 1; layers < 2", "is no condition"),
    ],
)
def test_anything_else_is_refused(expression: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        Condition(expression)
    assert "\n" not in str(error.value)


def test_missing_values_hold_nothing_and_fail() -> None:
    frame = attngeo.score("demo:minilm", layers=[0])  # no heads
    outcome = next(Condition("heads.symmetry.median > -2").outcomes(summarise(frame)))
    assert (outcome.holds, outcome.failed, outcome.reason) == (None, True, "heads.symmetry.median is missing")
    half = next(Condition("symmetry.median > 2 or heads.symmetry.median != 1").outcomes(summarise(frame)))
    assert (half.holds, half.failed) == (None, True)
    decided = next(Condition("symmetry.median > 2 and heads.symmetry.median != 1").outcomes(summarise(frame)))
    assert (decided.holds, decided.failed) == (False, True)  # a value that was asked about is missing all the same


@pytest.mark.parametrize(
    "expression",
    ["1/(layers - 6) > 1", "not (layers/0 > 1)", "1e299*1e299*layers - 1e299*1e299 > 0", "layers > 99 or layers/0 < 1"],
)
def test_what_gives_no_number_fails(expression: str) -> None:
    """Neither a division by zero nor a difference of infinities lets a model slip by."""
    assert Condition(expression).holds(VALUES) is None
    outcome = Outcome(expression, "org/name", "encoder", None, {"layers": 6.0})
    assert (outcome.failed, outcome.reason) == (True, "layers is 6, which gives no number")


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


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("layers/0 > 1 and layers > 9", False),
        ("layers > 9 and layers/0 > 1", False),
        ("layers/0 > 1 or layers > 1", True),
        ("layers > 1 or layers/0 > 1", True),
        ("layers/0 > 1 and layers > 1", None),
        ("layers > 9 or layers/0 > 1", None),
        ("not (layers/0 > 1)", None),
        ("9 < layers < layers/0", False),
    ],
)
def test_what_is_unknown_decides_only_where_nothing_else_does(expression: str, holds: bool | None) -> None:
    """Whatever the order."""
    assert Condition(expression).holds(VALUES) is holds
