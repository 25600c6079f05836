"""Runs: the files in the folder, resumed runs, and faults."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.messages import refuses
from support.runs import CONFIG, small_options, write_config, write_text
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

import attngeo
from attngeo.errors import (
    AttnGeoError,
    DataError,
    DataUnavailableError,
    InterruptedTrainingError,
    ModelNotFoundError,
    OutputError,
    TrainingError,
    UsageError,
)
from attngeo.pretrain import TextPretrainOptions
from attngeo.pretrain.models import build_model, read_config
from attngeo.pretrain.runs import Run, load_run, run, run_or_read
from attngeo.pretrain.settings import read_settings
from attngeo.progress import Progress
from attngeo.scores.spec import score_names

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:datasets")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run, which tests may read and copy."""
    folder = tmp_path_factory.mktemp("finished")
    return run(small_options(folder), folder / "run")


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_a_run_leaves_a_model_its_geometry_and_a_summary(tmp_path: Path, objective: str) -> None:
    seen: list[Progress] = []
    options = small_options(tmp_path, objective=objective, steps=30, lr=5e-3, log_every=10)
    result = run(options, tmp_path / "run", progress=seen.append)

    head = AutoModelForMaskedLM if objective == "mlm" else AutoModelForCausalLM
    model = head.from_pretrained(tmp_path / "run/model")
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(tmp_path / "run/model"))
    scored = attngeo.score(str(tmp_path / "run/model"), per_head=True)
    last = result.rows[result.rows["step"] == 30]
    assert scored["stack"].unique().tolist() == ["encoder" if objective == "mlm" else "decoder"]
    assert last["symmetry"].tolist() == pytest.approx(scored["symmetry"].tolist(), abs=1e-6)

    stored = pd.read_parquet(tmp_path / "run/geometry.parquet")
    pd.testing.assert_frame_equal(stored, result.rows)
    assert stored["step"].unique().tolist() == [0, 10, 20, 30]
    assert len(stored) == 4 * 2 * (1 + 2)
    assert stored.loc[stored["step"] == 0, "loss"].isna().all()
    losses = stored.drop_duplicates("step")["loss"].tolist()[1:]
    assert losses[-1] < losses[0]

    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary == result.summary
    assert (summary["first_loss"], summary["final_loss"]) == (losses[0], losses[-1])
    assert summary["tokens"] == 30 * 8 * 16
    assert summary["settings"]["steps"] == 30
    assert load_run(tmp_path / "run") is not None
    assert [each.done for each in seen if each.unit == "steps"] == [10, 20, 30]
    assert not (tmp_path / "run/model/training_args.bin").exists()


def test_a_run_records_the_scores_that_are_asked_for(tmp_path: Path) -> None:
    """Those of its last step are those of its model, also after an interruption; other runs do not resume it."""
    names = "symmetric_growth,own_symmetry,trace_z"
    options = small_options(tmp_path, steps=10, scores=names)
    with pytest.raises(InterruptedTrainingError):
        run(options, tmp_path / "run", progress=interrupted_at(5))
    with refuses(UsageError, "scores", "symmetric_growth"):
        run(options.replace(scores=()), tmp_path / "run", resume=True)
    result = run(options, tmp_path / "run", resume=True)
    columns = ["layer", "head", *score_names(names.split(","))]
    assert [*result.rows.columns] == ["step", "stack", *columns, "loss"]
    scored = attngeo.score(tmp_path / "run/model", per_head=True, scores=names)[columns]
    last = result.rows.loc[result.rows["step"] == 10, columns].reset_index(drop=True)
    pd.testing.assert_frame_equal(last, scored, rtol=1e-4, atol=1e-5)
    layers = result.rows[result.rows["head"].isna()]
    assert layers["step"].unique().tolist() == [0, 5, 10]
    assert layers["symmetric_growth"].notna().all()
    end = result.summary["end"]
    assert end["symmetric_growth_median"] == pytest.approx(scored["symmetric_growth"].median(), abs=1e-4)
    assert "heads_symmetric_growth_median" not in end
    read = load_run(tmp_path / "run")
    assert read is not None
    assert read.options == options
    pd.testing.assert_frame_equal(read.rows, result.rows)


