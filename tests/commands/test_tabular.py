"""`attngeo tabular`: the experiments on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from conftest import Command
from support.data import make_cars, write_uci
from support.messages import assert_fails, assert_states

from attngeo.papers.wibisono2023 import data as data_sets
from attngeo.papers.wibisono2023.tables import AUTO_MPG_COLUMNS, SIMULATION_COLUMNS

TINY = ["--rows", "60", "--classes", "3", "--features", "3", "--methods", "lr", "--settings", "1,0,0.9"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "cache"))


def test_simulate_prints_means_beside_those_of_the_paper(inside: Command, tmp_path: Path) -> None:
    command = ["tabular", "simulate", "--convention", "published", "--methods", "lr", "--datasets", "3"]
    run = inside(*command, "--settings", "1,0,0.1", "--settings", "5,0.5,0.9", "-o", tmp_path / "t.csv")
    assert (run.returncode, run.stderr) == (0, "")
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert "other tables" not in run.stdout
    by_text = inside("tabular", "simulate", "--methods", "lr", "--datasets", "1", "--settings", "1,0,0.1")
    assert "The paper's numbers are of other tables, which --convention published makes." in by_text.stdout
    rows = pd.read_csv(tmp_path / "t.csv")
    assert tuple(rows.columns) == SIMULATION_COLUMNS
    lines = [line for line in run.stdout.splitlines() if " LR " in line]
    for line, (setting, own) in zip(lines, rows.groupby(["n_c", "noise", "corr"], sort=False), strict=True):
        accuracy = own["accuracy"]
        shown = (*(f"{value:g}" for value in setting), 3, f"{accuracy.mean():.3f} ± {accuracy.std():.3f}")
        assert_states(line, *shown, f"{own['published_accuracy'].iloc[0]:.3f}", f"{own['mse'].mean():.3f}")


def test_the_same_command_resumes(inside: Command) -> None:
    first = inside("tabular", "simulate", *TINY, "--datasets", "2", "--format", "csv")
    assert (first.returncode, first.stderr) == (0, "")
    more = inside("tabular", "simulate", *TINY, "--datasets", "3", "--format", "csv")
    assert_states(more.stderr, "2 of 3 runs", "--fresh")
    assert more.stdout.startswith(first.stdout)
    listed = json.loads(inside("cache", "list", "--format", "json").stdout)
    assert len(listed) == 3
    assert not any(entry["outdated"] for entry in listed)
    (row,) = (line for line in inside("cache", "list", COLUMNS="160").stdout.splitlines() if "seed 4951" in line)
    assert_states(row, "1,0,0.9 lr", "n_features=3", "n_classes=3", "train_rows=60", "test_rows=60")
    assert row.count("=") == 4  # the rest is default, or part of the name
    assert_states(inside("cache", "clear", "--outdated").stderr, "0 results")
    assert_states(inside("cache", "clear", "1,0,0.9 lr*").stderr, "3 results")
    again = inside("tabular", "simulate", *TINY, "--datasets", "3", "--format", "csv")
    assert (again.stdout, again.stderr) == (more.stdout, "")


def test_auto_mpg_is_a_table_of_methods(inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cars, data = make_cars(90), tmp_path / "auto-mpg.data"
    monkeypatch.setattr(data_sets, "DIGEST", data_sets.digest_cars(cars))
    data.write_text(write_uci(cars))
    run = inside("tabular", "auto-mpg", "--data", data, "--methods", "lr", "--seeds", "2", "--format", "json")
    rows = pd.DataFrame(json.loads(run.stdout))
    assert tuple(rows.columns) == AUTO_MPG_COLUMNS
    assert rows["published_accuracy"].tolist() == pytest.approx([0.657142857] * 2)
    assert rows["accuracy"].between(0, 1).all()
    changed = tmp_path / "cars.csv"
    changed.write_text(write_uci([cars[0] | {"mpg": 9.0}, *cars[1:]]))
    run = inside("tabular", "auto-mpg", "--data", changed, "--methods", "lr", "--seeds", "1", "--format", "json")
    assert json.loads(run.stdout)[0]["published_accuracy"] is None
    assert_states(run.stderr, changed, "UCI")
    assert_fails(inside("tabular", "auto-mpg", "--data", changed, "-o", changed), 2, changed)


def test_bad_input_is_one_line(inside: Command, tmp_path: Path) -> None:
    for arguments, code, facts in (
        (["simulate", "--methods", "lr,gbb"], 2, ["--methods", "'gbb'", "gb"]),
        (["simulate", "--settings", "5,0"], 2, ["--settings", "'5,0'"]),
        (["simulate", "--settings", "9,0,0.9"], 2, ["--features", "9,0,0.9"]),
        (["simulate", "--datasets", "-1"], 2, ["--datasets", -1]),
        (["simulate", "--rows", "5"], 2, ["--rows", 5]),
        (["simulate", "--convention", "paper"], 2, ["--convention", "'paper'"]),
        (["simulate", "-o", str(tmp_path / "no" / "t.csv")], 2, ["no"]),
        (["auto-mpg", "--data", str(tmp_path / "nowhere.csv")], 3, ["nowhere.csv"]),
        (["auto-mpg"], 3, ["HF_HUB_OFFLINE", "--data"]),
        (["auto-mpg", "--seeds", "0"], 2, ["--seeds", 0]),
        (["simulat"], 2, ["simulate"]),
    ):
        assert_fails(inside("tabular", *arguments), code, *facts)


def test_without_a_command_the_commands_are_listed(inside: Command) -> None:
    run = inside("tabular")
    assert run.returncode == 0
    assert run.stdout == inside("tabular", "--help").stdout
    assert "simulate" in run.stdout
    assert "auto-mpg" in run.stdout
