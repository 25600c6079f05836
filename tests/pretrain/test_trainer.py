"""The Trainer of a run: its checkpoints, what it uses of transformers, and one gradient each for Wq and Wk."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.tiny_models import BERT
from transformers import AutoConfig, AutoModelForMaskedLM, Trainer

import attngeo
from attngeo.pretrain import image_training, initialize, text, trainer
from attngeo.pretrain.trainer import (
    MARK,
    CheckpointMark,
    find_last_checkpoint,
    list_checkpoints,
    read_mark,
    remove_broken,
    write_mark,
)


@pytest.mark.parametrize("module", [trainer, text, image_training])
def test_only_public_names_of_the_trainer_are_used(module: ModuleType) -> None:
    """No private name of ours is one of transformers' Trainer, so none is called or overridden."""
    ours = set(re.findall(r"\bself\.(_[a-z]\w*)", inspect.getsource(module)))
    ours |= set(re.findall(r"def (_[a-z]\w*)\(self", inspect.getsource(module)))
    theirs = set(re.findall(r"\b_[a-z]\w*", inspect.getsource(Trainer))) - {"_internal_call"}
    assert ours
    assert not ours & theirs


def test_no_private_attribute_of_another_object_is_used() -> None:
    private = re.compile(r"(?<!\bself)(?<!\bcls)\._[a-z]\w*")
    folder = Path(trainer.__file__).parent
    found = {path.name: private.findall(path.read_text("utf-8")) for path in folder.rglob("*.py")}
    assert len(found) > 10
    assert not any(found.values()), found


def test_queries_and_keys_get_gradients_of_their_own() -> None:
    """After a symmetric start they are equal, not tied."""
    torch.manual_seed(0)
    model: Any = AutoModelForMaskedLM.from_config(AutoConfig.for_model("bert", **BERT))
    initialize(model, "symmetric")
    ids = torch.randint(10, 60, (4, 8), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(input_ids=ids, labels=ids).loss.backward()
    for layer in model.bert.encoder.layer:
        query, key = layer.attention.self.query.weight, layer.attention.self.key.weight
        assert torch.equal(query, key)
        assert query.data_ptr() != key.data_ptr()
        assert not torch.equal(query.grad, key.grad)
    optimizer.step()
    for layer in model.bert.encoder.layer:
        assert not torch.equal(layer.attention.self.query.weight, layer.attention.self.key.weight)
    assert (attngeo.score(model)["symmetry"] < 1 - 1e-9).all()


def test_a_mark_is_read_as_it_was_written(tmp_path: Path) -> None:
    mark = CheckpointMark(loss_sum=0.1 + 0.2, logged_at=7, seconds=1.5)
    write_mark(tmp_path, mark)
    assert read_mark(tmp_path) == mark
    assert read_mark(tmp_path / "nowhere") is None


def test_the_last_checkpoint_is_the_last_whole_one(tmp_path: Path) -> None:
    assert find_last_checkpoint(tmp_path) is None
    assert find_last_checkpoint(tmp_path / "nowhere") is None
    for step in (9, 10, 11, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    write_mark(tmp_path / "checkpoint-9", CheckpointMark(1.0, 9, 1.0))
    write_mark(tmp_path / "checkpoint-10", CheckpointMark(1.0, 10, 1.0))
    (tmp_path / "checkpoint-11" / MARK).write_text("")  # killed while it wrote the mark
    assert [path.name for path in list_checkpoints(tmp_path)] == [f"checkpoint-{step}" for step in (9, 10, 11, 100)]
    assert find_last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert len(list(tmp_path.iterdir())) == 5  # finding removes nothing
    remove_broken(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-9", "checkpoint-best"]
