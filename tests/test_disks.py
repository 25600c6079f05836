"""Files on disks that ignore case, as those of macOS and Windows do: no file is lost, and no name is reserved."""

from __future__ import annotations

import json
import ntpath
import os
import shutil
import subprocess
import sys
import unicodedata
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path, PurePosixPath, PureWindowsPath

import pandas as pd
import pytest
from attngeo.commands.outputs import check_outputs, refuse_folder, refuse_inputs
from hypothesis import given, strategies as st
from support.folding import ignore_case
from support.reports import read_files

from attngeo.bounds.disks import fold_name, free_name, is_same_file, name_files, portable_name
from attngeo.errors import UsageError
from attngeo.pretrain.comparison import _folder_name, compare_runs
from attngeo.pretrain.options import ComparisonOptions, make_options
from attngeo.reporting.recipe import TableBlock
from attngeo.reporting.report import build_report
from attngeo.reporting.results import CollectedResults, build_table

Command = Callable[..., subprocess.CompletedProcess[str]]

RECIPE = """
title = "Names"
[[results]]
name = "Scores"
command = "score"
models = ["demo:encoder"]
[[results]]
name = "scores"
command = "score"
models = ["demo:decoder"]
[[results]]
name = "nul"
command = "score"
models = ["demo:encoder"]
options = { layers = [0] }
[[section]]
title = "Rows"
figures = [{ kind = "layers", of = "scores" }]
tables = [
    { of = "Scores", where = { model = "demo:encoder" } },
    { of = "scores", show = "summary" },
    { of = "Scores", show = "summary" },
]
"""
# Names that a user may give, and that Windows or a disk could change.
NAMES = st.text(st.sampled_from("aAnNuUlL1¹. :eé\u0301ß"), min_size=1, max_size=6)


