"""What a fitted network says about sequences, some of them at a time: at all positions, or at one of each sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from attngeo.devices import explain_memory, pick_device
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
    """A function of batches of tensors, such as `model.mean`, at all places: [P, …]; 0 at unknown ones."""
    found: Tensor | None = None
    for some, batch in _batches(model, sequences, options):
        read = function(*batch).cpu()[sequences.take(some).at]
        if found is None:
            found = torch.zeros(len(sequences.rows), *read.shape[1:], dtype=read.dtype)
        found[sequences.find_places(some)] = read
    assert found is not None
    return found


@torch.no_grad()
@explain_memory(SMALLER)
def read_one(
    model: PartModel, sequences: Sequences, function: Callable[..., Tensor], asked: np.ndarray, options: EfaOptions
) -> Tensor:
    """A function such as `model.mean_at` at one place of each sequence, [P, …]; 0 at the others.

    asked: whether it is this place, [P].
    """
    places = np.flatnonzero(asked)
    positions = places - sequences.starts[:-1]
    found: Tensor | None = None
    for position in np.unique(positions):
        own = np.flatnonzero(positions == position)
        for some, batch in _batches(model, sequences.take(own), options):
            read = function(int(position), *batch).cpu()
            if found is None:
                found = torch.zeros(len(asked), *read.shape[1:], dtype=read.dtype)
            found[places[own[some]]] = read
    assert found is not None
    return found


def keep_means(means: Tensor) -> Tensor:
    """The means as they are."""
    return means


def find_best(means: Tensor) -> Tensor:
    """The largest probability of each row, and the number of its item, [..., 2]."""
    best = means.max(-1)
    return torch.stack([each.cpu().double() for each in best], -1)  # not every device has double precision


def split_sequences(sequences: Sequences, costs: np.ndarray, most: int = CHUNK) -> Iterator[Sequences]:
    """Some sequences at a time, in their order: as many as there is memory for when they are padded, at most `most`.

    costs: the numbers that a sequence of each length needs, [N].
    """
    at = 0
    while at < len(sequences):
        padded = np.maximum.accumulate(costs[at : at + most]) * np.arange(1, len(costs[at : at + most]) + 1)
        count = max(1, int((padded <= LARGEST).sum()))
        yield sequences.take(np.arange(at, at + count))
        at += count


def batch_similar(
    model: PartModel, sequences: Sequences, options: EfaOptions
) -> Iterator[tuple[np.ndarray, tuple[Tensor, ...]]]:
    """Numbers of sequences, and their tensors; long ones first, each with those that are at least half as long."""
    lengths = sequences.lengths
    order = np.argsort(-lengths, kind="stable")
    at = 0
    while at < len(order):
        longest = int(lengths[order[at]])
        some = order[at : at + count_together(longest, model.shape.items, options)]
        some = some[2 * lengths[some] >= longest]
        yield some, model.tensors(sequences.take(some))
        at += len(some)


def _batches(
    model: PartModel, sequences: Sequences, options: EfaOptions
) -> Iterator[tuple[np.ndarray, tuple[Tensor, ...]]]:
    """`batch_similar` on the device of the options, where the model is moved."""
    device = pick_device(options.device)
    model.to(device).eval()
    for some, batch in batch_similar(model, sequences, options):
        yield some, tuple(each.to(device) for each in batch)


def count_together(length: int, items: int, options: EfaOptions) -> int:
    """How many sequences of this length are read at once: copies of a long one are large, and so are many logits."""
    is_copied = options.model == "efa" and options.direction == "bi" and options.layers > 1
    largest = length * max(items, options.heads * length ** (2 if is_copied else 1))
    return max(1, min(CHUNK, LARGEST // largest))
