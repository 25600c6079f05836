"""`attngeo tabular fit` and `predict` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import Command
from support.messages import assert_fails, assert_states


@pytest.fixture
def table(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    frame = pd.DataFrame({"size": random.choice(["s", "m", "l"], 120), "mass": random.normal(size=120).round(3)})
    frame["y"] = np.where(frame["size"] == "s", 1, 2)
    frame.loc[3, "size"] = None
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path / "rows.csv"


FAST = ["--target", "y", "--epochs", "30", "--lr", "0.02", "--device", "cpu"]


def test_fit_save_predict(attngeo: Command, inside: Command, table: Path, tmp_path: Path) -> None:
    run = attngeo("tabular", "fit", table, *FAST, "--methods", "atn,lr", "--save", "model", "-o", "s.csv", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert_states(run.stderr, "model", "predict")
    scores = pd.read_csv(tmp_path / "s.csv")
    assert scores["method"].tolist() == ["atn", "lr"]
    assert (scores["accuracy"] == 1).all()
    assert (scores["mse"] == 0).all()
    for name, accuracy in zip(("ATN", "LR"), scores["accuracy"], strict=True):
        line = next(line for line in run.stdout.splitlines() if line.split()[:1] == [name])
        assert_states(line, f"{accuracy:.3f}")
    predicted = inside("tabular", "predict", "model", table, "--format", "csv", "-o", "p.parquet", cwd=tmp_path)
    assert (predicted.returncode, predicted.stderr) == (0, "")
    rows = pd.read_parquet(tmp_path / "p.parquet")
    assert rows.columns.tolist() == ["row", "prediction", "probability", "p(1)", "p(2)"]
    truth = pd.read_csv(table)
    known = truth["size"].notna()
    assert rows.loc[known, "prediction"].tolist() == truth.loc[known, "y"].tolist()
    np.testing.assert_allclose(rows["p(1)"] + rows["p(2)"], 1)
    assert len(predicted.stdout.splitlines()) == 121
    shown = inside("tabular", "predict", "model", table, cwd=tmp_path).stdout
    assert_states(shown.splitlines()[3], "1", rows["prediction"][0], f"{rows['probability'][0]:.3f}")


def test_what_a_model_has_learned_is_drawn(inside: Command, table: Path, tmp_path: Path) -> None:
    """From files and from the saved model."""
    outputs = ["--save", "model", "--encodings-output", "e.csv"]
    run = inside("tabular", "fit", table, *FAST, "--methods", "atn", *outputs, "-q", cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    for given, picture in (("model", "model.json"), ("e.csv", "file.json")):
        drawn = inside("plot", "encodings", given, "-o", picture, cwd=tmp_path)
        assert (drawn.returncode, drawn.stderr) == (0, "")
    one, other = (json.loads((tmp_path / f"{name}.json").read_text())["data"] for name in ("model", "file"))
    assert [trace["text"] for trace in one] == [trace["text"] for trace in other]
    assert one[0]["text"] == ["l", "m", "s"]
    inside("tabular", "predict", "model", table, "--attention-output", "cells.parquet", cwd=tmp_path)
    cells = pd.read_parquet(tmp_path / "cells.parquet")
    assert cells["row"].nunique() == 120
    drawn = inside("plot", "row-attention", "cells.parquet", "--where", "row=4", "-o", "a.json", cwd=tmp_path)
    assert (drawn.returncode, drawn.stderr) == (0, "")
    (trace,) = json.loads((tmp_path / "a.json").read_text())["data"]
    assert trace["x"][0] == "size = [MASK]"
    assert_fails(inside("plot", "encodings", tmp_path, "-o", tmp_path / "x.json"), 3, tmp_path, "config.json")


def test_the_same_seed_gives_the_same_scores(inside: Command, table: Path) -> None:
    runs = [
        inside("tabular", "fit", table, *FAST, "--methods", "atn", "--format", "json", "--seed", seed).stdout
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]
    assert json.loads(runs[0])[0]["seed"] == 1


def test_bad_input_ends_with_one_line_and_its_exit_code(inside: Command, table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table)
    for name, changed in (("constant", frame.assign(y=1)), ("real", frame.assign(y=frame["mass"])),
                          ("named", frame.assign(y=[f"n{i}" for i in range(120)]))):  # fmt: skip
        changed.to_csv(tmp_path / f"{name}.csv", index=False)
    fit = ["tabular", "fit"]
    assert_fails(inside(*fit, table), 2, "target", "size")
    assert_fails(inside(*fit, table, "--target", "z"), 4, "'z'")
    assert_fails(inside(*fit, tmp_path / "no.csv", *FAST), 3, tmp_path / "no.csv")
    assert_fails(inside(*fit, tmp_path / "constant.csv", *FAST), 4, "one class")
    assert_fails(inside(*fit, tmp_path / "real.csv", *FAST), 4, "continuous", "qcut")
    assert_fails(inside(*fit, tmp_path / "named.csv", *FAST), 4, "classes", 90)
    assert_fails(inside(*fit, table, *FAST, "--methods", "lr", "--save", tmp_path / "m"), 2, "atn")
    assert_fails(inside(*fit, table, *FAST, "--methods", "lr", "--encodings-output", tmp_path / "e.csv"), 2, "atn")
    assert_fails(inside(*fit, table, *FAST, "--save", tmp_path), 2, tmp_path)
    assert_fails(inside(*fit, table, *FAST, "--heads", "0"), 2, "heads", 1)
    assert_fails(inside(*fit, table, *FAST, "-o", table), 2, table)
    assert_fails(inside("tabular", "predict", tmp_path / "m", table), 3, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_rows_with_unseen_values_or_other_columns(inside: Command, table: Path, tmp_path: Path) -> None:
    inside("tabular", "fit", table, *FAST, "--methods", "atn", "--save", tmp_path / "m", "--quiet")
    (tmp_path / "new.csv").write_text("mass,size,more\n0.5,xl,1\n")
    predict = ["tabular", "predict", tmp_path / "m", tmp_path / "new.csv"]
    assert_fails(inside(*predict), 4, "'size'", "'xl'", "--unseen mask")
    run = inside(*predict, "--unseen", "mask", "--format", "csv")
    assert (run.returncode, len(run.stdout.splitlines())) == (0, 2)
    (tmp_path / "new.csv").write_text("size\ns\n")
    assert_fails(inside(*predict), 4, "'mass'", "size, mass")
