"""Names that a stranger chose, sent through every output: no control character and no active markup comes out."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from support.browser import needs_browser
from support.checkpoints import CONFIG, write_single

import attngeo as library
from attngeo.bounds.names import escape_markdown, in_utf8
from attngeo.estimators import AttentionClassifier
from attngeo.estimators.tabular.views import tabulate_encodings
from attngeo.reporting.report import build_report
from attngeo.tables.write import SUFFIXES, to_markdown, write_table

Command = Callable[..., Any]

# Sequences that a terminal executes, characters that reorder text, markup of every kind, and links.
TERMINAL = "\x1b[31m\x1b]0;title\x07\x9b2J\u202e\u2066\r\n"
MARKUP = "|<img src=x onerror=alert(1)>[a](b)`c`*d* $e$ @f www.g.h {i}"
# In a folder's name: bytes that are not UTF-8, too. In a configuration: a link, and half of a character.
NOT_UTF8 = os.fsdecode(b"\xff")
FOLDER = NOT_UTF8 + TERMINAL + MARKUP
MODEL_TYPE = TERMINAL + MARKUP + " https://example.org \ud83d"
FORMATS = ("table", "csv", "json", "markdown")
MARKDOWN = MarkdownIt("commonmark").enable("table")
# In a table: of a column, an item, a category, a class. The last part is an end of markup to rich.
NAME = TERMINAL + MARKUP + "[/red]"
# Short enough for a figure, where long names lose their middle.
NAMES = (f"{NAME} 0", "\x1b[2J\u202e<img src=x>", "{i}<b>")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A checkpoint with such names."""
    (folder := tmp_path / FOLDER).mkdir()
    return write_single(folder, config={**CONFIG, "model_type": MODEL_TYPE, "architectures": ["XForCausalLM"]})


def assert_plain(text: str) -> None:
    """Every character prints as itself."""
    odd = {character for character in text if not character.isprintable() and character != "\n"}
    assert not odd, odd


def parse_inline(text: str) -> list[Token]:
    """What stands in the paragraphs and cells of a text."""
    return [child for token in MARKDOWN.parse(text) for child in token.children or []]


def assert_no_markdown(text: str, tags: set[str]) -> None:
    """The text has tables and paragraphs and nothing that a name could have added."""
    found = {token.tag for token in MARKDOWN.parse(text)}
    inline = parse_inline(text)
    assert found <= tags | {"table", "thead", "tbody", "tr", "th", "td", "p", ""}
    assert {token.type for token in inline} <= {"text", "text_special", "softbreak", *tags}
    assert not re.search(r"://|www\.|(?<!\\)\$|@f", text)


class Tags(HTMLParser):
    """The tags of a page and the attributes that run code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(name for name, _ in attrs if name.startswith("on"))}


@pytest.mark.parametrize("format", FORMATS)
def test_scores_of_a_hostile_model_are_printed(hostile: Path, format: str, inside: Command) -> None:
    done = inside("score", hostile, hostile, "--format", format, "--per-head")
    assert done.returncode == 0, done.stderr
    assert_plain(done.stdout + done.stderr)
    if format == "json":
        assert json.loads(done.stdout)[0]["model_type"] == in_utf8(MODEL_TYPE)
    if format == "markdown":
        assert_no_markdown(done.stdout, set())


def test_a_hostile_folder_is_verified(saved: Callable[[str], Path], inside: Command, tmp_path: Path) -> None:
    folder = shutil.copytree(saved("bert"), tmp_path / FOLDER.removeprefix(NOT_UTF8))
    done = inside("score", folder, "--verify", "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert "all 2 sites agree" in done.stderr
    assert_plain(done.stdout + done.stderr)


def test_transformers_does_not_open_a_folder_that_is_not_utf_8(
    saved: Callable[[str], Path], inside: Command, tmp_path: Path
) -> None:
    done = inside("score", shutil.copytree(saved("bert"), tmp_path / FOLDER), "--verify", "--format", "csv")
    assert (done.returncode, "transformers cannot load it" in done.stderr) == (4, True)
    assert len(done.stdout.splitlines()) == 1 + 2
    assert_plain(done.stdout + done.stderr)


@pytest.mark.parametrize("arguments", [(), ("--format", "json")])
def test_inspect_shows_a_hostile_model(hostile: Path, arguments: tuple[str, ...], inside: Command) -> None:
    done = inside("inspect", hostile, *arguments)
    assert done.returncode == 0, done.stderr
    assert_plain(done.stdout + done.stderr)


def test_the_log_of_a_hostile_model_is_plain(hostile: Path, inside: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of the log are kept from pytest, which cannot report some that are not UTF-8."""
    monkeypatch.setattr(logging.getLogger("attngeo"), "propagate", False)
    done = inside("inspect", hostile, "-v")
    assert done.returncode == 0, done.stderr
    assert "model.safetensors" in done.stderr
    assert_plain(done.stdout + done.stderr)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_of_a_hostile_model_are_written(hostile: Path, suffix: str, tmp_path: Path) -> None:
    frame = library.score(hostile).assign(**{NAME: NAME})
    path = tmp_path / f"scores{suffix}"
    write_table(frame, path)
    if suffix == ".parquet":
        again = pd.read_parquet(path)
        assert again["symmetry"].tolist() == frame["symmetry"].tolist()
        assert again["model"].tolist() == frame["model"].tolist() != [str(hostile)] * len(frame)
        return
    text = path.read_text("utf-8")
    assert_plain(text)
    if suffix == ".md":
        assert_no_markdown(text, set())
    if suffix == ".html":
        assert not Tags(text).found & {"img", "onerror", "a"}


