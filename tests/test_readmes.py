"""The READMEs: short, complete, with links that work on the package index; generated parts agree with the code."""

from __future__ import annotations

import csv
import itertools
import re
import shlex
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from attngeo.commands.app import app
from attngeo.commands.checks import CHECK_FAILED
from attngeo.commands.help import CLOSED_PIPE
from attngeo.commands.messages import INTERRUPTED
from attngeo.commands.study import SEVERAL_FAILED
from conftest import Command
from support.command_line import parse_command
from support.readme import ROOT, generate, parts_of, readmes
from support.vectors import sample_google

from attngeo import errors
from attngeo.analogies.options import ANALOGY_COLUMNS
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
    reference = {"conditions", "figures", "options", "recipe", "views"}
    assert {name for _, name in PARTS} == {
        "contrast",
        "demo",
        "demos",
        "check",
        "analogy",
        "census",
        "families",
    } | reference


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
    """The READMEs, and the pages beside them."""
    for folder in ("attngeo", "commands", "reports"):
        yield from (ROOT / folder).rglob("*.md")
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md")


def test_the_root_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8")) < LONGEST_ROOT


def list_sections(text: str) -> list[str]:
    """The addresses that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("path", list(every_readme()), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_are_absolute_and_lead_to_files_that_exist(path: Path) -> None:
    for link in LINK.findall(path.read_text("utf-8")):
        assert link.startswith("https://"), (path, link)
        own = re.match(
            r"https://(?:github\.com|raw\.githubusercontent\.com)/attngeo/attngeo/(?:(?:blob|tree)/)?main/(.+)", link
        )
        if own:
            file, _, section = own[1].partition("#")
            assert (ROOT / file).exists(), (path, link)
            if section and file.endswith(".md"):
                assert section in list_sections((ROOT / file).read_text("utf-8")), (path, link)


def test_the_readmes_name_every_column() -> None:
    root = (ROOT / "README.md").read_text("utf-8")
    assert all(f"`{column}`" in root for column in score_columns())
    analogies = (ROOT / "attngeo/analogies/README.md").read_text("utf-8")
    assert all(f"`{column}`" in analogies for column in ANALOGY_COLUMNS)


def list_exit_codes(text: str) -> set[int]:
    """The codes in the first cells of a table, as in "| 143, 129 | ended by SIGTERM or SIGHUP |"."""
    cells = re.findall(r"^\| ([0-9, ]+) \|", text, re.MULTILINE)
    return {int(code) for cell in cells for code in cell.split(",")}


def test_the_exit_codes_are_those_of_the_code() -> None:
    text = (ROOT / "commands/README.md").read_text("utf-8")
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    classes = [kind for kind in kinds if issubclass(kind, errors.AttnGeoError)]
    raised = {error.exit_code for error in classes}
    assert raised == {2, 3, 4, 130}
    signals = {128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    constants = {CHECK_FAILED, SEVERAL_FAILED, CLOSED_PIPE, INTERRUPTED}
    assert list_exit_codes(text) == {0} | raised | signals | constants
    in_help = re.findall(r"\b(\d+) (?=[a-z])", str(app.info.epilog))
    assert {*map(int, in_help)} <= list_exit_codes(text)
    assert all(error.__name__ in str(errors.__doc__) for error in classes)


def test_exit_codes_are_listed_once() -> None:
    """Other pages link to the list."""
    listing = [path for path in every_readme() if "| exit code | meaning |" in path.read_text("utf-8")]
    assert listing == [ROOT / "commands/README.md"]
    assert "commands/README.md#exit-codes" in (ROOT / "README.md").read_text("utf-8")
    assert not list_exit_codes((ROOT / "README.md").read_text("utf-8"))


def test_the_glossary_has_forty_terms_in_order() -> None:
    """One line each, at the end of CONTRIBUTING."""
    _, _, glossary = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("\n## Glossary\n")
    lines = glossary[glossary.index("| --- | --- |\n") :].splitlines()[1:]
    terms = [re.fullmatch(r"\| ([\w -]+) \| .{10,110} \|", line) for line in lines]
    names = [term[1] for term in terms if term]
    assert len(names) == len(lines) == 40
    assert names == sorted(set(names), key=str.lower)


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
