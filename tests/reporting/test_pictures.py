"""The pictures of a report, which report.md shows, and how pages and texts write values and tables."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
from support.browser import needs_browser
from support.reports import change, read_files

import attngeo
from attngeo.changes.compare_options import compare_columns
from attngeo.errors import UsageError
from attngeo.reporting.page import describe_value
from attngeo.reporting.report import build_report
from attngeo.reporting.results import put_scores_first


@needs_browser
@pytest.mark.usefixtures("pictures")
def test_the_text_has_a_picture_of_each_figure(recipe: Path, tmp_path: Path) -> None:
    change(recipe, 'kind = "layers", of = "scores"', 'kind = "heatmap", of = "scores", title = "Mine"')
    folder = build_report(recipe, tmp_path / "out").folder
    text = (folder / "report.md").read_text()
    paths = re.findall(r"!\[[^]]*\]\(([^)]*)\)", text)
    assert paths == ["pictures/figure-1-1.png"]
    assert (folder / paths[0]).read_bytes().startswith(b"\x89PNG")
    assert "(demo:encoder; others in index.html)" in text
    assert json.loads((folder / "provenance.json").read_text())["pictures"] == ["figure-1-1"]
    change(recipe, 'figures = [{ kind = "heatmap", of = "scores", title = "Mine" }]', "")
    build_report(recipe, folder)
    assert list((folder / "pictures").iterdir()) == []


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("missing", ["browser", "package"])
def test_without_a_browser_or_a_package_the_text_links_the_page_and_says_so(
    missing: str, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "browser":
        monkeypatch.setattr("choreographer.browsers.chromium.Chromium.find_browser", lambda *_, **__: None)
    else:
        monkeypatch.setitem(sys.modules, "kaleido", None)
    made = build_report(recipe, tmp_path / "out")
    assert made.failures == []
    text = (tmp_path / "out/report.md").read_text()
    assert "see the figure in [index.html](index.html)" in text
    (note,) = re.findall("^Note: no pictures: .*", text, re.MULTILINE)
    for fact in ("Chromium", "pip install 'attngeo[images]'", "kaleido_get_chrome", "apt install chromium"):
        assert fact in note
    assert "![" not in text
    assert not any(name.startswith("pictures/") for name in read_files(tmp_path / "out"))


def test_an_input_among_the_pictures_is_refused(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "out/pictures").mkdir(parents=True)
    attngeo.score("demo:encoder").to_csv(tmp_path / "out/pictures/rows.csv", index=False)
    change(recipe, 'command = "score"', 'command = "file"\npath = "out/pictures/rows.csv"')
    change(recipe, 'models = ["demo:encoder", "demo:decoder"]\n', "")
    with pytest.raises(UsageError, match=r"rows\.csv is an input"):
        build_report(recipe, tmp_path / "out")


def test_no_value_is_written_as_python_writes_it(recipe: Path, tmp_path: Path) -> None:
    change(recipe, 'command = "score"', 'command = "score"\noptions = { fold_norm = true, layers = "0-1" }')
    folder = build_report(recipe, tmp_path / "out").folder
    page = (folder / "index.html").read_text().partition('id="provenance"')[2].partition("</dl>")[0]
    assert "fold_norm yes" in page
    for text in (page, (folder / "report.md").read_text()):
        for mark in ("{}", "()", "None", "True", "('", "{'", "['"):
            assert mark not in text
    assert describe_value({"skipped": ["a", "b"], "adapter": ()}) == "skipped: a; b, adapter: "
    assert [describe_value(value) for value in (None, False, 0.5)] == ["", "no", "0.5"]


def test_scores_come_first_but_files_and_chosen_columns_keep_their_order(recipe: Path, tmp_path: Path) -> None:
    rows = attngeo.score("demo:encoder")
    first = ["model", "stack", "layer", "head", "symmetry", "directionality", "symmetry_z"]
    shown = put_scores_first(rows)
    assert list(shown.columns[:7]) == first
    assert sorted(shown.columns) == sorted(rows.columns)
    changes = pd.DataFrame(columns=list(compare_columns()))
    assert list(put_scores_first(changes).columns[:7]) == [
        "model", "other", "stack", "layer", "head", "change", "cosine"
    ]  # fmt: skip
    other = pd.DataFrame({"statement": ["x"], "holds": [True]})
    assert put_scores_first(other) is other
    chosen = 'tables = [{ of = "scores" }, { of = "scores", columns = ["layer", "symmetry", "model"] }]'
    change(recipe, 'tables = [{ of = "scores", show = "summary" }]', chosen)
    folder = build_report(recipe, tmp_path / "out").folder
    heads = re.findall(r"^\| +(model|layer) .*$", (folder / "report.md").read_text(), re.MULTILINE)
    assert heads == ["model", "layer"]
    assert list(pd.read_csv(folder / "tables/scores.csv").columns) == list(attngeo.columns("score"))
