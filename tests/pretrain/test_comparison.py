"""Initialisations compared: the paper's speed-up, the rows, the curves and the figures, and runs several at a time."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from safetensors.torch import load_file
from support.dask_cluster import start_cluster
from support.data import DATA, needs
from support.images import small_image_options, write_images
from support.locks import locked_elsewhere
from support.messages import assert_states, refuses
from support.runs import CONFIG, small_options, write_config, write_text
from transformers import AutoConfig, AutoModelForMaskedLM

from attngeo.errors import (
    AttnGeoError,
    FolderInUseError,
    InterruptedTrainingError,
    ModelNotFoundError,
    OutputError,
    TrainingError,
    UsageError,
)
from attngeo.pretrain import Comparison, TextPretrainOptions, compare_runs, make_options
from attngeo.pretrain.curves import EVALUATION, find_speed_up
from attngeo.pretrain.settings import write_settings
from attngeo.progress import Progress
from attngeo.scores.spec import score_names


@needs("published/symmetric_init_loss.csv")
@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("bert_small--encoder--jigsaw", 26), ("bert_small--encoder--wikipedia", 73),
        ("bert_small--encoder--red_pajama", 69), ("bert--encoder--jigsaw", 0), ("bert--encoder--wikipedia", 20),
        ("bert--encoder--red_pajama", 35),
    ],
)  # fmt: skip
def test_speed_up_is_that_of_the_papers_table_1(model: str, published: int) -> None:
    losses = pd.read_csv(DATA / "published/symmetric_init_loss.csv")
    own, baseline = (losses[name].dropna().tolist() for name in (f"{model}--symmetric-init", model))
    assert 100 * find_speed_up(own, baseline)[1] == pytest.approx(published, abs=1)


def test_speed_up_of_a_run_that_never_gets_there_is_zero() -> None:
    assert find_speed_up([3.0, 2.5], [3.0, 2.0]) == (None, 0.0)
    assert find_speed_up([3.0, 2.0], [3.0, 2.0]) == (None, 0.0)  # below, not at
    assert find_speed_up([1.0, 1.0], [3.0, 2.0]) == (1, 0.5)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> TextPretrainOptions:
    return small_options(tmp_path_factory.mktemp("comparison"), steps=10, save_every=100)


@pytest.fixture(scope="module")
def comparison(options: TextPretrainOptions) -> Comparison:
    """Runs with as many threads as each of two processes has: others sum in another order."""
    folder, threads = Path(options.data).with_name("runs"), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compare_runs(options, folder, compare=["default", "symmetric"], objectives=["mlm", "clm"], seeds=2)
    finally:
        torch.set_num_threads(threads)


def test_every_combination_is_run_with_the_same_start_but_for_wq_and_wk(comparison: Comparison) -> None:
    rows = comparison.rows
    assert len(rows) == 8
    assert set(zip(rows["objective"], rows["init"], rows["seed"], strict=True)) == {
        (objective, init, seed) for objective in ("mlm", "clm") for init in ("default", "symmetric") for seed in (0, 1)
    }
    start = comparison.curves[comparison.curves["step"] == 0]
    assert np.allclose(start.loc[start["init"] == "symmetric", "symmetry"], 1, atol=1e-6)
    assert (start.loc[start["init"] == "default", "symmetry"].abs() < 0.5).all()
    curve = comparison.curves.drop_duplicates(["objective", "init", "seed", "step"])
    assert len(curve) == 8 * 3
    first = curve[curve["step"] == 5].set_index(["objective", "seed", "init"])["loss"].unstack()
    # The same sequences and masks: after five steps much less apart than the losses of two seeds.
    between = first["default"].unstack("seed").diff(axis=1)[1].abs().min()
    assert (first["default"] - first["symmetric"]).abs().max() < 0.1 * between


def test_the_rows_say_who_was_first(comparison: Comparison) -> None:
    curves = comparison.curves[comparison.curves["step"] > 0].drop_duplicates(["objective", "seed", "init", "step"])
    losses = curves.set_index(["objective", "seed", "init", "step"])["loss"].sort_index()
    for _, row in comparison.rows.iterrows():
        own, baseline = (losses[row["objective"], row["seed"], init] for init in (row["init"], "default"))
        reached = [step for step in (5, 10) if own[step] < baseline[10]]
        steps, gained = (reached[0], 1 - reached[0] / 10) if reached else (None, 0.0)
        if row["init"] == "default":
            steps, gained = 10, 0.0
        assert row["final_loss"] == own[10]
        assert (None if pd.isna(row["steps_to_baseline"]) else row["steps_to_baseline"]) == steps
        assert row["speed_up"] == pytest.approx(gained)
        assert row["heads_symmetry_lower"] <= row["heads_symmetry_median"] <= row["heads_symmetry_upper"]


def test_the_rows_have_the_statistics_of_the_last_step(comparison: Comparison) -> None:
    row = comparison.rows.query("objective == 'clm' and init == 'symmetric' and seed == 1").iloc[0]
    curves = comparison.curves
    last = curves.query("objective == 'clm' and init == 'symmetric' and seed == 1 and step == 10")
    layers, heads = last[last["head"].isna()], last[last["head"].notna()]
    for score in score_names():
        assert row[f"{score}_median"] == pytest.approx(layers[score].median(), abs=1e-6)
        assert row[f"heads_{score}_upper"] == pytest.approx(heads[score].quantile(0.75), abs=1e-6)


def write_finished(folder: Path, options: Any, steps: Iterable[int], losses: Sequence[float]) -> None:
    """A finished run in the folder of a comparison, with these losses at these steps."""
    own = folder / f"{options.objective_name}-{options.init}-seed{options.seed}"
    own.mkdir(parents=True)
    write_settings(options, own)
    logs = [(0, float("nan")), *zip(steps, losses, strict=True)]
    summary = {"settings": {"steps": logs[-1][0]}, "final_loss": losses[-1]}
    (own / "summary.json").write_text(json.dumps(summary))
    place = {"stack": "encoder", "layer": 0, "head": None}
    rows = [{"step": step, **place, **dict.fromkeys(score_names(), 0.2), "loss": loss} for step, loss in logs]
    pd.DataFrame(rows).astype({"head": "Int64"}).to_parquet(own / "geometry.parquet")


def test_each_run_is_compared_with_the_baseline_of_its_own_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished runs are only read; the losses of these are made up. A folder has the name of an initialisation."""
    (tmp_path / "symmetric").mkdir()
    monkeypatch.chdir(tmp_path)
    options = small_options(tmp_path, steps=4, log_every=1)
    losses = {("default", 0): [9, 8, 7, 6], ("symmetric", 0): [8, 7, 5, 5], ("default", 1): [9, 7, 5, 2],
              ("symmetric", 1): [5, 4, 3, 2], ("default", 2): [9, 8, 7, 6], ("symmetric", 2): [5, 5, 4, 3]}  # fmt: skip
    for (init, seed), own in losses.items():
        write_finished(tmp_path / "runs", options.replace(init=init, seed=seed), range(1, 5), own)
    rows = compare_runs(options, tmp_path / "runs", compare=["default", "symmetric"], seeds=3, resume=True).rows
    own = rows[rows["init"] == "symmetric"].set_index("seed")
    assert own["steps_to_baseline"].tolist() == [3, pd.NA, 1]
    assert own["speed_up"].tolist() == [0.25, 0, 0.75]


