"""The two parts of exponential family attention: the items of a sequence, and the values that belong to them.

    log p(x, y) = Σ_i log p(x_i | other items) + log p(y_i | all items, other values)

Other items and values are those before position i, or, with a pseudo-likelihood, all others. The parts share nothing
and can be trained apart. Each gives, for each position, what its family makes a natural parameter of.

Shapes: B sequences of up to I positions; `known` says which positions have an item, [B, I].

Source: Wibisono and Wang 2025 (arXiv 2501.16790), sections 2.1 and 2.2, Algorithm 1, appendix H.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from attngeo.efa.attention import AttentionShape, MaskedAttention
from attngeo.errors import UsageError

ValueEmbedding = Literal["identity", "levels", "truncated", "network"]
# Those that have a vector for each whole number from 0.
LEVELS = ("levels", "truncated")


class Tokens(NamedTuple):
    """The input of the layers: tokens ([B, J, d]), what replaces the first I of them, and which are known ([B, J])."""

    tokens: Tensor
    masked: Tensor
    known: Tensor


class ItemAttention(nn.Module):
    """Logits of the item at each position, given the others: section 2.1.

    items: D. shape: of the layers; its width is K. positions: the longest sequence, or 0 for baskets without an order.
    causal: whether a position sees only those before it.

    context.weight: β, [D + 1, K], [MASK] last. center.weight: δ, [D, K]. position.weight: p, [positions, K].
    """

    def __init__(self, items: int, shape: AttentionShape, *, positions: int = 0, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.context = nn.Embedding(items + 1, shape.width)
        self.position = nn.Embedding(positions, shape.width) if positions else None
        self.attention = MaskedAttention(shape)
        self.center = nn.Linear(shape.width, items, bias=False)

    def embed(self, items: Tensor, known: Tensor) -> Tokens:
        """The input of the layers. items: [B, I], any number where none is known."""
        tokens = self.context(torch.where(known, items, 0))
        masked = self.context.weight[-1].expand_as(tokens)
        return Tokens(_add_places(self.position, tokens), _add_places(self.position, masked), known)

    def read(self, items: Tensor, known: Tensor) -> Tensor:
        """The vector X'_ii of each masked position, [B, I, K]."""
        found: Tensor = self.attention(*self.embed(items, known), causal=self.causal)
        return found

    def decode(self, read: Tensor) -> Tensor:
        """Logits of all items, [..., D], from the vectors of masked positions."""
        logits: Tensor = self.center(read)
        return logits

    def forward(self, items: Tensor, known: Tensor) -> Tensor:
        """Logits of all items at each position, [B, I, D]."""
        return self.decode(self.read(items, known))


@dataclass(frozen=True, kw_only=True)
class ValueShape:
    """What a token of the value part is made of, and how its number is read. Raises UsageError.

    items, item_size: D and K of the items' embeddings; 0 items for none. both: whether center and context embeddings of
    the item are in the token, as in the paper, or the context embedding only. coordinates, coordinate_size: dimensions
    of τ and K of g(τ), a network with `hidden` units; 0 for none. lags, lag_size: previous copies of the observations,
    and the size of the embedding of time. value: λ1, "identity" (the value, [MASK] is 0), "levels", "truncated" or
    "network". levels: how many vectors there are for whole numbers from 0, or for values without their fractions; other
    values have the nearest one. value_size: K' of the latter three. positions: the longest sequence, or 0. join: units
    of a hidden layer through which each token goes first, to `width`; 0 for none. head: hidden units of λ2; None reads
    the last number of the vector, times `head_scale`.
    """

    items: int = 0
    item_size: int = 32
    both: bool = True
    coordinates: int = 0
    coordinate_size: int = 32
    hidden: int = 128
    lags: int = 0
    lag_size: int = 32
    value: ValueEmbedding = "identity"
    levels: int = 0
    value_size: int = 32
    positions: int = 0
    join: int = 0
    width: int = 32
    head: tuple[int, ...] | None = ()
    head_scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.items and not self.coordinates:
            raise UsageError("a token has neither items nor coordinates, expected one of them")
        if self.value in LEVELS and self.levels < 1:
            raise UsageError(f"levels is {self.levels}, expected the number of levels that values have")

    @property
    def token(self) -> int:
        """The size of a token: 2K + K' in the paper, if it has no more parts."""
        size = 1 if self.value == "identity" else self.value_size
        size += self.item_size * (2 if self.both else 1) if self.items else 0
        size += self.coordinate_size if self.coordinates else 0
        return size + (self.lag_size if self.lags else 0)

    @property
    def attended(self) -> int:
        """The size of what the layers get."""
        return self.width if self.join else self.token


class Observations(NamedTuple):
    """What the value part is given; numbers where nothing is known are not read.

    values, known, items: [B, I]. coordinates: τ, [I, dimensions] or [B, I, dimensions]. lagged: values of the same
    positions at earlier times, the latest first, [B, lags, I].
    """

    values: Tensor
    known: Tensor
    items: Tensor | None = None
    coordinates: Tensor | None = None
    lagged: Tensor | None = None


