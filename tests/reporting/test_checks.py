"""Checks of a recipe: of results of every question, with the names of its table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pytest
from support.messages import assert_states, refuses
from support.reports import change

import attngeo
from attngeo.errors import DataError, UsageError
from attngeo.lazy import resolve_columns
from attngeo.pretrain.curves import list_curve_columns
from attngeo.questions.checks import find_checks
from attngeo.questions.conditions import STATISTICS, Outcome
from attngeo.questions.question import Question
from attngeo.questions.table import QUESTIONS
from attngeo.reporting.recipe import read_recipe
from attngeo.reporting.report import build_report
from attngeo.tables.write import write_table

CHECKED = [question for question in QUESTIONS.values() if question.find_checks() is not None]
SUBJECTS = {"efa": 'experiment = "temperature"', "file": 'path = "rows.csv"'}
NO_MODELS = ("pretrain", "theory", "simulate", "auto-mpg", *SUBJECTS)


def write_recipe(folder: Path, command: str, keys: str, *checks: str) -> Path:
    """A recipe of one table and of checks, each the end of its [[check]]."""
    path = folder / "r.toml"
    blocks = [f'[[check]]\nof = "rows"\n{check}\n' for check in checks]
    path.write_text(f'title = "x"\n[[results]]\nname = "rows"\ncommand = "{command}"\n{keys}\n{"".join(blocks)}')
    return path


def write_request(folder: Path, command: str, *conditions: str) -> Path:
    """A recipe of a question, and checks of its results."""
    keys = SUBJECTS.get(command, "" if command in NO_MODELS else 'models = ["demo:encoder", "demo:decoder"]')
    return write_recipe(folder, command, keys, *(f'fail_if = "{condition}"' for condition in conditions))


def name_outcomes(checks: Iterable[Outcome]) -> list[tuple[str, str, bool]]:
    return [(check.model, check.stack, check.failed) for check in checks]


@pytest.mark.parametrize("question", CHECKED, ids=lambda question: question.name)
def test_conditions_know_the_numbers_of_every_question(question: Question, tmp_path: Path) -> None:
    """Each column of numbers, with each statistic, and what its rows are; any other name is answered with these."""
    checks = question.find_checks()
    columns = question.list_columns() or ()
    assert {*checks.about, *filter(None, [checks.last])} <= {*columns}
    known = [column for column in checks.numbers if column in columns]
    assert known
    of_heads = resolve_columns(checks.of_heads)
    named = [f"heads.{column}" if column in of_heads else column for column in known]
    conditions = [f"{column}.{statistic} > 1" for column, statistic in zip(named, STATISTICS * 9, strict=False)]
    conditions += [f"{unit}.{known[-1]}.max > {unit}" for unit in checks.units]
    assert len(read_recipe(write_request(tmp_path, question.name, *conditions)).recipe.check) == len(conditions)
    for name in ("beauty.max", "model.max", "note.max"):
        path = write_request(tmp_path, question.name, f"{name} > 1")
        with refuses(UsageError, "check[1].fail_if", f"'{name}'", *known, f"results of {question.name}"):
            read_recipe(path)


def test_a_table_is_that_of_the_question_that_has_its_columns() -> None:
    """Also one of fewer columns, as of an earlier version or a selection, and one of another circuit."""
    for question in CHECKED:
        columns = question.list_columns() or ()
        alike = [other.find_checks() for other in CHECKED if other.list_columns() == columns]
        assert find_checks(columns) in alike, question.name
        assert find_checks((*columns, "more")) in alike, question.name
    checks = find_checks(("model", "stack", "layer", "head", "symmetry"))
    assert checks == QUESTIONS["score"].find_checks()
    with refuses(DataError, "colour"):
        find_checks(("colour",))


@pytest.mark.usefixtures("no_pictures")
def test_the_first_model_of_a_comparison_is_what_the_others_are_compared_with(tmp_path: Path) -> None:
    """It has no check, one that fails has a failed one, and each stack of the others has one."""
    checks = ('fail_if = "change.max > 9"', 'models = ["demo:decoder"]\nfail_if = "heads.symmetry_other.max > -1"')
    models = '["demo:encoder", "demo:decoder", "demo:none"]'
    path = write_recipe(tmp_path, "compare", f"models = {models}", *checks)
    made = build_report(path, tmp_path / "out")
    assert [failure.what for failure in made.failures] == ["demo:none"]
    assert name_outcomes(made.checks) == [
        ("demo:none", "", True), ("demo:decoder", "encoder", False), ("demo:decoder", "encoder", True),
    ]  # fmt: skip
    assert "no results were computed" in made.checks[0].reason
    change(path, 'models = ["demo:decoder"]', 'models = ["demo:encoder"]')
    with refuses(UsageError, "check[2].models", "'demo:encoder'", "demo:decoder, demo:none"):
        read_recipe(path)
    changed = write_recipe(tmp_path, "compare", f"models = {models}", 'fail_if = "heads.value_overlap.max > 1"')
    with refuses(UsageError, "check[1].of", "value_overlap", 'circuit = "ov"'):
        read_recipe(changed)
    change(changed, "models = ", 'options = { circuit = "ov" }\nmodels = ')
    assert read_recipe(changed).recipe.check[0].fail_if == "heads.value_overlap.max > 1"
    change(changed, "value_overlap", "key_overlap")
    with refuses(UsageError, "check[1].of", "key_overlap", 'circuit = "qk"'):
        read_recipe(changed)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("command", "condition", "expected"),
    [
        ("positions", "heads != 12 or previous_token.max > 9", [("demo:encoder", "encoder", False)]),
        ("mirrors", "pairs != 18 or twin.max > 9", [("demo:encoder", "encoder", False)]),
        ("compose", "pairs != 48 or composition.max < 0", [("demo:encoder", f"{k}, encoder", False) for k in "qkv"]),
        ("lineage", "rows != 1 or p_value.min > 2", [("demo:decoder", "", False)]),
        ("lineage", "similarity.max >= -1", [("demo:decoder", "", True)]),
    ],
)
def test_what_each_check_is_about(
    command: str, condition: str, expected: list[tuple[str, str, bool]], tmp_path: Path
) -> None:
    path = write_request(tmp_path, command, condition)
    if command != "lineage":
        change(path, '"demo:encoder", "demo:decoder"', '"demo:encoder"')
    assert name_outcomes(build_report(path, tmp_path / "out").checks) == expected


@pytest.mark.usefixtures("no_pictures")
def test_trainings_are_checked_at_their_last_step(tmp_path: Path) -> None:
    """Each run by itself, and none has a model."""
    logs = []
    for init, step, loss in (("default", 1, 3.0), ("default", 2, 2.0), ("symmetric", 1, 1.5), ("symmetric", 3, 1.0)):
        log = {"objective": "mlm", "init": init, "seed": 0, "step": step, "stack": "encoder", "loss": loss}
        logs += [log | {"layer": layer, "head": None, "symmetry": loss, "directionality": 0.0} for layer in (0, 1)]
    write_table(pd.DataFrame(logs)[list(list_curve_columns())], tmp_path / "rows.csv")
    path = write_request(tmp_path, "file", "loss.max > 1.5 or layers != 2")
    first, second = build_report(path, tmp_path / "out").checks
    assert name_outcomes([first, second]) == [
        ("default", "mlm, seed 0, encoder", True), ("symmetric", "mlm, seed 0, encoder", False),
    ]  # fmt: skip
    assert (first.values, second.values) == ({"loss.max": 2.0, "layers": 2.0}, {"loss.max": 1.0, "layers": 2.0})


@pytest.mark.usefixtures("no_pictures")
def test_results_without_rows_fail_their_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of questions that name no models, such as statements."""
    monkeypatch.setattr("attngeo.reporting.paper_answers.check_statements", lambda *_, **__: pd.DataFrame())
    made = build_report(write_recipe(tmp_path, "theory", "", 'fail_if = "holds.min < 1"'), tmp_path / "out")
    assert name_outcomes(made.checks) == [("rows", "", True)]


