"""The losses of encoders and decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import BERT, GPT2
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, TrainingArguments

from attngeo.pretrain.text.trainer import CausalTrainer, MaskedTrainer

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
    generator = torch.Generator().manual_seed(0)
    ids, labels = torch.randint(10, 60, (3, 8), generator=generator), torch.full((3, 8), -100)
    labels[torch.rand(3, 8, generator=generator) < 0.3] = 17
    model.train()
    expected = model(input_ids=ids, labels=labels).loss
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    trainer = MaskedTrainer(model, TrainingArguments(str(tmp_path), report_to="none", use_cpu=True))
    loss = trainer.compute_loss(model, {"input_ids": ids, "labels": labels})
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    # As a share of the whole gradient: that of a key's bias is 0 but for rounding.
    size = torch.nn.utils.get_total_norm(gradients.values())
    for name, parameter in model.named_parameters():
        if name in gradients:
            assert (parameter.grad - gradients[name]).norm() < 1e-5 * size, name
    # Outside training steps the model answers for every token, as it always did.
    assert model(input_ids=ids).logits.shape == (3, 8, model.config.vocab_size)


def test_the_output_layer_sees_masked_tokens_alone(tmp_path: Path) -> None:
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model("bert", **BERT))
    seen: list[torch.Size] = []
    model.get_output_embeddings().register_forward_hook(lambda _, args, __: seen.append(args[0].shape))
    trainer = MaskedTrainer(model, TrainingArguments(str(tmp_path), report_to="none", use_cpu=True))
    labels = torch.full((2, 8), -100)
    labels[0, 3] = labels[1, 5] = 7
    ids = torch.randint(10, 60, (2, 8), generator=torch.Generator().manual_seed(0))
    trainer.compute_loss(model, {"input_ids": ids, "labels": labels})
    assert seen == [torch.Size([1, 2, 32])]
    empty = trainer.compute_loss(model, {"input_ids": ids, "labels": torch.full((2, 8), -100)})
    assert empty.item() == 0.0  # a batch in which nothing was masked


CAUSAL = ["bert", "roberta", "gpt2", "gpt_neo", "llama", "openai-gpt", "xlm", "opt", "bloom"]


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_loss_of_next_tokens_is_their_mean(kind: str, accumulated: int, tmp_path: Path) -> None:
    """The logged loss is the cross-entropy of the model's own logits, whatever its family does with labels."""
    torch.manual_seed(0)
    small = {"gpt2": GPT2, "openai-gpt": GPT2, "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 64},
             "gpt_neo": {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]],
                         "vocab_size": 64},
             "opt": BERT | {"ffn_dim": 24, "word_embed_proj_dim": 32}}  # fmt: skip
    config = AutoConfig.for_model(kind, **small.get(kind, BERT))
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    model: Any = AutoModelForCausalLM.from_config(config).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        for module in model.modules():
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    ids = torch.randint(10, 60, (8, 6), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:, 0] = labels[3, 4:] = -100
    with torch.no_grad():
        logits = model(input_ids=ids).logits[:, :-1]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()).item()
    arguments = TrainingArguments(
        str(tmp_path), max_steps=1, per_device_train_batch_size=8 // accumulated, report_to="none", use_cpu=True,
        gradient_accumulation_steps=accumulated, logging_steps=1, save_strategy="no", learning_rate=0.0,
        disable_tqdm=True, train_sampling_strategy="sequential",
    )  # fmt: skip
    data = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]
    trainer = CausalTrainer(model, arguments, train_dataset=data)
    trainer.train()
    logged = next(each["loss"] for each in trainer.state.log_history if "loss" in each)
    assert logged == pytest.approx(expected, rel=1e-4)