def test_a_run_of_before_the_option_scores_is_read_and_resumed(finished: Run, tmp_path: Path) -> None:
    """Its settings do not name the option."""
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    stored = json.loads((folder / "settings.json").read_text("utf-8"))
    assert stored.pop("scores") == []
    (folder / "settings.json").write_text(json.dumps(stored), "utf-8")
    read = run_or_read(finished.options, folder)
    pd.testing.assert_frame_equal(read.rows, finished.rows)
    shutil.rmtree(folder / "model")
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "checkpoint-20")
    resumed = run_or_read(finished.options, folder)
    pd.testing.assert_frame_equal(resumed.rows, finished.rows)


def test_the_same_settings_give_the_same_run_and_another_seed_another(finished: Run, tmp_path: Path) -> None:
    again, other = (run(small_options(tmp_path, seed=seed), tmp_path / f"{seed}") for seed in (0, 1))
    pd.testing.assert_frame_equal(finished.rows, again.rows)
    assert finished.summary["final_loss"] != other.summary["final_loss"]


def test_the_settings_reach_the_optimiser_and_the_last_step_is_logged(tmp_path: Path) -> None:
    options = small_options(tmp_path, steps=22, warmup=10, log_every=5, save_every=22, lr=0.01, weight_decay=0.25)
    result = run(options, tmp_path / "run")
    assert result.rows["step"].unique().tolist() == [0, 5, 10, 15, 20, 22]
    checkpoint = tmp_path / "run/checkpoint-22"
    logs = [log for log in json.loads((checkpoint / "trainer_state.json").read_text())["log_history"] if "loss" in log]
    rates = {log["step"]: log["learning_rate"] for log in logs}
    # Linear up in 10 steps, linear down to 0 in the other 12; the first step's is 0.
    assert rates == pytest.approx({5: 0.004, 10: 0.009, 15: 0.01 * 8 / 12, 20: 0.01 * 3 / 12, 22: 0.01 / 12})
    groups = torch.load(checkpoint / "optimizer.pt", weights_only=True)["param_groups"]
    assert {group["weight_decay"] for group in groups} == {0.25, 0.0}


def test_fp32_overrides_the_configuration_of_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert run(small_options(tmp_path, precision="fp32", steps=2), tmp_path / "run").summary["precision"] == "fp32"


def test_a_symmetric_start_changes_keys_alone_and_scores_one(finished: Run, tmp_path: Path) -> None:
    options = small_options(tmp_path, init="symmetric", steps=1, warmup=0, log_every=1)
    symmetric = run(options, tmp_path / "symmetric")
    at_start = symmetric.rows[symmetric.rows["step"] == 0]
    assert at_start["symmetry"].tolist() == pytest.approx([1.0] * 6, abs=1e-6)
    assert all("key.weight" in name for name in symmetric.summary["changed_at_init"])
    assert finished.summary["changed_at_init"] == []
    assert (finished.rows.loc[finished.rows["step"] == 0, "symmetry"].abs() < 0.3).all()
    weights = attngeo.attention_sites(str(tmp_path / "symmetric/model"))
    assert all(not torch.equal(site.wq, site.wk) for site in weights)  # not tied: one step takes them apart


def interrupted_at(step: int) -> Callable[[Progress], None]:
    """A callback that sends SIGTERM to this process at a log."""

    def interrupt(progress: Progress) -> None:
        if progress.phase == "train" and progress.done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return interrupt


