"""A fitted network at all positions of sequences, some at a time; its weights of attention; and what it draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat

import numpy as np
import torch
from torch import Tensor

from attngeo.devices import explain_memory, pick_device
from attngeo.errors import DataError
from attngeo.estimators.efa.attention import MaskedAttention
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.networks import Batch, Tokens
from attngeo.estimators.efa.options import EfaOptions
from attngeo.estimators.efa.sequences import Sequences

# Sequences that are read at once, and the numbers that their copies may have in a layer, or their logits.
CHUNK, LARGEST = 256, 2**25
# What to do if they need too much memory.
SMALLER = "give shorter sequences, or fit with layers 1 or direction uni"
# The largest mean of a value that is drawn: larger counts are not exact in single precision.
LARGEST_DRAWN = 2.0**24


@torch.no_grad()
@explain_memory(SMALLER)
def read_all(
    model: PartModel, sequences: Sequences, function: Callable[[Batch], Tensor], options: EfaOptions
) -> Tensor:
    """A function of batches, such as `model.mean`, at all places: [P, …]."""
    device = pick_device(options.device)
    model.to(device).eval()
    results: Tensor | None = None
    for some, batch in batch_similar(model, sequences, options):
        result = function(batch.to(device)).cpu()[sequences.take(some).at]
        if results is None:
            results = torch.zeros(len(sequences.rows), *result.shape[1:], dtype=result.dtype)
        results[sequences.find_places(some)] = result
    assert results is not None
    return results


def find_best(means: Tensor) -> Tensor:
    """The largest probability of each row, and the number of its item, [..., 2]."""
    best = means.max(-1)
    return torch.stack([part.cpu().double() for part in best], -1)  # not every device has double precision


def batch_similar(model: PartModel, sequences: Sequences, options: EfaOptions) -> Iterator[tuple[np.ndarray, Batch]]:
    """Numbers of sequences, and their batch; long ones first, together with those at least half as long."""
    lengths = sequences.lengths
    order = np.argsort(-lengths, kind="stable")
    at = 0
    while at < len(order):
        longest = int(lengths[order[at]])
        some = order[at : at + _count_together(longest, model.shape.items, options)]
        some = some[2 * lengths[some] >= longest]
        yield some, model.batch(sequences.take(some))
        at += len(some)


def _count_together(length: int, items: int, options: EfaOptions) -> int:
    """How many sequences of this length are read at once: copies of a long one are large, and so are many logits."""
    is_copied = options.model == "efa" and not options.causal and options.layers > 1
    largest = length * max(items, options.heads * length ** (2 if is_copied else 1))
    return max(1, min(CHUNK, LARGEST // largest))


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


@torch.no_grad()
def read_weights(attention: MaskedAttention, tokens: Tokens, *, causal: bool) -> Tensor:
    """How much each position, when it is masked, attends to each token: [B, layers, H, I, J]; a pass for each position.

    Softmax weights of a position sum to 1; its own one is that of its mask. Those of unknown positions are meaningless.
    """
    shape, (sequences, total) = attention.shape, tokens.known.shape
    positions = tokens.masked.shape[1]
    weights = torch.zeros(sequences, shape.layers, shape.heads, positions, total, device=tokens.tokens.device)
    for i in range(positions):
        for layer, (_, of_layer) in enumerate(attention.step_copy(*tokens[:3], i, causal=causal)):
            weights[:, layer, :, i] = of_layer[:, :, i]
    return weights


@torch.no_grad()
def draw_items(model: PartModel, sequences: int, length: int, *, causal: bool, sweeps: int, seed: int) -> Tensor:
    """Sequences of items, [sequences, length]. causal: one pass over the positions, instead of sweeps."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        items = torch.randint(0, model.shape.items, (sequences, length))
        batch = Batch(torch.ones(items.shape, dtype=torch.bool), items)
        for position in _visit(length, 1 if causal else sweeps):
            items[:, position] = model.family.sample(model.natural_at(position, batch))
    return items


@torch.no_grad()
def draw_values(model: PartModel, batch: Batch, *, causal: bool, sweeps: int, seed: int) -> Tensor:
    """Values at each position, [N, I]. Those of the batch are not read.

    Raises DataError if values grow without limit: conditional distributions may have no joint one, as those of counts
    that raise each other.
    """
    known, length = batch.known, batch.known.shape[1]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        values = torch.zeros(known.shape)
        if not causal:  # a start of each value that depends on no other one
            for position in range(length):
                alone = known & (torch.arange(length) == position)
                start = model.natural_at(position, replace(batch, known=alone, values=values))
                values[:, position] = _draw(model, start, known[:, position])
        others = replace(batch, values=values)
        for position in _visit(length, 1 if causal else sweeps):
            values[:, position] = _draw(model, model.natural_at(position, others), known[:, position])
    return values


def _draw(model: PartModel, natural: Tensor, known: Tensor) -> Tensor:
    """A value for each known natural parameter, 0 for the others."""
    mean = model.family.mean(natural[known])
    if not mean.isfinite().all() or bool((mean.abs() > LARGEST_DRAWN).any()):
        raise DataError(
            "the drawn values grow without limit: the model's conditional distributions have no joint one; draw with a "
            "model of direction uni, or of another family"
        )
    return torch.zeros(known.shape).masked_scatter(known, model.family.sample(natural[known]).float())


def _visit(length: int, sweeps: int) -> Iterator[int]:
    """The positions, once for each sweep."""
    return chain.from_iterable(repeat(range(length), sweeps))
