"""A training run on text: its tokeniser, its sequences, its model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import transformers

from attngeo.pretrain.initialisation import check_init, initialise
from attngeo.pretrain.models import build_text_model, check_length, configure_text, read_config
from attngeo.pretrain.options import TextPretrainOptions
from attngeo.pretrain.tasks import TrainingTask
from attngeo.pretrain.text.collator import SeededMaskingCollator
from attngeo.pretrain.text.sequences import ShuffledSequences, StreamedSequences, build_sequences
from attngeo.pretrain.text.sources import open_text
from attngeo.pretrain.text.tokeniser import prepare_tokeniser
from attngeo.pretrain.text.trainer import CausalTrainer, MaskedTrainer

Sequences = ShuffledSequences | StreamedSequences


def prepare_text(options: TextPretrainOptions, processes: int, checkpoint: Path | None = None) -> TrainingTask:
    """Everything that a run on text needs; if it is resumed, with the tokeniser of its checkpoint.

    Raises UsageError, DataUnavailableError and DataError.
    """
    read_config(options.model, options.objective)  # a typo is reported before the data are read
    check_init(options.init)
    text = open_text(options.data, column=options.text_column, space_characters=options.space_characters)
    reference = options.tokenizer if checkpoint is None else str(checkpoint)
    tokeniser = prepare_tokeniser(reference, text, options.vocab_size, options.objective)
    config = configure_text(options, tokeniser)
    batch = options.batch_size * processes
    data = build_sequences(
        text, tokeniser, length=options.seq_len, pack=options.pack, batch=batch,
        count=options.steps * options.grad_accum * batch, seed=options.seed,
    )  # fmt: skip
    transformers.set_seed(options.seed)  # the weights depend on the seed alone, not on earlier draws
    model = build_text_model(config, options.objective)
    check_length(model, options.seq_len)
    changed = initialise(model, options.init, seed=options.seed)
    masked = options.objective == "mlm"
    collator = SeededMaskingCollator(
        tokeniser, mlm=masked, mlm_probability=options.mlm_probability, mask_seed=options.seed, packed=options.pack
    )
    return TrainingTask(
        model=model,
        data=data,
        collator=collator,
        processor=tokeniser,
        make_trainer=MaskedTrainer if masked else CausalTrainer,
        steps=options.steps,
        warmup=options.warmup,
        changed=changed,
        about=_describe_data(text.name, data, len(tokeniser)),
        count_rates=partial(_count_tokens, data, options.seq_len),
    )


def _describe_data(name: str, data: Sequences, vocabulary: int) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if isinstance(data, ShuffledSequences):
        known = {"tokens": data.distinct_tokens, "epochs": round(data.epochs, 3)}
    return {"name": name, "vocabulary": vocabulary, **known}


def _count_tokens(data: Sequences, length: int, sequences: int, seconds: float) -> dict[str, float]:
    """Tokens without padding, in all and per second."""
    tokens = data.tokens_until(sequences) if isinstance(data, ShuffledSequences) else sequences * length
    return {"tokens": tokens, "tokens_per_second": round(tokens / max(seconds, 1e-9), 1)}
