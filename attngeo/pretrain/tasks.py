"""What differs between training on text and on images: model, data, batches and the Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel, TrainerCallback

from attngeo.pretrain.initialisation import check_init, initialise
from attngeo.pretrain.models import build, check_length, read_config, text_config
from attngeo.pretrain.settings import Settings
from attngeo.pretrain.text.collator import SeededMaskingCollator
from attngeo.pretrain.text.sequences import ShuffledSequences, build_sequences
from attngeo.pretrain.text.sources import open_text
from attngeo.pretrain.text.tokeniser import prepare_tokeniser
from attngeo.pretrain.trainer import CausalTrainer, MaskedTrainer, RunTrainer


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model and what it is trained on.

    trainer: the Trainer's class, or a function that makes one. steps, warmup: updates. changed: parameters that the
    initialisation set. about: the data, for the summary. rates: tokens per second and the like, from the number of
    sequences and seconds. others: further models to save beside it, by folder name. finish: what is measured at the
    end.
    """

    model: PreTrainedModel
    data: Any
    collator: Any
    processor: Any
    trainer: Callable[..., RunTrainer]
    steps: int
    warmup: int
    changed: list[str]
    about: Mapping[str, Any]
    rates: Callable[[int, float], Mapping[str, float]]
    callbacks: list[TrainerCallback] = field(default_factory=list)
    others: Mapping[str, Callable[[], PreTrainedModel]] = field(default_factory=dict)
    finish: Callable[[RunTrainer], Mapping[str, Any]] = lambda _: {}


def prepare(settings: Settings, processes: int, checkpoint: Path | None = None) -> Task:
    """Everything a run needs, made or loaded; a run that goes on from a checkpoint takes its tokeniser from there.

    Raises UsageError, DataUnavailableError and DataError.
    """
    if settings.task == "image":
        from attngeo.pretrain.images import prepare_images

        return prepare_images(settings, processes)
    return _prepare_text(settings, processes, checkpoint)


def _prepare_text(settings: Settings, processes: int, checkpoint: Path | None) -> Task:
    read_config(settings.model, settings.objective)  # typos are told before the data are read
    check_init(settings.init)
    text = open_text(settings.data, column=settings.text_column, space_characters=settings.published_text)
    known = settings.tokenizer if checkpoint is None else str(checkpoint)
    tokeniser = prepare_tokeniser(known, text, settings.vocab_size, settings.objective)
    config = text_config(settings, tokeniser)
    batch = settings.batch_size * processes
    data = build_sequences(
        text, tokeniser, length=settings.seq_len, pack=settings.pack, batch=batch,
        count=settings.steps * settings.grad_accum * batch, seed=settings.seed,
    )  # fmt: skip
    transformers.set_seed(settings.seed)  # the weights depend on the seed alone, not on what was drawn before them
    model = build(config, settings.objective)
    check_length(model, settings.seq_len)
    changed = initialise(model, settings.init, seed=settings.seed)
    masked = settings.objective == "mlm"
    collator = SeededMaskingCollator(
        tokeniser, mlm=masked, mlm_probability=settings.mlm_probability, keyed_by=settings.seed, packed=settings.pack
    )
    return Task(
        model=model, data=data, collator=collator, processor=tokeniser,
        trainer=MaskedTrainer if masked else CausalTrainer, steps=settings.steps, warmup=settings.warmup,
        changed=changed, about=_about(text.name, data, len(tokeniser)),
        rates=partial(_token_rate, data, settings.seq_len),
    )  # fmt: skip


def _about(name: str, data: Any, vocabulary: int) -> dict[str, Any]:
    known = (
        {"tokens": data.distinct_tokens, "epochs": round(data.epochs, 3)} if isinstance(data, ShuffledSequences) else {}
    )
    return {"name": name, "vocabulary": vocabulary, **known}


def _token_rate(data: Any, length: int, sequences: int, seconds: float) -> dict[str, float]:
    """Tokens other than padding, altogether and each second."""
    tokens = data.tokens_until(sequences) if isinstance(data, ShuffledSequences) else sequences * length
    return {"tokens": tokens, "tokens_per_second": round(tokens / max(seconds, 1e-9), 1)}
