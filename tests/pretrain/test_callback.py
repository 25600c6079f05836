"""The callback in anybody's Trainer."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from support.messages import assert_states, refuses
from support.toy_score import add_toy_score
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import integration_utils

import attngeo
from attngeo.errors import UnsupportedModelError, UsageError
from attngeo.pretrain import AttentionGeometryCallback
from attngeo.provenance import machine, software
from attngeo.scores.spec import SCORES, head_scores, layer_scores, score_names

Build = Callable[[str], Any]


def train(model: Any, folder: Path, *callbacks: TrainerCallback, resume: Path | None = None, **given: Any) -> Trainer:
    ids = torch.randint(10, 60, (32, 8), generator=torch.Generator().manual_seed(0))
    fields = {"max_steps": 4, "logging_steps": 2, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
              "use_cpu": True, "learning_rate": 1e-2, "dataloader_pin_memory": False}  # fmt: skip
    trainer = Trainer(
        copy.deepcopy(model), TrainingArguments(str(folder), **(fields | given)),
        train_dataset=[{"input_ids": row, "labels": row} for row in ids], callbacks=[*callbacks],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer


FAMILIES = ["bert", "falcon-new", "gemma3_text"]
MORE_FAMILIES = ["bert-decoder", "distilbert", "gpt2", "gpt_neox", "llama", "qwen3"]


@pytest.mark.parametrize("name", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_FAMILIES)])
def test_rows_are_the_scores_of_the_live_model(name: str, built: Build, tmp_path: Path) -> None:
    """At step 0 those of the model as it was, at the end those of the model as it is."""
    callback = AttentionGeometryCallback()
    trainer = train(built(name), tmp_path, callback)
    frame = pd.read_parquet(tmp_path / "geometry.parquet")
    pd.testing.assert_frame_equal(frame, callback.frame)
    scored = attngeo.score(built(name)).attrs
    shared = ["model", "revision", "gamma", "device", "stack", *software(), *machine()]
    assert {key: callback.frame.attrs[key] for key in shared} == {key: scored[key] for key in shared}
    assert frame.columns.tolist() == ["step", "stack", "layer", "head", *score_names(), "loss"]
    assert frame["step"].unique().tolist() == [0, 2, 4]
    columns = ["stack", "layer", "head", *score_names()]
    for step, model in ((0, built(name)), (4, trainer.model)):
        rows = frame.loc[frame["step"] == step, columns].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, attngeo.score(model, per_head=True)[columns], atol=1e-5)
    logged = {each["step"]: each["loss"] for each in trainer.state.log_history if "loss" in each}
    assert frame.dropna(subset=["loss"]).groupby("step")["loss"].unique().map(list).to_dict() == {
        step: [loss] for step, loss in logged.items()
    }


def test_optional_scores_are_recorded_beside_the_others(built: Build, tmp_path: Path) -> None:
    """They change no other column; heads lack scores of layers, and have no medians of them."""
    callback = AttentionGeometryCallback(scores="own_symmetry, symmetric_growth,stable_rank")
    chosen = ("stable_rank", "symmetric_growth", "own_symmetry")
    trainer = train(built("falcon-new"), tmp_path / "with", callback)
    frame = pd.read_parquet(tmp_path / "with/geometry.parquet")
    assert frame.columns.tolist() == ["step", "stack", "layer", "head", *score_names(), *chosen, "loss"]
    columns = ["stack", "layer", "head", *score_names(chosen)]
    for step, model in ((0, built("falcon-new")), (4, trainer.model)):
        rows = frame.loc[frame["step"] == step, columns].reset_index(drop=True)
        scored = attngeo.score(model, per_head=True, scores=chosen)[columns]
        pd.testing.assert_frame_equal(rows, scored, atol=1e-5, rtol=1e-5)
    last = next(entry for entry in trainer.state.log_history if entry["step"] == 4 and "loss" in entry)
    of_heads = {f"heads_{score}_median" for score in head_scores(score_names(chosen))}
    assert {name for name in last if name.endswith("_median")} == {
        *(f"{score}_median" for score in score_names(chosen)), *of_heads
    }  # fmt: skip
    layers = frame[(frame["step"] == 4) & frame["head"].isna()]
    assert last["symmetric_growth_median"] == pytest.approx(layers["symmetric_growth"].median(), rel=1e-6)
    plain = AttentionGeometryCallback()
    train(built("falcon-new"), tmp_path / "without", plain)
    pd.testing.assert_frame_equal(frame[plain.frame.columns], plain.frame, atol=1e-6)


def test_all_scores_may_be_recorded_and_none_that_is_unknown(built: Build, tmp_path: Path) -> None:
    callback = AttentionGeometryCallback(scores="all")
    train(built("bert"), tmp_path, callback, max_steps=2)
    assert {*SCORES} < {*callback.frame.columns}
    heads = callback.frame[callback.frame["head"].notna()]
    assert heads[[*layer_scores()]].isna().all(axis=None)
    assert heads[[*head_scores(SCORES)]].notna().all(axis=None)
    for wrong in ("symmetric_grwth", ["symmetry", "growth"], 3):
        with refuses(UsageError, "scores", "symmetric_growth" if wrong != 3 else "trace_z"):
            AttentionGeometryCallback(scores=wrong)  # type: ignore[arg-type]


def test_a_training_resumed_with_more_scores_lacks_them_before(built: Build, tmp_path: Path) -> None:
    kept = {"save_strategy": "steps", "save_steps": 2}
    train(built("bert"), tmp_path, AttentionGeometryCallback(), max_steps=2, **kept)
    callback = AttentionGeometryCallback(scores=["agreement"])
    train(built("bert"), tmp_path, callback, resume=tmp_path / "checkpoint-2", **kept)
    layers = callback.frame[callback.frame["head"].isna()]
    assert layers.groupby("step")["agreement"].count().to_dict() == {0: 0, 2: 0, 4: layers["layer"].nunique()}
    assert layers["symmetry"].notna().all()


def test_callbacks_that_record_different_scores_need_a_file_each(built: Build, tmp_path: Path) -> None:
    differ = [
        AttentionGeometryCallback(stack="encoder"),
        AttentionGeometryCallback(stack="decoder", scores="agreement"),
    ]
    with refuses(UsageError, "geometry.parquet", "columns differ", "different file"):
        train(built("t5"), tmp_path, *differ)
    both = [AttentionGeometryCallback(stack=name, scores="agreement") for name in ("encoder", "decoder")]
    train(built("t5"), tmp_path / "both", *both, max_steps=2)
    layers = both[0].frame[both[0].frame["head"].isna()]
    assert {*layers["stack"]} == {"encoder", "decoder"}
    assert layers["agreement"].notna().all()


def test_the_history_of_the_trainer_has_the_medians(built: Build, tmp_path: Path) -> None:
    trainer = train(built("bert"), tmp_path, AttentionGeometryCallback(), save_strategy="steps", save_steps=4)
    logged = {each["step"]: each for each in trainer.state.log_history if "loss" in each}
    assert [*logged] == [2, 4]
    summary = attngeo.summarize(attngeo.score(trainer.model, per_head=True)).iloc[0]
    for score in score_names():
        for name in (f"{score}_median", f"heads_{score}_median"):
            assert logged[4][name] == pytest.approx(summary[name], abs=1e-5)
    saved = json.loads((tmp_path / "checkpoint-4/trainer_state.json").read_text("utf-8"))["log_history"]
    assert "symmetry_median" in saved[-1]


def test_the_first_loss_of_a_resumed_run_is_a_mean_since_its_checkpoint(built: Build, tmp_path: Path) -> None:
    """The Trainer of a user saves no losses. Of a whole run, the log at step 4 is for steps 3 and 4."""
    trainer = train(built("bert"), tmp_path, logging_steps=1, save_strategy="steps", save_steps=3)
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    callback = AttentionGeometryCallback()
    train(built("bert"), tmp_path, callback, resume=tmp_path / "checkpoint-3")
    frame = callback.frame
    assert frame.loc[frame["step"] == 4, "loss"].unique().tolist() == pytest.approx([losses[4]], rel=1e-4)
    assert losses[4] != pytest.approx((losses[3] + losses[4]) / 2, rel=1e-4)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("targets", [["q_proj", "k_proj"], ["v_proj"]])
def test_the_rows_of_an_adapter_are_the_scores_of_the_merged_model(
    targets: list[str], built: Build, tmp_path: Path
) -> None:
    import peft

    callback = AttentionGeometryCallback()
    trainer = train(
        peft.get_peft_model(copy.deepcopy(built("llama")), peft.LoraConfig(r=3, target_modules=targets)),
        tmp_path,
        callback,
    )
    merged = trainer.model.merge_and_unload()  # type: ignore[union-attr]
    columns = ["stack", "layer", "head", *score_names()]
    for step, model in ((0, built("llama")), (4, merged)):
        rows = callback.frame.loc[callback.frame["step"] == step, columns].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, attngeo.score(model, per_head=True)[columns], atol=1e-5)
    changes = callback.frame.groupby(["layer", "head"])["symmetry"].agg(
        lambda symmetry: symmetry.iloc[-1] - symmetry.iloc[0]
    )
    assert (changes.abs().max() > 1e-4) == ("q_proj" in targets)


def test_training_is_the_same_with_and_without_it(built: Build, tmp_path: Path) -> None:
    with_it, without = (train(built("bert"), tmp_path / str(n), *callbacks) for n, callbacks in
                        enumerate(([AttentionGeometryCallback()], [])))  # fmt: skip
    for a, b in zip(with_it.model.parameters(), without.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_further_training_keeps_the_rows_of_the_one_before(built: Build, tmp_path: Path) -> None:
    callback = AttentionGeometryCallback()
    trainer = train(built("bert"), tmp_path, callback)
    frames = [callback.frame]
    for _ in range(2):
        trainer.train()
        frames.append(callback.frame)
    for name, frame in zip(("geometry-1", "geometry-2", "geometry"), frames, strict=True):
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / f"{name}.parquet"), frame)
    assert [frame["step"].unique().tolist() for frame in frames] == [[0, 2, 4]] * 3
    assert not frames[0].equals(frames[1])
    train(built("bert"), tmp_path / "other", callback)
    assert [path.name for path in (tmp_path / "other").glob("*.parquet")] == ["geometry.parquet"]


def test_only_one_stack_and_another_file(built: Build, tmp_path: Path) -> None:
    train(built("bert"), tmp_path, AttentionGeometryCallback(stack="encoder", file="scores/run.parquet"))
    assert set(pd.read_parquet(tmp_path / "scores/run.parquet")["stack"]) == {"encoder"}
    with pytest.raises(UsageError, match=r"run\.csv"):
        AttentionGeometryCallback(file="run.csv")
    with pytest.raises(UsageError, match="'vision'"):
        train(built("bert"), tmp_path, AttentionGeometryCallback(stack="vision"))


def test_callbacks_of_two_stacks_write_one_table(built: Build, tmp_path: Path) -> None:
    """Also in a further training, and after a checkpoint; medians are those of the rows of both."""
    kept = {"save_strategy": "steps", "save_steps": 2}
    whole = AttentionGeometryCallback()
    alone = train(built("t5"), tmp_path / "alone", whole)
    both = [AttentionGeometryCallback(stack=name) for name in ("encoder", "decoder")]
    trainer = train(built("t5"), tmp_path, *both, **kept)
    keys = ["step", "stack", "layer", "head"]
    expected = whole.frame[whole.frame["stack"].isin(["encoder", "decoder"])].sort_values(keys, ignore_index=True)

    def assert_whole() -> None:
        written = pd.read_parquet(tmp_path / "geometry.parquet")
        assert written["step"].is_monotonic_increasing
        pd.testing.assert_frame_equal(written.sort_values(keys, ignore_index=True), expected, atol=1e-6)
        for callback in both:
            pd.testing.assert_frame_equal(callback.frame, written)

    assert_whole()
    medians = expected[(expected["step"] == 4) & expected["head"].isna()][[*score_names()]].median()
    newest = next(entry for entry in trainer.state.log_history if entry["step"] == 4 and "loss" in entry)
    for name, median in medians.items():
        assert newest[f"{name}_median"] == pytest.approx(median, abs=1e-6)
    assert alone.state.log_history[1].keys() == trainer.state.log_history[1].keys()
    both = [AttentionGeometryCallback(stack=name) for name in ("encoder", "decoder")]
    train(built("t5"), tmp_path, *both, resume=tmp_path / "checkpoint-2", **kept)
    assert_whole()
    train(built("t5"), tmp_path, *both)
    assert_whole()
    first = pd.read_parquet(tmp_path / "geometry-1.parquet")
    pd.testing.assert_frame_equal(first.sort_values(keys, ignore_index=True), expected, atol=1e-6)
    assert not (tmp_path / "geometry-2.parquet").exists()


def test_callbacks_whose_rows_are_the_same_need_a_file_each(built: Build, tmp_path: Path) -> None:
    callback = AttentionGeometryCallback()
    for others in ([callback, callback], [callback, AttentionGeometryCallback(stack="encoder")]):
        with refuses(UsageError, "geometry.parquet", "stack encoder", "different file"):
            train(built("bert"), tmp_path, *others)
    other = AttentionGeometryCallback(file="other.parquet")
    train(built("bert"), tmp_path, callback, other)
    pd.testing.assert_frame_equal(callback.frame, other.frame)
    assert pd.read_parquet(tmp_path / "other.parquet")["step"].unique().tolist() == [0, 2, 4]


def test_a_model_without_attention_is_refused_when_training_begins(tmp_path: Path) -> None:
    class Config:
        def to_dict(self) -> dict[str, Any]:
            return {"model_type": "mlp"}

    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 4))
    model.config = Config()
    arguments = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    with pytest.raises(UnsupportedModelError):
        AttentionGeometryCallback().on_train_begin(arguments, None, None, model=model)  # type: ignore[arg-type]


class Change(TrainerCallback):
    """Changes the model, or the folder of the training, after an update."""

    def __init__(self, change: Callable[[Any, Path], object]) -> None:
        self._change = change

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._change(kwargs["model"].bert.encoder.layer[0].attention.self, Path(args.output_dir))


def resize(attention: Any, factor: float) -> None:
    """Give queries and keys other sizes than the configuration says."""
    width = attention.query.in_features
    for name in ("query", "key"):
        setattr(attention, name, torch.nn.Linear(width, int(factor * width)))


def remove_weights(attention: Any, _: Path) -> None:
    attention.query = torch.nn.Identity()


CHANGES: dict[str, Callable[[Any, Path], object]] = {
    "more heads": lambda attention, _: resize(attention, 2),
    "fewer heads": lambda attention, _: resize(attention, 0.5),
    "a weight that is gone": remove_weights,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_that_cannot_be_scored_has_no_scores_and_ends_no_training(
    change: str, built: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows say so. With more heads, the weights of the first ones would be scored as if they were all."""
    callback = AttentionGeometryCallback()
    trainer = train(built("bert"), tmp_path, Change(CHANGES[change]), callback, max_steps=1, logging_steps=1)
    assert trainer.state.global_step == 1
    frame = pd.read_parquet(tmp_path / "geometry.parquet")
    assert frame[frame["step"] == 0]["symmetry"].notna().all()
    last = frame[frame["step"] == 1]
    assert last["layer"].tolist() == [0, 1]
    assert last[[*score_names(), "head"]].isna().all(axis=None)
    assert last["loss"].notna().all()
    (text,) = (record.getMessage() for record in caplog.records if record.name.startswith("attngeo"))
    assert_states(text, "step 1", "query")


