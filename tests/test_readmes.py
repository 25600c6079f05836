"""The READMEs: short, complete, with links that work on the package index; generated parts agree with the code."""

from __future__ import annotations

import csv
import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from attngeo.commands.app import app
from conftest import Command
from support.command_line import parse_command
from support.readme import ROOT, generate, parts_of, readmes
from support.vectors import sample_google

from attngeo import errors
from attngeo.analogies.options import COLUMNS as ANALOGY_COLUMNS
from attngeo.analogies.questions import load_questions
from attngeo.figures.kinds import FIGURES
from attngeo.papers.statements import STATEMENTS
from attngeo.scores.score import score_columns
from attngeo.scores.spec import directionality_at_chance

PARTS = [(path, name) for path in readmes() for name, _ in parts_of(path)]
# Those that ask thousands of questions. The example of `attngeo.analogy` has some of their numbers.
SLOW_PARTS = ("analogy",)
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
LINES = re.compile("[\u2500-\u259f]+")
LINK = re.compile(r"\]\(([^)\s]+)\)")
OWN_FILE = re.compile(r"https://(?:github|raw\.githubusercontent)\.com/attngeo/attngeo/(?:blob/|tree/)?main/(.+)")
LONGEST_ROOT = 10_000


def text_of(path: Path, name: str) -> str:
    return dict(parts_of(path))[name]


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in NUMBER.findall(text)]


def words(text: str) -> list[str]:
    """The words of a text, with # for each number, and without lines and bars, whose lengths follow from numbers."""
    return LINES.sub(" ", NUMBER.sub(" # ", text)).split()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        pytest.param(
            path, name, id=f"{path.parent.name}-{name}", marks=[pytest.mark.slow] if name in SLOW_PARTS else []
        )
        for path, name in PARTS
    ],
)
def test_generated_parts_agree_with_the_code(path: Path, name: str, inside: Command) -> None:
    written, made = text_of(path, name), generate(name, inside)
    if name == "families":
        first_cells = [{line.split("|")[1] for line in text.splitlines()} for text in (written, made)]
        assert first_cells[0] == first_cells[1], "run `make readme`"
    else:
        assert words(written) == words(made), "run `make readme`"
        assert numbers(written) == pytest.approx(numbers(made), rel=0.02, abs=0.002), "run `make readme`"


def test_every_part_is_in_a_readme() -> None:
    assert {name for _, name in PARTS} == {"contrast", "demo", "demos", "analogy", "census", "families"}