@pytest.mark.parametrize(
    "given",
    [{}, {"objective": "clm", "grad_accum": 2, "pack": False, "steps": 10}],
    ids=["mlm", "clm, padded"],
)
def test_a_resumed_run_equals_an_uninterrupted_one(finished: Run, tmp_path: Path, given: dict[str, Any]) -> None:
    # Logs at 5, 10 …; the signal at 5 is obeyed at 6, between two logs.
    options = small_options(tmp_path, **given)
    whole = run(options, tmp_path / "whole") if given else finished
    with pytest.raises(InterruptedTrainingError, match=rf"step 6 of {options.steps}.*--resume -o") as stopped:
        run(options, tmp_path / "parts", progress=interrupted_at(5))
    assert stopped.value.exit_code == 130
    assert not (tmp_path / "parts/model").exists()
    resumed = run(options, tmp_path / "parts", resume=True)
    pd.testing.assert_frame_equal(resumed.rows, whole.rows)  # bit for bit, losses too
    parts = weights_of(tmp_path / "parts")
    for name, weight in weights_of(whole.folder).items():
        assert torch.equal(weight, parts[name]), name
    for name in ("sequences", "tokens", "first_loss", "final_loss", "start", "end"):
        assert resumed.summary[name] == whole.summary[name], name
    assert resumed.summary["seconds"] > 0


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model/model.safetensors")


def start(folder: Path, run_options: TextPretrainOptions, out: Path, **more: Any) -> subprocess.Popen[str]:
    names = ("model", "data", "steps", "batch_size", "grad_accum", "seq_len", "lr", "warmup", "vocab_size", "log_every",
             "save_every")  # fmt: skip
    options = [f"--{name.replace('_', '-')}={getattr(run_options, name)}" for name in names]
    return subprocess.Popen(
        [Path(sys.executable).with_name("attngeo"), "pretrain", *options, "-o", out],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, **more,
    )  # fmt: skip


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 90
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.slow
def test_a_killed_run_is_resumed_from_its_last_whole_checkpoint(tmp_path: Path) -> None:
    options = small_options(tmp_path, steps=4000, log_every=10, save_every=20)
    process = start(tmp_path, options, tmp_path / "run")
    wait_for(tmp_path / "run/checkpoint-40/attngeo.json", process)
    process.kill()
    process.communicate()
    # As if it had been killed while it wrote the next one.
    broken = tmp_path / "run/checkpoint-4000"
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"half")

    stored = read_settings(tmp_path / "run")
    at = max(int(path.name.split("-")[1]) for path in (tmp_path / "run").glob("checkpoint-*") if path != broken)
    seen, stop = [], interrupted_at(at + 40)

    def watch(progress: Progress) -> None:
        seen.append(broken.exists())
        stop(progress)

    with pytest.raises(InterruptedTrainingError):
        run(stored, tmp_path / "run", resume=True, progress=watch)
    assert not any(seen)  # later, a new checkpoint would replace it
    reference = tmp_path / "reference"
    with pytest.raises(InterruptedTrainingError):
        run(stored, reference, progress=interrupted_at(at + 40))
    resumed, expected = (pd.read_parquet(each / "geometry.parquet") for each in (tmp_path / "run", reference))
    pd.testing.assert_frame_equal(resumed, expected)


