"""The experiments: what is run in which order, what is kept and under what, and the tables."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.messages import assert_states, refuses
from support.readme import ROOT

from attngeo.errors import DataError, TrainingError, UsageError
from attngeo.estimators.tabular.baselines import BASELINES
from attngeo.estimators.tabular.options import METHOD_LABELS, OURS
from attngeo.papers.runs import perform_runs
from attngeo.papers.wibisono2023.data import AutoMpg, seeds_of_data_sets, simulate
from attngeo.papers.wibisono2023.options import PAPER_SETTINGS, AutoMpgOptions, ShiftSetting, SimulateOptions
from attngeo.papers.wibisono2023.summaries import (
    AUTO_MPG_COLUMNS,
    SIMULATION_COLUMNS,
    describe_advantage,
    measure_advantage,
    summarize_methods,
)
from attngeo.papers.wibisono2023.tables import (
    KIND,
    METHODS,
    Method,
    MethodRun,
    PredictedClasses,
    Problem,
    build_auto_mpg_frame,
    build_simulation_frame,
    plan_auto_mpg,
    plan_simulation,
    published_scores,
)
from attngeo.progress import Progress, ProgressCallback
from attngeo.provenance import is_current
from attngeo.session import ResultOptions, Session, StudyOptions

pytestmark = pytest.mark.usefixtures("cache")
# A module that no method depends on.
TINY: dict[str, Any] = {"rows": 60, "classes": 3, "features": 3}


class Guess:
    """A method that predicts one class. asked: the seeds of each call."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.asked: list[list[int]] = []
        self._fail_at = fail_at

    def __call__(self, problems: Sequence[Problem], progress: ProgressCallback) -> list[PredictedClasses]:
        progress(Progress("fit", "guess"))
        self.asked.append([problem.seed for problem in problems])
        if self._fail_at in self.asked[-1]:
            raise TrainingError("the loss is not a number")
        return [
            PredictedClasses(np.zeros_like(table.train.y), np.full_like(table.test.y, seed % 3), {"parameters": {}})
            for table, seed in problems
        ]


@pytest.fixture
def guess(monkeypatch: pytest.MonkeyPatch) -> Guess:
    """A method of the name `guess`."""
    made = Guess()
    monkeypatch.setitem(METHOD_LABELS, "guess", "Guess")
    monkeypatch.setitem(METHODS, "guess", Method(made, "numpy"))
    return made


def make_run(seeds: tuple[int, ...] = (1,), method: str = "guess", **shift: Any) -> MethodRun:
    setting = ShiftSetting(1, shift.pop("noise", 0.0), 0.9)
    make_table = partial(simulate, setting, features=3, classes=3, rows=30, **shift)
    return MethodRun("run", method, seeds, make_table, {"n_c": 1}, {"experiment": "test"})


def test_scores_are_those_of_the_predictions(guess: Guess) -> None:
    run = make_run((4, 6))
    rows = run.perform(Session())
    for row, seed in zip(rows, (4, 6), strict=True):
        table = run.make_table(seed)
        assert row == {
            "n_c": 1, "method": "guess", "seed": seed,
            "accuracy": np.mean(table.test.y == seed % 3), "mse": np.mean((table.test.y - seed % 3) ** 2),
            "train_accuracy": np.mean(table.train.y == 0), "train_mse": np.mean(table.train.y**2),
        }  # fmt: skip
    assert guess.asked == [[4, 6]]


def test_no_answer_is_computed_twice(guess: Guess) -> None:
    notes: list[str] = []
    first = make_run((1, 2)).perform(Session())
    session = Session(progress=lambda step: notes.append(step.what) if step.phase == "kept" else None)
    again = make_run((2, 3, 1)).perform(session)
    assert guess.asked == [[1, 2], [3]]
    assert_states(notes[0], "2 of 3", "kept results")
    assert [row["seed"] for row in again] == [2, 3, 1]
    assert [again[2], again[0]] == first
    assert make_run((1,)).perform(Session(results=ResultOptions(fresh=True))) == first[:1]
    assert guess.asked[2:] == [[1]]