def test_every_command_has_an_example() -> None:
    def list_commands(group: Any, *names: str) -> Iterator[str]:
        context = typer.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if hasattr(command, "list_commands"):
                yield from list_commands(command, *names, name)
            else:
                yield " ".join(["attngeo", *names, name])

    text = (ROOT / "commands/README.md").read_text("utf-8")
    missing = [name for name in list_commands(typer.main.get_command(app)) if f"| `{name}" not in text]
    assert not missing


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Where a command is shown, and its words: blocks and tables of READMEs, examples of help texts, a script."""
    for path in (*every_readme(), *(ROOT / "commands").glob("*.py"), ROOT / "reports/figures.sh"):
        text = re.sub(r"\\\n\s*", " ", path.read_text("utf-8"))
        start = r"^ {8}" if path.suffix == ".py" else r"^(?:\$ )?|\| `|&& "
        for shown in re.findall(rf"(?:{start})(attngeo [^`\n]+)", text, re.MULTILINE):
            shell = shlex.shlex(shown, posix=True, punctuation_chars="|&><;")
            shell.whitespace_split = True
            yield str(path.relative_to(ROOT)), [*itertools.takewhile(lambda word: word[:1] not in [*"|&><;"], shell)]


def test_every_command_that_is_shown_is_accepted() -> None:
    """Its names, options and their values are; nothing is run."""
    shown = list(command_lines())
    assert {"README.md", "reports/figures.sh", "commands/plot.py"} <= {path for path, _ in shown}
    for path, (_, *words) in shown:
        try:
            parse_command(words)
        except Exception as error:
            raise AssertionError(f"{path}: {' '.join(words)}: {error}") from error


def every_readme() -> Iterator[Path]:
    for folder in ("attngeo", "commands", "reports"):
        yield from (ROOT / folder).rglob("README.md")
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md")


def test_the_root_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8")) < LONGEST_ROOT


@pytest.mark.parametrize("path", list(every_readme()), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_are_absolute_and_lead_to_files_that_exist(path: Path) -> None:
    for link in LINK.findall(path.read_text("utf-8")):
        assert link.startswith("https://"), (path, link)
        own = re.match(
            r"https://(?:github\.com|raw\.githubusercontent\.com)/attngeo/attngeo/(?:(?:blob|tree)/)?main/(.+)", link
        )
        if own:
            assert (ROOT / own[1].partition("#")[0]).exists(), (path, link)


def test_the_readmes_name_every_column_and_exit_code() -> None:
    root = (ROOT / "README.md").read_text("utf-8")
    assert all(f"`{column}`" in root for column in score_columns())
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    classes = [kind for kind in kinds if issubclass(kind, errors.AttnGeoError)]
    codes = {error.exit_code for error in classes}
    assert codes == {2, 3, 4, 130}
    assert all(f"| {code} | " in root for code in codes)
    assert all(error.__name__ in str(errors.__doc__) for error in classes)
    analogies = (ROOT / "attngeo/analogies/README.md").read_text("utf-8")
    assert all(f"`{column}`" in analogies for column in ANALOGY_COLUMNS)


def test_both_tables_of_exit_codes_say_the_same() -> None:
    tables = []
    for path in (ROOT / "README.md", ROOT / "commands/README.md"):
        lines = path.read_text("utf-8").splitlines()
        tables.append([line for line in lines if re.match(r"\| [0-9, ]+ \|", line)])
    assert tables[0] == tables[1] != []


def test_the_python_of_the_root_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model and projections of the reader's own, which the README takes as given, and a sample of questions."""
    from transformers import BertConfig, BertModel

    monkeypatch.chdir(tmp_path)
    questions = sample_google()
    monkeypatch.setattr("attngeo.analogies.questions.google_text", lambda: questions)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    given = {
        "model": BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=16)),
        "wq": torch.randn(2, 32, 8), "wk": torch.randn(2, 32, 8),
    }  # fmt: skip
    exec(compile(code, "README.md", "exec"), given)
    assert (tmp_path / "layers.html").is_file()
    assert len(given["result"].rows)  # type: ignore[attr-defined]


def test_the_readme_has_the_counts_of_the_census() -> None:
    with (ROOT / "attngeo/layouts/census.csv").open(encoding="utf-8", newline="") as file:
        counts = Counter(row["verdict"] for row in csv.DictReader(file))
    attending = counts.total() - counts["no attention"] - counts["not verified"]
    (sentence,) = re.findall(
        r"Of the (\d+) model types[^;]*?, (\d+) agree[^;]*?and (\d+) in", (ROOT / "README.md").read_text("utf-8")
    )
    assert tuple(map(int, sentence)) == (attending, counts["right"], counts["rest listed"])


def test_the_readme_has_the_numbers_of_the_places_that_it_is_about() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    (checks,) = re.findall(r"do the papers' theorems hold\? (\d+) checks", text)
    assert int(checks) == len(STATEMENTS)
    (asked,) = re.findall(r"king - man \+ woman, ([\d,]+) questions", text)
    assert int(asked.replace(",", "")) == len(load_questions("google").questions)
    (speed,) = re.findall(r"takes (\d+ s) on two CPU cores, in\s([\d.]+ GB of memory)", text)
    (measured,) = re.findall(
        r"score a 32-layer checkpoint of that shape with its heads \| (.*?) \|",
        (ROOT / "reports/README.md").read_text("utf-8"),
    )
    assert ", ".join(speed) == measured
    pairs = re.findall(r"([\d.]+) for d = (\d+)", text)
    assert len(pairs) == 2
    for written, width in pairs:
        assert float(written) == pytest.approx(directionality_at_chance(int(width)).deviation, abs=0.005)


def test_there_is_a_picture_of_each_kind_of_figure() -> None:
    pictures = {path.stem for path in (ROOT / "reports/figures").glob("*.png")}
    assert set(FIGURES) <= pictures


def test_folders_that_users_read_about_have_a_readme() -> None:
    for folder in ("commands", "attngeo/layouts", "attngeo/analogies", "attngeo/pretrain", "attngeo/reporting",
                   "attngeo/papers/saponati2025", "attngeo/estimators/tabular", "attngeo/papers",
                   "reports"):  # fmt: skip
        assert (ROOT / folder / "README.md").is_file(), folder