@pytest.mark.slow
def test_a_signal_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    options = small_options(tmp_path, steps=100_000, log_every=50, save_every=100_000)
    process = start(tmp_path, options, tmp_path / "run")
    wait_for(tmp_path / "run/geometry.parquet", process)
    # Until the first log of the training. pandas opens a file twice, and the run may replace it in between.
    while not pd.read_parquet(BytesIO((tmp_path / "run/geometry.parquet").read_bytes()))["step"].max():
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert err.splitlines()[-1].endswith(f"attngeo pretrain --resume -o {tmp_path / 'run'}")
    assert "Traceback" not in err
    assert len(list((tmp_path / "run").glob("checkpoint-*/attngeo.json"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["at once", "when it is saved"])
def test_more_interrupts_end_a_run_without_a_traceback(moment: str, tmp_path: Path) -> None:
    """While it stops, and while Python ends."""
    options = small_options(tmp_path, steps=100_000, log_every=50, save_every=100_000)
    process = start(tmp_path, options, tmp_path / "run")
    wait_for(tmp_path / "run/geometry.parquet", process)
    assert process.stderr is not None
    while "/100,000" not in process.stderr.readline():  # until the first log of the training
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    if moment == "when it is saved":
        wait_for_line(process, "--resume")
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    out, err = process.communicate()
    assert process.returncode in (130, -signal.SIGINT), err
    assert out == ""
    assert [line for line in err.splitlines() if not line.startswith("attngeo: ")] == []


def wait_for_line(process: subprocess.Popen[str], part: str) -> None:
    """Read stderr up to a line that has this part."""
    assert process.stderr is not None
    while part not in (line := process.stderr.readline()):
        assert line, "stderr has ended"


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path: Path) -> None:
    options = small_options(tmp_path, lr=1e30, warmup=0, steps=50)
    with pytest.raises(TrainingError, match=r"(NaN|infinite) by step 5.*1e\+30"):
        run(options, tmp_path / "run")
    assert not (tmp_path / "run/model").exists()


def test_no_checkpoint_of_a_loss_that_is_not_a_number(tmp_path: Path) -> None:
    options = small_options(tmp_path, lr=1e30, warmup=0, steps=50, log_every=50, save_every=5)
    with pytest.raises(TrainingError, match="step 5"):
        run(options, tmp_path / "run")
    assert not list((tmp_path / "run").glob("checkpoint-*"))


@pytest.mark.slow
def test_a_full_disk_leaves_no_half_checkpoint(finished: Run, tmp_path: Path) -> None:
    """A limit on the size of files simulates a full disk; the optimiser's state is the largest file."""
    resource = pytest.importorskip("resource")
    options = small_options(tmp_path)
    largest = max(path.stat().st_size for path in (finished.folder / "checkpoint-10").iterdir())
    limit = largest - 1000

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = start(tmp_path, options, tmp_path / "run", preexec_fn=limited)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 2, err
    assert "checkpoint-10" in err.splitlines()[-1]
    assert "--resume" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not list((tmp_path / "run").glob("checkpoint-*"))


@pytest.mark.parametrize("name", ["checkpoint-20", ".model.partial"])
def test_an_interrupt_while_a_folder_is_written_leaves_nothing_of_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a second Ctrl-C. The run is resumed from the checkpoint before."""
    options = small_options(tmp_path)
    save = PreTrainedModel.save_pretrained

    def interrupt(model: PreTrainedModel, folder: str, **given: Any) -> None:
        save(model, folder, **given)
        if Path(folder).name == name:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedModel, "save_pretrained", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(options, tmp_path / "run")
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"settings.json", "geometry.parquet", "checkpoint-10", "checkpoint-20"} - {name}
    assert run(options, tmp_path / "run", resume=True).rows["step"].max() == 20


def test_a_disk_that_is_too_small_is_seen_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(OutputError, match=r"1 MB, but only 0 MB"):
        run(small_options(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_not_overwritten(finished: Run, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"run.*with resume"):
        run(finished.options, finished.folder)
    with pytest.raises(OutputError, match=r"run is finished.*another folder"):
        run(finished.options, finished.folder, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        run(finished.options, tmp_path / "file")


def test_checkpoints_of_others_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "run/checkpoint-500"
    other.mkdir(parents=True)
    with pytest.raises(OutputError, match="run"):
        run(small_options(tmp_path), tmp_path / "run")
    with pytest.raises(DataUnavailableError, match=r"settings\.json"):
        run(small_options(tmp_path), tmp_path / "run", resume=True)
    assert other.is_dir()


def test_a_run_killed_before_its_summary_is_finished_when_it_is_resumed(finished: Run, tmp_path: Path) -> None:
    shutil.copytree(finished.folder, tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    again = run(finished.options, tmp_path / "run", resume=True)
    pd.testing.assert_frame_equal(again.rows, finished.rows)
    assert again.summary["final_loss"] == finished.summary["final_loss"]
    assert (tmp_path / "run/model/model.safetensors").exists()


def test_a_run_is_not_resumed_with_other_settings_or_broken_files(tmp_path: Path) -> None:
    options = small_options(tmp_path)
    with pytest.raises(InterruptedTrainingError):
        run(options, tmp_path / "run", progress=interrupted_at(15))
    with pytest.raises(UsageError, match=r"lr is 0\.01.* 0\.001"):
        run(small_options(tmp_path, lr=0.01), tmp_path / "run", resume=True)
    newest = tmp_path / "run/checkpoint-16"
    weights = (newest / "model.safetensors").read_bytes()
    (newest / "model.safetensors").write_bytes(weights[:1000])
    with pytest.raises(TrainingError, match=r"checkpoint-16"):
        run(options, tmp_path / "run", resume=True)
    (newest / "model.safetensors").write_bytes(weights)
    (tmp_path / "run/geometry.parquet").rename(tmp_path / "geometry.parquet")
    with pytest.raises(TrainingError, match=r"geometry\.parquet"):
        run(options, tmp_path / "run", resume=True)


BAD = [
    ({"seq_len": 65}, UsageError, "seq_len is 65.* 64 "),
    ({"data": "no/such/file.txt"}, DataUnavailableError, "no/such/file.txt"),
    ({"batch_size": 100_000}, DataError, "at least 100000 of 16 tokens"),
    ({"tokenizer": "./nowhere"}, DataUnavailableError, "./nowhere"),
    ({"model": "./nowhere.json"}, ModelNotFoundError, r"\./nowhere\.json.* config\.json"),
    ({"init": "./nowhere"}, AttnGeoError, "./nowhere"),
    ({"precision": "fp16"}, UsageError, "fp16"),
    ({"report_to": "wandb"}, UsageError, "pip install wandb"),
]


@pytest.mark.parametrize(("given", "kind", "facts"), BAD, ids=[next(iter(bad[0])) for bad in BAD])
def test_faults_that_can_be_known_are_reported_before_training(
    tmp_path: Path, given: dict[str, Any], kind: type[AttnGeoError], facts: str
) -> None:
    if torch.cuda.is_available() and "precision" in given:
        pytest.skip("there is a CUDA device here")
    options = small_options(tmp_path).replace(**given)
    with pytest.raises(kind, match=facts) as error:
        run(options, tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model_type", ["roberta", "mpnet", "esm", "data2vec-text"])
def test_positions_that_are_not_all_for_tokens_are_known_before_training(tmp_path: Path, model_type: str) -> None:
    """These start to number positions after the padding's, so 64 positions are not enough for 64 tokens."""
    options = small_options(tmp_path, seq_len=64, steps=2)
    write_config(tmp_path, model_type=model_type)
    with pytest.raises(UsageError, match=f"{model_type} .*seq_len 64") as error:
        run(options, tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_typos_are_reported_before_the_data_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attngeo.pretrain import text

    monkeypatch.setattr(text, "open_text", lambda *_, **__: pytest.fail("the data were read"))
    for given, facts in (
        ({"init": "symetric"}, "'symetric'.*did you mean symmetric"),
        ({"model": "tinny"}, "'tinny'.* tiny"),
    ):
        with pytest.raises(UsageError, match=facts):
            run(small_options(tmp_path).replace(**given), tmp_path / "run")
    for fields, facts in (
        ({"model_type": "bret"}, "'bret'.*did you mean bert"),
        ({"model_type": ""}, "model_type ''.*bert"),
        ({"model_type": "llama"}, "mlm .*'llama'.*objective clm"),
    ):
        options = small_options(tmp_path)
        write_config(tmp_path, **fields)
        with pytest.raises(UsageError, match=facts):
            run(options, tmp_path / "run")


# What is wrong with a configuration → its fields, the objective, and facts of the one line that says what to do.
ODD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no vocabulary": ({"model_type": "llama", "vocab_size": None}, "clm", "'vocab_size'.*int.*correct"),
    "heads that do not divide the width": ({"num_attention_heads": 5}, "mlm", r"32.*\(5\).*correct"),
    "heads of LLaMA that do not divide the width": (
        {"model_type": "llama", "num_attention_heads": 3}, "clm", r"config\.json.*32.*\(3\).*correct",
    ),
    "no heads": ({"model_type": "llama", "num_attention_heads": 0}, "clm", r"config\.json.*ZeroDivisionError.*correct"),
    "no width": ({"model_type": "llama", "hidden_size": 0}, "clm", "ZeroDivisionError.*correct"),
    "key heads that do not divide the heads": (
        {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 3}, "clm",
        "llama.*correct the configuration",
    ),
    "heads that no pair fills": ({"model_type": "llama", "head_dim": 7}, "clm", "`head_dim`=7.*correct"),
    "an activation that is unknown": ({"hidden_act": "bogus"}, "mlm", "KeyError.*'bogus'.*correct"),
    "encoder and decoder": (
        {"model_type": "encoder-decoder", "encoder": CONFIG, "decoder": CONFIG}, "clm", "its decoder",
    ),
    "an encoder-decoder by type": ({"model_type": "t5"}, "mlm", "'t5'.*such as bert"),
    "images": ({"model_type": "vit"}, "clm", "'vit'.*task image"),
    "images and text": ({"model_type": "llava"}, "clm", "'llava'.*text_config"),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_odd_configurations_are_refused_in_one_line_that_says_what_to_do(case: str, tmp_path: Path) -> None:
    fields, objective, facts = ODD[case]
    options = small_options(tmp_path, objective=objective)
    write_config(tmp_path, **fields)
    with pytest.raises(UsageError, match=facts) as caught:
        run(options, tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_configuration_that_is_a_list_is_refused(tmp_path: Path) -> None:
    options = small_options(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UsageError, match=r"list.*object"):
        run(options, tmp_path / "run")


def test_token_ids_of_a_configuration_are_those_of_the_tokeniser(tmp_path: Path) -> None:
    """Whatever it states: no id for padding, or one outside of the vocabulary."""
    for stated in (None, 99_999):
        folder = tmp_path / str(stated)
        folder.mkdir()
        options = small_options(folder, steps=1, log_every=1, save_every=1, warmup=0)
        write_config(folder, pad_token_id=stated, embedding_size=16)
        run(options, folder / "run")
        model = AutoModelForMaskedLM.from_pretrained(folder / "run/model")
        tokenizer = AutoTokenizer.from_pretrained(folder / "run/model")
        assert model.config.pad_token_id == tokenizer.pad_token_id


@pytest.mark.parametrize("prefix", ["", "_"])
def test_a_configuration_chooses_no_code_of_the_hub(prefix: str, tmp_path: Path) -> None:
    """It may name a kernel, which transformers downloads and runs where the package `kernels` is installed."""
    named = "someone/kernel"
    path = write_config(
        tmp_path, **{f"{prefix}attn_implementation": named, f"{prefix}experts_implementation": {"": named}}
    )
    model = build_model(read_config(str(path), "mlm"), "mlm")
    assert named not in (model.config._attn_implementation, model.config._experts_implementation)


def test_other_families_train_by_their_config(tmp_path: Path) -> None:
    write_text(tmp_path)
    path = write_config(
        tmp_path, model_type="llama", num_key_value_heads=1, pad_token_id=0, bos_token_id=None, eos_token_id=None
    )
    fields = {"steps": 2, "batch_size": 4, "grad_accum": 1, "seq_len": 16, "vocab_size": 120, "log_every": 1,
              "data": str(tmp_path / "text.txt"), "init": "symmetric"}  # fmt: skip
    result = run(TextPretrainOptions.of(str(path), objective="clm", **fields), tmp_path / "run")
    heads = result.rows.dropna(subset=["head"])
    assert heads.loc[heads["step"] == 0, "symmetry"].tolist() == pytest.approx([1.0] * 4, abs=1e-6)
    with pytest.raises(UsageError, match=r"mlm .*'llama'"):
        run(TextPretrainOptions.of(str(path), objective="mlm", **fields), tmp_path / "other")
