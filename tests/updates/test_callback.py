"""The callback that scores updates, in anybody's Trainer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.messages import assert_states, refuses
from transformers import Trainer, TrainerCallback, TrainingArguments

from attngeo.errors import UnsupportedModelError, UsageError
from attngeo.pretrain import AttentionGeometryCallback
from attngeo.updates import GradientCallback
from attngeo.updates.recording import record_gradients
from attngeo.updates.statistics import tabulate_site

pytestmark = pytest.mark.usefixtures("without_collecting")

IDS = torch.randint(10, 60, (12, 8), generator=torch.Generator().manual_seed(0))
BATCHES = [{"input_ids": IDS[:4], "labels": IDS[:4]}]


def train(model: Any, folder: Path, *callbacks: TrainerCallback, **given: Any) -> Trainer:
    fields = {"max_steps": 4, "logging_steps": 2, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
              "use_cpu": True, "learning_rate": 1e-2, "dataloader_pin_memory": False}  # fmt: skip
    trainer = Trainer(
        copy.deepcopy(model), TrainingArguments(str(folder), **(fields | given)),
        train_dataset=[{"input_ids": row, "labels": row} for row in IDS], callbacks=[*callbacks],
    )  # fmt: skip
    trainer.train()
    return trainer


def test_rows_are_the_updates_of_the_live_model_beside_its_scores(built: Callable[[str], Any], tmp_path: Path) -> None:
    callback = GradientCallback(BATCHES, "clm")
    trainer = train(built("bert-decoder"), tmp_path, AttentionGeometryCallback(), callback)
    frame = pd.read_parquet(tmp_path / "gradients.parquet")
    pd.testing.assert_frame_equal(frame, callback.frame)
    assert frame["step"].unique().tolist() == [0, 2, 4]
    assert len(frame) == 3 * 2 * 5
    assert pd.read_parquet(tmp_path / "geometry.parquet")["step"].unique().tolist() == [0, 2, 4]
    assert set(callback.medians) >= {"update_symmetry_median", "update_heads_symmetry_median"}
    for step, model in ((0, built("bert-decoder")), (4, trainer.model)):
        recorded = record_gradients(model, BATCHES, "clm")
        random = torch.Generator().manual_seed(0)
        expected = pd.DataFrame([row for site in recorded.sites for row in tabulate_site(site, random)])
        rows = frame[frame["step"] == step]
        for name in ("symmetry", "directionality_chance", "column_spread", "context_share"):
            np.testing.assert_allclose(rows[name].astype(float), expected[name].astype(float), atol=1e-4)
        assert rows["loss"].unique().tolist() == pytest.approx([recorded.loss], rel=1e-5)


def test_training_is_the_same_with_and_without_it(built: Callable[[str], Any], tmp_path: Path) -> None:
    with_it, without = (
        train(built("bert-decoder"), tmp_path / str(n), *callbacks, gradient_accumulation_steps=2)
        for n, callbacks in enumerate(([GradientCallback(BATCHES, "clm")], []))
    )
    for a, b in zip(with_it.model.parameters(), without.model.parameters(), strict=True):
        assert torch.equal(a, b)


class Spoil(TrainerCallback):
    """Makes a weight no number after an update."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        with torch.no_grad():
            next(kwargs["model"].parameters()).fill_(torch.nan)


def test_a_loss_that_is_no_number_ends_no_training(
    built: Callable[[str], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = GradientCallback(BATCHES, "clm")
    trainer = train(built("bert-decoder"), tmp_path, Spoil(), callback, max_steps=1, logging_steps=1)
    assert trainer.state.global_step == 1
    last = callback.frame[callback.frame["step"] == 1]
    assert last["symmetry"].isna().tolist() == [True] * 2
    (text,) = (record.getMessage() for record in caplog.records if record.name.startswith("attngeo"))
    assert_states(text, "step 1", "nan")


def test_what_it_cannot_measure_is_refused_when_training_begins(built: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="BloomForCausalLM does not use"):
        train(built("bloom"), tmp_path, GradientCallback(BATCHES, "clm"))
    with pytest.raises(UsageError, match=r"run\.csv"):
        GradientCallback(BATCHES, "clm", file="run.csv")


def test_two_tables_in_one_file_are_refused_when_training_begins(built: Callable[[str], Any], tmp_path: Path) -> None:
    first, second = GradientCallback(BATCHES, "clm"), GradientCallback(BATCHES[:1], "clm")
    with refuses(UsageError, "gradients.parquet", "stack decoder", "a different file"):
        train(built("bert-decoder"), tmp_path, first, second)
    with refuses(UsageError, "gradients.parquet", "columns", "a different file"):
        train(built("bert-decoder"), tmp_path, first, AttentionGeometryCallback(file="gradients.parquet"))
    train(built("bert-decoder"), tmp_path, first, GradientCallback(BATCHES, "clm", file="more.parquet"))
    written = pd.read_parquet(tmp_path / "gradients.parquet")
    assert written["step"].unique().tolist() == [0, 2, 4]
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "more.parquet"), written)
