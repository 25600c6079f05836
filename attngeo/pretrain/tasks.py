"""A training run, prepared: model, data, batches and Trainer, for text or for images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from attngeo.pretrain.options import ImagePretrainOptions, TextPretrainOptions
from attngeo.pretrain.trainer import RunTrainer


@dataclass(frozen=True, kw_only=True)
class TrainingTask:
    """A model and what it is trained on.

    make_trainer: the Trainer's class, or a function that makes one. steps, warmup: updates. changed: parameters that
    the initialisation set. about: the data, for the summary. count_rates: tokens per second and the like, from the
    number of sequences and the seconds. others: further models to save, by folder name. evaluate: measures at the end.
    """

    model: PreTrainedModel
    data: Any
    collator: Any
    processor: Any
    make_trainer: Callable[..., RunTrainer]
    steps: int
    warmup: int
    changed: list[str]
    about: Mapping[str, Any]
    count_rates: Callable[[int, float], Mapping[str, float]]
    others: Mapping[str, Callable[[], PreTrainedModel]] = field(default_factory=dict)
    evaluate: Callable[[RunTrainer], Mapping[str, Any]] = lambda _: {}


def prepare_task(
    options: TextPretrainOptions | ImagePretrainOptions, processes: int, checkpoint: Path | None = None
) -> TrainingTask:
    """Everything that a run needs, made or loaded. A run on text that is resumed takes its tokeniser from `checkpoint`.

    Raises UsageError, DataUnavailableError and DataError.
    """
    if isinstance(options, ImagePretrainOptions):
        from attngeo.pretrain.images.task import prepare_images

        return prepare_images(options, processes)
    from attngeo.pretrain.text.task import prepare_text

    return prepare_text(options, processes, checkpoint)