def test_errors_about_a_hostile_model_are_one_plain_line(hostile: Path, inside: Command) -> None:
    (hostile / "model.safetensors").write_bytes(b"{")
    done = inside("score", hostile)
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert_plain(done.stderr)


@pytest.mark.parametrize("suffix", [".html", ".json"])
def test_figures_of_a_hostile_model_are_saved(hostile: Path, suffix: str, inside: Command, tmp_path: Path) -> None:
    done = inside("score", hostile, "--plot", tmp_path / f"heads{suffix}")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / f"heads{suffix}").read_text("utf-8")
    assert_plain(re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))
    assert "<img src" not in page


@pytest.mark.parametrize("shown", [pytest.param("pictures", marks=[needs_browser, pytest.mark.slow]), "links"])
def test_a_report_about_a_hostile_model(shown: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if shown == "links":
        request.getfixturevalue("no_pictures")
    name = FOLDER.removeprefix(NOT_UTF8)  # a recipe is UTF-8
    (tmp_path / name).mkdir()
    write_single(tmp_path / name, config={**CONFIG, "model_type": MODEL_TYPE})
    recipe = tmp_path / "demo.toml"
    recipe.write_text(
        'title = "Demo"\n[[results]]\nname = "scores"\ncommand = "score"\n'
        f"models = [{json.dumps('./' + name)}]\n"
        '[[section]]\ntitle = "Layers"\nfigures = [{ kind = "layers", of = "scores" }]\n'
        'tables = [{ of = "scores" }, { of = "scores", show = "summary" }]\n'
        '[[check]]\nof = "scores"\nfail_if = "symmetry.median > 2"\n'
    )
    build_report(recipe, tmp_path / "out")
    page = (tmp_path / "out/index.html").read_text("utf-8")
    assert_plain(page)
    assert not Tags(page).found & {"img", "onerror"}
    text = (tmp_path / "out/report.md").read_text("utf-8")
    assert_plain(text)
    figures = {"image"} if shown == "pictures" else {"link_open", "link_close"}
    assert_no_markdown(text, {"h1", "h2", "strong", "strong_open", "strong_close", "em", "em_open", "em_close", "ul",
                              "li", "code", "code_inline", *figures})  # fmt: skip
    links = [token.attrs["href"] for token in parse_inline(text) if token.type == "link_open"]
    assert links == (["index.html"] if shown == "links" else [])


def test_texts_of_csv_are_those_of_the_tokens_though_a_spreadsheet_may_compute_them(tmp_path: Path) -> None:
    """A quote before them, as for people who open CSV in a spreadsheet, would be a part of the token for programs."""
    tokens = ["=1+1", "+", "-2", "@cell", "'=1"]
    write_table(pd.DataFrame({"token": tokens}), tmp_path / "tokens.csv")
    assert list(pd.read_csv(tmp_path / "tokens.csv")["token"]) == tokens


def test_markdown_writes_texts_that_look_like_numbers_as_they_are() -> None:
    assert "| 10000000 | 1e+07  |" in to_markdown(pd.DataFrame({"norm": [1e7], "name": ["1e+07"]}))


@pytest.mark.parametrize(
    "name", ["model_type", "org/name@step10", "##haps", "a (b)", "a+b!", "c#", "_em_", "__b__", "a_ b_", "+ a", "# a",
             "#12", "![a](b)", "[a](b)", "@someone", "a@b.org", "$x_1$", "*a*", "~~a~~", "`a`", "a|b", "é_ü", "a__b__c"]
)  # fmt: skip
def test_a_name_in_markdown_is_shown_letter_for_letter(name: str) -> None:
    """Where it stands in a table, in a list and in a heading; GitHub adds mentions, numbers of issues and formulas."""
    escaped = escape_markdown(name)
    for text in (f"| head |\n|:--|\n| {escaped} |", f"- {escaped}", f"# {escaped}"):
        inline = [child for token in MARKDOWN.parse(text)[-8:] for child in token.children or []]
        assert {token.type for token in inline} <= {"text", "text_special"}
        assert "".join(token.content for token in inline) == name
    assert not re.search(r"(?<!\w)@|@\w+\.|(?<!\\)\$|(?<!\\|\w)#\d", re.sub(r"&#\d+;", "", escaped))
    if name in ("model_type", "org/name@step10", "##haps", "a (b)", "a+b!", "é_ü"):
        assert escaped == name  # for readers of the file itself


def test_an_error_stays_short_with_its_escapes(inside: Command, tmp_path: Path) -> None:
    assert len(inside("score", str(tmp_path / ("\u202e" * 80)) + "/x" * 700).stderr) < 1400


def test_hostile_tokens_are_shown(tmp_path: Path, inside: Command) -> None:
    vectors = tmp_path / "vectors.txt"
    words = ["c|d", "a\x1b[31m", "b\u202e", "<img/src=x>"]
    vectors.write_text("".join(f"{word} {i}.0 1.0\n" for i, word in enumerate(words)), "utf-8")
    for way in FORMATS:
        done = inside("nearest", vectors, "c|d", "--answers", "all", "--format", way)
        assert done.returncode == 0, done.stderr
        assert_plain(done.stdout + done.stderr)
        if way == "markdown":
            assert_no_markdown(done.stdout, set())


@pytest.fixture
def shown(inside: Command) -> Command:
    """Run a command that prints a table: in every format, all is plain, and nothing is markup."""

    def run(*arguments: object) -> None:
        for way in FORMATS:
            done = inside(*arguments, "--format", way)
            assert done.returncode == 0, done.stderr
            assert_plain(done.stdout + done.stderr)
            if way == "markdown":
                assert_no_markdown(done.stdout, set())

    return run


@pytest.fixture
def drawn(inside: Command, tmp_path: Path) -> Command:
    """Draw a figure: it is plain, and has the names as text."""

    def run(*arguments: object) -> None:
        for suffix in (".html", ".json"):
            done = inside("plot", *arguments, "-o", tmp_path / f"figure{suffix}")
            assert done.returncode == 0, done.stderr
            page = (tmp_path / f"figure{suffix}").read_text("utf-8")
            assert_plain(re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))
            assert "<img src" not in page
            assert "lt;img" in page

    return run


