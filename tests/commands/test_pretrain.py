"""The installed command `attngeo pretrain`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from support.messages import assert_fails, assert_states
from support.runs import write_config, write_text

from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, ModelNotFoundError
from attngeo.options import options_of
from attngeo.pretrain import ImagePretrainOptions, TextPretrainOptions
from attngeo.pretrain.settings import write_settings
from attngeo.scores.spec import SCORES

Run = Callable[..., subprocess.CompletedProcess[str]]
SMALL = ["--steps", 12, "--batch-size", 8, "--grad-accum", 1, "--seq-len", 16, "--lr", 1e-3, "--vocab-size", 120,
         "--log-every", 4]  # fmt: skip


def launch(processes: int, *command: object, folder: Path) -> str:
    """What processes that train one model print on stdout. command: a script, or -m and a module, with arguments."""
    # What accelerate calls multi_gpu starts processes on a CPU as well; its --cpu starts one.
    options = ["--num_processes", processes, "--num_machines", 1, "--mixed_precision", "no", "--dynamo_backend", "no",
               "--main_process_port", 0, *(["--multi_gpu"] if processes > 1 else [])]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *map(str, [*options, *command])],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def options(tmp_path: Path) -> list[object]:
    """Options of a run that takes a second."""
    (tmp_path / "small").mkdir()
    return ["--model", write_config(tmp_path / "small"), "--data", write_text(tmp_path), *SMALL]


def test_a_run_prints_a_table_and_says_what_happened(inside: Run, options: list[object], tmp_path: Path) -> None:
    done = inside("pretrain", "--init", "symmetric", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert_states(lines[0], "small", "mlm", "symmetric")
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["0", "4", "8", "12"]
    assert rows[0][1] == "+1.00"
    assert_states(lines[-1], 12, SCORES["symmetry"].label, "+1.00", rows[-1][2])
    first, *logs = done.stderr.splitlines()
    assert_states(first, 0, 12, "pretrain-small-mlm-symmetric-seed0")
    assert len(logs) == 3
    for step, line in zip((4, 8, 12), logs, strict=True):
        assert_states(line, f"{step}/12")
    folder = tmp_path / "pretrain-small-mlm-symmetric-seed0"
    assert {path.name for path in folder.iterdir()} >= {"model", "geometry.parquet", "summary.json", "settings.json"}
    scored = inside("score", folder / "model", "--format", "csv")
    assert scored.returncode == 0, scored.stderr


@pytest.mark.slow
def test_json_is_the_summary_and_quiet_is_quiet(attngeo: Run, options: list[object], tmp_path: Path) -> None:
    done = attngeo("pretrain", "--objective", "clm", *options, "--format", "json", "--quiet", "-o", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout) == json.loads((tmp_path / "run/summary.json").read_text())


@pytest.mark.slow
def test_a_comparison(attngeo: Run, options: list[object], tmp_path: Path) -> None:
    done = attngeo(
        "pretrain", "--compare", "default,symmetric,identity", "--objectives", "mlm,clm", *options,
        "-o", tmp_path / "all",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    gains = [line.split()[:2] for line in lines if "%" in line]
    assert gains == [[objective, init] for objective in ("mlm", "clm") for init in ("default", "symmetric", "identity")]
    stored = pd.read_parquet(tmp_path / "all/comparison.parquet")
    assert stored["model"].tolist() == ["small"] * 6
    plotted = attngeo("plot", "training", tmp_path / "all", "-o", tmp_path / "curves.html")
    assert (plotted.returncode, (tmp_path / "curves.html").stat().st_size > 1_000_000) == (0, True), plotted.stderr
    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").glob("*/model/*")}
    assert len(trained) > 6
    rows = attngeo(
        "pretrain", "--compare", "default,symmetric,identity", "--objectives", "mlm,clm", *options,
        "-o", tmp_path / "all", "--resume", "--format", "json",
    )  # fmt: skip
    assert len(json.loads(rows.stdout)) == 6
    assert {path: path.stat().st_mtime_ns for path in trained} == trained  # nothing was trained again


@pytest.mark.slow
def test_every_option_of_images_is_one_of_the_command(attngeo: Run, tmp_path: Path) -> None:
    """Those that only runs on images have reach the run."""
    given = {"epochs": 1, "warmup_epochs": 0, "mixup": 0.0, "cutmix": 0.5, "label_smoothing": 0.1, "ema_decay": 0.9}
    own = options_of(ImagePretrainOptions).keys() - options_of(TextPretrainOptions).keys()
    assert own == given.keys()
    flags = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]
    done = attngeo(
        "pretrain", "--data", "digits", *flags, "--log-every", 12, "--format", "json", "-o", tmp_path / "run"
    )
    assert done.returncode == 0, done.stderr
    settings = json.loads(done.stdout)["settings"]
    assert {name: settings[name] for name in given} == given
    assert settings["model"] == "vit-tiny"


BAD = [
    (["--model", "nothing"], 2, ["'nothing'"]),
    (["--data", "no/such/thing"], DataUnavailableError, ["no/such/thing"]),
    (["--lr", "0"], 2, ["--lr", 0.0]),
    (["--objective", "nsp"], 2, ["--objective"]),
    (["--init", "symetric"], 2, ["--init", "did you mean symmetric"]),
    (["--init", "zzz"], 2, ["default", "symmetric", "identity"]),
    (["--compare", "default"], 2, ["'default'"]),
    (["--compare", "default,symetric"], 2, ["--compare", "'symetric'", "symmetric"]),
    (["--model", "nothing.json"], ModelNotFoundError, ["nothing.json"]),
    (["--compare", "default,symmetric", "--init", "identity"], 2, ["--init", "--compare"]),
    (["--init-std", "0.1,0.2"], 2, ["--init-std", "'0.1,0.2'", "such as 0.05"]),
    (["--init", "identity", "--tie-query-key"], 2, ["--tie-query-key", "--init", "identity"]),
    (["--compare", "default,published", "--init-bias", "0.1"], 2, ["--init-bias", "published"]),
    (["--seeds", "3"], 2, ["--seeds", "--compare"]),
    (["--objectives", "mlm,clm"], 2, ["--objectives"]),
    (["--task", "image", "--model", "tiny"], 2, ["vit-tiny"]),
    (["--report-to", "wandb"], 2, ["pip install wandb"]),
    (["--seq-len", "1000"], 2, ["--seq-len", 1000]),
    (["--resume", "-o", "nowhere"], DataUnavailableError, ["nowhere"]),
    (["--data", "digits", "--objective", "clm"], 2, ["objective"]),
    (["--mixup", "0.2"], 2, ["--mixup"]),
    (["--objective", "clm", "--mlm-probability", "0.3"], 2, ["--mlm-probability"]),
    (["-o", "file"], 2, ["file"]),
    (["--batch-size", "1000000"], DataError, ["1000000"]),
]


@pytest.mark.parametrize(("arguments", "code", "facts"), BAD, ids=[" ".join(bad[0]) for bad in BAD])
def test_bad_input_is_one_line_and_leaves_nothing(
    inside: Run, tmp_path: Path, arguments: list[str], code: int | type[AttnGeoError], facts: list[object]
) -> None:
    (tmp_path / "file").write_text("")
    done = inside("pretrain", *arguments, cwd=tmp_path)
    assert_fails(done, code, *facts)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_runs_of_a_comparison_that_fail_name_the_flag(inside: Run, tmp_path: Path) -> None:
    done = inside("pretrain", "--compare", "default,symmetric", "--seq-len", "1000", cwd=tmp_path)
    assert_fails(done, 2, "--seq-len", 1000, "2 of 2")


@pytest.mark.slow
def test_a_resumed_run_needs_its_folder_alone(attngeo: Run, options: list[object], tmp_path: Path) -> None:
    stored = TextPretrainOptions.of(
        str(options[1]), data=str(options[3]), steps=12, batch_size=8, grad_accum=1, seq_len=16, lr=1e-3,
        vocab_size=120, log_every=4,
    )  # fmt: skip
    (tmp_path / "run").mkdir()
    write_settings(stored, tmp_path / "run")  # as after a kill before the first checkpoint
    other = attngeo("pretrain", "--resume", "--lr", "0.5", "-o", tmp_path / "run")
    assert_fails(other, 2, "--lr", 0.5, 0.001)
    done = attngeo("pretrain", "--resume", "-o", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    again = attngeo("pretrain", "--resume", "-o", tmp_path / "run")
    assert_fails(again, 2, tmp_path / "run")


@pytest.mark.slow
def test_two_processes_train_as_one(options: list[object], tmp_path: Path) -> None:
    """The same global batch under `accelerate launch`: the same losses, to 1e-4."""
    # Dropout draws differ from process to process.
    write_config(tmp_path / "small", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

    def launched(processes: int, batch: int, out: str, *more: object) -> str:
        command = ["-m", "attngeo", "pretrain", *options, "--batch-size", batch, "-o", out, *more]
        return launch(processes, *command, folder=tmp_path)

    launched(1, 8, "one")
    lines = launched(2, 4, "two", "--compare", "default,symmetric").splitlines()
    assert sum("%" in line for line in lines) == 2  # only the first process prints
    two = tmp_path / "two" / "mlm-default-seed0"
    expected, geometry = (pd.read_parquet(folder / "geometry.parquet") for folder in (tmp_path / "one", two))
    pd.testing.assert_frame_equal(expected, geometry, atol=1e-4, rtol=0)
    assert json.loads((two / "summary.json").read_text())["processes"] == 2
    assert len(pd.read_csv(tmp_path / "two/comparison.csv")) == 2
