"""The table of all statements, figures and tables of the papers: complete, and what it names exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from support.command_line import parse_command
from support.readme import ROOT

from attngeo.papers.statements import STATEMENTS, select_statements

TITLE = "## Every statement, figure and table"
NOT_COMPUTED = "not computed: "
# Statements, which each paper numbers in one sequence or by kind, and figures and tables, from the first to the last.
STATEMENT = "(?:Lemma|Theorem|Proposition|Corollary|Definition|Remark)"
COUNTS = {
    "Wibisono and Wang 2023": {STATEMENT: 17, "Table": 3},
    "Saponati et al. 2025": {
        rf"{STATEMENT} 2\.": 4,
        rf"{STATEMENT} 3\.": 2,
        rf"{STATEMENT} S1\.": 16,
        "Figure": 3,
        "Figure S": 5,
        "Table": 1,
        "Table S": 5,
    },
    "Wibisono and Wang 2025": {
        "Proposition": 3,
        "Theorem": 2,
        "Definition": 4,
        "Assumption": 7,
        "Remark": 14,
        "Example": 3,
        "Algorithm": 1,
        "Figure": 6,
        "Table": 3,
    },
}

# Sections that define a model that no numbered item has.
SECTIONS = {"Wibisono and Wang 2025": ("Section 3.3", "Section 5.2.1")}


class Item(NamedTuple):
    """A row of the table. source: the cell that says what computes it."""

    paper: str
    name: str
    source: str

    def list_named(self) -> list[str]:
        """The commands and files of the project that the row names."""
        return [part for part in re.findall(r"`([^`]+)`", self.source) if re.match(r"attngeo |reports/", part)]


def read_items() -> Iterator[Item]:
    """The rows of the table, paper by paper."""
    text = (ROOT / "attngeo/papers/README.md").read_text("utf-8")
    section = text.split(f"{TITLE}\n")[1].split("\n## ")[0]
    for part in section.split("\n### ")[1:]:
        paper, _, table = part.partition("\n")
        for line in re.findall(r"^\| (?!item |---)(.+) \|$", table, re.MULTILINE):
            name, _, source = re.split(r"(?<!\\) \| ", line)
            yield Item(paper, name, source)


ITEMS = list(read_items())
COMMANDS = sorted({part for item in ITEMS for part in item.list_named() if part.startswith("attngeo ")})


@pytest.mark.parametrize("paper", COUNTS)
def test_every_numbered_item_of_the_paper_has_a_row(paper: str) -> None:
    names = [item.name for item in ITEMS if item.paper == paper]
    for kind, count in COUNTS[paper].items():
        numbers = [int(found[1]) for name in names if (found := re.fullmatch(rf"{kind} ?(\d+)", name))]
        assert sorted(numbers) == list(range(1, count + 1)), kind
    assert set(names) >= set(SECTIONS.get(paper, ()))


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: f"{item.paper}, {item.name}")
def test_a_row_names_what_computes_it_or_says_why_nothing_does(item: Item) -> None:
    assert item.list_named() or item.source.startswith(NOT_COMPUTED)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_table_is_accepted(command: str) -> None:
    _, *words = shlex.split(command)
    parse_command(words)
    if words[0] == "theory" and "--text" not in words:
        select_statements(words[1:])  # which refuses an unknown name


def test_files_of_the_table_exist() -> None:
    named = {part for item in ITEMS for part in item.list_named() if part.startswith("reports/")}
    assert [file for file in sorted(named) if not (ROOT / file).is_file()] == []


def test_every_statement_that_is_computed_is_in_the_table() -> None:
    selected = set[str]()
    for command in COMMANDS:
        _, name, *words = shlex.split(command)
        if name == "theory" and "--text" not in words:
            selected.update(select_statements(words))
    assert selected == set(STATEMENTS)
