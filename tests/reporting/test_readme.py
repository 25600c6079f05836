"""The pages of attngeo.reporting list every kind of figure and every key of a recipe, and their recipes are recipes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from support.readme import ROOT

from attngeo.figures.kinds import FIGURES
from attngeo.options import options_of
from attngeo.questions.checks import parse_condition
from attngeo.questions.table import QUESTIONS
from attngeo.reporting.recipe import Check, FigureBlock, Recipe, Section, TableBlock, make_request_class, read_recipe

TABLES = {"section": Section, "figures": FigureBlock, "tables": TableBlock, "check": Check}
REQUESTS = {name: make_request_class(question) for name, question in QUESTIONS.items()}
REFERENCE = (ROOT / "attngeo/reporting/REFERENCE.md").read_text("utf-8")
RECIPES = [
    recipe
    for page in sorted((ROOT / "attngeo/reporting").glob("*.md"))
    for recipe in re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
]


def read_table(*heads: str) -> list[list[str]]:
    """The cells of the Markdown table with this head."""
    lines = REFERENCE.splitlines()
    start = lines.index(f"| {' | '.join(heads)} |") + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([\w-]+)`", cell)


def test_every_kind_of_figure_is_listed_with_its_options() -> None:
    listed = {
        names_in(row[0])[0]: names_in(row[-1]) for row in read_table("kind", "what it shows", "drawn from", "options")
    }
    assert listed == {spec.name: list(spec.options) for spec in FIGURES.values()}


def test_every_key_of_a_recipe_is_listed() -> None:
    classes: dict[str, list[type[BaseModel]]] = {
        "recipe": [Recipe], "results": list(REQUESTS.values()), **{name: [kind] for name, kind in TABLES.items()},
    }  # fmt: skip
    expected = {(table, key) for table, kinds in classes.items() for kind in kinds for key in kind.model_fields}
    rows = read_table("table", "key", "value")
    assert {(row[0], *names_in(row[1])) for row in rows} == expected
    assert len(rows) == len(expected)
    required = {
        (table, key) for table, kinds in classes.items() for key in kinds[0].model_fields
        if all(key in kind.model_fields and kind.model_fields[key].is_required() for kind in kinds)
    }  # fmt: skip
    assert {(row[0], *names_in(row[1])) for row in rows if row[2].endswith("; required")} == required


def test_every_option_of_a_command_is_listed() -> None:
    rows = read_table("command", "keys of `options`")
    assert {names_in(row[0])[0]: names_in(row[1]) for row in rows} == {
        name: [*options_of(question.make_options_class())] for name, question in QUESTIONS.items() if name != "file"
    }


def test_every_name_of_conditions_is_listed() -> None:
    rows = read_table("results of", "one check for each", "columns", "without a statistic")
    assert {names_in(row[0])[0]: (names_in(row[2]), names_in(row[3])) for row in rows} == {
        name: ([*checks.numbers], [*checks.counts])
        for name, question in QUESTIONS.items()
        if (checks := question.find_checks()) is not None
    }


@pytest.mark.parametrize("number", range(len(RECIPES)))
def test_the_recipes_in_them_are_recipes(number: int, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPES[number], "utf-8")
    assert read_recipe(tmp_path / "r.toml").recipe.results


def test_the_pages_have_recipes() -> None:
    assert len(RECIPES) == 3


def test_the_conditions_in_them_are_conditions() -> None:
    """Those of the table of questions in CHECKS.md, each with the names of its question."""
    text = (ROOT / "attngeo/reporting/CHECKS.md").read_text("utf-8")
    shown = re.findall(r"^\| [^|]+ \| `(\w+)`[^|:]*: `([^`]+)` \|$", text, re.MULTILINE)
    assert len(shown) == 8
    for name, condition in shown:
        assert parse_condition(condition, QUESTIONS[name].find_checks()).quantities


def test_the_recipes_of_the_project_are_recipes() -> None:
    paths = sorted((ROOT / "reports").rglob("*.toml"))
    assert len([read_recipe(path) for path in paths]) >= 4
