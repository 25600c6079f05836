"""What a fitted network says about sequences, some of them at a time: at all positions, or at one of each sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from attngeo.devices import explain_memory, pick_device
from attngeo.efa.attention import measure_lengths
from attngeo.efa.modelling import PartModel
from attngeo.efa.options import EfaOptions
from attngeo.efa.sequences import Sequences

# Sequences that are read at once, and the numbers that their copies may have in a layer, or their logits.
CHUNK, LARGEST = 256, 2**25
# What to do if they need too much memory.
SMALLER = "give shorter sequences, or fit with layers 1 or direction uni"


@torch.no_grad()
@explain_memory(SMALLER)
def read_all(model: PartModel, sequences: Sequences, function: Callable[..., Tensor], options: EfaOptions) -> Tensor:
    """A function of batches of tensors, such as `model.mean`, at all positions: [N, I, …]; 0 at unknown ones."""
    found: Tensor | None = None
    for rows, batch in _batches(model, sequences, options):
        read = function(*batch).cpu()
        if found is None:
            found = torch.zeros(*sequences.known.shape, *read.shape[2:], dtype=read.dtype)
        found[rows, : read.shape[1]] = read
    assert found is not None
    return found


@torch.no_grad()
@explain_memory(SMALLER)
def read_one(
    model: PartModel, sequences: Sequences, function: Callable[..., Tensor], asked: np.ndarray, options: EfaOptions
) -> Tensor:
    """A function such as `model.mean_at` at one position of each sequence, [N, I, …]; 0 at the others.

    asked: which position, [N, I].
    """
    positions = asked.argmax(1)
    found: Tensor | None = None
    for position in np.unique(positions):
        own = np.flatnonzero(positions == position)
        for rows, batch in _batches(model, sequences.take(own), options):
            read = function(int(position), *batch).cpu()
            if found is None:
                found = torch.zeros(*asked.shape, *read.shape[1:], dtype=read.dtype)
            found[own[rows.numpy()], position] = read
    assert found is not None
    return found


def keep_means(means: Tensor) -> Tensor:
    """The means as they are."""
    return means


def find_best(means: Tensor) -> Tensor:
    """The largest probability of each row, and the number of its item, [..., 2]."""
    best = means.max(-1)
    return torch.stack([each.cpu().double() for each in best], -1)  # not every device has double precision


def split_sequences(sequences: Sequences) -> Iterator[Sequences]:
    """Some sequences at a time, in their order."""
    for at in range(0, len(sequences), CHUNK):
        yield sequences.take(np.arange(at, min(at + CHUNK, len(sequences))))


def _batches(
    model: PartModel, sequences: Sequences, options: EfaOptions
) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
    """Numbers of sequences, and their tensors on the device of the options, where the model is moved; long ones first,
    so that sequences of about one length are read together.
    """
    device = pick_device(options.device)
    model.to(device).eval()
    lengths, order = measure_lengths(sequences.known).sort(descending=True, stable=True)
    at = 0
    while at < len(order):
        rows = order[at : at + count_together(int(lengths[at]), model.shape.items, options)]
        batch = model.trim(model.tensors(sequences.take(rows.numpy())))
        yield rows, tuple(each.to(device) for each in batch)
        at += len(rows)


def count_together(length: int, items: int, options: EfaOptions) -> int:
    """How many sequences of this length are read at once: copies of a long one are large, and so are many logits."""
    is_copied = options.model == "efa" and options.direction == "bi" and options.layers > 1
    largest = length * max(items, options.heads * length ** (2 if is_copied else 1))
    return max(1, min(CHUNK, LARGEST // largest))
