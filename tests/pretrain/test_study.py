"""Comparisons whose runs are trained several at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
import torch
from safetensors.torch import load_file
from support.dask_cluster import start_cluster
from support.locks import locked_elsewhere
from support.messages import assert_states, refuses
from support.rounding import VARIABLE
from support.runs import small_options, write_config, write_text

from attngeo.errors import AttnGeoError, FolderInUseError, TrainingError, UsageError
from attngeo.pretrain import TextPretrainOptions
from attngeo.pretrain.comparison import Comparison, compare
from attngeo.pretrain.runs import run

INITS = ["default", "symmetric"]
RUNS = ["mlm-default-seed0", "mlm-symmetric-seed0"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """The runs one after the other, with as many threads as each of two processes has: others sum in another order."""
    folder = tmp_path_factory.mktemp("alone")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compare(small_model(folder), folder / "runs", compare=INITS)
    finally:
        torch.set_num_threads(threads)


def small_model(folder: Path) -> TextPretrainOptions:
    """Options of runs that have the same name everywhere."""
    (folder / "model").mkdir()
    return small_options(folder / "model", steps=10)


@pytest.mark.skipif(VARIABLE in os.environ, reason="--rounding is of this process, not of those of a study")
def test_two_at_a_time_are_the_same_runs(alone: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = compare(small_model(tmp_path), tmp_path / "runs", compare=INITS, jobs=2)
    pd.testing.assert_frame_equal(found.curves, alone.curves, check_exact=True)
    pd.testing.assert_frame_equal(found.rows, alone.rows, check_exact=True)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(
        path.name for path in alone.folder.iterdir()
    )
    weights = [load_file(path / RUNS[1] / "model/model.safetensors") for path in (tmp_path / "runs", alone.folder)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
@pytest.mark.skipif(VARIABLE in os.environ, reason="--rounding is of this process, not of those of a study")
def test_a_cluster_gives_the_same_numbers_though_a_worker_is_killed(alone: Comparison, tmp_path: Path) -> None:
    with start_cluster(tmp_path, workers=2) as cluster, cluster.killing_a_worker() as lost:
        found = compare(small_model(tmp_path), tmp_path / "runs", compare=INITS, cluster=cluster.address)
        assert lost
    pd.testing.assert_frame_equal(found.curves, alone.curves, check_exact=True)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_does_not_stop_the_others(jobs: int, tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir()
    wide = small_options(tmp_path / "wide", steps=5)
    write_config(tmp_path / "wide", hidden_size=48)
    run(wide, tmp_path / "wide/run")
    inits = [str(tmp_path / "wide/run/model"), "default"]
    with pytest.raises(AttnGeoError) as caught:
        compare(small_options(tmp_path, steps=5), tmp_path / "runs", compare=inits, jobs=jobs)
    assert not isinstance(caught.value, TrainingError)
    assert_states(str(caught.value), 48, 32)
    assert (tmp_path / "runs" / RUNS[0] / "summary.json").is_file()
    assert not (tmp_path / "runs/comparison.csv").exists()


def test_folders_of_all_runs_are_free_at_the_start(tmp_path: Path) -> None:
    with locked_elsewhere(tmp_path / "runs" / RUNS[1]) as holder:
        with refuses(FolderInUseError, holder.pid, tmp_path / "runs" / RUNS[1]):
            compare(small_options(tmp_path), tmp_path / "runs", compare=INITS, jobs=2)
        assert [path.name for path in (tmp_path / "runs").iterdir()] == [RUNS[1]]


def test_jobs_are_not_for_processes_that_train_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refuses(UsageError, "jobs", "accelerate"):
        compare(small_options(tmp_path), tmp_path / "runs", compare=INITS, jobs=2)


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True], ids=["to the process", "to its group, as from a terminal"])
def test_ctrl_c_saves_a_checkpoint_of_every_run(group: bool, tmp_path: Path) -> None:
    """The command ends when the runs have."""
    steps = 2000
    write_config(tmp_path)
    command = [
        Path(sys.executable).with_name("attngeo"), "pretrain", "--compare", "default,symmetric", "--model",
        tmp_path / "config.json", "--data", write_text(tmp_path), "--batch-size", 8, "--grad-accum", 1, "--seq-len", 16,
        "--vocab-size", 120, "--log-every", 5, "--save-every", 10_000, "--jobs", 2, "-o", tmp_path / "runs",
        "--steps", steps,
    ]  # fmt: skip
    process = subprocess.Popen(
        list(map(str, command)), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while len(list(tmp_path.glob("runs/*/geometry.parquet"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    time.sleep(2)  # until both train
    children = psutil.Process(process.pid).children(recursive=True)
    (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, ""), stderr
    assert_states(stderr.splitlines()[-1], RUNS[0], "--resume", "checkpoint saved")
    assert psutil.wait_procs(children, timeout=10)[1] == []
    for name in RUNS:
        (checkpoint,) = (tmp_path / "runs" / name).glob("checkpoint-*")
        assert int(checkpoint.name.partition("-")[2]) < steps
    assert not (tmp_path / "runs/.stop").exists()