def test_a_table_that_cannot_be_written_ends_no_training(
    built: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a full disk. The reason is told once, and the next table has all rows."""
    path = tmp_path / "geometry.parquet"
    callback = AttentionGeometryCallback()

    def block(*_: object) -> None:
        if len(callback.frame["step"].unique()) == 1:
            path.unlink(missing_ok=True)
            path.mkdir(exist_ok=True)
        elif len(callback.frame["step"].unique()) == 3:
            path.rmdir()

    trainer = train(built("bert"), tmp_path, Change(block), callback, logging_steps=1)
    assert trainer.state.global_step == 4
    assert pd.read_parquet(path)["step"].unique().tolist() == [0, 1, 2, 3, 4]
    assert all("symmetry_median" in entry for entry in trainer.state.log_history if "loss" in entry)
    (text,) = (record.getMessage() for record in caplog.records if record.name.startswith("attngeo"))
    assert_states(text, path)


def test_a_score_that_is_added_to_the_table_is_a_column(
    built: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no other change: in the file, and among the medians that trackers get."""
    add_toy_score(monkeypatch)
    callback = AttentionGeometryCallback()
    train(built("bert"), tmp_path, callback)
    frame = pd.read_parquet(tmp_path / "geometry.parquet")
    assert frame["toy"].between(0, 1, inclusive="neither").all()
    last = frame[frame["step"] == 4]
    assert callback.medians["heads_toy_median"] == pytest.approx(last.loc[last["head"].notna(), "toy"].median())


class FakeTrackio(ModuleType):
    """Stands in for the package of that name, and notes what is called."""

    __version__ = "0"

    def __init__(self) -> None:
        super().__init__("trackio")
        self.calls: list[str] = []
        self.logs: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self.context_vars = SimpleNamespace(current_space_id=SimpleNamespace(get=lambda: None))

    def init(self, **_: Any) -> None:
        self.calls.append("init")

    def log(self, values: dict[str, Any]) -> None:
        self.logs.append(values)

    def finish(self) -> None:
        self.calls.append("finish")


def test_a_tracker_with_one_run_per_process_gets_the_medians_in_that_run(
    built: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers' own class, which begins a run in `setup`; the run begins and ends once."""
    trackio = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    monkeypatch.setattr(integration_utils, "is_trackio_available", lambda: True)
    callback = AttentionGeometryCallback()
    train(built("bert"), tmp_path, callback, report_to="trackio")
    assert trackio.calls == ["init", "finish"]
    scored = [each for each in trackio.logs if "train/heads_symmetry_median" in each]
    assert [each["train/global_step"] for each in scored] == [0, 2, 4]
    assert set(scored[-1]) == {"train/global_step", *(f"train/{name}" for name in callback.medians)}
    frame = callback.frame
    heads = frame[(frame["step"] == 4) & frame["head"].notna()]
    layers = frame[(frame["step"] == 4) & frame["head"].isna()]
    assert scored[-1]["train/heads_symmetry_median"] == pytest.approx(heads["symmetry"].median())
    assert scored[-1]["train/directionality_median"] == pytest.approx(layers["directionality"].median())


def test_another_tracker_gets_the_medians_in_a_run_of_its_own(
    built: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    scored: list[int] = []

    class OtherTracker(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            calls.append("begin")

        def on_train_end(self, *_: Any, **__: Any) -> None:
            calls.append("end")

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            if "symmetry_median" in kwargs["logs"]:
                scored.append(state.global_step)

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "tensorboard", OtherTracker)
    train(built("bert"), tmp_path, AttentionGeometryCallback(), report_to="tensorboard")
    assert sorted(calls) == ["begin", "begin", "end", "end"]
    assert scored == [0, 2, 4]
