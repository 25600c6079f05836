"""Batches of sequences: in a random order, or of similar length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attngeo.errors import TableError
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.options import EfaOptions
from attngeo.estimators.efa.sequences import Sequences
from attngeo.training.loop import draw_generator

# Sequences that are read at once, and the numbers that their copies may have in a layer, or their logits.
CHUNK = 256
MOST_BATCH_NUMBERS = 2**25


def group_similar(model: PartModel, sequences: Sequences, options: EfaOptions) -> Iterator[np.ndarray]:
    """Group sequences to read at once, as their numbers: long ones first, with others at least half as long.

    Groups of long sequences are small, because their copies and their logits are large.
    """
    is_copied = options.model == "efa" and not options.causal and options.n_layers > 1
    lengths = sequences.lengths
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        weights = options.n_heads * (longest**2 if is_copied else longest)
        most = MOST_BATCH_NUMBERS // (longest * max(model.shape.items, weights))
        group = order[start : start + max(1, min(CHUNK, most))]
        group = group[2 * lengths[group] >= longest]
        yield group
        start += len(group)


def hold_out(sequences: Sequences, options: EfaOptions) -> tuple[Sequences, Sequences]:
    """Split sequences into training ones and a random held-out fraction. Raises TableError if either is empty."""
    total = len(sequences)
    count = round(options.validation_fraction * total)
    if not 0 < count < total:
        raise TableError(
            f"{total} sequences, too few to hold out a fraction of {options.validation_fraction:g}; give more, or a "
            "validation table, or set validation_fraction to 0"
        )
    order = torch.randperm(total, generator=draw_generator(options.random_state, 2)).numpy()
    return sequences.take(np.sort(order[count:])), sequences.take(np.sort(order[:count]))


@dataclass(frozen=True)
class SequenceBatches:
    """Batches of sequences in a random order, each as long as its longest one.

    Held-out sequences are grouped by length instead, so that a long one is read with few others.

    Attributes:
        model: the model that reads the batches.
        sequences: the data.
        options: size of the batches, and the seed.
        are_held_out: whether the sequences are held out.
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
