"""The Trainer of a run: the loss of masked models, checkpoints that are whole, one gradient each for Wq and Wk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import BERT
from transformers import AutoConfig, AutoModelForMaskedLM, TrainingArguments

import attngeo
from attngeo.pretrain import initialise
from attngeo.pretrain.trainer import MARK, MaskedTrainer, last_checkpoint

MASKED = ["bert", "roberta", "distilbert", "electra", "albert", "modernbert", "mpnet", "deberta", "deberta-v2",
          "roformer", "convbert", "squeezebert", "mobilebert", "ernie", "nystromformer"]  # fmt: skip
MORE = {
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "dropout": 0.0, "attention_dropout": 0.0},
    "mobilebert": {"embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16},
}


@pytest.mark.parametrize("kind", MASKED)
def test_logits_of_masked_tokens_alone_give_the_same_loss_and_gradient(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    fields = {**BERT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "embedding_size": 32}
    if kind in ("modernbert", "distilbert"):
        del fields["embedding_size"]
    try:
        model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **(fields | MORE.get(kind, {}))))
    except (ImportError, ValueError) as error:
        pytest.skip(f"cannot be built here: {error}")
    ids, labels = torch.randint(10, 60, (3, 8)), torch.full((3, 8), -100)
    labels[torch.rand(3, 8) < 0.3] = 17
    model.train()
    expected = model(input_ids=ids, labels=labels).loss
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    trainer = MaskedTrainer(model, TrainingArguments(str(tmp_path), report_to="none", use_cpu=True))
    loss = trainer.compute_loss(model, {"input_ids": ids, "labels": labels})
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        if name in gradients:
            assert torch.allclose(parameter.grad, gradients[name], atol=1e-6), name
    # Outside training steps the model answers for every token, as it always did.
    assert model(input_ids=ids).logits.shape == (3, 8, model.config.vocab_size)


def test_the_output_layer_sees_masked_tokens_alone(tmp_path: Path) -> None:
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model("bert", **BERT))
    seen: list[torch.Size] = []
    model.get_output_embeddings().register_forward_hook(lambda _, args, __: seen.append(args[0].shape))
    trainer = MaskedTrainer(model, TrainingArguments(str(tmp_path), report_to="none", use_cpu=True))
    labels = torch.full((2, 8), -100)
    labels[0, 3] = labels[1, 5] = 7
    trainer.compute_loss(model, {"input_ids": torch.randint(10, 60, (2, 8)), "labels": labels})
    assert seen == [torch.Size([1, 2, 32])]
    empty = trainer.compute_loss(
        model, {"input_ids": torch.randint(10, 60, (2, 8)), "labels": torch.full((2, 8), -100)}
    )
    assert empty.item() == 0.0  # a batch in which nothing was masked


def test_queries_and_keys_get_gradients_of_their_own() -> None:
    """After a symmetric start they are equal, not tied."""
    torch.manual_seed(0)
    model: Any = AutoModelForMaskedLM.from_config(AutoConfig.for_model("bert", **BERT))
    initialise(model, "symmetric")
    ids = torch.randint(10, 60, (4, 8))
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


def test_the_last_checkpoint_is_the_last_whole_one(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    assert last_checkpoint(tmp_path / "nowhere") is None
    for step in (9, 10, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-9" / MARK).write_text("{}")
    (tmp_path / "checkpoint-10" / MARK).write_text("{}")
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-9", "checkpoint-best"]
