"""The table of questions: its names can be imported, and a question that is added is one everywhere."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pandas as pd
import pytest

from attngeo.errors import UsageError
from attngeo.lazy import resolve
from attngeo.options import COMPUTATION, Options, option
from attngeo.provenance import describe_code
from attngeo.questions.question import Question
from attngeo.questions.table import QUESTIONS, VIEWS
from attngeo.reporting.answers import ResultsAnswer, Workplace
from attngeo.reporting.recipe import read_recipe
from attngeo.reporting.report import build_report
from attngeo.studies.results import locate_record

COLUMNS = ("method", "seed", "n_c", "noise", "corr", "accuracy")
RECIPE = """
title = "Toys"
[[results]]
name = "toys"
command = "toy"
animals = ["bear", "duck"]
options = { wheels = 3 }
[[section]]
title = "Shift"
figures = [{ kind = "shift", of = "toys" }]
tables = [{ of = "toys", columns = ["method", "accuracy"] }]
"""


class ToyOptions(Options):
    """The options of an example."""

    wheels: int = option(4, "Number of wheels", panel=COMPUTATION, least=1)


def play(options: ToyOptions, workplace: Workplace, *, animals: list[str]) -> ResultsAnswer:  # noqa: ARG001
    """Rows of toys, which are kept."""
    row = {"seed": 1, "n_c": 1, "noise": 0.0, "corr": 0.5, "accuracy": options.wheels / 10}
    rows = [{"method": animal, **row} for animal in animals]
    record = locate_record("toy", {"animals": animals})
    if record is not None:
        about = {"model": "bear", "version": describe_code("torch"), "options": dict(options)}
        record.keep([{"method": "bear", "accuracy": 0.3}], about)
    return ResultsAnswer.of(pd.DataFrame(rows, columns=list(COLUMNS)))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUESTIONS, "toy", Question("toy", ToyOptions, COLUMNS, run=play))


@pytest.mark.parametrize("name", VIEWS)
def test_every_name_in_the_table_of_views_can_be_imported(name: str) -> None:
    view = VIEWS[name]
    assert view.make is None or callable(pkgutil.resolve_name(str(view.make)))
    assert view.columns is None or view.list_columns(view.needs)
    # Some question has results that it can show.
    assert any({*view.needs} <= {*(question.list_columns() or ())} for question in QUESTIONS.values())


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=lambda question: question.name)
def test_every_name_in_the_table_can_be_imported(question: Question) -> None:
    assert issubclass(question.make_options_class(), Options)
    made_by = question.rows or question.table or question.run
    assert callable(resolve(made_by))
    assert question.is_of_models == (question.run is None)
    columns = question.list_columns()
    assert (columns is None) == (question.name == "file")
    assert columns is None or len(columns) == len(set(columns)) > 1


@pytest.mark.usefixtures("toy", "no_pictures")
def test_a_question_that_is_added_is_asked_by_a_recipe_drawn_and_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: Callable[..., CompletedProcess[str]]
) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "kept"))
    (tmp_path / "r.toml").write_text(RECIPE)
    made = build_report(tmp_path / "r.toml", tmp_path / "out")
    assert made.failures == []
    assert made.page.read_text().count('class="chart"') == 1
    assert pd.read_csv(tmp_path / "out/tables/toys.csv")["accuracy"].tolist() == [0.3, 0.3]
    (listed,) = json.loads(inside("cache", "list", "--format", "json").stdout)
    assert (listed["model"], listed["options"], listed["outdated"]) == ("bear", {"wheels": 3}, False)
    assert "wheels=3" in inside("cache", "list").stdout


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ("wheels = 3", "wheels = 0", "wheels is 0, expected at least 1"),
        ("wheels = 3", "wheel = 3", "did you mean wheels"),
        ('animals = ["bear", "duck"]', "", "animals: is missing"),
        ('"method", "accuracy"', '"method", "acuracy"', "did you mean accuracy"),
        ('kind = "shift"', 'kind = "heatmap"', "lack what is shown, model"),
    ],
)
def test_its_recipe_is_checked_before_the_work(old: str, new: str, fact: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE.replace(old, new))
    with pytest.raises(UsageError, match=fact):
        read_recipe(tmp_path / "r.toml")


def test_editors_get_the_schema_of_recipes(inside: Callable[..., CompletedProcess[str]]) -> None:
    schema = json.loads(inside("report", "--schema").stdout)
    assert {"title", "results", "section", "check"} <= schema["properties"].keys()
    gamma = schema["$defs"]["ScoreOptions"]["properties"]["gamma"]
    assert (gamma["type"], gamma["default"], gamma["description"][:7]) == ("number", 2.0, "Outlier")
    memory = schema["$defs"]["ScoreOptions"]["properties"]["memory"]
    assert {"type": "string"} in memory["anyOf"]
    assert "symmetry" in schema["$defs"]["FigureBlock"]["properties"]["score"]["enum"]