def test_a_last_log_of_fewer_steps_is_not_compared(tmp_path: Path) -> None:
    """The number of steps of a run by epochs follows from the images; the mean of one step may be any."""
    options = make_options("vit-tiny", epochs=1, warmup_epochs=0, log_every=50)
    for init, losses in (("default", [3.0, 2.0, 9.0]), ("symmetric", [2.5, 1.5, 0.5])):
        write_finished(tmp_path / "runs", options.replace(init=init), [50, 100, 101], losses)
    baseline, symmetric = compare_runs(
        options, tmp_path / "runs", compare=["default", "symmetric"], resume=True
    ).rows.to_dict("records")
    assert (baseline["final_loss"], baseline["steps_to_baseline"], baseline["steps"]) == (2, 100, 101)
    assert (symmetric["final_loss"], symmetric["steps_to_baseline"], symmetric["speed_up"]) == (1.5, 100, 0)


def test_the_spread_over_seeds(comparison: Comparison) -> None:
    spread = comparison.spread
    assert spread["seeds"].tolist() == [2] * 4
    reached = (
        comparison.rows["steps_to_baseline"].notna().groupby([comparison.rows["objective"], comparison.rows["init"]])
    )
    assert spread.set_index(["objective", "init"])["reached"].to_dict() == reached.sum().to_dict()
    own = comparison.rows.query("objective == 'clm' and init == 'symmetric'")["final_loss"]
    row = spread.query("objective == 'clm' and init == 'symmetric'").iloc[0]
    assert [row["final_loss_mean"], row["final_loss_min"], row["final_loss_max"]] == pytest.approx(
        [own.mean(), own.min(), own.max()]
    )


