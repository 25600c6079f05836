"""A training run on text: masks, labels and losses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import BERT, GPT2
from support.toy_text import (
    WORDS,
    cut_by_hand,
    draw_documents,
    make_gpt2,
    make_sequences,
    make_text,
    save_tokenizer,
    take_rows,
    word_tokenizer,
)
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, TrainingArguments

from attngeo.pretrain.text import CausalTrainer, MaskedTrainer, SeededMaskingCollator
from attngeo.pretrain.tokenizer import prepare_tokenizer


def make_batch(numbers: list[int], length: int = 64, **options: Any) -> dict[str, Any]:
    found = make_sequences([" ".join(WORDS * 3)] * 200, length=length, seed=options.get("mask_seed", 0))
    return SeededMaskingCollator(word_tokenizer(), **options)([found[number] for number in numbers])


@pytest.mark.parametrize("others", [[], [8], [3, 700, 8, 9], list(range(32))])
def test_a_mask_depends_only_on_the_seed_and_the_index(others: list[int]) -> None:
    alone = make_batch([7])
    for numbers in ([7, *others], [*others, 7]):
        batch = make_batch(numbers)
        place = numbers.index(7)
        assert torch.equal(batch["input_ids"][place], alone["input_ids"][0])
        assert torch.equal(batch["labels"][place], alone["labels"][0])


def test_masks_do_not_depend_on_padding() -> None:
    documents = ["ba be bi bo bu da de", " ".join(WORDS)]
    found = make_sequences(documents, length=40, pack=False)
    masking = SeededMaskingCollator(word_tokenizer(), mlm_probability=0.5, packed=False)
    short, long = sorted(range(2), key=lambda index: len(found[index]["input_ids"]))
    alone, together = masking([found[short]]), masking([found[short], found[long]])
    size = alone["labels"].shape[1]
    assert size == 9
    for name, filling in (("input_ids", word_tokenizer().pad_token_id), ("labels", -100), ("attention_mask", 0)):
        assert torch.equal(together[name][0, :size], alone[name][0]), name
        assert (together[name][0, size:] == filling).all(), name
    assert together["attention_mask"].sum(1).tolist() == [9, len(WORDS) + 2]


def test_masks_of_different_indices_epochs_and_seeds_differ() -> None:
    tokens = np.full(64, word_tokenizer().convert_tokens_to_ids("ba"), dtype=np.int32)
    seen = set()
    for seed in range(4):
        masking = SeededMaskingCollator(word_tokenizer(), mask_seed=seed)
        batch = masking([{"input_ids": tokens, "index": index} for index in range(500)])
        seen |= {tuple(row) for row in batch["labels"].tolist()}
    assert len(seen) == 4 * 500
    distinct = make_sequences([" ".join(WORDS * 3)] * 200, length=64).distinct
    assert not torch.equal(make_batch([0])["labels"], make_batch([distinct])["labels"])


def test_masks_are_the_same_on_every_machine() -> None:
    """The streams of numpy are guaranteed; a change here would change the masks of a resumed run."""
    tokens = np.full(40, 9, dtype=np.int32)
    labels = SeededMaskingCollator(word_tokenizer(), mask_seed=3)([{"input_ids": tokens, "index": 5}])["labels"]
    assert (labels != -100).nonzero()[:, 1].tolist() == [1, 5, 26, 32]


def test_a_masked_decoder_predicts_masked_tokens_from_those_before() -> None:
    """Inputs and labels are those of a masked encoder, but the first token of a sequence is not predicted."""
    encoder, decoder = make_batch(list(range(50))), make_batch(list(range(50)), predicts_next=True)
    assert torch.equal(encoder["input_ids"], decoder["input_ids"])
    assert torch.equal(encoder["labels"][:, 1:], decoder["labels"][:, 1:])
    assert (encoder["labels"][:, 0] != -100).any()
    assert (decoder["labels"][:, 0] == -100).all()


def is_within(count: int, of: int, share: float) -> bool:
    """Within five standard deviations of a binomial."""
    return abs(count - of * share) < 5 * (of * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("probability", [0.15, 0.3])
def test_the_rates_are_those_of_bert(probability: float) -> None:
    tokenizer = word_tokenizer()
    found = make_sequences([" ".join(WORDS * 3)] * 1000, length=64, count=1000)
    examples = [found[index] for index in range(1000)]
    batch = SeededMaskingCollator(tokenizer, mlm_probability=probability)(examples)
    before = torch.tensor(np.stack([example["input_ids"] for example in examples])).long()
    after, labels = batch["input_ids"], batch["labels"]
    special, chosen = before == tokenizer.sep_token_id, labels != -100
    assert special.any()
    assert not (special & chosen).any()
    assert torch.equal(after[~chosen], before[~chosen])
    assert torch.equal(labels[chosen], before[chosen])
    total = int(chosen.sum())
    assert is_within(total, int((~special).sum()), probability)
    masked = int((after[chosen] == tokenizer.mask_token_id).sum())
    kept = int((after[chosen] == before[chosen]).sum())
    by_chance = 0.1 / len(tokenizer)
    assert is_within(masked, total, 0.8 + by_chance)
    assert is_within(kept, total, 0.1 + by_chance)
    replaced = after[chosen & (after != before) & (after != tokenizer.mask_token_id)]
    assert is_within(len(replaced), total, 0.1 - 2 * by_chance)
    counts = torch.bincount(replaced, minlength=len(tokenizer)).float()
    assert len(counts) == len(tokenizer)
    assert (counts > 0).sum() == len(tokenizer) - 1  # any token but [MASK], which is counted as masked
    places = chosen.float().mean(0)
    assert (places.sub(probability * 75 / 76).abs() < 5 * (probability / 1000) ** 0.5).all()


def test_unknown_words_are_neither_masked_nor_predicted() -> None:
    found = make_sequences(["日 ba ☃ be"] * 90)
    batch = SeededMaskingCollator(word_tokenizer(), mlm_probability=0.999)([found[index] for index in range(40)])
    unknown = word_tokenizer().unk_token_id
    assert (batch["input_ids"] == unknown).any()
    assert not (batch["labels"] == unknown).any()


@pytest.mark.parametrize("pack", [True, False])
def test_without_masks_every_token_but_the_first_is_predicted(pack: bool) -> None:
    found = make_sequences(draw_documents(), length=10, pack=pack)
    examples = [found[index] for index in range(8)]
    batch = SeededMaskingCollator(word_tokenizer(), mlm=False, packed=pack)(examples)
    assert set(batch) == {"input_ids", "labels"} | (set() if pack else {"attention_mask"})
    for row, example in enumerate(examples):
        size = len(example["input_ids"])
        assert batch["input_ids"][row, :size].tolist() == example["input_ids"].tolist()
        assert batch["labels"][row, 1:size].tolist() == example["input_ids"][1:].tolist()
        assert (batch["labels"][row, [0, *range(size, batch["labels"].shape[1])]] == -100).all()
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


@pytest.mark.slow
def test_batches_are_the_same_in_a_worker_process() -> None:
    found, masking = make_sequences(draw_documents(), count=12), SeededMaskingCollator(word_tokenizer())
    here = DataLoader(found, batch_size=4, collate_fn=masking)
    there = DataLoader(found, batch_size=4, collate_fn=masking, num_workers=1, multiprocessing_context="spawn")
    for one, other in zip(here, there, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("pad", [None, "<|endoftext|>"])
@pytest.mark.parametrize("pack", [True, False])
def test_the_end_of_a_document_is_predicted_even_if_it_is_the_padding_token(
    pad: str | None, pack: bool, tmp_path: Path
) -> None:
    tokenizer = prepare_tokenizer(save_tokenizer(make_gpt2(pad), tmp_path), make_text([]), 1, "clm")
    documents = [f"{document}<|endoftext|>" for document in draw_documents()] if not pack else draw_documents()
    found = make_sequences(documents, tokenizer, length=16, pack=pack)
    examples = [found[index] for index in range(20)]
    batch = SeededMaskingCollator(tokenizer, mlm=False, packed=pack)(examples)
    ends = sum(int((example["input_ids"][1:] == tokenizer.eos_token_id).sum()) for example in examples)
    assert ends > 0
    assert int((batch["labels"] == tokenizer.eos_token_id).sum()) == ends
    assert int((batch["labels"] != -100).sum()) == sum(len(example["input_ids"]) - 1 for example in examples)
    if pack:
        assert torch.equal(batch["labels"][:, 1:], batch["input_ids"][:, 1:])
        assert Counter(take_rows(found, found.distinct)) == Counter(cut_by_hand(documents, 16, tokenizer))


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


CAUSAL = ["bert", "gpt2", "openai-gpt", "xlm", "opt"]
MORE_CAUSAL = ["roberta", "gpt_neo", "llama", "bloom"]


@pytest.mark.parametrize(
    ("kind", "accumulated"),
    [
        *((kind, 2) for kind in CAUSAL), ("gpt2", 1),
        *(pytest.param(kind, 2, marks=pytest.mark.slow) for kind in MORE_CAUSAL),
    ],
)  # fmt: skip
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