def assert_refused(done: Any) -> None:
    """The error is one plain line."""
    assert done.returncode in (2, 4), done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert_plain(done.stderr)


@pytest.mark.usefixtures("no_pictures")
def test_hostile_items_are_modelled_and_shown(inside: Command, shown: Command, drawn: Command, tmp_path: Path) -> None:
    """Items, columns and the folder of the model have such names."""
    data, model, column = tmp_path / "data.csv", tmp_path / FOLDER.removeprefix(NOT_UTF8), f"item {NAME}"
    rows = [{f"basket {NAME}": f"{NAME} {at // 3}", column: NAMES[at % 3], "more": NAME} for at in range(12)]
    pd.DataFrame(rows).to_csv(data, index=False)
    columns = ["--sequence", f"basket {NAME}", "--item", column]
    fit = inside("efa", "fit", data, "--width", 4, *columns, "--epochs", 1, "--save", model)
    assert fit.returncode == 0, fit.stderr
    assert_plain(fit.stdout + fit.stderr)
    shown("efa", "predict", model, data)
    shown("efa", "sample", model)
    shown("efa", "similar", model, NAMES[0])
    shown("efa", "attention", model, data)
    assert_refused(inside("efa", "similar", model, f"{NAME} x"))
    assert_refused(inside("efa", "attention", model, f"{NAME} x,y"))
    assert_refused(inside("efa", "predict", model, data, "--short", NAME))
    assert_refused(inside("efa", "fit", data, "--item", NAME))
    weights = tmp_path / "weights.parquet"
    assert inside("efa", "attention", model, data, "-o", weights).returncode == 0
    drawn("item-attention", weights)
    drawn("item-vectors", model)
    assert_refused(inside("plot", "item-attention", weights, "--where", f"item={NAME}", "-o", tmp_path / "x.html"))
    assert_page_of(weights, "item-attention")