def test_the_folder_holds_tables_and_curves(comparison: Comparison) -> None:
    stored = pd.read_parquet(comparison.folder / "curves.parquet")
    pd.testing.assert_frame_equal(stored, comparison.curves)
    assert pd.read_csv(comparison.folder / "comparison.csv").shape == comparison.rows.shape
    assert len(pd.read_csv(comparison.folder / "spread.csv")) == 4
    layers = pd.read_csv(comparison.folder / "layers.csv")
    assert len(layers) == 8 * 2
    run = comparison.rows.query("objective == 'mlm' and init == 'default' and seed == 1").iloc[0]
    own = layers.query("objective == 'mlm' and init == 'default' and seed == 1")
    assert own["symmetry"].median() == pytest.approx(run["symmetry_median"], abs=1e-5)


def test_finished_runs_are_kept_when_it_is_resumed(
    options: TextPretrainOptions, comparison: Comparison, tmp_path: Path
) -> None:
    first = comparison.folder / "mlm-default-seed0"
    before = (first / "summary.json").stat().st_mtime_ns
    inits = ["default", "symmetric"]
    again = compare_runs(options, comparison.folder, compare=inits, objectives=["mlm", "clm"], seeds=2, resume=True)
    assert (first / "summary.json").stat().st_mtime_ns == before
    pd.testing.assert_frame_equal(again.rows, comparison.rows)
    with pytest.raises(UsageError, match=re.escape(str(first))):
        compare_runs(
            small_options(tmp_path, steps=15), comparison.folder, compare=["default", "symmetric"], resume=True
        )