@pytest.mark.usefixtures("no_pictures")
def test_missing_numbers_fail_and_partly_missing_ones_are_counted(tmp_path: Path) -> None:
    """Models of other sizes have scores, and no changes."""
    conditions = ("change.max > 9", "symmetry_other.max > 9 and layers > 99")
    path = write_request(tmp_path, "compare", *conditions)
    change(path, "demo:decoder", "demo:minilm")
    missing, present = build_report(path, tmp_path / "out").checks
    assert (missing.failed, missing.holds) == (True, None)
    assert re.search(r"change\.max is missing; change is missing in \d of \d layers", missing.reason)
    assert not present.failed
    assert present.values["layers"] > 0


@pytest.mark.usefixtures("no_pictures")
def test_a_file_is_checked_by_the_names_of_the_question_that_wrote_it(tmp_path: Path) -> None:
    rows = attngeo.compare(["demo:encoder", "demo:decoder"], per_head=True)
    write_table(rows, tmp_path / "rows.csv")
    path = write_request(tmp_path, "file", "heads.change.max > 0.5", "p_value.max > 1", "symmetry.median > 2")
    made = build_report(path, tmp_path / "out")
    assert name_outcomes(made.checks) == [("demo:decoder", "encoder", True), ("demo:decoder", "encoder", False)]
    (failure,) = made.failures
    assert (failure.what, failure.error.exit_code) == ("check[2]", UsageError.exit_code)
    for fact in ("p_value.max", "change, cosine", "lineage"):
        assert fact in str(failure)
    with refuses(UsageError, "check[1].fail_if", "'beauty.max'"):
        read_recipe(write_request(tmp_path, "file", "beauty.max > 0.5"))
    rows.drop(columns="cosine").to_csv(tmp_path / "rows.csv", index=False)
    recipe = write_request(tmp_path, "file", "cosine.min < 0", "layers > 9")
    (failure,) = build_report(recipe, tmp_path / "older").failures
    assert "unknown name 'cosine.min'" in str(failure)
    assert "columns: change, query_overlap" in str(failure)
    assert "condition applies to results of" not in str(failure)
    rows.assign(change="much").to_csv(tmp_path / "rows.csv", index=False)
    with refuses(DataError, "rows.csv", "column change", "'much' in row 1"):
        build_report(write_request(tmp_path, "file", "change.max > 1"), tmp_path / "again")


