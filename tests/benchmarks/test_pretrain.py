"""Training: tokens per second compared with transformers' recipe, and the cost of the callback (`make bench`)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pytest_benchmark.fixture import BenchmarkFixture
from support.measure import timed
from transformers import BertForMaskedLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments

from attngeo.pretrain import AttentionGeometryCallback, TextPretrainOptions
from attngeo.pretrain.models import build_model, configure_text
from attngeo.pretrain.sources import open_text
from attngeo.pretrain.text import prepare_text

SEQUENCES, LENGTH, STEPS, ROUNDS = 32, 128, 4, 3


def arguments(folder: Path, **given: Any) -> TrainingArguments:
    return TrainingArguments(
        str(folder), per_device_train_batch_size=SEQUENCES, max_steps=STEPS, save_strategy="no", report_to="none",
        logging_strategy="no", disable_tqdm=True, log_level="error", dataloader_pin_memory=False, **given,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity_warning()


def test_tokens_per_second_against_run_mlm(tmp_path: Path, benchmark: BenchmarkFixture) -> None:
    """bert-mini, 32 sequences of at most 128 tokens: at least 1.3 times the speed of run_mlm.py --line_by_line.

    That recipe (transformers, examples/pytorch/language-modeling) cuts every line at 128 tokens, pads the lines of a
    batch to the longest of them, and computes logits for all tokens. Padding is not counted, on either side.
    """
    options = TextPretrainOptions.of(
        "bert-mini", seq_len=LENGTH, batch_size=SEQUENCES, grad_accum=1, steps=STEPS, warmup=0
    )
    task = prepare_text(options, 1)
    tokenizer = task.processor
    lines = [line for batch in open_text("austen").read_batches() for line in batch]
    encoded = tokenizer(lines, truncation=True, max_length=LENGTH, return_special_tokens_mask=True)
    examples = [{name: encoded[name][i] for name in encoded} for i in range(len(lines))]

    def recipe(round_: int) -> tuple[float, int]:
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(round_)).tolist()
        chosen = [examples[i] for i in order[: STEPS * SEQUENCES]]
        model = BertForMaskedLM(configure_text(options, tokenizer))
        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
        trainer = Trainer(model, arguments(tmp_path), train_dataset=chosen, data_collator=collator)
        return timed(trainer.train), sum(len(example["input_ids"]) for example in chosen)

    def ours(_: int) -> tuple[float, int]:
        model = build_model(configure_text(options, tokenizer), "mlm")
        trainer = task.make_trainer(
            model, arguments(tmp_path, remove_unused_columns=False, train_sampling_strategy="sequential"),
            train_dataset=task.data, data_collator=task.collator,
        )  # fmt: skip
        return timed(trainer.train), task.data.tokens_until(STEPS * SEQUENCES)

    recipe(0), ours(0)
    measured = [(recipe(i), ours(i)) for i in range(1, ROUNDS + 1)]
    theirs, own = (
        statistics.median(tokens / seconds for seconds, tokens in column) for column in zip(*measured, strict=True)
    )
    benchmark.pedantic(ours, args=(0,), rounds=1)
    benchmark.extra_info |= {"baseline: run_mlm.py, tokens/s": theirs, "attngeo, tokens/s": own, "ratio": own / theirs}
    print(f"\nbert-mini: run_mlm.py {theirs:,.0f} tokens/s, attngeo {own:,.0f} tokens/s ({own / theirs:.2f} times)")
    assert own / theirs >= 1.3


def test_cost_of_the_callback(tmp_path: Path, benchmark: BenchmarkFixture) -> None:
    """Scoring bert-mini every 200 steps of a small batch (8 sequences of 128) takes less than 2% of the time."""
    options = TextPretrainOptions.of("bert-mini", seq_len=LENGTH, batch_size=8, grad_accum=1, steps=STEPS, warmup=0)
    task = prepare_text(options, 1)
    given = arguments(tmp_path, remove_unused_columns=False, train_sampling_strategy="sequential")
    given.per_device_train_batch_size = 8
    callback = AttentionGeometryCallback()
    trainer = task.make_trainer(
        task.model, given, train_dataset=task.data, data_collator=task.collator, callbacks=[callback]
    )
    step = timed(trainer.train) / STEPS

    def score() -> None:
        callback.on_log(given, trainer.state, trainer.control, model=task.model, logs={"loss": 1.0})

    for _ in range(1000 // 2):  # the rows after half of the 200,000 steps of S2
        callback._table.rows += callback._table.rows[:20]
    benchmark.pedantic(score, rounds=10)
    cost = statistics.median(timed(score) for _ in range(10))
    share = cost / (200 * step)
    benchmark.extra_info |= {"one score, s": cost, "baseline: one step, s": step, "share at every 200 steps": share}
    print(f"\ncallback: {1000 * cost:.0f} ms, a step {1000 * step:.0f} ms: {share:.2%} at --log-every 200")
    assert share < 0.02
