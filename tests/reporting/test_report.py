"""The folder of a report: what it holds, and how checks, dates and names are shown."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.reports import change, read_files

import attngeo
from attngeo.errors import OutputError, UsageError
from attngeo.papers.saponati2025.comparison import compare_with_published
from attngeo.reporting.report import build_report
from attngeo.tables import write as tables


def test_a_report_holds_its_page_tables_and_provenance(recipe: Path, tmp_path: Path) -> None:
    made = build_report(recipe, tmp_path / "out")
    assert set(read_files(tmp_path / "out")) == {
        "index.html", "report.md", "provenance.json", "tables/scores.csv", "tables/scores.parquet",
        "tables/scores-summary.csv", "tables/scores-summary.parquet",
    }  # fmt: skip
    rows = pd.read_parquet(tmp_path / "out/tables/scores.parquet")
    expected = [attngeo.score(f"demo:{name}", per_head=True) for name in ("encoder", "decoder")]
    assert rows["symmetry"].tolist() == pd.concat(expected)["symmetry"].tolist()
    provenance = json.loads((tmp_path / "out/provenance.json").read_text())
    assert provenance["command"] == "attngeo report demo.toml"
    assert provenance["software"]["attngeo"] == attngeo.__version__
    assert [each["model"] for each in provenance["results"]] == ["demo:encoder", "demo:decoder"]
    assert str(tmp_path) not in "".join(map(repr, read_files(tmp_path / "out").values()))
    text = (tmp_path / "out/report.md").read_text()
    assert re.search(r"\b1\b\D+\b1\b.*check", text)
    assert re.search(r"demo:encoder \(encoder\).*symmetry\.median\D*0\.\d+.*symmetry\.median < 0\.2", text)
    assert "A *report*." in text
    assert [(check.model, check.failed) for check in made.checks] == [("demo:encoder", False)]


def test_equal_lines_of_provenance_are_one_with_a_count(recipe: Path, tmp_path: Path) -> None:
    """The models of one result are a line, and those with another option have a line of their own."""
    result = '[[results]]\nname = "scores"\ncommand = "score"\nmodels = ["demo:encoder", "demo:decoder"]\n'
    other = result.replace('"scores"', '"ov"') + 'options = { circuit = "ov" }\n'
    change(recipe, result, result + other)
    build_report(recipe, tmp_path / "out")
    page = (tmp_path / "out/index.html").read_text().partition('id="provenance"')[2].partition("</dl>")[0]
    lines = re.findall("<dt>(scores|ov): score</dt><dd>([^<]*) · [^<]*circuit (qk|ov)", page)
    models = "2 parts: demo:encoder; demo:decoder"
    assert lines == [("scores", models, "qk"), ("ov", models, "ov")]
    origins = json.loads((tmp_path / "out/provenance.json").read_text())["results"]
    assert len(origins) == 4


def test_the_same_inputs_give_the_same_bytes(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    first, second = (read_files(build_report(recipe, tmp_path / name).folder) for name in ("a", "b"))
    assert first == second
    assert b"2023-11-14 22:13 UTC" in first["index.html"]


def test_checks_fail_and_are_listed(recipe: Path, tmp_path: Path) -> None:
    change(recipe, 'models = ["demo:encoder"]\n', "")
    made = build_report(recipe, tmp_path / "out")
    assert [(check.model, check.failed) for check in made.checks] == [("demo:encoder", False), ("demo:decoder", True)]
    text = (tmp_path / "out/report.md").read_text()
    assert re.search(r"\b1\b\D+\b2\b.*check", text)
    assert re.search(r"demo:decoder \(decoder\).*symmetry\.median\D*0\.06", text)


def test_files_are_found_beside_the_recipe_and_names_are_no_paths(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    nasty = "../../up|`<b>"
    tables.write_table(attngeo.score("demo:encoder", per_head=True).assign(model=nasty), folder / "rows.csv")
    change(recipe, 'command = "score"', 'command = "file"\npath = "rows.csv"')
    change(recipe, 'models = ["demo:encoder", "demo:decoder"]\n', "")
    change(recipe, 'models = ["demo:encoder"]\n', "")
    recipe.rename(folder / "r.toml")
    build_report(folder / "r.toml", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "recipes"]
    assert r"../../up\|\`&lt;b&gt;" in (tmp_path / "out/report.md").read_text()
    assert "<b>" not in (tmp_path / "out/index.html").read_text()


def test_rows_are_selected_by_their_values(recipe: Path, tmp_path: Path) -> None:
    shown = 'tables = [{ of = "scores", where = { model = "demo:decoder", layer = 1 } }]'
    change(recipe, 'tables = [{ of = "scores", show = "summary" }]', shown)
    build_report(recipe, tmp_path / "out")
    rows = pd.read_csv(tmp_path / "out/tables/scores-demo-decoder-1.csv")
    assert (rows["model"].unique().tolist(), rows["layer"].unique().tolist(), len(rows)) == (["demo:decoder"], [1], 5)


def test_a_selection_without_rows_is_listed(recipe: Path, tmp_path: Path) -> None:
    change(recipe, 'kind = "layers",', 'kind = "layers", where = { layer = 9 },')
    made = build_report(recipe, tmp_path / "out")
    (failure,) = made.failures
    assert (failure.where, failure.what) == ("demo.toml", 'section "Layers".figures[1]')
    assert failure.error.exit_code == UsageError.exit_code
    assert re.search("scores.*layer.*9", str(failure.error))
    for text in (made.page.read_text(), (tmp_path / "out/report.md").read_text()):
        assert "1 of 1 checks passed, 1 part missing" in text


@pytest.mark.parametrize("selection", ["where = { colour = 1 }", 'columns = ["model", "colour"]'])
def test_a_column_that_a_file_lacks_is_listed(selection: str, recipe: Path, tmp_path: Path) -> None:
    tables.write_table(attngeo.score("demo:encoder", per_head=True), tmp_path / "rows.csv")
    change(recipe, 'command = "score"', 'command = "file"\npath = "rows.csv"')
    change(recipe, 'models = ["demo:encoder", "demo:decoder"]\n', "")
    change(recipe, 'show = "summary"', selection)
    (failure,) = build_report(recipe, tmp_path / "out").failures
    assert (failure.where, failure.what) == ("demo.toml", 'section "Layers".tables[1]')
    assert failure.error.exit_code == UsageError.exit_code
    assert re.search("scores.*'colour'", str(failure.error))


def test_medians_beside_published_ones() -> None:
    rows = attngeo.score("demo:encoder", per_head=True)
    table = compare_with_published(pd.concat([
        rows.assign(model="google-bert/bert-base-uncased@abc"), rows.assign(model="unknown/model"),
        rows.assign(model="EleutherAI/pythia-70m", stack="decoder"),
    ]))  # fmt: skip
    assert table["symmetry_published"].round(2).tolist()[::2] == [0.51, 0.01]
    assert pd.isna(table["symmetry_published"][1])
    assert table["erratum"].fillna("").tolist() == [
        "",
        "",
        "fused projection cut in the wrong places; fused projection not transposed",
    ]
    median = rows[rows["head"].isna()]["symmetry"].median()
    assert table["symmetry_difference"][0] == pytest.approx(median - 0.5101, abs=1e-4)


def test_a_folder_that_cannot_be_written(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        build_report(recipe, tmp_path / "file")


def test_every_table_has_a_file_of_its_own(recipe: Path, tmp_path: Path) -> None:
    tables_ = ['of = "scores", columns = ["model", "layer"]', 'of = "scores", where = { layer = 1 }',
               'of = "scores", where = { head = 1 }', 'of = "scores"',
               'of = "scores", where = { head = 1 }']  # fmt: skip
    change(recipe, '[{ of = "scores", show = "summary" }]', f"[{', '.join(f'{{ {each} }}' for each in tables_)}]")
    made = build_report(recipe, tmp_path / "out")
    read = {path.stem: pd.read_csv(path).shape for path in (tmp_path / "out/tables").glob("*.csv")}
    assert read == {"scores": (30, 18), "scores-2": (30, 2), "scores-1": (10, 18), "scores-1-2": (6, 18)}
    page = made.page.read_text()
    assert page.count('href="tables/scores-1-2.csv"') == 2
    assert page.count('href="tables/scores.csv"') == 2  # of the table, and of the figure's data


def test_a_report_made_again_replaces_the_former_and_nothing_else(recipe: Path, tmp_path: Path) -> None:
    """Its tables go, and what a killed process left; other files stay, whatever the provenance beside them lists."""
    out = tmp_path / "out"
    build_report(recipe, out)
    former = set(read_files(out))
    (out / ".new/tables").mkdir(parents=True)
    (out / ".new/tables/half.csv").write_text("model,la")
    (out / "tables/mine.csv").write_text("a\n")
    (out / "victim.csv").write_text("")
    provenance = json.loads((out / "provenance.json").read_text())
    provenance["tables"] += ["../victim", "..", 3, None]
    (out / "provenance.json").write_text(json.dumps(provenance))
    change(recipe, 'tables = [{ of = "scores", show = "summary" }]', "")
    build_report(recipe, out)
    gone = {"tables/scores-summary.csv", "tables/scores-summary.parquet"}
    assert gone < former
    assert set(read_files(out)) == former - gone | {"tables/mine.csv", "victim.csv"}


@pytest.mark.parametrize("epoch", ["abc", "1e9", "99999999999999999"])
def test_a_bad_date_is_refused_before_any_work(
    epoch: str, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    with pytest.raises(UsageError, match=f"SOURCE_DATE_EPOCH .*{epoch}"):
        build_report(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_markdown_shows_names_letter_for_letter(tmp_path: Path) -> None:
    nasty = "@team ~~x~~ `a`\n<img src=x onerror=alert(1)>"
    frame = attngeo.score("demo:encoder", per_head=True)
    tables.write_table(frame.assign(model=nasty, **{"<img src=x>|`": 1.5}), tmp_path / "rows.parquet")
    (tmp_path / "r.toml").write_text(
        'title = "# @x"\n[[results]]\nname = "a"\ncommand = "file"\npath = "rows.parquet"\n'
        '[[section]]\ntitle = "y"\nfigures = [{ kind = "layers", of = "a" }]\ntables = [{ of = "a" }]\n'
        '[[check]]\nof = "a"\nfail_if = "symmetry.median > 0"\n'
    )
    build_report(tmp_path / "r.toml", tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text()
    assert "@" not in text
    assert "<img" not in text
    assert text.startswith(r"# \# &#64;x" + "\n\n**0 of 1 checks")
    assert "- ✗ &#64;team " in text
    assert r"\~\~x\~\~" in text
    assert "index.html" in text


def test_the_page_lists_every_option(recipe: Path, tmp_path: Path) -> None:
    change(recipe, 'command = "score"', 'command = "score"\noptions = { gamma = 0.0 }')
    page = build_report(recipe, tmp_path / "out").page.read_text()
    assert "gamma 0.0" in page
    assert "convention corrected" in page


def write_only(most: int, written: list[Path], function: Callable[..., Any]) -> Callable[..., Any]:
    """A method of Path that writes files, on a disk that is full after `most` of them. written: is filled by it."""

    def write(path: Path, *args: Any, **kwargs: Any) -> Any:
        if ".lock" not in path.name:
            written.append(path)
        if len(written) > most:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return function(path, *args, **kwargs)

    return write


def test_a_report_that_cannot_be_written_leaves_the_former_one(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at a table or at the page, or a folder has the name of a file."""
    build_report(recipe, tmp_path / "out")
    change(recipe, 'title = "Demo"', 'title = "Changed"')
    former = read_files(tmp_path / "out")
    for failing, most in (("table", 3), ("page", 8), ("place", 100)):
        if failing == "place":
            change(recipe, 'show = "summary"', "where = { layer = 1 }")
            (tmp_path / "out/tables/scores-1.parquet").mkdir()
        written: list[Path] = []
        with monkeypatch.context() as patch:
            for method in ("replace", "write_text"):
                patch.setattr(Path, method, write_only(most, written, getattr(Path, method)))
            with pytest.raises(OutputError):
                build_report(recipe, tmp_path / "out")
        now = read_files(tmp_path / "out")
        assert {name: now[name] for name in former} == former, failing
        assert not [name for name in now.keys() - former.keys() if not name.startswith(".parts/")], failing