def is_reserved(name: str) -> bool:
    """What Python says that Windows reserves, or shortens."""
    if sys.version_info >= (3, 13):
        return ntpath.isreserved(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return PureWindowsPath(name).is_reserved() or name.endswith((".", " "))


@pytest.mark.parametrize(
    "name",
    [
        "con",
        "PRN",
        "Aux",
        "nul",
        "com1",
        "LPT9",
        "com¹",
        "nul.csv",
        "con.tar.gz",
        "CONIN$",
        "conout$",
        "a.",
        "a ",
        "...",
    ],
)
def test_reserved_names_are_those_of_windows(name: str) -> None:
    assert is_reserved(name)
    assert not is_reserved(portable_name(name))
    assert portable_name(name).startswith(name.partition(".")[0].rstrip())


@pytest.mark.parametrize("name", ["scores", "console", "com", "com10", "nul-2", "a.b", ".con", "aux_", "lpt1x.csv"])
def test_other_names_stay(name: str) -> None:
    assert not is_reserved(name)
    assert portable_name(name) == name


@given(st.lists(NAMES, unique=True, max_size=8))
def test_each_name_has_a_file_that_no_disk_takes_for_another(names: list[str]) -> None:
    files = name_files(names)
    assert list(files) == names
    assert len({fold_name(file) for file in files.values()}) == len(names)
    assert not any(is_reserved(file) for file in files.values() if ":" not in file)
    folded = [*map(fold_name, names)]
    alone = [name for name in names if folded.count(fold_name(name)) == 1 and portable_name(name) == name]
    assert all(files[name] == name for name in alone)


def test_both_forms_of_an_accent_are_one_name() -> None:
    composed, parted = (unicodedata.normalize(form, "Café") for form in ("NFC", "NFD"))
    assert composed != parted
    assert fold_name(composed) == fold_name(parted.upper())
    assert free_name(parted, [composed]) == f"{parted}-2"


@pytest.mark.usefixtures("no_pictures")
def test_results_whose_names_differ_in_case_have_files_of_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = tmp_path / "names.toml"
    recipe.write_text(RECIPE)
    with ignore_case(tmp_path):
        folder = build_report(recipe, tmp_path / "ignored").folder
    kept_apart = build_report(recipe, tmp_path / "exact").folder
    assert read_files(folder).keys() == read_files(kept_apart).keys()
    tables = {path.stem: pd.read_csv(path)["model"].unique().tolist() for path in folder.glob("tables/*.csv")}
    assert tables == {
        "Scores": ["demo:encoder"],
        "scores-2": ["demo:decoder"],
        "nul_": ["demo:encoder"],
        "Scores-summary": ["demo:encoder"],
        "scores-2-summary": ["demo:decoder"],
        "Scores-demo-encoder": ["demo:encoder"],
    }
    page = (folder / "index.html").read_text("utf-8")
    assert page.count('href="tables/scores-2.csv"') == 1  # the data of the figure
    for told in (caplog.messages[0], page, (folder / "report.md").read_text("utf-8")):
        assert "tables/scores-2.csv and tables/scores-2.parquet, because" in told
        assert "macOS and Windows treat Scores.csv and scores.csv as the same file" in told
        assert "tables/nul_.csv" in told
        assert "Windows cannot have files named nul" in told
    assert json.loads((folder / "provenance.json").read_text("utf-8"))["tables"] == sorted(tables)


def test_tables_of_rows_whose_names_differ_in_case_have_files_of_their_own() -> None:
    rows = pd.DataFrame({"model": ["org/A", "org/a"], "n": [1, 2]})
    collected = CollectedResults({"rows": "rows"}, {"rows": rows})
    taken = {"rows": rows}
    blocks = [TableBlock(of="rows", where={"model": model}) for model in ("org/A", "org/a", "org/A")]
    names = [build_table(block, collected, taken).name for block in blocks]
    assert names == ["rows-org-A", "rows-org-a-2", "rows-org-A"]
    # The same rows have one file, under the name that it got first.
    rows["model"] = rows["model"].str.upper()
    rows["n"] = 1
    shouted = TableBlock(of="rows", columns=["n"])
    assert build_table(shouted, collected, {"ROWS": rows[["n"]]}).name == "ROWS"


PLAIN = """
title = "Renamed"
[[results]]
name = "{name}"
command = "file"
path = "{path}"
[[section]]
title = "Rows"
tables = [{{ of = "{name}" }}]
"""


@pytest.mark.parametrize("ignores", [True, False])
@pytest.mark.usefixtures("no_pictures")
def test_the_files_of_a_former_report_go_and_the_new_ones_stay(tmp_path: Path, ignores: bool) -> None:
    recipe = tmp_path / "r.toml"
    pd.DataFrame({"model": ["a"], "n": [1]}).to_csv(tmp_path / "rows.csv", index=False)
    with ignore_case(tmp_path) if ignores else nullcontext():
        for name in ("other", "rows", "Rows"):
            recipe.write_text(PLAIN.format(name=name, path="rows.csv"))
            build_report(recipe, tmp_path / "out")
        assert (tmp_path / "out/tables/Rows.csv").read_text() == "model,n\na,1\n"
    stems = {path.stem for path in (tmp_path / "out/tables").iterdir()}
    # A disk that ignores case keeps the name under which a file was first written.
    assert stems == ({"rows"} if ignores else {"Rows"})


def test_inputs_are_found_under_names_of_another_case(tmp_path: Path) -> None:
    (tmp_path / "report/tables").mkdir(parents=True)
    rows = tmp_path / "report/tables/Rows.csv"
    rows.write_text("model,n\na,1\n")
    recipe = tmp_path / "r.toml"
    recipe.write_text(PLAIN.format(name="rows", path="Report/Tables/rows.csv"))
    model = tmp_path / "Model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    with ignore_case(tmp_path):
        with pytest.raises(UsageError, match="overwrite"):
            build_report(recipe, tmp_path / "report")
        with pytest.raises(UsageError, match="is an input"):
            refuse_inputs([tmp_path / "report/tables/ROWS.csv"], [rows])
        with pytest.raises(UsageError, match="is an input"):
            refuse_inputs([tmp_path / "model/config.json"], [model])
        with pytest.raises(UsageError, match="is an input"):
            refuse_folder(tmp_path / "REPORT", [tmp_path / "report"])
    # Where names of another case are other files, none of these is an input.
    refuse_inputs([tmp_path / "report/tables/ROWS.csv", tmp_path / "model/config.json"], [rows, model])
    refuse_folder(tmp_path / "REPORT", [tmp_path / "report"])


def test_two_names_of_one_file_are_two_files_if_the_folder_lists_both(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "A"
    first.write_text("")
    assert not is_same_file(first, second)
    second.hardlink_to(first)
    assert first.samefile(second)
    assert not is_same_file(first, second)
    second.unlink()
    with ignore_case(tmp_path):
        assert is_same_file(first, second)


def test_outputs_and_folders_of_runs_differ_not_in_case_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="case"):
        check_outputs([tmp_path / "rows.csv", tmp_path / "Rows.csv"])
    with pytest.raises(UsageError, match="case"):
        check_outputs([tmp_path / "rows.html"], [tmp_path / "ROWS.html"])
    monkeypatch.chdir(tmp_path)
    comparison = ComparisonOptions(compare=("./Start", "./start"))
    with pytest.raises(UsageError, match="case"):
        compare_runs(make_options(), tmp_path / "runs", comparison=comparison)
    assert not (tmp_path / "runs").exists()


def test_a_long_path_is_part_of_the_name_of_a_folder(tmp_path: Path) -> None:
    options = make_options().replace(init=f"{tmp_path}/{'long/' * 100}last")
    name = _folder_name(options)
    assert len(name) < 255
    assert name.endswith("long-last-seed0")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="commands of tests are forks, which Windows lacks")
def test_the_folder_of_a_recipe_has_a_name_that_windows_takes(inside: Command, tmp_path: Path) -> None:
    (tmp_path / "con.toml").write_text(PLAIN.format(name="rows", path="rows.csv"))
    (tmp_path / "rows.csv").write_text("model,n\na,1\n")
    made = inside("report", "con.toml", cwd=tmp_path)
    assert made.returncode == 0
    assert made.stdout.strip() == str(Path("con_/index.html"))
    assert "con_" in made.stderr


def test_each_disk_can_hold_the_files_of_the_project() -> None:
    root = Path(__file__).parents[1]
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no clone: git lists no files")
    names = listed.stdout.strip("\0").split("\0")
    parts = {part for name in names for part in name.split("/")}
    assert [part for part in parts if portable_name(part) != part or set(part) & set('<>:"\\|?*')] == []
    places = {str(place) for name in names for place in (PurePosixPath(name), *PurePosixPath(name).parents)}
    assert len({*map(fold_name, places)}) == len(places)
    # Windows refuses paths of more than 260 characters unless it is told otherwise; a clone is in some folder.
    assert max(map(len, names)) < 160