class ValueAttention(nn.Module):
    """What the natural parameter of the value at each position is made of, given all items and the other values.

    shape: of the tokens. attention: of the layers; its width must be `shape.attended`. causal: whether a position sees
    only values before it.
    """

    def __init__(self, shape: ValueShape, attention: AttentionShape, *, causal: bool = False) -> None:
        super().__init__()
        if attention.width != shape.attended:
            raise UsageError(f"the layers have width {attention.width}, expected that of the tokens, {shape.attended}")
        self.shape, self.causal = shape, causal
        if shape.items:
            self.context = nn.Embedding(shape.items, shape.item_size)
            self.center = nn.Embedding(shape.items, shape.item_size) if shape.both else None
        if shape.coordinates:
            self.place = make_network(shape.coordinates, (shape.hidden,), shape.coordinate_size)
        self.lag = nn.Embedding(shape.lags + 1, shape.lag_size) if shape.lags else None
        self.level: nn.Module
        if shape.value in LEVELS:
            self.level = nn.Embedding(shape.levels, shape.value_size)
        elif shape.value == "network":
            self.level = make_network(1, (shape.hidden,), shape.value_size)
        if shape.value != "identity":
            self.mask = nn.Parameter(torch.randn(shape.value_size) / math.sqrt(shape.value_size))
        self.join = make_network(shape.token, (shape.join,), shape.width) if shape.join else None
        self.position = nn.Embedding(shape.positions, shape.attended) if shape.positions else None
        self.attention = MaskedAttention(attention)
        self.head = None if shape.head is None else make_network(shape.attended, shape.head, 1)

    def embed(self, given: Observations) -> Tokens:
        """The input of the layers. Raises UsageError for missing observations."""
        lags, known = self.shape.lags, given.known
        if lags and (given.lagged is None or given.lagged.shape[1] != lags):
            raise UsageError(f"the model requires values of {lags} earlier times")
        about = self._describe(given)
        times = [given.values] if given.lagged is None else [given.values, *given.lagged[:, :lags].unbind(1)]
        embedded = [self._embed(torch.where(known, values, 0)) for values in times]
        tokens = torch.cat([self._join(about, values, lag) for lag, values in enumerate(embedded)], 1)
        mask = self.mask if self.shape.value != "identity" else given.values.new_zeros(1)
        masked = self._join(about, mask.expand(*known.shape, -1), 0)
        return Tokens(tokens, masked, known.repeat(1, len(times)))

    def read(self, given: Observations) -> Tensor:
        """The vector Y'_ii of each position whose value is masked, [B, I, n]."""
        found: Tensor = self.attention(*self.embed(given), causal=self.causal)
        return found

    def decode(self, read: Tensor) -> Tensor:
        """λ2 of the vectors of masked positions, [..., n]."""
        raw: Tensor = read[..., -1] * self.shape.head_scale if self.head is None else self.head(read)[..., 0]
        return raw

    def forward(self, given: Observations) -> Tensor:
        """A real number for each position, [B, I]: `family.natural` of it is the natural parameter."""
        return self.decode(self.read(given))

    def _describe(self, given: Observations) -> list[Tensor]:
        """The parts of a token that are no value, [B, I, n] each."""
        parts = []
        if self.shape.items:
            if given.items is None:
                raise UsageError("the model requires the items of the values")
            items = torch.where(given.known, given.items, 0)
            parts.append(self.context(items))
            parts += [self.center(items)] if self.center is not None else []
        if self.shape.coordinates:
            if given.coordinates is None:
                raise UsageError("the model requires the coordinates of the values")
            parts.append(self.place(given.coordinates).expand(*given.known.shape, -1))
        return parts

    def _embed(self, values: Tensor) -> Tensor:
        """λ1(y), [..., K']."""
        if self.shape.value == "identity":
            return values[..., None]
        embedded: Tensor = self.level(
            values.long().clamp(0, self.shape.levels - 1) if self.shape.value in LEVELS else values[..., None]
        )
        return embedded

    def _join(self, about: Sequence[Tensor], value: Tensor, lag: int) -> Tensor:
        """Tokens from their parts, [B, I, attended]."""
        time = [] if self.lag is None else [self.lag.weight[lag].expand(*value.shape[:-1], -1)]
        tokens = torch.cat([*about, *time, value], -1)
        if self.join is not None:
            tokens = self.join(tokens)
        return _add_places(self.position, tokens)


def make_network(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Layers with ReLU units between an input and a linear output."""
    sizes = [inputs, *hidden]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


def _add_places(position: nn.Embedding | None, tokens: Tensor) -> Tensor:
    """Tokens, [B, I, n], plus the vectors of their positions, if there are some. Raises UsageError for too many."""
    if position is None:
        return tokens
    length = tokens.shape[1]
    if length > position.num_embeddings:
        raise UsageError(f"a sequence has {length} positions, expected at most {position.num_embeddings}")
    return tokens + position.weight[:length]
