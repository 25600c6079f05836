"""Reports whose parts are made in several processes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from conftest import Command
from support.messages import assert_states
from support.reports import change, read_files
from support.runs import write_config, write_text

from attngeo.errors import ModelNotFoundError
from attngeo.reporting.report import build_report

TRAINING = """
[[results]]
name = "runs"
command = "pretrain"

[results.options]
model = "small/config.json"
data = "text.txt"
compare = ["default", "symmetric"]
steps = 4
batch_size = 8
seq_len = 16
vocab_size = 120
log_every = 2
"""


@pytest.mark.slow
def test_two_processes_make_the_same_report(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    change(recipe, '"demo:decoder"', '"demo:none", "demo:decoder"')
    made = [build_report(recipe, tmp_path / f"out{jobs}", jobs=jobs) for jobs in (1, 2)]
    assert [str(failure) for failure in made[0].failures] == [str(failure) for failure in made[1].failures]
    assert_states(str(made[1].failures[0]), "demo.toml", "scores", "demo:none")
    (one, two) = (read_files(each.folder) for each in made)
    assert {name.partition("/")[0] for name in one} >= {"index.html", "tables"}
    assert {name: content for name, content in one.items() if ".parts" not in name} == {
        name: content for name, content in two.items() if ".parts" not in name
    }
    rows = pd.read_csv(made[1].folder / "tables/scores.csv")
    assert list(rows["model"].unique()) == ["demo:encoder", "demo:decoder"]


def test_the_first_failure_ends_a_report_if_that_is_asked_for(recipe: Path, tmp_path: Path) -> None:
    change(recipe, '"demo:decoder"', '"demo:none", "demo:decoder"')
    with pytest.raises(ModelNotFoundError, match="demo:none"):
        build_report(recipe, tmp_path / "out", fail_fast=True)
    assert not (tmp_path / "out/index.html").exists()


@pytest.mark.slow
def test_the_runs_of_a_report_are_trained_in_several_processes(attngeo: Command, recipe: Path, tmp_path: Path) -> None:
    write_text(tmp_path)
    (tmp_path / "small").mkdir()
    write_config(tmp_path / "small")
    recipe.write_text(recipe.read_text() + TRAINING)
    pages = []
    for jobs in (1, 2):
        run = attngeo(
            "report", recipe, "-o", tmp_path / f"out{jobs}", "--jobs", jobs, SOURCE_DATE_EPOCH="0", OMP_NUM_THREADS="1"
        )
        assert run.returncode == 0, run.stderr
        pages.append((tmp_path / f"out{jobs}/tables/runs.csv").read_bytes())
    assert pages[0] == pages[1]
