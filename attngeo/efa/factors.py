"""Latent factor models, which exponential family attention is compared with: fixed weights instead of attention.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), propositions 1 to 3, sections 6.2 and 6.4.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from attngeo.efa.network import make_network
from attngeo.errors import UsageError

# What the sum of a context is divided by: one less than the length, as in the paper; nothing, as in its code for items;
# the number of positions that are seen, as in its code for values.
Pooling = Literal["mean", "sum", "seen"]


class ItemFactors(nn.Module):
    """Logits of the item at each position: ρᵀ Σ_j α_{x_j} / (I − 1) over the other positions (Prop. 1).

    items: D. size: K. causal: whether the sum is over the positions before it. start: whether a learned vector is added
    to that sum, so that the first position has one, too, as in the code of the paper.

    center.weight: ρ, [D, K]. context.weight: α, [D, K].
    """

    def __init__(
        self, items: int, size: int, *, causal: bool = False, pooling: Pooling = "mean", start: bool = False
    ) -> None:
        super().__init__()
        self.causal, self.pooling = causal, pooling
        self.context = nn.Embedding(items, size)
        self.center = nn.Linear(size, items, bias=False)
        self.start = nn.Parameter(torch.zeros(size)) if start else None

    def forward(self, items: Tensor, known: Tensor) -> Tensor:
        """Logits of all items, [B, I, D]. items, known: [B, I]."""
        vectors = self.context(torch.where(known, items, 0))
        context = pool_others(vectors, known, causal=self.causal, pooling=self.pooling)
        logits: Tensor = self.center(context if self.start is None else context + self.start)
        return logits


class ValueFactors(nn.Module):
    """A number for the value at each position: ρ_{x_i}·Σ_j α_{x_j} y_j / (I − 1) over the other positions (Prop. 3).

    As `ItemFactors`; center.weight and context.weight are ρ and α, [D, K].
    """

    def __init__(
        self, items: int, size: int, *, causal: bool = False, pooling: Pooling = "mean", start: bool = False
    ) -> None:
        super().__init__()
        self.causal, self.pooling = causal, pooling
        self.context, self.center = nn.Embedding(items, size), nn.Embedding(items, size)
        for table in (self.context, self.center):  # products of about 1/√K: those of torch's start overflow as counts
            nn.init.normal_(table.weight, std=size**-0.5)
        self.start = nn.Parameter(torch.zeros(size)) if start else None

    def forward(self, values: Tensor, known: Tensor, items: Tensor) -> Tensor:
        """A real number for each position, [B, I]. values, known, items: [B, I]."""
        items, values = torch.where(known, items, 0), torch.where(known, values, 0)
        vectors = self.context(items) * values[..., None]
        context = pool_others(vectors, known, causal=self.causal, pooling=self.pooling)
        raw: Tensor = (self.center(items) * (context if self.start is None else context + self.start)).sum(-1)
        return raw


class SpatialFactors(nn.Module):
    """A number for the value at each place: h(τ_i)·Σ_j h(τ_j) y_j over its neighbours (Prop. 2).

    distances: between places, [I, I]. neighbours: how many of the nearest places are in the sum; None for all others.
    h is a network with `hidden` ReLU units; for other ones, set `place`.
    """

    neighbour: Tensor

    def __init__(
        self, distances: Tensor, coordinates: int, size: int = 32, *, neighbours: int | None = None, hidden: int = 128
    ) -> None:
        super().__init__()
        places = len(distances)
        wanted = places - 1 if neighbours is None else neighbours
        if not 1 <= wanted < places:
            raise UsageError(f"neighbours is {wanted}, expected from 1 to {places - 1}: the places but one")
        others = distances.masked_fill(torch.eye(places, dtype=torch.bool), float("inf"))
        nearest = others.argsort(dim=1, stable=True)[:, :wanted]
        self.register_buffer("neighbour", torch.zeros(places, places).scatter_(1, nearest, 1.0), persistent=False)
        self.place = make_network(coordinates, (hidden,), size)

    def forward(self, values: Tensor, coordinates: Tensor) -> Tensor:
        """A real number for each place, [B, I]. values: [B, I]. coordinates: τ, [I, dimensions]."""
        h = self.place(coordinates)
        raw: Tensor = values @ (h @ h.T * self.neighbour.to(h.dtype)).T
        return raw


def pool_others(vectors: Tensor, known: Tensor, *, causal: bool, pooling: Pooling) -> Tensor:
    """The sum of the vectors of the other known positions, or of those before, over I − 1 for a mean: [B, I, K].

    I is the number of known positions in both directions, as in the paper: the mean of those before position i has the
    same divisor for every i. With pooling "seen", it is the number of those before, or 1.
    """
    vectors = vectors * known[..., None]
    summed = _sum_before(vectors)  # not a sum less the own vector, whose rounding would show it
    if not causal:
        summed = summed + _sum_before(vectors.flip(1)).flip(1)
    if pooling == "sum":
        return summed
    others = known.sum(1, keepdim=True) - 1
    if pooling == "seen" and causal:
        others = known.cumsum(1) - known.long()
    return summed / others.clamp(min=1)[..., None]


def _sum_before(vectors: Tensor) -> Tensor:
    """The sum of the vectors before each position, [B, I, K]."""
    return torch.cat([torch.zeros_like(vectors[:, :1]), vectors[:, :-1].cumsum(1)], 1)