def test_checkpoints_are_compared_by_path_and_resumed(
    options: TextPretrainOptions, comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(comparison.folder)
    inits = ["mlm-default-seed0/model", "mlm-default-seed1/model"]
    first = compare_runs(options, tmp_path / "runs", compare=inits)
    assert first.rows["init"].tolist() == [str(comparison.folder / init) for init in inits]
    pd.testing.assert_frame_equal(compare_runs(options, tmp_path / "runs", compare=inits, resume=True).rows, first.rows)


def test_a_signal_at_the_last_step_of_a_run_stops_before_the_next(tmp_path: Path) -> None:
    def at_the_end(progress: Progress) -> None:
        if progress.done == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    inits, options = ["default", "symmetric"], small_options(tmp_path, steps=5)
    with pytest.raises(InterruptedTrainingError, match=r"mlm-default-seed0.*--resume"):
        compare_runs(options, tmp_path / "runs", compare=inits, progress=at_the_end)
    assert not (tmp_path / "runs/mlm-symmetric-seed0").exists()
    assert len(compare_runs(options, tmp_path / "runs", compare=inits, resume=True).rows) == 2


def test_what_would_fail_later_is_said_before_the_first_run(tmp_path: Path) -> None:
    options = small_options(tmp_path, steps=10)
    with pytest.raises(UsageError, match="compare is 'symetric'; did you mean symmetric"):
        compare_runs(options, tmp_path / "runs", compare=["default", "symetric"])
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        compare_runs(options, tmp_path / "runs", compare=["default", "./nowhere"])
    (tmp_path / "runs/mlm-symmetric-seed0/checkpoint-5").mkdir(parents=True)
    with pytest.raises(OutputError, match="mlm-symmetric-seed0"):
        compare_runs(options, tmp_path / "runs", compare=["default", "symmetric"])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mlm-symmetric-seed0"]


@pytest.mark.parametrize(
    ("inits", "given", "message"),
    [
        (["default"], {}, "'default'"),
        (["default", "default"], {}, "'default,default'"),
        (["default", "symmetric"], {"seeds": 0}, "seeds is 0"),
        (["default", "a/b", "a-b"], {}, "'default,a/b,a-b'"),
        (["default", "symmetric"], {"objectives": ["mlm", "nsp"]}, "'nsp'.*mlm, clm"),
    ],
)
def test_comparisons_that_cannot_be_meant(
    tmp_path: Path, inits: list[str], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        compare_runs(small_options(tmp_path), tmp_path / "runs", compare=inits, **given)


def test_steps_must_be_a_multiple_of_the_interval_of_logs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"steps is 20.* 7"):
        compare_runs(small_options(tmp_path, log_every=7), tmp_path / "runs", compare=["default", "symmetric"])


def test_images_are_compared_without_objectives(tmp_path: Path) -> None:
    options = small_image_options(tmp_path, data=str(write_images(tmp_path / "images", "abc")))
    comparison = compare_runs(options, tmp_path / "runs", compare=["default", "symmetric"])
    assert comparison.rows["objective"].tolist() == ["image", "image"]
    for _, row in comparison.rows.iterrows():  # Table S3
        summary = json.loads((tmp_path / f"runs/image-{row['init']}-seed0/summary.json").read_text())
        assert {name: row[name] for name in EVALUATION} == {name: summary[name] for name in EVALUATION}
    assert comparison.spread["eval_accuracy_max"].tolist() == comparison.rows["eval_accuracy"].tolist()
    last = comparison.curves.query("step == 4")
    assert last["ema_loss"].notna().all()
    assert comparison.curves["ema_loss"].notna().sum() == len(last)
    assert (tmp_path / "runs/image-symmetric-seed0/model-ema").is_dir()
    with pytest.raises(UsageError, match="objectives"):
        compare_runs(options, tmp_path / "others", compare=["default", "symmetric"], objectives=["mlm"])


INITS = ["default", "symmetric"]
RUNS = ["mlm-default-seed0", "mlm-symmetric-seed0"]


def select_alone(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of RUNS, which were trained one after the other."""
    return frame[(frame["objective"] == "mlm") & (frame["seed"] == 0)].reset_index(drop=True)


@pytest.mark.slow
def test_two_at_a_time_are_the_same_runs(
    options: TextPretrainOptions, comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    together = compare_runs(options, tmp_path / "runs", compare=INITS, jobs=2)
    pd.testing.assert_frame_equal(together.curves, select_alone(comparison.curves), check_exact=True)
    pd.testing.assert_frame_equal(together.rows, select_alone(comparison.rows), check_exact=True)
    others = {path.name for path in comparison.folder.glob("*-seed*")} - {*RUNS}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        path.name for path in comparison.folder.iterdir()
    } - others
    weights = [load_file(path / RUNS[1] / "model/model.safetensors") for path in (tmp_path / "runs", comparison.folder)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
def test_a_cluster_gives_the_same_numbers_though_a_worker_is_killed(
    options: TextPretrainOptions, comparison: Comparison, tmp_path: Path
) -> None:
    with start_cluster(tmp_path, workers=2) as cluster, cluster.killing_a_worker() as lost:
        together = compare_runs(options, tmp_path / "runs", compare=INITS, cluster=cluster.address)
        assert lost
    pd.testing.assert_frame_equal(together.curves, select_alone(comparison.curves), check_exact=True)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_fails_does_not_stop_the_others(jobs: int, tmp_path: Path) -> None:
    config = AutoConfig.for_model(**CONFIG | {"hidden_size": 48})
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path / "wide")
    inits = [str(tmp_path / "wide"), "default"]
    with pytest.raises(AttnGeoError) as caught:
        compare_runs(small_options(tmp_path, steps=5), tmp_path / "runs", compare=inits, jobs=jobs)
    assert not isinstance(caught.value, TrainingError)
    assert_states(str(caught.value), 48, 32)
    assert (tmp_path / "runs" / RUNS[0] / "summary.json").is_file()
    assert not (tmp_path / "runs/comparison.csv").exists()
    with pytest.raises(UsageError, match=r" 1000, .*2 of 2 runs failed: mlm-default-seed0, ") as several:
        compare_runs(small_options(tmp_path, steps=5, seq_len=1000), tmp_path / "others", compare=INITS, jobs=jobs)
    assert several.value.option == ("seq_len",)
    assert jobs > 1 or "_train_one" in [entry.name for entry in several.traceback]  # the error of the run itself


def test_folders_of_all_runs_are_free_at_the_start(tmp_path: Path) -> None:
    with locked_elsewhere(tmp_path / "runs" / RUNS[1]) as holder:
        with refuses(FolderInUseError, holder.pid, tmp_path / "runs" / RUNS[1]):
            compare_runs(small_options(tmp_path), tmp_path / "runs", compare=INITS, jobs=2)
        assert [path.name for path in (tmp_path / "runs").iterdir()] == [RUNS[1]]


def test_jobs_are_not_for_processes_that_train_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refuses(UsageError, "jobs", "accelerate"):
        compare_runs(small_options(tmp_path), tmp_path / "runs", compare=INITS, jobs=2)


def has_trained(folder: Path) -> bool:
    """Whether a run has logged a step."""
    path = folder / "geometry.parquet"
    if not path.exists():
        return False
    content = io.BytesIO(path.read_bytes())  # a reader that opens the file twice may find another one
    return bool(pd.read_parquet(content)["step"].max() > 0)


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
    while not all(map(has_trained, [tmp_path / "runs" / name for name in RUNS])):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert (process.returncode, stdout) == (130, ""), stderr
    assert_states(stderr.splitlines()[-1], RUNS[0], "--resume", "checkpoint saved")
    assert psutil.wait_procs(children, timeout=10)[1] == []
    for name in RUNS:
        (checkpoint,) = (tmp_path / "runs" / name).glob("checkpoint-*")
        assert int(checkpoint.name.partition("-")[2]) < steps
