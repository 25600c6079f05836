"""Values and items drawn from a model: position by position, or in sweeps of Gibbs sampling."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attngeo.efa.modelling import PartModel
from attngeo.errors import DataError

# The largest mean of a value that is drawn.
LARGEST = 2.0**24


@torch.no_grad()
def draw_items(model: PartModel, sequences: int, length: int, *, causal: bool, sweeps: int, seed: int) -> Tensor:
    """Sequences of items, [sequences, length]. causal: one pass over the positions, instead of sweeps."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        items = torch.randint(0, model.shape.items, (sequences, length))
        known = torch.ones(items.shape, dtype=torch.bool)
        for position in _visit(length, 1 if causal else sweeps):
            items[:, position] = model.family.sample(model.natural_at(position, items, known))
    return items


@torch.no_grad()
def draw_values(model: PartModel, tensors: tuple[Tensor, ...], *, causal: bool, sweeps: int, seed: int) -> Tensor:
    """Values at each position, [N, I]. tensors: those of `PartModel.tensors`, whose values are not read.

    Raises DataError if values grow without limit: conditional distributions may have no joint one, as those of counts
    that raise each other.
    """
    rest = tensors[1:]
    known = rest[0]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        values = torch.zeros(known.shape)
        if not causal:  # a start of each value that depends on no other one
            for position in range(known.shape[1]):
                alone = known & (torch.arange(known.shape[1]) == position)
                natural = model.natural_at(position, values, alone, *rest[1:])
                values[:, position] = _draw(model, natural, known[:, position])
        for position in _visit(known.shape[1], 1 if causal else sweeps):
            values[:, position] = _draw(model, model.natural_at(position, values, *rest), known[:, position])
    return values


def _draw(model: PartModel, natural: Tensor, known: Tensor) -> Tensor:
    """A value for each known natural parameter, 0 for the others."""
    found = torch.zeros(known.shape)
    mean = model.family.mean(natural[known])
    # Counts of this size are no longer exact in single precision.
    if not mean.isfinite().all() or bool((mean.abs() > LARGEST).any()):
        raise DataError(
            "the drawn values grow without limit: the model's conditional distributions have no joint one; draw with a "
            "model of direction uni, or of another family"
        )
    return found.masked_scatter(known, model.family.sample(natural[known]).to(found.dtype))


def _visit(length: int, sweeps: int) -> Iterator[int]:
    for _ in range(sweeps):
        yield from range(length)
