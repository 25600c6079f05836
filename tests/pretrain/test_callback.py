"""The callback in anybody's Trainer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import Trainer, TrainingArguments

import attngeo
from attngeo.errors import UnsupportedModelError, UsageError
from attngeo.pretrain import AttentionGeometryCallback

Build = Callable[[str], Any]


def train(model: Any, folder: Path, *callbacks: AttentionGeometryCallback, **given: Any) -> Trainer:
    ids = torch.randint(10, 60, (32, 8), generator=torch.Generator().manual_seed(0))
    fields = {"max_steps": 4, "logging_steps": 2, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
              "use_cpu": True, "learning_rate": 1e-2, "dataloader_pin_memory": False}  # fmt: skip
    trainer = Trainer(
        copy.deepcopy(model), TrainingArguments(str(folder), **(fields | given)),
        train_dataset=[{"input_ids": row, "labels": row} for row in ids], callbacks=[*callbacks],
    )  # fmt: skip
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    "name", ["bert", "bert-decoder", "distilbert", "gpt2", "gpt_neox", "falcon-new", "llama", "qwen3", "gemma3_text"]
)
def test_rows_are_the_scores_of_the_live_model(name: str, built: Build, tmp_path: Path) -> None:
    """At step 0 those of the model as it was, at the end those of the model as it is."""
    callback = AttentionGeometryCallback()
    trainer = train(built(name), tmp_path, callback)
    frame = pd.read_parquet(tmp_path / "geometry.parquet")
    pd.testing.assert_frame_equal(frame, callback.frame)
    assert frame.columns.tolist() == ["step", "stack", "layer", "head", "symmetry", "directionality", "loss"]
    assert frame["step"].unique().tolist() == [0, 2, 4]
    columns = ["stack", "layer", "head", "symmetry", "directionality"]
    for step, model in ((0, built(name)), (4, trainer.model)):
        rows = frame.loc[frame["step"] == step, columns].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, attngeo.score(model, per_head=True)[columns], atol=1e-5)
    logged = {each["step"]: each["loss"] for each in trainer.state.log_history if "loss" in each}
    assert frame.dropna(subset=["loss"]).groupby("step")["loss"].unique().map(list).to_dict() == {
        step: [loss] for step, loss in logged.items()
    }


def test_training_is_the_same_with_and_without_it(built: Build, tmp_path: Path) -> None:
    with_it, without = (train(built("bert"), tmp_path / str(n), *callbacks) for n, callbacks in
                        enumerate(([AttentionGeometryCallback()], [])))  # fmt: skip
    for a, b in zip(with_it.model.parameters(), without.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_only_one_stack_and_another_file(built: Build, tmp_path: Path) -> None:
    train(built("bert"), tmp_path, AttentionGeometryCallback(stack="encoder", file="scores/run.parquet"))
    assert set(pd.read_parquet(tmp_path / "scores/run.parquet")["stack"]) == {"encoder"}
    with pytest.raises(UsageError, match=r"run\.csv: expected a name ending in \.parquet"):
        AttentionGeometryCallback(file="run.csv")
    with pytest.raises(UsageError, match="has no stack"):
        train(built("bert"), tmp_path, AttentionGeometryCallback(stack="vision"))


def test_a_model_without_attention_is_refused_when_training_begins(tmp_path: Path) -> None:
    class Config:
        def to_dict(self) -> dict[str, Any]:
            return {"model_type": "mlp"}

    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 4))
    model.config = Config()
    arguments = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    with pytest.raises(UnsupportedModelError):
        AttentionGeometryCallback().on_train_begin(arguments, None, None, model=model)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "begun"), [("TrackioCallback", 1), ("TensorBoardCallback", 2)])
def test_trackers_get_the_medians(
    kind: str, begun: int, built: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class of that name stands in for the tracker's; where a process has one run, it begins and ends once."""
    from transformers import TrainerCallback
    from transformers.integrations import integration_utils

    seen: list[dict[str, float]] = []

    begins, ends = [], []

    class Tracker(TrainerCallback):
        _initialized = False

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            begins.append(self)
            self._initialized = True

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            ends.append(self)

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            assert self._initialized
            seen.append({"step": state.global_step, **kwargs["logs"]})

    Tracker.__name__ = kind
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "trackio", Tracker)
    callback = AttentionGeometryCallback()
    train(built("bert"), tmp_path, callback, report_to="trackio")
    assert (len(begins), len(ends)) == (begun, begun)
    scored = [each for each in seen if "symmetry_heads" in each]
    assert [each["step"] for each in scored] == [0, 2, 4]
    frame = callback.frame
    heads = frame[(frame["step"] == 4) & frame["head"].notna()]
    layers = frame[(frame["step"] == 4) & frame["head"].isna()]
    assert scored[-1]["symmetry_heads"] == pytest.approx(heads["symmetry"].median())
    assert scored[-1]["directionality_layers"] == pytest.approx(layers["directionality"].median())
