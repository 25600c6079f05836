"""Numbers of a fitted model at all positions of sequences: predictions, samples, and weights of attention.

Sequences are read a group at a time, on the device of the options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attngeo.devices import explain_memory, pick_device
from attngeo.errors import DataError
from attngeo.estimators.efa.batches import CHUNK, MOST_BATCH_NUMBERS, group_similar
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.networks import Batch
from attngeo.estimators.efa.options import EfaOptions
from attngeo.estimators.efa.sequences import Sequences

# The advice if sequences need too much memory.
MEMORY_ADVICE = "give shorter sequences, or fit with layers 1 or direction uni"
# The largest mean of a value that is drawn: larger counts are not exact in single precision.
LARGEST_DRAWN = 2.0**24
# Probabilities of items beside another one that a mean is over, unless that is of fewer items than these.
MOST_PROBABILITIES_BESIDE = 2**27
FEWEST_ITEMS = 256


@torch.no_grad()
@explain_memory(MEMORY_ADVICE)
def read_all(
    model: PartModel, sequences: Sequences, function: Callable[[Batch], Tensor], options: EfaOptions
) -> Tensor:
    """The results of a function of batches, such as `model.mean`, for all entries: [P, …]."""
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


class Beside(NamedTuple):
    """Probabilities of items beside an item: at the next position of a sequence with this item alone, [D] each.

    Attributes:
        chances: p(other | item).
        usual: p(other), the mean of p(other | one item) over all items but the other.
        reverse: p(item | other); NaN for items that the mean leaves out.
    """

    chances: np.ndarray
    usual: np.ndarray
    reverse: np.ndarray


@torch.no_grad()
@explain_memory(MEMORY_ADVICE)
def predict_beside(model: PartModel, item: int, weights: np.ndarray, options: EfaOptions) -> Beside:
    """The probabilities of all items beside one. With more than 11,585 items, means are over the largest weights.

    Args:
        model: a model of items, without covariates.
        item: number of the item.
        weights: weights of the items in the means, [D].
        options: of the model.
    """
    device = pick_device(options.device)
    model.to(device).eval()
    total = model.shape.items
    most = min(total, max(FEWEST_ITEMS, MOST_PROBABILITIES_BESIDE // total))
    averaged = np.argsort(-weights, kind="stable")[:most]
    sums = np.zeros(total)
    reverse = np.full(total, np.nan)
    step = max(1, MOST_BATCH_NUMBERS // total)
    for start in range(0, most, step):
        some = averaged[start : start + step]
        chances = _predict_next(model, some, device)
        reverse[some] = chances[:, item]
        chances[np.arange(len(some)), some] = 0
        sums += weights[some] @ chances
    divisor = np.full(total, weights[averaged].sum())
    divisor[averaged] -= weights[averaged]
    chances = _predict_next(model, np.array([item]), device)[0]
    return Beside(chances, sums / divisor, reverse)


def _predict_next(model: PartModel, items: np.ndarray, device: torch.device) -> np.ndarray:
    """The probabilities of all items at the second position of sequences whose first one is known, [N, D].

    items: at the first position of each, [N].
    """
    known = torch.tensor([True, False]).expand(len(items), 2)
    numbers = torch.stack([torch.as_tensor(items), torch.zeros(len(items), dtype=torch.long)], 1)
    batch = Batch(known=known, items=numbers, present=torch.ones_like(known))
    natural = model.natural_at(1, batch.to(device)).cpu().double()  # some devices have no double
    return model.change(natural, "mean").numpy()


@torch.no_grad()
def draw_sequences(model: PartModel, batch: Batch, *, causal: bool, sweeps: int, seed: int) -> Tensor:
    """Draw items at each position, [N, I], or values, [N, I, columns]. Items or values of the batch are not read.

    causal: one pass, instead of sweeps. Raises DataError if values grow without limit: conditional distributions may
    have no joint distribution, for example of counts that increase each other.
    """
    known = batch.known
    length = known.shape[1]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        if model.is_of_items:
            drawn = torch.randint(0, model.shape.items, known.shape)
            batch = replace(batch, items=drawn)  # which change with each draw
        else:
            drawn = torch.zeros(*known.shape, len(model.families))
            batch = replace(batch, values=drawn)
            if not causal:  # a start of each value that depends on no other one
                for position in range(length):
                    is_alone = known & (torch.arange(length) == position)
                    start = model.natural_at(position, replace(batch, known=is_alone))
                    drawn[:, position] = _draw_values(model, start, known[:, position])
        for _ in range(1 if causal else sweeps):
            for position in range(length):
                natural = model.natural_at(position, batch)
                if model.is_of_items:
                    drawn[:, position] = model.change(natural, "sample")
                else:
                    drawn[:, position] = _draw_values(model, natural, known[:, position])
    return drawn


def _draw_values(model: PartModel, natural: Tensor, known: Tensor) -> Tensor:
    """Values for known natural parameters, [N, columns], 0 for the others."""
    mean = model.change(natural[known], "mean")
    if not mean.isfinite().all() or bool((mean.abs() > LARGEST_DRAWN).any()):
        raise DataError(
            "the drawn values grow without limit: no joint distribution has the model's conditional distributions; "
            "draw with a model that has direction uni, or a different family"
        )
    drawn = model.change(natural[known], "sample").float()
    return torch.zeros(natural.shape).masked_scatter(known[:, None], drawn)


@torch.no_grad()
def tabulate_attention(model: PartModel, sequences: Sequences, *, causal: bool) -> pd.DataFrame:
    """The weights of pairs of known positions, as rows with the columns of `attention_weights`, without items.

    Args:
        model: the model.
        sequences: the rows.
        causal: whether a position sees only those before it.
    """
    shape = model.attention.shape
    costs = shape.layers * shape.heads * (1 + model.shape.lags) * sequences.lengths**2
    tables = []
    start = 0
    while start < len(sequences):  # as many sequences as there is memory for when they are padded
        chunk = costs[start : start + CHUNK]
        padded = np.maximum.accumulate(chunk) * np.arange(1, len(chunk) + 1)
        end = start + max(1, int((padded <= MOST_BATCH_NUMBERS).sum()))
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
            "attended_row": rows[sequence, j % positions],
            "position": i,
            "attended_position": j % positions,
            "lag": j // positions,
            "weight": weights.numpy()[sequence, layer, head, i, j],
        }
    )
