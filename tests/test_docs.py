"""The site of documentation: its pages, their links, what the search finds, and the examples of its questions."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from attngeo.commands.app import COMMANDS
from conftest import Command
from support import docs
from support.browser import needs_browser, open_page, start_browser
from support.command_line import parse_command
from support.docs_commands import EXAMPLES, list_commands, name_command

import attngeo

GENERATOR = Path(docs.__file__)
# Attributes of elements that a browser loads by itself.
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
NETWORK = re.compile(r"(?:https?:)?//")


class Page(HTMLParser):
    """A page of the site, as its links see it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors = {""}
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value is not None}
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif LOADED.get(tag, "") in values:
            self.loads.append(values[LOADED[tag]])


def read_site(folder: Path) -> dict[Path, Page]:
    """Its pages, by the paths of their files."""
    return {path.resolve(): Page(path.read_text("utf-8")) for path in folder.rglob("*.html")}


def find_broken_links(pages: dict[Path, Page]) -> Iterator[str]:
    """Links and loaded files of pages that lead to no file, or to no anchor in it."""
    for path, page in pages.items():
        for target in [*page.links, *page.loads]:
            if re.match(r"[a-z]+:|//", target):
                continue
            place, _, anchor = target.partition("#")
            file = path.parent / unquote(place.partition("?")[0]) if place else path
            file = file.resolve()
            # A page that is shown in no language but HTML has anchors; a script makes those of the list of results.
            if not file.is_file() or (file in pages and unquote(anchor) not in pages[file].anchors):
                yield f"{path.name}: {target}"


