"""The latent factor models that exponential family attention is compared with.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), propositions 1 to 3, sections 6.2 and 6.4.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from attngeo.errors import UsageError
from attngeo.estimators.efa.networks import Batch, make_network
from attngeo.estimators.efa.options import Pooling


class Factors(nn.Module):
    """A factor model of items, or of their values.

    Args:
        items: number of items, D.
        size: numbers of a vector, K.
        causal: whether the sum covers only earlier positions.
        pooling: divisor of the sum, I − 1 for a mean.
        start: whether to add a learned vector to the sum, so that the first position has a context, too, as in the
            paper's code.
        window: number of positions on each side in the sum (section 4.2); None for all.

    Attributes:
        center: its weight is ρ, [D, K].
        context: its weight is α, [D, K].
    """

    center: nn.Linear | nn.Embedding

    def __init__(
        self,
        items: int,
        size: int,
        *,
        causal: bool = False,
        pooling: Pooling = "mean",
        start: bool = False,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.pooling = pooling
        self.window = window
        self.context = nn.Embedding(items, size)
        self.center = self._make_center(items, size)
        self.start = nn.Parameter(torch.zeros(size)) if start else None

    def _make_center(self, items: int, size: int) -> nn.Linear | nn.Embedding:
        raise NotImplementedError

    def pool(self, vectors: Tensor, known: Tensor) -> Tensor:
        """The pooled vectors of the other known positions, or in one direction, of the earlier ones: [B, I, K].

        For a mean, I counts the known positions and the predicted one, also in one direction, as in the paper: the
        divisor is the same at every position i. With pooling "seen", the divisor is the number of earlier positions;
        with a window, the number of known positions in it.
        """
        context = self._add_up(vectors * known[..., None])
        if self.pooling != "sum":
            if self.window is not None or (self.pooling == "seen" and self.causal):
                divisor = self._add_up(known.long()[..., None])
            else:
                divisor = (known.sum(1, keepdim=True) - known.long())[..., None]
            context = context / divisor.clamp(min=1)
        return context if self.start is None else context + self.start

    def _add_up(self, numbers: Tensor) -> Tensor:
        """The sum of the numbers at other positions that are seen, [B, I, n]."""
        summed = _sum_before(numbers, self.window)  # not a sum less the own vector, whose rounding would show it
        return summed if self.causal else summed + _sum_before(numbers.flip(1), self.window).flip(1)


class ItemFactors(Factors):
    """Logits of the item at each position: ρᵀ Σ_j α_{x_j} / (I − 1) over the other positions (Prop. 1)."""

    def _make_center(self, items: int, size: int) -> nn.Linear | nn.Embedding:
        return nn.Linear(size, items, bias=False)

    def read(self, batch: Batch) -> Tensor:
        """The vector of the context of each position, [B, I, K]."""
        assert batch.items is not None
        return self.pool(self.context(torch.where(batch.known, batch.items, 0)), batch.known)

    def forward(self, batch: Batch) -> Tensor:
        """Logits of all items, [B, I, D]."""
        logits: Tensor = self.center(self.read(batch))
        return logits


class ValueFactors(Factors):
    """A number for the value at each position: ρ_{x_i}·Σ_j α_{x_j} y_j / (I − 1) over the other positions (Prop. 3)."""

    def _make_center(self, items: int, size: int) -> nn.Linear | nn.Embedding:
        center = nn.Embedding(items, size)
        for table in (self.context, center):  # products of about 1/√K: those of torch's start overflow as counts
            nn.init.normal_(table.weight, std=size**-0.5)
        return center

    def forward(self, batch: Batch) -> Tensor:
        """A real number for each position, [B, I, 1]."""
        assert batch.items is not None
        assert batch.values is not None
        items = torch.where(batch.present, batch.items, 0)
        vectors = self.context(items) * torch.where(batch.known[..., None], batch.values, 0)
        raw: Tensor = (self.center(items) * self.pool(vectors, batch.known)).sum(-1, keepdim=True)
        return raw


class SpatialFactors(nn.Module):
    """A number for the value at each place: h(τ_i)·Σ_j h(τ_j) y_j over its neighbours (Prop. 2).

    distances: between places, [I, I]. n_neighbors: how many of the nearest places are in the sum; None for all others.
    h is a network with `hidden` ReLU units; for other ones, set `place`.
    """

    neighbour: Tensor

    def __init__(
        self, distances: Tensor, coordinates: int, size: int = 32, *, n_neighbors: int | None = None, hidden: int = 128
    ) -> None:
        super().__init__()
        places = len(distances)
        if n_neighbors is None:
            n_neighbors = places - 1
        if not 1 <= n_neighbors < places:
            raise UsageError(
                f"$n_neighbors is {n_neighbors}, expected 1 to {places - 1}, the number of other places", "n_neighbors"
            )
        others = distances.masked_fill(torch.eye(places, dtype=torch.bool), float("inf"))
        nearest = others.argsort(dim=1, stable=True)[:, :n_neighbors]
        self.register_buffer("neighbour", torch.zeros(places, places).scatter_(1, nearest, 1.0), persistent=False)
        self.place = make_network(coordinates, (hidden,), size)

    def forward(self, batch: Batch) -> Tensor:
        """A real number for each place, [B, I, 1]. The places of all sequences are the same."""
        assert batch.values is not None
        assert batch.coordinates is not None
        h = self.place(batch.coordinates if batch.coordinates.ndim == 2 else batch.coordinates[0])
        raw: Tensor = batch.values[..., 0] @ (h @ h.T * self.neighbour.to(h.dtype)).T
        return raw[..., None]


def _sum_before(vectors: Tensor, window: int | None) -> Tensor:
    """The sum of the vectors before each position, [B, I, K]. window: how many positions before it; None for all."""
    length = vectors.shape[1]
    if window is None or window >= length - 1:
        return torch.cat([torch.zeros_like(vectors[:, :1]), vectors[:, :-1].cumsum(1)], 1)
    total = torch.zeros_like(vectors)
    for distance in range(1, window + 1):
        total = total + functional.pad(vectors[:, :-distance], (0, 0, distance, 0))
    return total
