"""`attngeo tabular` on the command line: the experiments, and tables of a user."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Command
from support.data import make_cars, write_uci
from support.messages import assert_fails, assert_states

from attngeo.errors import (
    CorruptCheckpointError,
    DataUnavailableError,
    ModelNotFoundError,
    TableError,
    UnknownColumnError,
    UnsupportedModelError,
    UsageError,
)
from attngeo.estimators import AttentionClassifier
from attngeo.estimators.tabular import measuring
from attngeo.estimators.tabular.baselines import BASELINES
from attngeo.estimators.tabular.views import tabulate_encodings
from attngeo.papers.wibisono2023 import data as data_sets
from attngeo.papers.wibisono2023.summaries import AUTO_MPG_COLUMNS, SIMULATION_COLUMNS

pytestmark = pytest.mark.usefixtures("cache")
TINY = ["--rows", "60", "--classes", "3", "--features", "3", "--methods", "lr", "--shifts", "1,0,0.9"]


def test_simulate_prints_means_beside_those_of_the_paper(inside: Command, tmp_path: Path) -> None:
    command = ["tabular", "simulate", "--settings", "code", "--methods", "lr", "--datasets", "3"]
    run = inside(*command, "--shifts", "1,0,0.1", "--shifts", "5,0.5,0.9", "-o", tmp_path / "t.csv")
    assert (run.returncode, run.stderr) == (0, "")
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert "different tables" not in run.stdout
    by_text = inside("tabular", "simulate", "--methods", "lr", "--datasets", "1", "--shifts", "1,0,0.1")
    assert "The paper's numbers are for different tables, which --settings code generates." in by_text.stdout
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
    assert_states(row, "1,0,0.9 lr", "features=3", "classes=3", "rows=60")
    assert row.count("=") == 3  # the rest is default, or part of the name
    assert_states(inside("cache", "clear", "--outdated").stderr, "0 results")
    name = listed[0]["model"]
    mistyped, none = inside("cache", "list", f"{name}x").stderr.splitlines()
    assert_states(mistyped, f"'{name}x'", f"did you mean {name}?"[:-1])
    assert_states(none, "0 results")
    assert_states(inside("cache", "list", "nothing").stderr.splitlines()[0], "'nothing'", "attngeo cache list")
    assert_states(inside("cache", "clear", "1,0,0.9 lr*").stderr, "3 results")
    again = inside("tabular", "simulate", *TINY, "--datasets", "3", "--format", "csv")
    assert (again.stdout, again.stderr) == (more.stdout, "")


def test_auto_mpg_is_a_table_of_methods(inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cars, data = make_cars(90), tmp_path / "auto-mpg.data"
    monkeypatch.setattr(data_sets, "DIGEST", data_sets.digest_cars(pd.DataFrame(cars)))
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
        (["simulate", "--shifts", "5,0"], 2, ["--shifts", "'5,0'"]),
        (["simulate", "--shifts", "9,0,0.9"], 2, ["--features", "9,0,0.9"]),
        (["simulate", "--datasets", "-1"], 2, ["--datasets", -1]),
        (["simulate", "--rows", "5"], 2, ["--rows", 5]),
        (["simulate", "--settings", "paper"], 2, ["--settings", "'paper'"]),
        (["simulate", "-o", str(tmp_path / "no" / "t.csv")], 2, ["no"]),
        (["auto-mpg", "--data", str(tmp_path / "nowhere.csv")], DataUnavailableError, ["nowhere.csv"]),
        (["auto-mpg"], DataUnavailableError, ["HF_HUB_OFFLINE", "--data"]),
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


@pytest.fixture
def table(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    frame = pd.DataFrame({"size": random.choice(["s", "m", "l"], 120), "mass": random.normal(size=120).round(3)})
    frame["y"] = np.where(frame["size"] == "s", 1, 2)
    frame.loc[3, "size"] = None
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path / "rows.csv"


FAST = ["--target", "y", "--epochs", "30", "--lr", "0.02", "--device", "cpu"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `model` is saved."""
    return tmp_path_factory.mktemp("fitted") / "model"


@pytest.fixture
def model(inside: Command, table: Path, fitted: Path, tmp_path: Path) -> Path:
    """The folder "model" of a model of the table, which is fitted once."""
    if not fitted.exists():
        run = inside("tabular", "fit", table, *FAST, "--methods", "atn", "--save", fitted, "-q")
        assert (run.returncode, run.stderr) == (0, "")
    return shutil.copytree(fitted, tmp_path / "model")