def assert_page_of(rows: Path, kind: str) -> None:
    """The page and the summary of a report on rows of a file, as a figure and as a table, are plain."""
    recipe = rows.with_name("demo.toml")
    recipe.write_text(
        f'title = "Demo"\n[[results]]\nname = "rows"\ncommand = "file"\npath = "{rows.name}"\n[[section]]\n'
        f'title = "Rows"\nfigures = [{{ kind = "{kind}", of = "rows" }}]\ntables = [{{ of = "rows" }}]\n'
    )
    report = build_report(recipe, rows.with_name("out"))
    assert report.failures == []
    page = report.page.read_text("utf-8")
    assert_plain(page)
    assert not Tags(page).found & {"img", "onerror"}
    assert_plain((report.folder / "report.md").read_text("utf-8"))


def test_hostile_places_are_drawn(inside: Command, drawn: Command, tmp_path: Path) -> None:
    data, places = tmp_path / "days.csv", tmp_path / "places.csv"
    rows = [
        {"sequence": day, "item": NAMES[place], "latitude": 30 + place, "longitude": -80 - place**2, "value": day}
        for day in range(4) for place in range(3)
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(data, index=False)
    fit = inside("efa", "fit", data, "--coordinates", "latitude", "--coordinates", "longitude", "--epochs", 1,
                 "--save", tmp_path / "model")  # fmt: skip
    assert fit.returncode == 0, fit.stderr
    done = inside("efa", "attention", tmp_path / "model", data, "--places-output", places)
    assert done.returncode == 0, done.stderr
    assert_plain(places.read_text("utf-8"))
    drawn("place-attention", places, "--where", f"place={pd.read_csv(places)['place'].iloc[0]}")
    assert_refused(inside("plot", "place-attention", places, "-o", tmp_path / "x.html"))


@pytest.mark.usefixtures("no_pictures")
def test_hostile_categories_are_classified_and_drawn(
    inside: Command, shown: Command, drawn: Command, tmp_path: Path
) -> None:
    """Columns, categories, classes and the folder of the model have such names."""
    data, model = tmp_path / "data.csv", tmp_path / FOLDER.removeprefix(NOT_UTF8)
    columns = f"column {NAME}", f"label {NAME}"
    rows = pd.DataFrame([{columns[0]: NAMES[at % 3], "number": at, columns[1]: NAMES[at % 2]} for at in range(40)])
    rows.to_csv(data, index=False)
    fit = ["tabular", "fit", data, "--target", columns[1], "--epochs", 1, "--device", "cpu"]
    encodings, cells = tmp_path / "encodings.csv", tmp_path / "cells.parquet"
    done = inside(*fit, "--methods", "atn,lr", "--save", model)
    assert done.returncode == 0, done.stderr
    write_table(tabulate_encodings(AttentionClassifier.load(model)), encodings)
    assert_plain(done.stdout + done.stderr + encodings.read_text("utf-8"))
    shown("tabular", "predict", model, data)
    done = inside("tabular", "predict", model, data, "--attention-output", cells)
    assert done.returncode == 0, done.stderr
    drawn("encodings", model)
    drawn("encodings", encodings)
    drawn("row-attention", cells, "--where", "row=1")
    assert_page_of(encodings, "encodings")
    assert_refused(inside("tabular", "fit", data, "--target", NAME))
    rows.replace(NAMES[0], NAME).to_csv(tmp_path / "new.csv", index=False)
    assert_refused(inside("tabular", "predict", model, tmp_path / "new.csv", "--unseen", "error"))
    done = inside("tabular", "predict", model, tmp_path / "new.csv")
    assert done.returncode == 0, done.stderr
    assert_plain(done.stdout + done.stderr)
