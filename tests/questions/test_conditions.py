"""Conditions over summaries: what they mean, what is refused, and that no code runs."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest
from support.messages import assert_states, refuses

import attngeo
from attngeo.errors import DataError, UsageError
from attngeo.questions.conditions import Checkable, Condition, Outcome
from attngeo.questions.spread import QUANTILES
from attngeo.scores.options import CHECKS as SCORED

VALUES = {
    "symmetry.median": 0.5,
    "symmetry.lower": 0.25,
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
    assert Condition(expression, SCORED).holds(VALUES) is holds


@pytest.mark.parametrize(
    ("expression", "fact"),
    [
        ("", "''"),
        ("symmetry.median <", "symmetry.median <"),
        ("symmetry.median", "symmetry.median"),
        ("1", "'1'"),
        ("symmetry.medain < 1", "symmetry.median"),
        ("symmetry < 0.3", "symmetry.median"),
        ("symmetry.foo < 0.3", "one of: symmetry.min, symmetry.lower, symmetry.median"),
        ("heads.symetry.mean < 0.3", "did you mean heads.symmetry.mean?"),
        ("symmetri.mean < 0", "did you mean symmetry.mean?"),
        ("symmetri < 0", "did you mean symmetry.median?"),
        ("heads_symmetry_min < 0", "did you mean heads.symmetry.min?"),
        ("heads.symmetry.medain < 1", "did you mean heads.symmetry.median?"),
        ("symmetry.median =< 0.2", "write <= instead of =<"),
        ("symmetry.median => 0.2", "write >= instead of =>"),
        ("symmetry.median > 5%", "'5%'; write 0.05"),
        ("symmetry.median < 0,25", "'0,25'; write 0.25"),
        ("layer < 3", "did you mean layers?"),
        ("symmetry.median < baseline", "did you mean baseline.symmetry.median?"),
        ("layers.heads < 3", "'layers.heads'"),
        ("baseline.symmetry < 0.3", "symmetry.median"),
        ("baseline.baseline.layers < 3", "'baseline.baseline.layers'"),
        ("beauty.median < 0.3", "frobenius_norm"),
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
        Condition(expression, SCORED)
    assert "\n" not in str(error.value)


def test_missing_values_hold_nothing_and_fail() -> None:
    frame = attngeo.score("demo:minilm", layers=[0])  # no heads
    outcome = next(Condition("heads.symmetry.median > -2", SCORED).outcomes(frame))
    assert (outcome.holds, outcome.failed) == (None, True)
    assert outcome.reason.startswith("heads.symmetry.median is ")
    assert "cannot be evaluated" not in outcome.reason  # the note says what is missing
    half = next(Condition("symmetry.median > 2 or heads.symmetry.median != 1", SCORED).outcomes(frame))
    assert (half.holds, half.failed) == (None, True)


@pytest.mark.parametrize(
    "expression",
    ["1/(layers - 6) > 1", "layers > 9 and 1/(layers - 6) > 1", "1/(layers - 6) > 1 or layers > 1"],
)
def test_what_gives_no_number_fails(expression: str) -> None:
    """A division by zero lets no model slip by, whatever else the condition says, and in whatever order."""
    assert Condition(expression, SCORED).holds(VALUES) is None
    outcome = Outcome(expression, "org/name", "encoder", None, {"layers": 6.0})
    assert outcome.failed
    assert outcome.reason == "layers is 6, so the condition cannot be evaluated"


def test_a_condition_may_divide_by_the_difference_of_two_names() -> None:
    assert Condition("1/(layers - symmetry.median) > 0", SCORED).holds(VALUES) is True


def test_infinities_are_compared() -> None:
    assert Condition("1e299*1e299 > -1e299*1e299*layers", SCORED).holds(VALUES) is True


def test_names_are_listed_once() -> None:
    assert [*Condition("layers > 1 and layers < heads and layers < 9", SCORED).quantities] == ["layers", "heads"]


def test_outcomes_are_of_each_stack_of_each_model() -> None:
    rows = attngeo.score("demo:minilm", per_head=True)
    outcome = next(Condition("symmetry.median > 0.4 and layers == 6 and heads == 72", SCORED).outcomes(rows))
    assert (outcome.model, outcome.stack, outcome.failed) == ("demo:minilm", "encoder", True)
    assert outcome.values["symmetry.median"] == pytest.approx(rows[rows["head"].isna()]["symmetry"].median())
    assert list(outcome.values) == ["symmetry.median", "layers", "heads"]
    assert not any(map(math.isnan, outcome.values.values()))


@pytest.mark.parametrize("column", ["symmetry", "symmetry_z", "directionality", "frobenius_norm", "d_model"])
def test_every_column_of_numbers_can_be_checked_by_every_statistic(column: str) -> None:
    rows = attngeo.score("demo:encoder", per_head=True)
    is_head = rows["head"].notna()
    for over, values in (("layers", rows[~is_head][column]), ("heads", rows[is_head][column])):
        numbers = values.to_numpy(float)
        expected = {name: np.quantile(numbers, share) for name, share in QUANTILES.items()} | {"mean": numbers.mean()}
        condition = Condition(" or ".join(f"{over}.{column}.{name} < 0" for name in expected), SCORED)
        (outcome,) = condition.outcomes(rows)
        assert [*outcome.values.values()] == pytest.approx([*expected.values()])


MOVED = Condition("abs(symmetry.median - baseline.symmetry.median) > 0.05", SCORED)


def test_a_baseline_is_that_of_the_same_model_and_stack() -> None:
    rows = attngeo.score(["demo:encoder", "demo:decoder"], per_head=True)
    moved = rows["symmetry"].where(rows["model"] == "demo:decoder", rows["symmetry"] - 0.1)
    encoder, decoder = MOVED.outcomes(rows, rows.assign(symmetry=moved).iloc[::-1])
    difference = encoder.values["symmetry.median"] - encoder.values["baseline.symmetry.median"]
    assert difference == pytest.approx(0.1)
    assert (encoder.holds, encoder.failed, encoder.note) == (True, True, "")
    assert (decoder.holds, decoder.failed, decoder.note) == (False, False, "")


def test_a_model_that_the_baseline_lacks_is_an_error_and_no_failed_check() -> None:
    rows = attngeo.score(["demo:encoder", "demo:decoder"])
    with refuses(UsageError, "demo:decoder", "demo:encoder", "-o"):
        [*MOVED.outcomes(rows, rows[rows["model"] == "demo:encoder"])]
    with refuses(UsageError, "demo:none", "demo:encoder, demo:decoder"):
        [*MOVED.outcomes(rows[rows["model"] == "demo:encoder"].assign(model="demo:none"), rows)]


def test_the_only_model_is_compared_with_the_only_one_of_the_baseline() -> None:
    """Paths differ from run to run. The stacks have to be the same."""
    rows = attngeo.score("demo:encoder")
    baseline = rows.assign(model="./run-1", symmetry=rows["symmetry"] - 0.1)
    (outcome,) = MOVED.outcomes(rows, baseline)
    assert (outcome.model, outcome.failed, outcome.note) == ("demo:encoder", True, "baseline model: ./run-1")
    (same,) = Condition("symmetry.median < 0", SCORED).outcomes(rows, baseline)
    assert same.note == ""
    with refuses(UsageError, "stack", "encoder", "demo:encoder", "other"):
        [*MOVED.outcomes(rows, baseline.assign(stack="other"))]
    (unaffected,) = Condition("layers < 1", SCORED).outcomes(rows, baseline.assign(stack="other"))
    assert not unaffected.failed
    with refuses(UsageError, "baseline", MOVED.expression):
        [*MOVED.outcomes(rows)]


PAIRS = Checkable(("z", "holds"), about=("kind", "name", "size", "other"), units=("pairs",), last="step")


def test_a_table_says_what_checks_are_about() -> None:
    """Labels are texts, numbers with their column, and nothing if they are missing; only the last rows count."""
    rows = pd.DataFrame(
        [("a", "x", 1.5, None, 1, 9.0, True), ("a", "x", 1.5, None, 2, 1.0, True), ("a", "x", 1.5, None, 2, 3.0, False),
         ("b", "b", math.nan, "y", 1, 5.0, True), ("b", "b", math.nan, "y", 1, math.nan, True)],
        columns=["kind", "name", "size", "other", "step", "z", "holds"],
    )  # fmt: skip
    condition = Condition("z.max > 4 or pairs < 1 or pairs.holds.min < -1", PAIRS)
    first, second = condition.outcomes(rows)
    assert (first.model, first.stack, first.failed) == ("a", "x, size 1.5", False)
    assert first.values == {"z.max": 3.0, "pairs": 2.0, "pairs.holds.min": 0.0}
    assert (second.model, second.stack, second.failed) == ("b", "b, y", True)
    assert second.note == "z is missing in 1 of 2 pairs"
    with refuses(DataError, "kind"):
        [*condition.outcomes(rows.drop(columns="kind"))]
    with refuses(DataError, "z", "text"):
        [*condition.outcomes(rows.assign(z="text"))]


def test_unknown_names_are_answered_with_those_of_the_table() -> None:
    with refuses(UsageError, "'change.max'", "over pairs", "columns: z, holds", "and pairs"):
        Condition("change.max > 1", PAIRS)
    with refuses(UsageError, "'layers'", "columns: z, holds"):
        Condition("layers > 1", PAIRS)
    with refuses(UsageError, "did you mean holds.max?", "columns: z, holds"):
        Condition("hold.max > 1", PAIRS)
    with refuses(UsageError, "z.median < 0.2"):
        Condition("z.max", PAIRS)


def test_a_column_that_an_older_file_lacks_is_missing() -> None:
    rows = attngeo.score("demo:encoder").drop(columns="symmetry_z")
    (outcome,) = Condition("symmetry_z.mean > 0", SCORED).outcomes(rows)
    assert (outcome.holds, outcome.failed) == (None, True)


def test_a_check_says_what_has_no_value() -> None:
    rows = attngeo.score("demo:encoder", per_head=True)
    is_first_head = rows["head"].eq(0)
    baseline = rows.copy()
    baseline.loc[rows["head"].isna() & rows["layer"].eq(1), "directionality"] = math.nan
    rows.loc[is_first_head, "symmetry"] = math.nan
    condition = Condition("heads.symmetry.min < -1 or directionality.max > baseline.directionality.max + 5", SCORED)
    (outcome,) = condition.outcomes(rows, baseline)
    assert outcome.failed  # a layer of the baseline has none
    assert (
        outcome.note
        == "symmetry is missing in 3 of 12 heads; directionality is missing in 1 of 3 layers in the baseline"
    )
    assert outcome.note in outcome.verdict


def test_a_layer_without_a_value_beside_others_fails() -> None:
    """Nothing is known of it, as of one whose weights are not finite; heads without a value are left out."""
    rows = attngeo.score("demo:encoder", per_head=True)
    layers = rows["head"].isna()
    first = rows[layers].index[0]
    broken = rows.assign(symmetry=rows["symmetry"].where(rows.index != first))
    for condition in ("symmetry.median > 9", "heads.symmetry.median > 9"):
        assert not any(outcome.failed for outcome in Condition(condition, SCORED).outcomes(rows))
        assert [outcome.failed for outcome in Condition(condition, SCORED).outcomes(broken)].count(True) == 1
    of_heads = rows.assign(symmetry=rows["symmetry"].where(rows.index != rows[~layers].index[0]))
    assert not any(outcome.failed for outcome in Condition("heads.symmetry.median > 9", SCORED).outcomes(of_heads))


def test_a_baseline_without_heads_is_refused_by_conditions_on_heads() -> None:
    rows = attngeo.score("demo:encoder", per_head=True)
    last = rows.index[rows["head"].notna()][-1]
    for expression in ("heads.symmetry.max > baseline.heads.symmetry.max", "heads < baseline.heads"):
        condition = Condition(expression, SCORED)
        with refuses(UsageError, "the baseline has 0 heads", "encoder", "--per-head"):
            [*condition.outcomes(rows, rows[rows["head"].isna()])]
        with refuses(UsageError, "the baseline has 11 heads", "lacks 1"):
            [*condition.outcomes(rows, rows.drop(index=last))]
        assert not any(outcome.failed for outcome in condition.outcomes(rows, rows))
    of_layers = Condition("symmetry.median < baseline.symmetry.median", SCORED)
    assert not any(outcome.failed for outcome in of_layers.outcomes(rows, rows[rows["head"].isna()]))


def test_a_baseline_of_other_layers_is_refused_and_one_with_other_notes_is_noted() -> None:
    rows = attngeo.score("demo:encoder", per_head=True)
    condition = Condition("symmetry.median < baseline.symmetry.median", SCORED)
    with refuses(UsageError, "layer 0", "the baseline has layer"):
        list(condition.outcomes(rows, rows[rows["layer"] == 0]))
    (outcome, *_) = condition.outcomes(rows, rows.assign(note="published convention"))
    assert_states(outcome.verdict, "published convention", "different options")


def test_a_single_equal_sign_is_named() -> None:
    with refuses(UsageError, "=="):
        Condition("symmetry.median = 0.2", SCORED)
