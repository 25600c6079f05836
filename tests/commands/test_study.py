"""`attngeo score` of many models: from a file, in several processes, on a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from conftest import Command
from support.checkpoints import link_many, weights, write_single
from support.dask_cluster import start_cluster
from support.hub_client import connect
from support.hub_server import serve
from support.messages import assert_fails, assert_states
from support.terminal import with_progress

from attngeo.errors import ClusterError, DataUnavailableError

MANY = 40


def write_models(folder: Path, count: int) -> tuple[Path, list[str]]:
    """A file that lists small checkpoints by paths relative to `folder`, and these paths."""
    models = [f"./models/m{number}" for number in range(count)]
    for number, model in enumerate(models):
        write_single(folder / model, weights(seed=number))
    file = folder / "models.txt"
    file.write_text("# all of them\n" + "\n".join(models) + "\n")
    return file, models


def test_a_file_of_models_is_a_table_with_one_line_each(inside: Command, tmp_path: Path) -> None:
    _, models = write_models(tmp_path, 3)
    run = inside("score", "demo:minilm", "--models", "models.txt", "-o", "t.csv", cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines] == ["model", "demo:minilm", *models]
    assert lines[1].split()[1:3] == ["encoder", "6"]
    rows = pd.read_csv(tmp_path / "t.csv")
    assert list(rows["model"].unique()) == ["demo:minilm", *models]
    assert_states(lines[2], *(f"{rows.loc[rows['model'] == models[0], 'symmetry'].median():+.2f}",))
    alone = inside("score", "--models", "models.txt", "--format", "json", cwd=tmp_path)
    assert len(json.loads(alone.stdout)) == 2 * len(models)


@pytest.mark.parametrize("command", ["score", "positions", "inspect"])
def test_a_model_that_is_given_twice_is_read_once_and_a_note_says_so(command: str, inside: Command) -> None:
    run = inside(command, "demo:encoder", "demo:encoder")
    assert run.returncode == 0
    assert_states(run.stderr.splitlines()[0], "demo:encoder", "twice", "once")
    assert run.stdout == inside(command, "demo:encoder").stdout
    assert inside(command, "demo:encoder", "demo:encoder", "-q").stderr == ""


def test_a_model_that_fails_is_listed_at_the_end(inside: Command, tmp_path: Path) -> None:
    file, models = write_models(tmp_path, 3)
    (tmp_path / models[1] / "model.safetensors").write_bytes(b"short")
    file.write_text(file.read_text() + "./nowhere\n")
    run = inside("score", "--models", "models.txt", cwd=tmp_path)
    assert run.returncode == 4
    assert [line.split()[0] for line in run.stdout.splitlines()[1:]] == [models[0], models[2]]
    first, second = run.stderr.splitlines()
    assert_states(first, Path(models[1]), "model.safetensors")
    assert_states(second, "./nowhere")
    fast = inside("score", "--models", "models.txt", "--fail-fast", "--format", "json", cwd=tmp_path)
    assert fast.returncode == 4
    assert {row["model"] for row in json.loads(fast.stdout)} == {models[0]}
    assert_states(fast.stderr, Path(models[1]), "model.safetensors")


def test_globs_of_revisions_are_arguments_and_lines(
    inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve() as hub:
        hub.repositories["org/name"] = write_single(tmp_path / "main")
        hub.branches["org/name"] = {f"step{step}": f"{step:040x}" for step in (10, 2)}
        for step in (10, 2):
            hub.repositories[f"org/name@step{step}"] = write_single(tmp_path / f"{step}", weights(seed=step))
        connected = connect(inside, hub.url, tmp_path / "home", monkeypatch)
        run = connected("score", "org/name@step*", "--format", "json", "--quiet")
        (tmp_path / "models.txt").write_text("org/name@nothing*\n")
        bad = connected("score", "--models", "models.txt", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    rows = pd.DataFrame(json.loads(run.stdout))
    assert list(rows["model"].unique()) == ["org/name@step2", "org/name@step10"]
    assert list(rows["revision"].unique()) == [f"{2:040x}", f"{10:040x}"]
    assert rows["symmetry"].nunique() == len(rows)
    assert_fails(bad, 3, "models.txt:1", "org/name@nothing*", "step2")


def test_bad_input_is_one_line(inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_models(tmp_path, 1)
    (tmp_path / "empty.txt").write_text("# nothing\n")
    (tmp_path / "bad.txt").write_text("demo:minilm\norg/na me\n")
    for arguments, code, facts in (
        (["--models", "missing.txt"], DataUnavailableError, ["missing.txt"]),
        (["--models", "empty.txt"], 2, ["empty.txt"]),
        (["--models", "bad.txt"], 2, ["bad.txt:2", "'org/na me'"]),
        (["--models", "models.txt", "--jobs", "0"], 2, ["--jobs", 0]),
        (["--models", "models.txt", "--jobs", "2", "--cluster", "tcp://127.0.0.1:1"], 2, ["--jobs", "--cluster"]),
        (["demo:minilm", "--cluster", "here"], 2, ["--cluster", "'here'", "tcp://host:8786"]),
        ([], 2, ["MODEL", "--models"]),
    ):
        assert_fails(inside("score", *arguments, cwd=tmp_path), code, *facts)
    monkeypatch.setattr("attngeo.studies.cluster.PATIENCE", 0.2)
    unreachable = inside("score", "demo:minilm", "--cluster", "tcp://127.0.0.1:1")
    assert_fails(unreachable, ClusterError, "tcp://127.0.0.1:1", 0.2)
    monkeypatch.setitem(sys.modules, "distributed", None)
    without = inside("score", "demo:minilm", "--cluster", "tcp://127.0.0.1:1")
    assert_fails(without, 2, "distributed", "pip install 'attngeo[cluster]'")


@pytest.mark.slow
def test_ctrl_c_says_what_is_finished_and_leaves_no_file(tmp_path: Path) -> None:
    output = tmp_path / "out" / "t.csv"
    output.parent.mkdir()
    output.write_text("old")
    command = [Path(sys.executable).with_name("attngeo"), "score", "-v", *link_many(tmp_path / "models"), "-o", output]
    process = subprocess.Popen(
        [*command, "--jobs", "2", "--fresh"], env=os.environ | {"ATTNGEO_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "models/model-" in process.stderr.readline()  # what a process logged is printed here
    for _ in range(10):  # of several models
        process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (130, "")
    kept, last = stderr.splitlines()[-2:]
    assert_states(kept, "of 2000 models")
    assert_states(last, "interrupted")
    assert "Traceback" not in stderr
    assert [path.read_text() for path in output.parent.iterdir()] == ["old"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("group", [False, True], ids=["to the process", "to its group"])
def test_the_end_that_the_system_asks_for_is_one_line(name: str, group: bool, tmp_path: Path) -> None:
    """Also where it reaches the processes that clear up, as that of a terminal that is closed."""
    number = signal.Signals[name]
    command = [Path(sys.executable).with_name("attngeo"), "score", "-q", *link_many(tmp_path / "models"), "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "-o", tmp_path / "t.csv"], env=os.environ | {"ATTNGEO_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while not list(tmp_path.glob("cache/scores/*.parquet")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    (os.killpg if group else os.kill)(process.pid, number)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (128 + number, "")
    assert_states(stderr.splitlines()[-1], "interrupted", name)
    assert all(line.startswith("attngeo: ") for line in stderr.splitlines()), stderr
    assert psutil.wait_procs(children, timeout=30)[1] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "models"]


@pytest.mark.slow
def test_a_bar_counts_the_models_of_a_study(tmp_path: Path) -> None:
    write_models(tmp_path, 3)
    shown, results = with_progress("score", "--models", "models.txt", "--jobs", "2", cwd=tmp_path)
    assert "score  ./models/m0, ./models/m1" in shown
    assert "3/3" in shown
    assert len(results.splitlines()) == 4


@pytest.mark.slow
def test_a_study_that_is_started_again_computes_nothing(attngeo: Command, tmp_path: Path) -> None:
    _, models = write_models(tmp_path, 5)
    command = ["score", "--models", "models.txt", "--format", "csv", "--jobs", 2]
    kept = {"ATTNGEO_CACHE": str(tmp_path / "cache")}
    first = attngeo(*command, cwd=tmp_path, **kept)
    assert (first.returncode, first.stderr) == (0, "")
    write_single(tmp_path / models[1], weights(seed=9))
    again = attngeo(*command, cwd=tmp_path, **kept)
    assert_states(again.stderr, "4 of 5 models", "--fresh")
    assert len(set(first.stdout.splitlines()) - set(again.stdout.splitlines())) == 2
    third = attngeo(*command, cwd=tmp_path, **kept)
    assert_states(third.stderr, "5 of 5 models")
    assert third.stdout == again.stdout


@pytest.mark.slow
def test_many_models_have_the_same_rows_from_one_process_from_two_and_from_a_cluster(
    attngeo: Command, tmp_path: Path
) -> None:
    """A worker of the cluster is killed while it works."""
    _, models = write_models(tmp_path, MANY)
    command = ["score", "--models", "models.txt", "--per-head", "--quiet"]
    printed = []
    for name, more in (("one", []), ("two", ["--jobs", 2])):
        run = attngeo(*command, *more, "-o", f"{name}.parquet", cwd=tmp_path)
        assert (run.returncode, run.stderr) == (0, "")
        printed.append(run.stdout)
    with start_cluster(tmp_path, workers=2) as cluster:
        with cluster.killing_a_worker() as lost:
            run = attngeo(*command, "--cluster", cluster.address, "-o", "cluster.parquet", cwd=tmp_path)
        assert lost, "the worker was killed before it had any run"
        assert [worker.poll() is None for worker in cluster.workers].count(True) == 1
    assert (run.returncode, run.stderr) == (0, "")
    printed.append(run.stdout)
    one, *others = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("one", "two", "cluster"))
    assert list(one["model"].unique()) == models
    assert len(set(printed)) == 1
    for other in others:
        pd.testing.assert_frame_equal(one, other, check_exact=True)
