"""The table of questions: its names can be imported, and a question that is added is one everywhere."""

from __future__ import annotations

import json
import pkgutil
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess

import pandas as pd
import pytest
from attngeo.commands.app import COMMANDS, SubCommand
from plotly.graph_objects import Figure
from support import toy as toy_of_models
from support.messages import assert_states

from attngeo.errors import DataError, ModelNotFoundError, UsageError
from attngeo.figures.kinds import FIGURES, FigureSpec, PlotOptions
from attngeo.lazy import resolve
from attngeo.options import COMPUTATION, Options, option
from attngeo.provenance import describe_code
from attngeo.questions.asking import ask_all
from attngeo.questions.frames import join_frames
from attngeo.questions.question import Question
from attngeo.questions.table import QUESTIONS, VIEWS, find_view
from attngeo.reporting.answers import ResultsAnswer, Workplace
from attngeo.reporting.plots import plot
from attngeo.reporting.recipe import read_recipe
from attngeo.reporting.report import build_report
from attngeo.session import Session, StudyOptions
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
    shown = [find_view(name, question.list_columns() or ()) for question in QUESTIONS.values()]
    for view in VIEWS[name]:
        assert view.make is None or callable(pkgutil.resolve_name(str(view.make)))
        assert view.columns is None or view.list_columns(view.needs)
        # Some question has results that it can show, and no other view of this name before it.
        assert view in shown


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=lambda question: question.name)
def test_every_name_in_the_table_can_be_imported(question: Question) -> None:
    assert issubclass(question.make_options_class(), Options)
    (made_by,) = [function for function in (question.rows, question.table, question.run) if function is not None]
    assert callable(resolve(made_by))
    # Only rows of models that `ask` opens are built and kept, and only a question about models has these.
    assert question.rows is not None or (question.build is None and not question.keeps)
    assert question.run is None or (question.join is None and question.list_subjects is None and not question.title)
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
        ('kind = "shift"', 'kind = "heatmap"', "do not have model"),
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


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question of `support.toy`, whose name is no word of an option."""
    monkeypatch.setitem(QUESTIONS, "size", toy_of_models.SIZE)
    monkeypatch.setitem(COMMANDS, "size", SubCommand("Read", "Measure the size of the queries of every layer."))
    monkeypatch.setitem(sys.modules, "attngeo.commands.size", toy_of_models)


MODELS = ["demo:encoder", "demo:decoder"]
MISSING = "./missing"


@pytest.mark.usefixtures("size")
def test_a_question_about_models_is_asked_by_a_call_a_command_and_a_recipe_alike(
    tmp_path: Path, cache: Path, inside: Callable[..., CompletedProcess[str]]
) -> None:
    """The same rows, of two processes; a model that fails costs its rows; what is kept is not made again."""
    session = Session(study=StudyOptions(jobs=2))
    options = toy_of_models.SizeOptions(power=4)
    outcomes = ask_all(toy_of_models.SIZE, [*MODELS, MISSING], session, options=options)
    assert [type(outcome.failure) for outcome in outcomes] == [type(None), type(None), ModelNotFoundError]
    rows = join_frames([outcome.result for outcome in outcomes if outcome.result is not None])
    assert rows.groupby("model", sort=False).size().to_dict() == dict.fromkeys(MODELS, 3)
    assert rows.dtypes["layer"] == "Int64"
    assert len([*cache.glob("sizes/*.parquet")]) == 2

    done = inside("size", *MODELS, MISSING, "--power", 4, "--format", "csv")
    kept, failed = done.stderr.splitlines()
    assert_states(kept, "2 of 3", "kept results")
    assert_states(failed, MISSING)
    assert done.returncode == 4
    pd.testing.assert_frame_equal(pd.read_csv(StringIO(done.stdout))["size"].to_frame(), rows[["size"]])

    recipe = tmp_path / "r.toml"
    recipe.write_text(
        f'title = "Sizes"\n[[results]]\nname = "sizes"\ncommand = "size"\nmodels = {[*MODELS, MISSING]}\n'
        'options = { power = 4 }\n[[check]]\nof = "sizes"\nfail_if = "size.max < 0"\n'
    )
    made = build_report(recipe, tmp_path / "out")
    assert [failure.what for failure in made.failures] == [MISSING]
    assert [(check.model, check.failed) for check in made.checks] == [
        (MISSING, True),
        *((name, False) for name in MODELS),
    ]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "out/tables/sizes.csv")[["size"]], rows[["size"]])


@pytest.mark.usefixtures("size")
def test_a_figure_of_its_rows_is_an_entry_and_drawn_from_models_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(rows: pd.DataFrame, options: PlotOptions) -> Figure:  # noqa: ARG001 - every kind takes options
        return Figure(layout={"title": f"{rows['size'].dtype} of {', '.join(rows['model'].unique())}"})

    spec = FigureSpec(
        name="sizes", description="sizes", source="size", columns=("model", "stack", "layer", "size"),
        options=("where",), draw=draw,
    )  # fmt: skip
    monkeypatch.setitem(FIGURES, "sizes", spec)
    assert plot("sizes", MODELS).layout.title.text == "float64 of demo:encoder, demo:decoder"
    named = plot("sizes", MODELS, label={"demo:encoder": "first"})
    assert named.layout.title.text == "float64 of first, demo:decoder"
    # A column without values would be one of texts, if nothing said what it is.
    (tmp_path / "sizes.csv").write_text("model,stack,layer,size\nm,encoder,0,\n")
    assert plot("sizes", tmp_path / "sizes.csv").layout.title.text == "float64 of m"
    (tmp_path / "other.csv").write_text("model,stack,layer\nm,encoder,0\n")
    with pytest.raises(DataError, match=r"no column 'size'.*attngeo size -o FILE"):
        plot("sizes", tmp_path / "other.csv")