def find_network(folder: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """What pages and styles load from the network."""
    for path, page in pages.items():
        yield from (f"{path.name}: {target}" for target in page.loads if NETWORK.match(target))
    for path in folder.rglob("*.css"):
        loaded = re.findall(r"""(?:url\(|@import)\s*["']?([^"')\s;]+)""", path.read_text("utf-8"))
        yield from (f"{path.name}: {target}" for target in loaded if NETWORK.match(target))


def list_found(folder: Path) -> tuple[set[str], set[str]]:
    """The public names and the titles that the search knows."""
    text = (folder / "searchindex.js").read_text("utf-8")
    index: dict[str, Any] = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    names = {f"{module}.{entry[4]}" for module, entries in index["objects"].items() for entry in entries}
    return names, set(index["alltitles"])


def list_shown_commands() -> set[str]:
    """Every command that is not a group of others."""
    found = [pair for name in COMMANDS for pair in list_commands(name)]
    return {name for name, command in found if not hasattr(command, "commands")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, whose making had no warnings."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run([sys.executable, GENERATOR, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder.resolve()


@pytest.mark.slow
def test_the_site_is_whole_needs_no_network_and_its_search_finds_every_command_and_public_name(site: Path) -> None:
    pages = read_site(site)
    assert list(find_broken_links(pages)) == []
    assert list(find_network(site, pages)) == []

    shown = {page for part in docs.PARTS for page in docs.list_pages(part)} - {"README.md"}
    assert {"CONTRIBUTING.md", "commands/README.md", "attngeo/changes/README.md", "reports/README.md"} <= shown
    navigation = {(site / link).resolve() for link in pages[site / "index.html"].links}
    assert site / "questions.html" in navigation
    for page in shown:
        file = (site / page).with_suffix(".html")
        assert file in navigation, f"{page} is not in the navigation"
        outside = [path.name for path, links in pages.items() if f"{docs.REPOSITORY}/blob/main/{page}" in links.links]
        assert outside == [], f"links to {page} leave the site"

    names, titles = list_found(site)
    assert {f"attngeo.{name}" for name in attngeo.__all__ if callable(getattr(attngeo, name))} - names == set()
    assert {f"Python: {module}" for module in docs.list_modules()} - titles == set()
    assert {f"attngeo {name}" for name in list_shown_commands()} - titles == set()


@pytest.mark.slow
@needs_browser
def test_a_browser_without_network_searches_the_files_and_shows_them_on_a_phone(site: Path) -> None:
    with start_browser() as browser:
        for name in ("index", "questions", "options/score", "python/attngeo"):
            with open_page(browser, site / f"{name}.html", width=400, scheme="dark") as (page, complaints):
                assert page.evaluate("document.documentElement.scrollWidth") <= 400, name
                background = page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert max(map(int, re.findall(r"\d+", background)[:3])) < 60, background
                assert [complaint for complaint in complaints if not complaint.startswith("requested file:")] == []
        with open_page(browser, site / "questions.html") as (page, complaints):
            for sought, title in (
                ("lineage", "attngeo.lineage"),
                ("quantisation", "Which command answers my question"),
            ):
                page.fill("input[name=q]", sought)
                page.press("input[name=q]", "Enter")
                page.wait_for_function("document.querySelector('p.search-summary')?.textContent.includes('finished')")
                assert title in page.inner_text("ul.search")
            assert [complaint for complaint in complaints if complaint.startswith("requested http")] == []


def test_a_broken_link_and_a_load_from_the_network_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text('<h1 id="top">A</h1><a href="sub/b.html#x">b</a><a href="#top"/>', "utf-8")
    (tmp_path / "sub/b.html").write_text(
        '<p id="x"><a href="../index.html">a</a><a href="https://x.org">x</a>', "utf-8"
    )
    assert list(find_broken_links(read_site(tmp_path))) == []
    (tmp_path / "c.html").write_text('<a href="sub/b.html#y">b</a><a href="no.html">c</a><img src="no.png">', "utf-8")
    assert list(find_broken_links(read_site(tmp_path))) == ["c.html: sub/b.html#y", "c.html: no.html", "c.html: no.png"]

    assert list(find_network(tmp_path, read_site(tmp_path))) == []
    (tmp_path / "d.html").write_text(
        '<script src="https://cdn.org/a.js"></script><link href="//cdn.org/b.css">', "utf-8"
    )
    (tmp_path / "e.css").write_text("a { background: url('https://cdn.org/c.png') }", "utf-8")
    found = list(find_network(tmp_path, read_site(tmp_path)))
    assert found == ["d.html: https://cdn.org/a.js", "d.html: //cdn.org/b.css", "e.css: https://cdn.org/c.png"]


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("https://github.com/attngeo/attngeo/blob/main/commands/README.md#scores", "../../commands/README.md#scores"),
        ("https://github.com/attngeo/attngeo/tree/main/attngeo/changes", "README.md"),
        ("https://github.com/attngeo/attngeo/blob/main/README.md", "../../index.md"),
        ("https://github.com/attngeo/attngeo", "https://github.com/attngeo/attngeo"),
        ("https://arxiv.org/abs/2502.10927", "https://arxiv.org/abs/2502.10927"),
        ("#anchor", "#anchor"),
        ("LINEAGE.md#test", "LINEAGE.md#test"),
        ("compare.py", "https://github.com/attngeo/attngeo/blob/main/attngeo/changes/compare.py"),
        ("../geometry", "https://github.com/attngeo/attngeo/tree/main/attngeo/geometry"),
        (
            "https://raw.githubusercontent.com/attngeo/attngeo/main/reports/figures/heatmap.png",
            "../../reports/figures/heatmap.png",
        ),
    ],
)
def test_links_lead_to_pages_of_the_site_or_to_files_of_the_repository(
    link: str, expected: str, tmp_path: Path
) -> None:
    pages = ["README.md", "commands/README.md", "attngeo/changes/README.md", "attngeo/changes/LINEAGE.md"]
    page = docs.CopiedPage("attngeo/changes/README.md", pages, tmp_path)
    assert page.link(f"[text]({link}), `[code]({link})`") == f"[text]({expected}), `[code]({link})`"
    assert (tmp_path / "reports/figures/heatmap.png").is_file() == expected.endswith(".png")


def test_a_link_to_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    page = docs.CopiedPage("README.md", ["README.md"], tmp_path)
    with pytest.raises(FileNotFoundError, match=r"README\.md.*commands/no\.md"):
        page.link("[text](https://github.com/attngeo/attngeo/blob/main/commands/no.md#anchor)")


def test_every_command_answers_a_question_by_an_example_that_is_accepted() -> None:
    assert {name_command(example) for example in EXAMPLES} == list_shown_commands()
    assert len({example.question for example in EXAMPLES}) == len(EXAMPLES)
    for example in EXAMPLES:
        parse_command(shlex.split(example.command))


@pytest.mark.slow
def test_examples_of_embedded_models_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: Command) -> None:
    """In their order: the recipe that one writes is read by the next. Thousands of analogies are left out."""
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(example.command) for example in EXAMPLES if "analogy" not in example.command]
    runnable = [words for words in commands if words[0] == "report" or any(word.startswith("demo:") for word in words)]
    assert len(runnable) > 10
    for words in runnable:
        done = inside(*words)
        assert done.returncode == 0, f"{words}: {done.stderr}"
