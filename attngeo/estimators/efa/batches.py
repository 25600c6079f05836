"""Sequences that are read together, and the training of a model on them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attngeo.errors import TableError
from attngeo.estimators.efa.model import JointModel, PartModel
from attngeo.estimators.efa.options import Architecture, EfaOptions
from attngeo.estimators.efa.sequences import Sequences
from attngeo.training.loop import History, draw_generator, limited_threads, train

# Sequences that are read at once, and the numbers that their copies may have in a layer, or their logits.
CHUNK, LARGEST = 256, 2**25
# Numbers in the tokens of a batch below which one thread is about as fast as two (`tests/benchmarks/test_busy.py`).
UNDIVIDED = 2**13


def group_similar(model: PartModel, sequences: Sequences, options: EfaOptions) -> Iterator[np.ndarray]:
    """Numbers of sequences that are read at once; long ones first, together with those at least half as long."""
    lengths = sequences.lengths
    order = np.argsort(-lengths, kind="stable")
    at = 0
    while at < len(order):
        longest = int(lengths[order[at]])
        some = order[at : at + _count_together(longest, model.shape.items, options)]
        some = some[2 * lengths[some] >= longest]
        yield some
        at += len(some)


def _count_together(length: int, items: int, options: EfaOptions) -> int:
    """How many sequences of this length are read at once: copies of a long one are large, and so are many logits."""
    is_copied = options.model == "efa" and not options.causal and options.n_layers > 1
    largest = length * max(items, options.n_heads * length ** (2 if is_copied else 1))
    return max(1, min(CHUNK, LARGEST // largest))


def hold_out(sequences: Sequences, options: EfaOptions) -> list[Sequences]:
    """Training sequences, and a random fraction that is held out. Raises TableError if one of them has none."""
    total = len(sequences)
    count = round(options.validation_fraction * total)
    if not 0 < count < total:
        raise TableError(
            f"{total} sequences, of which a fraction of {options.validation_fraction:g} cannot be held out; "
            "give more, or a validation table, or set validation_fraction to 0"
        )
    order = torch.randperm(total, generator=draw_generator(options.random_state, 2)).numpy()
    return [sequences.take(np.sort(some)) for some in (order[count:], order[:count])]


@dataclass(frozen=True)
class SequenceBatches:
    """Batches of sequences in a random order, each as long as its longest one; one for each part of the model.

    parts: the same sequences, as each part reads them. Those that are held out have no order: sequences of about one
    length are together, so that a long one is read with few others.
    """

    model: PartModel | JointModel
    parts: Sequence[Sequences]
    options: EfaOptions
    are_held_out: bool = False

    def epoch(self, number: int) -> Iterator[tuple[Any, ...]]:
        """The batches of an epoch, from 0."""
        if self.are_held_out:
            groups = group_similar(self.model.parts[0], self.parts[0], self.options)
        else:
            order = torch.randperm(len(self.parts[0]), generator=draw_generator(self.options.random_state, number))
            groups = (some.numpy() for some in torch.split(order, self.options.batch_size))
        for some in groups:
            pairs = zip(self.model.parts, self.parts, strict=True)
            yield tuple(part.batch(sequences.take(some)) for part, sequences in pairs)


def train_model(
    model: PartModel | JointModel, tables: Sequence[Sequence[Sequences]], options: EfaOptions,
    architecture: Architecture, **about: Any,
) -> History:  # fmt: skip
    """Train on the first table, and end with the weights of the lowest loss on the second one, if there is one.

    tables: each as the parts of the model read it. about: folder and progress of `training.loop.train`, which raises as
    there.
    """
    digest = hashlib.sha256(f"{options.replace(device='cpu')!r} {architecture!r}".encode())
    for sequences in (part for table in tables for part in table):
        digest.update(sequences.starts.tobytes())
        for name, tensor in sequences.tensors():
            digest.update(name.encode() + tensor.numpy().tobytes())
    batches = [SequenceBatches(model, table, options, at > 0) for at, table in enumerate(tables)]
    training = options.training(
        weight_decay=options.weight_decay, patience=options.patience or None, seed=options.random_state,
        precision=options.precision,
    )  # fmt: skip
    numbers = options.batch_size * options.width * tables[0][0].lengths.mean()
    with limited_threads(is_small=numbers < UNDIVIDED):
        return train(
            model, batches[0], options=training, validation=batches[1] if len(tables) > 1 else None,
            identity=digest.hexdigest(), **about,
        )  # fmt: skip