def test_scores_are_kept_under_all_that_they_depend_on(guess: Guess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not under what they do not depend on: the same rows and seed of another setting or run are the same problem."""
    run = make_run()
    run.perform(Session())
    same = dataclasses.replace(run, setting="another", labels={"n_c": 5}, about={})
    table = run.make_table(1)
    same_rows = dataclasses.replace(run, make_table=lambda _: table)
    assert same.perform(Session())[0]["n_c"] == 5
    same_rows.perform(Session())
    assert len(guess.asked) == 1
    dataclasses.replace(same_rows, seeds=(2,)).perform(Session())
    make_run(noise=0.1).perform(Session())
    make_run(settings="code").perform(Session())
    assert len(guess.asked) == 4
    monkeypatch.setitem(METHODS, "guess", dataclasses.replace(METHODS["guess"], package="pandas"))
    run.perform(Session())
    assert len(guess.asked) == 5


def test_outdated_are_scores_of_other_code(guess: Guess, cache: Path) -> None:
    from attngeo.studies.results import list_entries

    make_run().perform(Session())
    (entry,) = list_entries()
    assert guess.asked == [[1]]
    assert entry.path.parent == cache / KIND
    assert entry.about["parameters"] == {}
    described = entry.about["version"]
    assert is_current(described)
    for other in (described | {"code": "other"}, described | {"numpy": "1.0"}, described | {"": ""}, {}, None):
        assert not is_current(other)


def test_the_first_data_set_of_every_setting_comes_first(guess: Guess, monkeypatch: pytest.MonkeyPatch) -> None:
    options = SimulateOptions(shifts=["1,0,0.1", "5,0,0.9"], datasets=3, methods=["lr", "guess"])
    first, second, third = seeds_of_data_sets(3)
    planned = [(run.labels["n_c"], run.method, run.seeds) for run in plan_simulation(options)]
    assert planned[:6] == [
        (1, "lr", (first,)), (1, "guess", (first,)), (5, "lr", (first,)), (5, "guess", (first,)),
        (1, "lr", (second,)), (1, "guess", (second,)),
    ]  # fmt: skip
    monkeypatch.setitem(METHODS, "guess", dataclasses.replace(METHODS["guess"], together=True))
    planned = [(run.labels["n_c"], run.method, run.seeds) for run in plan_simulation(options)]
    assert planned[1] == (1, "guess", (first, second, third))
    assert [method for _, method, _ in planned].count("guess") == 2
    assert [run.method for run in plan_simulation(options)][4:] == ["lr"] * 4
    assert guess.asked == []


def test_a_run_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = seeds_of_data_sets(3)
    made = Guess(fail_at=seeds[1])
    monkeypatch.setitem(METHOD_LABELS, "guess", "Guess")
    monkeypatch.setitem(METHODS, "guess", Method(made, "numpy"))
    options = SimulateOptions(shifts=["1,0,0.1"], datasets=3, methods=["guess"], **TINY)
    outcomes = perform_runs(plan_simulation(options))
    assert [type(outcome.failure) for outcome in outcomes] == [type(None), TrainingError, type(None)]
    frame = build_simulation_frame(options, outcomes)
    assert list(frame["seed"]) == [seeds[0], seeds[2]]
    assert len(perform_runs(plan_simulation(options), Session(study=StudyOptions(fail_fast=True)))) == 2


def test_the_table_has_the_order_of_the_settings_and_the_published_means() -> None:
    options = SimulateOptions(shifts=["5,0,0.9", "1,0.5,0.1"], datasets=2, methods=["lr"], settings="code")
    frame = build_simulation_frame(options, perform_runs(plan_simulation(options)))
    assert tuple(frame.columns) == SIMULATION_COLUMNS
    assert list(frame["n_c"]) == [5, 5, 1, 1]
    assert list(frame["seed"]) == seeds_of_data_sets(2) * 2
    assert list(frame["published_accuracy"].unique()) == [0.1616, 0.34535]
    assert frame.attrs["settings"] == "code"
    small = SimulateOptions(shifts=["5,0,0.9"], datasets=1, methods=["lr"], rows=100)
    of_small = build_simulation_frame(small, perform_runs(plan_simulation(small)))
    assert of_small[["published_accuracy", "published_mse"]].isna().all(axis=None)


@pytest.mark.slow
def test_two_processes_give_the_same_table() -> None:
    options = SimulateOptions(shifts=["1,0,0.9", "2,0.5,0.1"], datasets=2, methods=["lr"], **TINY)
    runs, fresh = plan_simulation(options), ResultOptions(fresh=True)
    frames = [
        build_simulation_frame(options, perform_runs(runs, Session(results=fresh, study=StudyOptions(jobs=jobs))))
        for jobs in (1, 2)
    ]
    pd.testing.assert_frame_equal(*frames, check_exact=True)


def test_a_study_without_results_has_an_empty_table() -> None:
    options = SimulateOptions(shifts=["1,0,0.9"], datasets=1, methods=["lr"])
    frame = build_simulation_frame(options, [])
    assert tuple(frame.columns) == SIMULATION_COLUMNS
    assert len(frame) == 0


def test_auto_mpg_is_answered_with_every_seed(guess: Guess) -> None:
    table = simulate(ShiftSetting(5, 0.0, 0.9), 0, classes=3, rows=30)
    options = AutoMpgOptions(seeds=3, methods=["guess", "lr"])
    for is_of_paper in (True, False):
        data = AutoMpg(table, is_of_paper)
        planned = plan_auto_mpg(options, data)
        assert [run.seeds for run in planned[:3]] == [(42,), (43,), (44,)]
        frame = build_auto_mpg_frame(data, perform_runs(planned))
        assert tuple(frame.columns) == AUTO_MPG_COLUMNS
        assert list(frame["method"]) == ["guess"] * 3 + ["lr"] * 3
        published = frame.loc[frame["method"] == "lr", "published_accuracy"]
        assert published.notna().all() == is_of_paper
    assert guess.asked == [[42], [43], [44]]


def make_results(ours: Sequence[float], best: Sequence[float], worse: Sequence[float]) -> pd.DataFrame:
    rows = [
        {"n_c": 5, "noise": 0.0, "corr": 0.9, "method": method, "seed": seed, "accuracy": value, "mse": 1 - value}
        for method, values in (("lr", worse), ("gb", best), ("atn", ours))
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows).assign(published_accuracy=0.1, published_mse=0.2)


def test_the_advantage_is_over_the_best_baseline_and_paired_by_data_set() -> None:
    (row,) = measure_advantage(make_results([0.5, 0.3, 0.4], [0.4, 0.2, 0.36], [0.1, 0.1, 0.8])).to_dict("records")
    assert row["best"] == "lr"  # its mean is the highest, although it is best on one data set only
    (row,) = measure_advantage(make_results([0.5, 0.3, 0.4], [0.4, 0.2, 0.36], [0.1, 0.1, 0.1])).to_dict("records")
    differences = np.array([0.1, 0.1, 0.04])
    assert (row["best"], row["runs"]) == ("gb", 3)
    assert row["advantage"] == pytest.approx(differences.mean())
    assert row["error"] == pytest.approx(differences.std(ddof=1) / np.sqrt(3))
    assert row["is_larger"]
    partial = make_results([0.5, 0.3, 0.4], [0.4, 0.2, 0.36], [0.9, 0.1, 0.1])
    (row,) = measure_advantage(partial.drop(partial.query("method == 'lr'").index[1:])).to_dict("records")
    assert row["best"] == "gb"  # the other one has a single data set
    behind = measure_advantage(make_results([0.2, 0.3], [0.4, 0.2], [0.1, 0.1]))
    assert not behind["is_larger"].item()
    assert "0 of 1 " in describe_advantage(behind)
    single = measure_advantage(make_results([0.5], [0.4], [0.1]))
    assert np.isnan(single["error"].item())
    assert not single["is_larger"].item()


def test_the_summary_has_means_and_deviations_of_samples() -> None:
    summary = summarize_methods(make_results([0.5, 0.3], [0.4, 0.2], [0.1, 0.1])).set_index("method")
    assert summary.loc["atn", "accuracy_mean"] == pytest.approx(0.4)
    assert summary.loc["atn", "accuracy_sd"] == pytest.approx(0.2 / np.sqrt(2))
    assert summary.loc["gb", "mse_mean"] == pytest.approx(0.7)
    assert list(summary["runs"]) == [2, 2, 2]
    assert list(summary.index) == ["lr", "gb", "atn"]


def test_rows_of_something_else_are_refused() -> None:
    results = make_results([0.5], [0.4], [0.1])
    for function in (summarize_methods, measure_advantage):
        for column in ("accuracy", "method"):
            with refuses(DataError, f"'{column}'", "attngeo tabular simulate"):
                function(results.drop(columns=column))
        with refuses(DataError, "'n_c'"):
            function(results.drop(columns=["n_c", "noise", "corr"]))


def test_the_published_tables_are_whole() -> None:
    scores = published_scores("simulation")
    assert len(PAPER_SETTINGS) == 12
    assert list(scores[["n_c", "noise", "corr"]].drop_duplicates().itertuples(index=False, name=None)) == [
        *PAPER_SETTINGS
    ]
    assert list(scores["method"]) == ["lr", "rf", "gb", "mlp", "atn"] * 12
    assert len(published_scores("auto_mpg")) == 10
    printed = scores.set_index("method").loc["gb"].iloc[0]  # the first row of Table 1
    assert (round(printed["published_accuracy"], 3), round(printed["published_mse"], 3)) == (0.413, 2.730)


def test_quick_is_a_part_and_what_is_given_wins() -> None:
    quick = SimulateOptions(quick=True)
    assert len(quick.shifts or ()) == 1
    assert quick.datasets == 3
    assert "gb" not in (quick.methods or ())
    assert SimulateOptions(quick=True, datasets=4, methods="gb").methods == ("gb",)
    whole = SimulateOptions()
    assert (len(whole.shifts or ()), whole.datasets) == (12, 20)
    assert whole.methods == tuple(METHOD_LABELS)


def test_all_methods_that_options_may_name_are_known() -> None:
    assert list(METHODS) == list(METHOD_LABELS) == [*BASELINES, OURS]
    assert {"lr", "rf", "gb", "mlp", "atn"} <= METHODS.keys()
    assert AutoMpgOptions().methods == tuple(METHOD_LABELS)


@pytest.mark.slow
def test_the_script_of_the_other_models_runs_beside_the_source() -> None:
    """With the libraries of its own environment alone, but pytorch_tabular, which is imported when a model is made."""
    script = ROOT / "reports/tabular/other_models.py"
    there = (script.parent / "requirements.txt").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = {re.split(r"[^\w-]", one)[0] for one in project["dependencies"]}
    absent = [name.replace("-", "_") for name in names if not re.search(rf"^{name}\b", there, re.MULTILINE)]
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "names = runpy.run_path(sys.argv[1]); print(*names['CONFIGS']); print(*names['COLUMNS'])\n"
        "sys.argv = [sys.argv[1], '--help']; names['main']()"
    )
    shown = subprocess.run([sys.executable, "-c", code, script], capture_output=True, text=True, check=True).stdout
    methods, columns, *lines = shown.splitlines()
    assert set(methods.split()) == set(published_scores("auto_mpg")["method"]) - set(METHODS)
    assert tuple(columns.split()) == AUTO_MPG_COLUMNS
    assert_states(" ".join(lines), "--seeds", "--methods", 42)


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ({"methods": "lr,gbb"}, ["methods", "'gbb'", "gb"]),
        ({"methods": ["forest"]}, ["'forest'", "rf"]),
        ({"methods": ","}, ["methods"]),
        ({"shifts": ["5,0"]}, ["shifts", "'5,0'", "5,0,0.9"]),
        ({"shifts": ["a,0,0.9"]}, ["'a,0,0.9'"]),
        ({"shifts": [(1.5, 0, 0.9)]}, ["shifts", "1.5"]),
        ({"shifts": ["6,0,0.9"]}, ["features", 5, "6,0,0.9"]),
        ({"shifts": ["5,nan,0.9"]}, ["shifts", "5,nan,0.9"]),
        ({"shifts": ["5,-1,0.9"]}, ["noise", -1.0]),
        ({"shifts": ["5,0,2"]}, ["corr", 2.0]),
        ({"datasets": 0}, ["datasets", 0]),
        ({"datasets": -1}, ["datasets", -1]),
        ({"rows": 5}, ["rows", 5]),
        ({"classes": 30, "rows": 20}, ["rows", 20, "classes", 30]),
        ({"settings": "paper"}, ["settings", "'paper'", "code"]),
    ],
)
def test_bad_options_are_one_line(values: dict[str, Any], facts: list[object]) -> None:
    with refuses(UsageError, *facts):
        SimulateOptions(**values)
