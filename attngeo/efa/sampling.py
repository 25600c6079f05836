"""Values and items drawn from a model: position by position, or in sweeps of Gibbs sampling."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attngeo.efa.modelling import PartModel


@torch.no_grad()
def draw_items(model: PartModel, sequences: int, length: int, *, causal: bool, sweeps: int, seed: int) -> Tensor:
    """Sequences of items, [sequences, length]. causal: one pass over the positions, instead of sweeps."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        items = torch.randint(0, model.shape.items, (sequences, length))
        known = torch.ones(items.shape, dtype=torch.bool)
        for position in _visit(length, 1 if causal else sweeps):
            seen = position + 1 if causal else length
            natural = model.natural(items[:, :seen], known[:, :seen])[:, position]
            items[:, position] = model.family.sample(natural)
    return items


@torch.no_grad()
def draw_values(model: PartModel, tensors: tuple[Tensor, ...], *, causal: bool, sweeps: int, seed: int) -> Tensor:
    """Values at each position, [N, I]. tensors: those of `PartModel.tensors`, whose values are not read."""
    rest = tensors[1:]
    known = rest[0]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        values = torch.zeros(known.shape)
        if not causal:  # a start of each value that depends on no other one
            for position in range(known.shape[1]):
                alone = known & (torch.arange(known.shape[1]) == position)
                natural = model.natural(values, alone, *rest[1:])[:, position]
                values[:, position] = model.family.sample(natural)
        for position in _visit(known.shape[1], 1 if causal else sweeps):
            values[:, position] = model.family.sample(model.natural(values, *rest)[:, position])
    return values


def _visit(length: int, sweeps: int) -> Iterator[int]:
    for _ in range(sweeps):
        yield from range(length)
