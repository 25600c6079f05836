"""Batches of sequences of similar length, and the training of a model on batches in a random order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from attngeo.errors import TableError
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.options import Architecture, EfaOptions
from attngeo.estimators.efa.sequences import Sequences
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.training.loop import History, draw_generator, limited_threads, train

# Sequences that are read at once, and the numbers that their copies may have in a layer, or their logits.
CHUNK = 256
MOST_NUMBERS = 2**25
# Numbers in the tokens of a batch below which one thread is about as fast as two (`tests/benchmarks/test_busy.py`).
UNDIVIDED = 2**13


def group_similar(model: PartModel, sequences: Sequences, options: EfaOptions) -> Iterator[np.ndarray]:
    """Numbers of sequences that are read at once; long ones first, together with those at least half as long.

    Of long ones they are few: their copies are large, and so are many logits.
    """
    is_copied = options.model == "efa" and not options.causal and options.n_layers > 1
    lengths = sequences.lengths
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        weights = options.n_heads * (longest**2 if is_copied else longest)
        most = MOST_NUMBERS // (longest * max(model.shape.items, weights))
        group = order[start : start + max(1, min(CHUNK, most))]
        group = group[2 * lengths[group] >= longest]
        yield group
        start += len(group)


def hold_out(sequences: Sequences, options: EfaOptions) -> tuple[Sequences, Sequences]:
    """Training sequences, and a random fraction that is held out. Raises TableError if one of them has none."""
    total = len(sequences)
    count = round(options.validation_fraction * total)
    if not 0 < count < total:
        raise TableError(
            f"{total} sequences, of which a fraction of {options.validation_fraction:g} cannot be held out; "
            "give more, or a validation table, or set validation_fraction to 0"
        )
    order = torch.randperm(total, generator=draw_generator(options.random_state, 2)).numpy()
    return sequences.take(np.sort(order[count:])), sequences.take(np.sort(order[:count]))


@dataclass(frozen=True)
class SequenceBatches:
    """Batches of sequences in a random order, each as long as its longest one.

    Those that are held out have no order: sequences of about one length are together, so that a long one is read with
    few others.
    """

    model: PartModel
    sequences: Sequences
    options: EfaOptions
    are_held_out: bool = False

    def epoch(self, number: int) -> Iterator[tuple[Any, ...]]:
        """The batches of an epoch, from 0."""
        if self.are_held_out:
            groups = group_similar(self.model, self.sequences, self.options)
        else:
            order = torch.randperm(len(self.sequences), generator=draw_generator(self.options.random_state, number))
            groups = (group.numpy() for group in torch.split(order, self.options.batch_size))
        for group in groups:
            yield (self.model.batch(self.sequences.take(group)),)


def train_model(
    model: PartModel,
    tables: Sequence[Sequences],
    options: EfaOptions,
    architecture: Architecture,
    *,
    folder: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> History:
    """Train a part on the first table, and end with the weights of the lowest loss on the second one, if there is one.

    folder, progress: of `training.loop.train`, which raises as there.
    """
    train_batches, *others = (
        SequenceBatches(model, sequences, options, are_held_out=number > 0) for number, sequences in enumerate(tables)
    )
    training = options.training(
        weight_decay=options.weight_decay,
        patience=options.patience or None,
        seed=options.random_state,
        precision=options.precision,
    )
    numbers = options.batch_size * options.width * tables[0].lengths.mean()
    with limited_threads(is_small=numbers < UNDIVIDED):
        return train(
            model,
            train_batches,
            options=training,
            validation=others[0] if others else None,
            folder=folder,
            identity=_identify(tables, options, architecture),
            progress=progress,
        )


def join_histories(histories: Sequence[History]) -> History:
    """The losses of several parts as the columns of one history; NaN after a part has stopped. One part stays as it is.

    best_epoch: [parts].
    """
    if len(histories) == 1:
        return histories[0]
    losses = {}
    for name in ("train", "validation"):
        columns = [pd.Series(getattr(history, name), dtype=float) for history in histories]
        losses[name] = pd.concat(columns, axis=1).to_numpy()
    return History(**losses, best_epoch=np.concatenate([history.best_epoch for history in histories]))


def _identify(tables: Sequence[Sequences], options: EfaOptions, architecture: Architecture) -> str:
    """A digest of the model and its data, by which an unfinished training is recognised."""
    digest = hashlib.sha256(f"{options.replace(device='cpu')!r} {architecture!r}".encode())
    for sequences in tables:
        digest.update(sequences.starts.tobytes())
        for name, tensor in sequences.tensors():
            digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