def test_where_rows_of_heads_are_asked_for_a_condition_says_which(tmp_path: Path) -> None:
    """As on the command line with --per-head; without it, a name alone is over layers."""
    path = write_request(tmp_path, "score", "symmetry.median < -2 or layers < 1")
    assert read_recipe(path).recipe.check[0].fail_if == "symmetry.median < -2 or layers < 1"
    change(path, "models = ", "options = { per_head = true }\nmodels = ")
    with refuses(UsageError, "check[1].fail_if", "with per_head", "layers.symmetry.median or heads.symmetry.median"):
        read_recipe(path)
    change(path, "symmetry.median", "layers.symmetry.median")
    assert read_recipe(path).recipe.check[0].fail_if == "layers.symmetry.median < -2 or layers < 1"


def test_checks_of_several_results_name_them(tmp_path: Path) -> None:
    """The same condition on two results is told apart on the page, in the text and by the command."""
    path = write_request(tmp_path, "score", "symmetry.median < -2")
    assert [check.of for check in build_report(path, tmp_path / "one").checks] == ["", ""]
    path.write_text(
        f'{path.read_text()}[[results]]\nname = "folded"\ncommand = "score"\nmodels = ["demo:decoder"]\n'
        'options = { fold_norm = true }\n[[check]]\nof = "folded"\nfail_if = "symmetry.median < -2"\n'
    )
    made = build_report(path, tmp_path / "out")
    assert [(check.of, check.model) for check in made.checks] == [
        ("rows", "demo:encoder"), ("rows", "demo:decoder"), ("folded", "demo:decoder"),
    ]  # fmt: skip
    assert made.checks[2].verdict.startswith("check passed: demo:decoder (decoder): symmetry.median is")
    assert made.checks[2].verdict.endswith("; fails if symmetry.median < -2 in the results folded")
    text = (tmp_path / "out/report.md").read_text()
    for name in ("rows", "folded"):
        assert f"- ✓ {name}: demo:decoder" in text
        assert f'</code></td><td class="text">{name}</td><td class="text">demo:decoder</td>' in made.page.read_text()


def test_checks_that_fail_come_first_on_the_page(tmp_path: Path) -> None:
    path = write_request(tmp_path, "score", "symmetry.median < -2")
    path.write_text(f'{path.read_text()}[[check]]\nof = "rows"\nfail_if = "layers > 0"\n')
    rows = build_report(path, tmp_path / "out").page.read_text().partition('id="checks"')[2].partition("</table>")[0]
    assert re.findall("failed</td>|passed</td>", rows) == 2 * ["failed</td>"] + 2 * ["passed</td>"]


def test_a_table_without_checks_is_refused_with_the_commands_that_have_some() -> None:
    with pytest.raises(DataError) as caught:
        find_checks(("method", "accuracy"))
    assert_states(str(caught.value), "accuracy", "no condition", *(question.name for question in CHECKED))