def test_fit_save_predict(inside: Command, table: Path, tmp_path: Path) -> None:
    run = inside("tabular", "fit", table, *FAST, "--methods", "atn,lr", "--save", "model", "-o", "s.csv", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert max(map(len, run.stdout.splitlines())) <= 80
    epoch, saved = run.stderr.splitlines()
    assert_states(epoch, "epoch", "held-out")
    assert_states(saved, "model", "predict")
    scores = pd.read_csv(tmp_path / "s.csv")
    assert scores["method"].tolist() == ["frequencies", "atn", "lr"]
    scores = scores[1:]
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
    # The size decides the label. It has 0.97 and more, far from the 0.5 at which rounding could decide.
    assert rows.loc[known, "probability"].min() > 0.9
    assert rows.loc[known, "prediction"].tolist() == truth.loc[known, "y"].tolist()
    np.testing.assert_allclose(rows["p(1)"] + rows["p(2)"], 1)
    assert len(predicted.stdout.splitlines()) == 121
    shown = inside("tabular", "predict", "model", table, cwd=tmp_path).stdout
    assert_states(shown.splitlines()[3], "1", rows["prediction"][0], f"{rows['probability'][0]:.3f}")


def test_what_is_measured_is_reported_if_a_signal_ends_the_other_methods(
    inside: Command, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attention model is saved before them, and a note says how long they take."""
    options = [*FAST, "--methods", "gb,lr,atn,rf", "--save", "m", "-o", "s.csv"]
    monkeypatch.setattr(measuring, "forecast_seconds", lambda name, *_, **__: {"gb": 200.0, "rf": 30.0}.get(name, 0))
    for number, code, said in ((signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "SIGTERM")):
        folder = tmp_path / str(code)
        folder.mkdir()

        def end(_: int, number: int = number) -> None:
            assert (folder / "m/config.json").exists()  # noqa: B023 - it is called in this turn
            signal.raise_signal(number)

        monkeypatch.setitem(BASELINES, "gb", dataclasses.replace(BASELINES["gb"], make=end))
        run = inside("tabular", "fit", table, *options, cwd=folder)
        assert run.returncode == code, run.stderr
        *_, forecast, line = run.stderr.splitlines()
        assert_states(forecast, "4 min", "GB 3 min", "RF 30 s", "Ctrl-C")
        assert_states(line, said)
        rows = pd.read_csv(folder / "s.csv")
        assert rows["method"].tolist() == ["frequencies", "lr", "atn"]
        assert rows["accuracy"].notna().all()
        assert [text in run.stdout for text in ("LR", "ATN", "GB")] == [True, True, False]
        assert inside("tabular", "predict", "m", table, cwd=folder).returncode == 0


@pytest.mark.parametrize("rare", [29, 30, 31])
def test_unbalanced_labels_have_auc_and_recall(inside: Command, tmp_path: Path, rare: int) -> None:
    test = pd.DataFrame({"a": [*"xy"] * 50, "y": ["no"] * (100 - rare) + ["yes"] * rare})
    test.to_csv(tmp_path / "t.csv", index=False)
    command = ["tabular", "fit", "t.csv", "--target", "y", "--test", "t.csv", "--methods", "lr", "-o", "s.csv"]
    run = inside(*command, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    scores = pd.read_csv(tmp_path / "s.csv")
    assert (scores["majority"] == 1 - rare / 100).all()
    assert (scores["recall"] == 0.5).all()
    is_shown = rare <= 30
    facts = ["AUC", "recall", f"{100 - rare}.0% of the test rows"]
    assert [fact in " ".join(run.stdout.split()) for fact in facts] == [is_shown] * 3
    assert max(map(len, run.stdout.splitlines())) <= 80


@pytest.mark.usefixtures("model")
def test_predictions_that_a_file_has_are_summed_up(inside: Command, table: Path, tmp_path: Path) -> None:
    run = inside("tabular", "predict", "model", table, "-o", "p.csv", cwd=tmp_path)
    predicted = pd.read_csv(tmp_path / "p.csv")
    lines = run.stdout.splitlines()
    assert len(lines) == 5
    for line, (label, count) in zip(lines[2:4], predicted["prediction"].value_counts().items(), strict=True):
        mean = predicted.loc[predicted["prediction"] == label, "probability"].mean()
        assert_states(line, label, count, f"{mean:.3f}")
    assert_states(lines[4], "120 rows")


def test_a_signal_before_a_method_is_measured_reports_nothing(
    inside: Command, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        BASELINES, "lr", dataclasses.replace(BASELINES["lr"], make=lambda _: signal.raise_signal(signal.SIGINT))
    )
    run = inside("tabular", "fit", table, *FAST, "--methods", "lr")
    assert_fails(run, 130, "interrupted")


@pytest.mark.usefixtures("model")
def test_what_is_read_is_printed_by_each_command_that_is_verbose(inside: Command, table: Path, tmp_path: Path) -> None:
    for command in ("predict", "impute"):
        run = inside("tabular", command, "model", table, "-v", cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        folder, *tables = run.stderr.splitlines()
        assert_states(folder, "config.json", "attngeo_tabular", "format 2")
        assert_states(tables[0], table, "120 rows of 3 columns")
        quiet = inside("tabular", command, "model", table, "-q", cwd=tmp_path)
        assert (quiet.stdout, quiet.stderr) == (run.stdout, "")
        assert_fails(inside("tabular", command, "model", table, "-q", "-v", cwd=tmp_path), 2, "--quiet", "--verbose")


def test_what_a_model_has_learned_is_drawn(inside: Command, table: Path, model: Path, tmp_path: Path) -> None:
    """From files and from the saved model."""
    tabulate_encodings(AttentionClassifier.load(model)).to_csv(tmp_path / "e.csv", index=False)
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
    assert_fails(
        inside("plot", "encodings", tmp_path, "-o", tmp_path / "x.json"),
        CorruptCheckpointError,
        tmp_path,
        "config.json",
    )


@pytest.mark.usefixtures("model")
def test_empty_cells_are_filled_with_their_probabilities(inside: Command, table: Path, tmp_path: Path) -> None:
    full = pd.read_csv(table)[6:12].reset_index(drop=True).assign(note="x")
    rows = full.astype(object)
    rows.loc[0, "size"] = rows.loc[1, "y"] = None
    rows.loc[2, ["mass", "y"]] = None
    rows.to_csv(tmp_path / "gaps.csv", index=False)
    summed = inside("tabular", "impute", "model", "gaps.csv", "-o", "filled.csv", cwd=tmp_path)
    run = inside("tabular", "impute", "model", "gaps.csv", cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    filled = pd.read_csv(tmp_path / "filled.csv")
    assert filled.columns.tolist() == ["size", "mass", "y", "note", "p(size)", "p(mass)", "p(y)"]
    model = AttentionClassifier.load(tmp_path / "model")
    for row, column in ((0, "size"), (2, "mass"), (1, "y"), (2, "y")):
        features, labels = rows[["size", "mass"]].iloc[[row]].infer_objects(), rows["y"].iloc[[row]]
        if column == "y":
            chances = pd.DataFrame(model.predict_proba(features), columns=model.classes_)
        else:
            chances = model.predict_cell(features, column, labels)
        assert filled.loc[row, column] == chances.iloc[0].idxmax()
        assert filled.loc[row, f"p({column})"] == pytest.approx(chances.iloc[0].max())
        line = next(line for line in run.stdout.splitlines() if line.split()[:2] == [str(row + 1), column])
        assert_states(line, f"{chances.iloc[0].max():.3f}")
    assert filled.filter(like="p(").notna().to_numpy().sum() == 4
    *lines, last = summed.stdout.splitlines()[2:]
    for line, (column, count) in zip(lines, {"size": 1, "mass": 1, "y": 2}.items(), strict=True):
        assert line.split() == [column, str(count), f"{filled[f'p({column})'].mean():.3f}"]
    assert_states(last, "6 rows")
    kept = filled[full.columns].mask(rows.isna())
    pd.testing.assert_frame_equal(kept, full.mask(rows.isna()), check_dtype=False)
    assert filled["y"].dtype == np.int64
    assert "No cell" in inside("tabular", "impute", "model", "filled.csv", cwd=tmp_path).stdout
    rows.assign(note=["x", None] * 3).to_csv(tmp_path / "notes.csv", index=False)
    noted = inside("tabular", "impute", "model", "notes.csv", "--format", "json", cwd=tmp_path)
    assert_states(noted.stderr, "notes.csv", "left empty", "note 3")
    (tmp_path / "mass.csv").write_text("mass\n0.5\n")
    (row,) = json.loads(inside("tabular", "impute", "model", "mass.csv", "--format", "json", cwd=tmp_path).stdout)
    assert row.keys() == {"mass", "size", "p(size)"}
    (tmp_path / "other.csv").write_text("weight\n0.5\n")
    (tmp_path / "new.csv").write_text("size,mass\nxl,\n")
    for file, error, facts in (
        ("other.csv", TableError, ["size, mass, y"]),
        ("new.csv", TableError, ["'xl'", "--unseen mask"]),
        ("none.csv", DataUnavailableError, ["none.csv"]),
    ):
        assert_fails(inside("tabular", "impute", "model", file, "--unseen", "error", cwd=tmp_path), error, *facts)


def test_columns_of_several_files_are_fitted_without_a_target(inside: Command, tmp_path: Path) -> None:
    """Each file has a column that the other one lacks, and both follow from the one in common."""
    random = np.random.default_rng(2)
    keys = pd.Series(random.choice(["1", "2", "x"], 120), name="key")
    tables = {"one.csv": keys.map({"1": "low", "2": "mid", "x": "high"}), "two.csv": keys.isin(["1", "2"])}
    for (name, column), part in zip(tables.items(), (slice(80), slice(80, None)), strict=True):
        pd.DataFrame({"key": keys, name[:3]: column})[part].to_csv(tmp_path / name, index=False)
    options = [*FAST[2:], "--epochs", "60", "--validation-fraction", "0"]
    fit, model = ["tabular", "fit", "one.csv", "two.csv", *options], tmp_path / "model"
    run = inside(*fit, "--save", "model", "-o", "scores.csv", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert_states(run.stderr.splitlines()[-1], "model", "attngeo tabular impute")
    assert max(map(len, run.stdout.splitlines())) <= 80
    scores = pd.read_csv(tmp_path / "scores.csv").set_index(["column", "method"])
    assert scores.index.tolist() == [*itertools.product(("key", "one", "two"), ("atn", "frequencies"))]
    assert scores.xs("one")["test_rows"].tolist()[0] + scores.xs("two")["test_rows"].tolist()[0] == 30
    assert (scores.loc[[("one", "atn"), ("two", "atn")], "accuracy"] == 1).all()
    filled = inside("tabular", "impute", "model", "two.csv", "--format", "json", cwd=tmp_path)
    rows = pd.DataFrame(json.loads(filled.stdout))  # a column that the file lacks
    assert rows["one"].tolist() == tables["one.csv"][80:].tolist()
    assert (rows["p(one)"] > 0.5).all()
    assert_fails(
        inside("tabular", "predict", model, tmp_path / "one.csv"),
        UnsupportedModelError,
        model,
        "attngeo tabular impute",
    )
    assert inside("plot", "encodings", model, "-o", tmp_path / "e.json").returncode == 0
    assert "symmetry" in inside("score", model).stdout
    (tmp_path / "apart.csv").write_text("weight,tall\n1,2\n2,3\n")
    (tmp_path / "thin.csv").write_text("key\n1\n2\n")
    for files, code, facts in (
        (["one.csv", "apart.csv", "two.csv"], TableError, ["apart.csv", "one.csv", "key, one, two"]),
        (["one.csv", "one.csv"], 2, ["one.csv", "twice"]),
        (["thin.csv"], TableError, ["1 feature(s)"]),
        (["one.csv", "none.csv"], DataUnavailableError, ["none.csv"]),
    ):
        assert_fails(inside("tabular", "fit", *files, "--device", "cpu", cwd=tmp_path), code, *facts)


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
    assert_fails(inside(*fit, table, "--methods", "atn,lr"), 2, "--methods", "--target")
    assert_fails(inside(*fit, table, "--target", "z"), UnknownColumnError, "'z'")
    assert_fails(inside(*fit, tmp_path / "no.csv", *FAST), DataUnavailableError, tmp_path / "no.csv")
    assert_fails(inside(*fit, tmp_path / "constant.csv", *FAST), TableError, "column 'y'", "one class")
    assert_fails(inside(*fit, tmp_path / "real.csv", *FAST), TableError, "column 'y'", "fractions", "qcut")
    assert_fails(inside(*fit, tmp_path / "named.csv", *FAST), TableError, "column 'y'", "classes", 120)
    frame.drop(columns="y").to_csv(tmp_path / "test.csv", index=False)
    assert_fails(
        inside(*fit, table, *FAST, "--test", tmp_path / "test.csv"), TableError, "test.csv", "'y'", "need labels"
    )
    assert_fails(inside(*fit, table, *FAST, "--methods", "lr", "--save", tmp_path / "m"), 2, "atn")
    assert_fails(inside(*fit, table, *FAST, "--save", tmp_path), 2, tmp_path)
    assert_fails(inside(*fit, table, *FAST, "--heads", "0"), 2, "heads", 1)
    assert_fails(inside(*fit, table, *FAST, "-o", table), 2, table)
    assert_fails(
        inside("tabular", "predict", tmp_path / "m", table), ModelNotFoundError, tmp_path / "m", "does not exist"
    )
    assert_fails(inside("tabular", "predict", table, table), ModelNotFoundError, table, "is a file")
    assert not (tmp_path / "m").exists()


def test_a_file_is_read_as_that_of_the_training(inside: Command, tmp_path: Path) -> None:
    """Texts that look like numbers in the second file only, and what was a missing cell."""
    codes = pd.DataFrame({"zip": ["01234", "02345", "K1A"] * 20, "age": [20, 30, 999] * 20, "y": ["a", "b", "1"] * 20})
    codes.to_csv(tmp_path / "train.csv", index=False)
    codes[codes["y"] != "1"].replace("a", "1").assign(zip="01234").to_csv(tmp_path / "test.csv", index=False)
    fit = ["tabular", "fit", "train.csv", *FAST, "--methods", "atn,lr", "--missing", "999", "--test", "test.csv"]
    run = inside(*fit, "--save", "m", "--format", "json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)[0]["test_rows"] == 40
    (tmp_path / "rows.csv").write_text("zip,age\n01234,999\n01234,\n02345,20\n")
    run = inside("tabular", "predict", "m", "rows.csv", "--format", "json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    first, second, _ = json.loads(run.stdout)
    assert second == pytest.approx(first | {"row": 2})
    run = inside("tabular", "predict", "m", "rows.csv", "--missing", "-", "--format", "json", cwd=tmp_path)
    assert json.loads(run.stdout)[0] == pytest.approx(first)  # 999 is still missing
    run = inside("tabular", "predict", "m", "rows.csv", "--missing", "", "--format", "json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    (tmp_path / "largest.csv").write_text("zip,age\n01234,30\n")
    largest = inside("tabular", "predict", "m", "largest.csv", "--format", "json", cwd=tmp_path)
    (same,) = json.loads(largest.stdout)
    assert json.loads(run.stdout)[0]["p(a)"] == pytest.approx(same["p(a)"])  # 999 is in the bin of the largest number


def test_an_empty_cell_is_missing_beside_given_texts(inside: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("c,y\n" + "-1.5,a\n2.5,b\n-0.5,a\n0.5,b\n" * 10 + ".,a\n,b\n")
    run = inside(
        "tabular", "fit", "t.csv", *FAST, "--methods", "lr", "--missing", ".", "--format", "json", cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)[1]["accuracy"] > 0.9


def test_labels_are_held_out_only_if_others_train(inside: Command, table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table)
    frame.assign(y=[f"n{row // 2}" for row in range(120)]).to_csv(tmp_path / "pairs.csv", index=False)
    run = inside("tabular", "fit", tmp_path / "pairs.csv", *FAST, "--methods", "lr", "--format", "json")
    assert run.returncode == 0, run.stderr
    row = json.loads(run.stdout)[-1]
    assert row["train_rows"] + row["test_rows"] == 120
    assert 0 < row["test_rows"] < 30
    frame.assign(y=3).to_csv(tmp_path / "new.csv", index=False)
    refused = inside("tabular", "fit", table, *FAST, "--methods", "lr", "--test", tmp_path / "new.csv")
    assert_fails(refused, TableError, "'y'", 3, "labels")


def test_whole_numbers_stay_such_where_some_labels_are_missing(inside: Command, table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table)
    frame.loc[::7, "y"] = None
    frame.astype({"y": "Int64"}).to_csv(tmp_path / "some.csv", index=False)
    run = inside("tabular", "fit", "some.csv", *FAST, "--methods", "atn", "--save", "m", "-q", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    shown = inside("tabular", "predict", "m", "some.csv", "--format", "csv", cwd=tmp_path).stdout.splitlines()
    assert shown[0].split(",") == ["row", "prediction", "probability", "p(1)", "p(2)"]
    assert shown[1].split(",")[1] in ("1", "2")
    # As fractions in a file, they are such in what is predicted.
    frame.to_csv(tmp_path / "some.csv", index=False)
    run = inside("tabular", "fit", "some.csv", *FAST, "--methods", "atn", "--save", "n", "-q", cwd=tmp_path)
    shown = inside("tabular", "predict", "n", "some.csv", "--format", "csv", cwd=tmp_path).stdout.splitlines()
    assert shown[0].split(",")[3:] == ["p(1.0)", "p(2.0)"]


def test_files_of_spreadsheets_are_read_and_the_options_set_their_form(
    inside: Command, table: Path, tmp_path: Path
) -> None:
    frame = pd.read_csv(table)
    (tmp_path / "excel.csv").write_text("sep=;\n" + frame.to_csv(index=False, sep=";", decimal=","), "cp1252")
    shown = []
    for rows, options in ((table, ()), ("excel.csv", ()), ("excel.csv", ("--separator", ";", "--decimal", ","))):
        run = inside("tabular", "fit", rows, *FAST, "--methods", "lr", "--format", "csv", *options, cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        shown.append(run.stdout)
    assert shown[0] == shown[1] == shown[2]
    assert_fails(
        inside("tabular", "fit", "excel.csv", *FAST, "--separator", ";;", cwd=tmp_path), UsageError, "--separator", ";;"
    )


def test_ordered_labels_have_a_mean_squared_error(inside: Command, table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table)
    kinds = pd.CategoricalDtype(["low", "mid", "high"], ordered=True)
    names = frame["size"].fillna("s").map({"s": "high", "m": "low", "l": "mid"})
    for name, kind in (("ordered", kinds), ("texts", str)):
        frame.assign(y=names.astype(kind)).to_parquet(tmp_path / f"{name}.parquet")
        run = inside("tabular", "fit", tmp_path / f"{name}.parquet", *FAST, "--methods", "lr", "--format", "json")
        assert run.returncode == 0, run.stderr
        assert (json.loads(run.stdout)[0]["mse"] is None) == (name == "texts")


def test_what_cannot_be_held_out_or_saved_is_refused_before_the_fit(
    inside: Command, table: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few.csv"
    few.write_text("a,y\n1,u\n2,v\n1,u\n")
    assert_fails(
        inside("tabular", "fit", few, *FAST, "--methods", "lr", "--test-size", "0.99"), TableError, few, 3, 0.99
    )
    held = ["--methods", "atn", "--validation-fraction", "0.9", "--patience", "2", "--test-size", "0.3"]
    assert_fails(inside("tabular", "fit", few, *FAST, *held), TableError, 0.9, "--validation-fraction")
    frame = pd.read_csv(table)
    raw = tmp_path / "raw.parquet"
    frame.assign(code=b"x").to_parquet(raw)
    refused = inside("tabular", "fit", raw, *FAST, "--save", tmp_path / "m", "--methods", "lr,atn")
    assert_fails(refused, TableError, "'code'", "bytes")
    assert not (tmp_path / "m").exists()


def test_rare_classes_are_fitted_without_a_warning(
    inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search divides the rows of each class into five parts."""
    grid: dict[str, Any] = {"n_estimators": (2,), "max_depth": (1, None)}
    monkeypatch.setitem(BASELINES, "rf", dataclasses.replace(BASELINES["rf"], grid=grid))
    rows = tmp_path / "t.csv"
    rows.write_text("a,y\n" + "1,u\n2,v\n" * 15 + "1,w\n")
    run = inside("tabular", "fit", rows, *FAST, "--methods", "rf", "-q")
    assert (run.returncode, run.stderr) == (0, "")


def test_rows_with_unseen_values_or_other_columns(inside: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("mass,size,more\n0.5,xl,1\n")
    predict = ["tabular", "predict", model, tmp_path / "new.csv"]
    refused = inside(*predict, "--unseen", "error")
    assert_fails(refused, TableError, tmp_path / "new.csv", "'size'", "'xl'", "--unseen mask")
    found = []
    for unseen in ([], ["--unseen", "mask"]):
        run = inside(*predict, *unseen, "--format", "csv")
        assert (run.returncode, len(run.stdout.splitlines())) == (0, 2)
        found.append(run.stdout)
    assert found[0] != found[1]  # by default, it is a category
    (tmp_path / "new.csv").write_text("size\ns\n")
    assert_fails(inside(*predict), TableError, "'mass'", "size, mass")


@pytest.mark.parametrize("action", ["predict", "impute"])
def test_a_column_that_holds_lists_is_no_missing_column(
    action: str, inside: Command, model: Path, tmp_path: Path
) -> None:
    pd.DataFrame({"size": ["s"], "mass": [[0.5]]}).to_parquet(tmp_path / "new.parquet")
    refused = inside("tabular", action, model, tmp_path / "new.parquet")
    assert_fails(refused, TableError, tmp_path / "new.parquet", "'mass'", "lists")
