"""Numbers of a fitted model at all positions of sequences: predictions, samples, and weights of attention.

Sequences are read a group at a time, on the device of the options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attngeo.devices import explain_memory, pick_device
from attngeo.errors import DataError
from attngeo.estimators.efa.batches import CHUNK, MOST_NUMBERS, group_similar
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.networks import Batch
from attngeo.estimators.efa.options import EfaOptions
from attngeo.estimators.efa.sequences import Sequences

# The advice if sequences need too much memory.
SMALLER = "give shorter sequences, or fit with layers 1 or direction uni"
# The largest mean of a value that is drawn: larger counts are not exact in single precision.
LARGEST_DRAWN = 2.0**24


@torch.no_grad()
@explain_memory(SMALLER)
def read_all(
    model: PartModel, sequences: Sequences, function: Callable[[Batch], Tensor], options: EfaOptions
) -> Tensor:
    """A function of batches, such as `model.mean`, at all entries: [P, …]."""
    device = pick_device(options.device)
    model.to(device).eval()
    results: Tensor | None = None
    for numbers in group_similar(model, sequences, options):
        group = sequences.take(numbers)
        result = function(model.batch(group).to(device)).cpu()[group.index]
        if results is None:
            results = torch.zeros(len(sequences.rows), *result.shape[1:], dtype=result.dtype)
        results[sequences.find_entries(numbers)] = result
    assert results is not None
    return results


@torch.no_grad()
def draw_items(model: PartModel, batch: Batch, *, causal: bool, sweeps: int, seed: int) -> Tensor:
    """Items at each position, [N, I]. Those of the batch are not read. causal: one pass, instead of sweeps."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        items = torch.randint(0, model.shape.items, batch.known.shape)
        batch = replace(batch, items=items)  # whose items change with each draw
        for _ in range(1 if causal else sweeps):
            for position in range(items.shape[1]):
                items[:, position] = model.change(model.natural_at(position, batch), "sample")
    return items


@torch.no_grad()
def draw_values(model: PartModel, batch: Batch, *, causal: bool, sweeps: int, seed: int) -> Tensor:
    """Values at each position, [N, I, columns]. Those of the batch are not read.

    Raises DataError if values grow without limit: conditional distributions may have no joint one, as those of counts
    that raise each other.
    """
    known = batch.known
    length = known.shape[1]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        values = torch.zeros(*known.shape, len(model.families))
        if not causal:  # a start of each value that depends on no other one
            for position in range(length):
                is_alone = known & (torch.arange(length) == position)
                start = model.natural_at(position, replace(batch, known=is_alone, values=values))
                values[:, position] = _draw_known(model, start, known[:, position])
        batch = replace(batch, values=values)  # which change with each draw
        for _ in range(1 if causal else sweeps):
            for position in range(length):
                values[:, position] = _draw_known(model, model.natural_at(position, batch), known[:, position])
    return values


def _draw_known(model: PartModel, natural: Tensor, known: Tensor) -> Tensor:
    """Values for known natural parameters, [N, columns], 0 for the others."""
    mean = model.change(natural[known], "mean")
    if not mean.isfinite().all() or bool((mean.abs() > LARGEST_DRAWN).any()):
        raise DataError(
            "the drawn values grow without limit: the model's conditional distributions have no joint one; draw with a "
            "model of direction uni, or of another family"
        )
    drawn = model.change(natural[known], "sample").float()
    return torch.zeros(natural.shape).masked_scatter(known[:, None], drawn)


@torch.no_grad()
def tabulate_attention(model: PartModel, sequences: Sequences, *, causal: bool) -> pd.DataFrame:
    """The weights of pairs of known positions, as rows; columns are those of `attention_weights`, without items."""
    shape = model.attention.shape
    costs = shape.layers * shape.heads * (1 + model.shape.lags) * sequences.lengths**2
    tables = []
    start = 0
    while start < len(sequences):  # as many sequences as there is memory for when they are padded
        chunk = costs[start : start + CHUNK]
        padded = np.maximum.accumulate(chunk) * np.arange(1, len(chunk) + 1)
        end = start + max(1, int((padded <= MOST_NUMBERS).sum()))
        tables.append(_tabulate_weights(model, sequences.take(np.arange(start, end)), causal=causal))
        start = end
    return pd.concat(tables, ignore_index=True)


def _tabulate_weights(model: PartModel, sequences: Sequences, *, causal: bool) -> pd.DataFrame:
    """The same of some sequences: a pass for each position, which is masked in it."""
    tokens = model.embed(model.batch(sequences))
    shape = model.attention.shape
    known = sequences.pad(sequences.known).numpy()
    rows = sequences.pad(torch.as_tensor(sequences.rows)).numpy()
    positions = known.shape[1]
    total = tokens.known.shape[1]  # each position at each time
    times = total // positions
    weights = torch.zeros(len(sequences), shape.layers, shape.heads, positions, total)
    for position in range(positions):
        steps = model.attention.step_copy(*tokens[:3], position, causal=causal)
        for number, (_, layer_weights) in enumerate(steps):
            weights[:, number, :, position] = layer_weights[:, :, position]
    is_pair = known[:, :, None] & np.tile(known, times)[:, None]
    if causal:
        is_pair &= np.tile(np.tri(positions, dtype=bool), times)
    sequence, layer, head, i, j = np.nonzero(np.broadcast_to(is_pair[:, None, None], weights.shape))
    return pd.DataFrame(
        {
            "sequence": sequences.names[sequence],
            "layer": layer,
            "head": head,
            "row": rows[sequence, i],
            "other": rows[sequence, j % positions],
            "position": i,
            "other_position": j % positions,
            "lag": j // positions,
            "weight": weights.numpy()[sequence, layer, head, i, j],
        }
    )
