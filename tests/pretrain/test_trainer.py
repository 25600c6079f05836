"""The Trainer of a run: what it uses of transformers, and one gradient each for Wq and Wk."""

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
from attngeo.pretrain import initialise, trainer
from attngeo.pretrain.images import trainer as image_trainer
from attngeo.pretrain.text import trainer as text_trainer


@pytest.mark.parametrize("module", [trainer, text_trainer, image_trainer])
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
    assert len(found) > 20
    assert not any(found.values()), found


def test_queries_and_keys_get_gradients_of_their_own() -> None:
    """After a symmetric start they are equal, not tied."""
    torch.manual_seed(0)
    model: Any = AutoModelForMaskedLM.from_config(AutoConfig.for_model("bert", **BERT))
    initialise(model, "symmetric")
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
