"""The networks: the two parts of exponential family attention, and the factor models that they are compared with.

    log p(x, y) = Σ_i log p(x_i | other items) + log p(y_i | all items, other values)

Other items and values are those before position i, or, with a pseudo-likelihood, all others. The parts share nothing
and can be trained apart. Each gives, for each position of a batch, what its family makes a natural parameter of.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), sections 2.1 and 2.2, Algorithm 1, appendix H; propositions 1 to 3,
sections 6.2 and 6.4 for the factor models.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from attngeo.errors import UsageError
from attngeo.estimators.efa.attention import AttentionShape, MaskedAttention, MaskedLayer
from attngeo.estimators.efa.options import Pooling

# Keras' embeddings are uniform between ± this.
EMBEDDED = 0.05


@dataclass(frozen=True)
class Batch:
    """B sequences of up to I positions; a part that the data lack is None.

    known: whether what is modelled is known at a position, so that others see it, [B, I]. items: their numbers, [B, I].
    values: y, [B, I, columns], NaN if a known position lacks one. coordinates: τ, [I, dimensions] or [B, I,
    dimensions]. lagged: values of the same positions at earlier times, the latest first, [B, lags, I]. categories,
    numbers: of covariates, [B, I, …]. present: where there is a row, [B, I]; it is predicted even if it is not known.
    Numbers where nothing is known or present are not read.
    """

    known: Tensor
    items: Tensor | None = None
    values: Tensor | None = None
    coordinates: Tensor | None = None
    lagged: Tensor | None = None
    categories: Tensor | None = None
    numbers: Tensor | None = None
    present: Tensor = None  # type: ignore[assignment]  # the known ones

    def __post_init__(self) -> None:
        if self.present is None:
            object.__setattr__(self, "present", self.known)

    def apply(self, change: Callable[[str, Tensor], Tensor]) -> Batch:
        """A batch of changed parts. change: called with the name of each part that there is, and the part."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: change(name, part) for name, part in parts.items() if part is not None}
        return Batch(**changed)

    def to(self, *arguments: Any, **named: Any) -> Batch:
        """The batch on a device; parameters are those of `Tensor.to`."""
        return self.apply(lambda _, part: part.to(*arguments, **named))


class Tokens(NamedTuple):
    """The input of the layers: tokens ([B, J, d]), what replaces the first I of them, and which are known ([B, J]).

    present: which of the first I positions are read, [B, I].
    """

    tokens: Tensor
    masked: Tensor
    known: Tensor
    present: Tensor


class Covariates(nn.Module):
    """The vector of the covariates of a position: the sum of those of its categories, and of one made of its numbers.

    categories: how many the columns have together. numbers: how many a position has. size: of the vector.
    """

    def __init__(self, categories: int, numbers: int, size: int, hidden: int = 128) -> None:
        super().__init__()
        self.category = nn.Embedding(categories, size) if categories else None
        self.number = make_network(numbers, (hidden,), size) if numbers else None

    def forward(self, batch: Batch) -> Tensor:
        """[B, I, size]. Raises UsageError for a batch without them."""
        if batch.categories is None or batch.numbers is None:
            raise UsageError("the model requires the covariates of the positions")
        vectors = [] if self.category is None else [self.category(batch.categories).sum(-2)]
        vectors += [] if self.number is None else [self.number(batch.numbers)]
        return torch.stack(vectors).sum(0)


class ItemAttention(nn.Module):
    """Logits of the item at each position, given the others: section 2.1.

    items: D. shape: of the layers; its width is K. positions: the longest sequence, or 0 for baskets without an order.
    causal: whether a position sees only those before it. covariates: how many categories and numbers, as those of
    `Covariates`, whose vector is added to that of the item. They may tell the item, so that [MASK] replaces both.

    context.weight: β, [D + 1, K], [MASK] last. center.weight: δ, [D, K]. position.weight: p, [positions, K].
    """

    def __init__(
        self, items: int, shape: AttentionShape, *, positions: int = 0, causal: bool = False,
        covariates: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        super().__init__()
        self.causal = causal
        self.context = nn.Embedding(items + 1, shape.width)
        self.position = nn.Embedding(positions, shape.width) if positions else None
        self.attention = MaskedAttention(shape)
        self.center = nn.Linear(shape.width, items, bias=False)
        self.covariates = Covariates(*covariates, shape.width) if any(covariates) else None

    def embed(self, batch: Batch) -> Tokens:
        """The input of the layers."""
        assert batch.items is not None
        tokens = self.context(torch.where(batch.known, batch.items, 0))
        masked = self.context.weight[-1].expand_as(tokens)
        if self.covariates is not None:
            tokens = tokens + self.covariates(batch)
        tokens, masked = (_add_places(self.position, vectors) for vectors in (tokens, masked))
        return Tokens(tokens, masked, batch.known, batch.present)

    def read(self, batch: Batch) -> Tensor:
        """The vector X'_ii of each masked position, [B, I, K]."""
        vectors: Tensor = self.attention(*self.embed(batch), causal=self.causal)
        return vectors

    def decode(self, vectors: Tensor) -> Tensor:
        """Logits of all items, [..., D], from the vectors of masked positions."""
        logits: Tensor = self.center(vectors)
        return logits

    def forward(self, batch: Batch) -> Tensor:
        """Logits of all items at each position, [B, I, D]."""
        return self.decode(self.read(batch))


@dataclass(frozen=True, kw_only=True)
class ValueShape:
    """What a token of the value part is made of, and how its number is read. Raises UsageError.

    size: of each vector that is a part of it: K, and K'. items: D, with an embedding each; 0 for none. both: whether
    center and context embeddings of the item are in the token, as in the paper, or the context embedding only.
    coordinates: dimensions of τ, of which a network g with `hidden` units makes a vector; 0 for none. covariates: how
    many categories and numbers, as those of `Covariates`. columns: d_y. lags: previous copies of the observations, with
    an embedding of time. value: λ1, "identity" (the values, [MASK] is 0), "truncated" (a vector for each of `levels`
    whole numbers from 0, the sum over columns; values lose their fractions, and others have the nearest vector) or
    "network" (of all columns, and of which a position has). positions: the longest sequence, or 0. join: units of a
    hidden layer through which each token goes first, to `size`; 0 for none. head: hidden units of λ2; None reads the
    last d_y numbers of the vector.
    """

    size: int = 32
    items: int = 0
    both: bool = True
    coordinates: int = 0
    hidden: int = 128
    covariates: tuple[int, int] = (0, 0)
    columns: int = 1
    lags: int = 0
    value: Literal["identity", "truncated", "network"] = "identity"
    levels: int = 0
    positions: int = 0
    join: int = 0
    head: tuple[int, ...] | None = ()

    def __post_init__(self) -> None:
        if not self.items and not self.coordinates:
            raise UsageError("a token has neither items nor coordinates, expected one of them")
        if self.value == "truncated" and self.levels < 1:
            raise UsageError(f"$levels is {self.levels}, expected the number of levels that values have", "levels")

    @property
    def token(self) -> int:
        """The size of a token: 2K + K' in the paper, if it has no more parts."""
        of_items = (2 if self.both else 1) if self.items else 0
        is_number = self.value == "identity"
        others = bool(self.coordinates) + any(self.covariates) + bool(self.lags)
        return self.columns * is_number + self.size * (of_items + others + (not is_number))

    @property
    def attended(self) -> int:
        """The size of what the layers get."""
        return self.size if self.join else self.token


class ValueAttention(nn.Module):
    """What the natural parameters of the values at each position are made of, given all items and the other values.

    All values of the position are masked, also those of other columns: those of a row do not tell each other.

    shape: of the tokens. attention: of the layers; its width must be `shape.attended`. causal: whether a position sees
    only values before it.
    """

    def __init__(self, shape: ValueShape, attention: AttentionShape, *, causal: bool = False) -> None:
        super().__init__()
        if attention.width != shape.attended:
            raise UsageError(f"the layers have width {attention.width}, expected that of the tokens, {shape.attended}")
        self.shape, self.causal = shape, causal
        if shape.items:
            self.context = nn.Embedding(shape.items, shape.size)
            self.center = nn.Embedding(shape.items, shape.size) if shape.both else None
        if shape.coordinates:
            self.place = make_network(shape.coordinates, (shape.hidden,), shape.size)
        self.covariates = Covariates(*shape.covariates, shape.size, shape.hidden) if any(shape.covariates) else None
        self.lag = nn.Embedding(shape.lags + 1, shape.size) if shape.lags else None
        self.level: nn.Module
        if shape.value == "truncated":
            self.level = nn.Embedding(shape.columns * shape.levels, shape.size)
        elif shape.value == "network":
            inputs = 2 * shape.columns if shape.columns > 1 else 1
            self.level = make_network(inputs, (shape.hidden,), shape.size)
        if shape.value != "identity":
            self.mask = nn.Parameter(torch.randn(shape.size) / math.sqrt(shape.size))
        self.join = make_network(shape.token, (shape.join,), shape.size) if shape.join else None
        self.position = nn.Embedding(shape.positions, shape.attended) if shape.positions else None
        self.attention = MaskedAttention(attention)
        self.head = None if shape.head is None else make_network(shape.attended, shape.head, shape.columns)

    def embed(self, batch: Batch) -> Tokens:
        """The input of the layers. Raises UsageError for missing observations."""
        lags, values = self.shape.lags, batch.values
        assert values is not None
        if lags and (batch.lagged is None or batch.lagged.shape[1] != lags):
            raise UsageError(f"the model requires values of {lags} earlier times")
        about = self._describe(batch)
        times = [torch.where(batch.known[..., None], values, 0)]
        if batch.lagged is not None:
            earlier = batch.lagged[:, :lags, :, None].unbind(1)
            times += [torch.where(batch.present[..., None], part, 0) for part in earlier]
        tokens = torch.cat([self._join(about, self._embed(values), lag) for lag, values in enumerate(times)], 1)
        mask = self.mask if self.shape.value != "identity" else values.new_zeros(self.shape.columns)
        masked = self._join(about, mask.expand(*batch.known.shape, -1), 0)
        return Tokens(tokens, masked, batch.known.repeat(1, len(times)), batch.present)

    def read(self, batch: Batch) -> Tensor:
        """The vector Y'_ii of each position whose value is masked, [B, I, n]."""
        vectors: Tensor = self.attention(*self.embed(batch), causal=self.causal)
        return vectors

    def decode(self, vectors: Tensor) -> Tensor:
        """λ2 of the vectors of masked positions, [..., n]: [..., columns]."""
        raw: Tensor = vectors[..., -self.shape.columns :] if self.head is None else self.head(vectors)
        return raw

    def forward(self, batch: Batch) -> Tensor:
        """Real numbers for each position, [B, I, columns]: `family.natural` of one is the natural parameter."""
        return self.decode(self.read(batch))

    def _describe(self, batch: Batch) -> list[Tensor]:
        """The parts of a token that are no value, [B, I, n] each."""
        parts = []
        if self.shape.items:
            if batch.items is None:
                raise UsageError("the model requires the items of the values")
            items = torch.where(batch.present, batch.items, 0)
            parts.append(self.context(items))
            parts += [self.center(items)] if self.center is not None else []
        if self.shape.coordinates:
            if batch.coordinates is None:
                raise UsageError("the model requires the coordinates of the values")
            parts.append(self.place(batch.coordinates).expand(*batch.known.shape, -1))
        return parts if self.covariates is None else [*parts, self.covariates(batch)]

    def _embed(self, values: Tensor) -> Tensor:
        """λ1(y), [..., K'], of values, [..., columns]; of NaN, 0, or no vector."""
        shape, is_stated = self.shape, ~values.isnan()
        values = torch.where(is_stated, values, 0)
        if shape.value == "identity":
            return values
        if shape.value == "truncated":
            first = torch.arange(shape.columns, device=values.device) * shape.levels
            vectors: Tensor = self.level(values.long().clamp(0, shape.levels - 1) + first)
            return (vectors * is_stated[..., None]).sum(-2)
        embedded: Tensor = self.level(torch.cat([values, is_stated.to(values)], -1) if shape.columns > 1 else values)
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


class ItemFactors(nn.Module):
    """Logits of the item at each position: ρᵀ Σ_j α_{x_j} / (I − 1) over the other positions (Prop. 1).

    items: D. size: K. causal: whether the sum is over the positions before it. start: whether a learned vector is added
    to that sum, so that the first position has one, too, as in the code of the paper. window: positions on each side
    that are in the sum; None for all.

    center.weight: ρ, [D, K]. context.weight: α, [D, K].
    """

    def __init__(
        self, items: int, size: int, *, causal: bool = False, pooling: Pooling = "mean", start: bool = False,
        window: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.causal, self.pooling, self.window = causal, pooling, window
        self.context = nn.Embedding(items, size)
        self.center = nn.Linear(size, items, bias=False)
        self.start = nn.Parameter(torch.zeros(size)) if start else None

    def read(self, batch: Batch) -> Tensor:
        """The vector of the context of each position, [B, I, K]."""
        assert batch.items is not None
        vectors = self.context(torch.where(batch.known, batch.items, 0))
        context = pool_others(vectors, batch.known, causal=self.causal, pooling=self.pooling, window=self.window)
        return context if self.start is None else context + self.start

    def forward(self, batch: Batch) -> Tensor:
        """Logits of all items, [B, I, D]."""
        logits: Tensor = self.center(self.read(batch))
        return logits


class ValueFactors(nn.Module):
    """A number for the value at each position: ρ_{x_i}·Σ_j α_{x_j} y_j / (I − 1) over the other positions (Prop. 3).

    As `ItemFactors`; center.weight and context.weight are ρ and α, [D, K].
    """

    def __init__(
        self, items: int, size: int, *, causal: bool = False, pooling: Pooling = "mean", start: bool = False,
        window: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.causal, self.pooling, self.window = causal, pooling, window
        self.context, self.center = nn.Embedding(items, size), nn.Embedding(items, size)
        for table in (self.context, self.center):  # products of about 1/√K: those of torch's start overflow as counts
            nn.init.normal_(table.weight, std=size**-0.5)
        self.start = nn.Parameter(torch.zeros(size)) if start else None

    def forward(self, batch: Batch) -> Tensor:
        """A real number for each position, [B, I, 1]."""
        assert batch.items is not None
        assert batch.values is not None
        items = torch.where(batch.present, batch.items, 0)
        vectors = self.context(items) * torch.where(batch.known[..., None], batch.values, 0)
        context = pool_others(vectors, batch.known, causal=self.causal, pooling=self.pooling, window=self.window)
        raw: Tensor = (self.center(items) * (context if self.start is None else context + self.start)).sum(
            -1, keepdim=True
        )
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
            raise UsageError(
                f"$neighbours is {wanted}, expected from 1 to {places - 1}, the other places", "neighbours"
            )
        others = distances.masked_fill(torch.eye(places, dtype=torch.bool), float("inf"))
        nearest = others.argsort(dim=1, stable=True)[:, :wanted]
        self.register_buffer("neighbour", torch.zeros(places, places).scatter_(1, nearest, 1.0), persistent=False)
        self.place = make_network(coordinates, (hidden,), size)

    def forward(self, batch: Batch) -> Tensor:
        """A real number for each place, [B, I, 1]. The places of all sequences are the same."""
        assert batch.values is not None
        assert batch.coordinates is not None
        h = self.place(batch.coordinates if batch.coordinates.ndim == 2 else batch.coordinates[0])
        raw: Tensor = batch.values[..., 0] @ (h @ h.T * self.neighbour.to(h.dtype)).T
        return raw[..., None]


def pool_others(vectors: Tensor, known: Tensor, *, causal: bool, pooling: Pooling, window: int | None = None) -> Tensor:
    """The sum of the vectors of the other known positions, or of those before, over I − 1 for a mean: [B, I, K].

    I is the number of known positions, and the one that is predicted, in both directions, as in the paper: the mean of
    those before position i has the same divisor for every i. With pooling "seen", it is the number of those before.
    window: positions on each side that are added up (section 4.2); the divisor of a mean is how many of them are known.
    """
    vectors = vectors * known[..., None]

    def add_up(numbers: Tensor) -> Tensor:
        summed = _sum_before(numbers, window)  # not a sum less the own vector, whose rounding would show it
        return summed if causal else summed + _sum_before(numbers.flip(1), window).flip(1)

    if pooling == "sum":
        return add_up(vectors)
    others = (known.sum(1, keepdim=True) - known.long())[..., None]
    if window is not None or (pooling == "seen" and causal):
        others = add_up(known.long()[..., None])
    return add_up(vectors) / others.clamp(min=1)


def _sum_before(vectors: Tensor, window: int | None) -> Tensor:
    """The sum of the vectors before each position, [B, I, K]. window: of so many."""
    length = vectors.shape[1]
    if window is None or window >= length - 1:
        return torch.cat([torch.zeros_like(vectors[:, :1]), vectors[:, :-1].cumsum(1)], 1)
    return sum(functional.pad(vectors[:, :-far], (0, 0, far, 0)) for far in range(1, window + 1))  # type: ignore[return-value]


@torch.no_grad()
def start_like_keras(network: nn.Module) -> None:
    """Draw all parameters as Keras' modules of the published code do.

    Embeddings are uniform, ±0.05; positions and matrices by Glorot and Bengio 2010, of which those of attention have
    three dimensions there; biases are 0.
    """
    for module in network.modules():
        if isinstance(module, nn.Embedding):
            nn.init.uniform_(module.weight, -EMBEDDED, EMBEDDED)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in network.modules():
        if isinstance(module, MaskedLayer):
            _start_attention(module)
    if isinstance(network, ItemAttention | ValueAttention) and network.position is not None:
        nn.init.xavier_uniform_(network.position.weight)
    for name, parameter in network.named_parameters():
        if name in ("mask", "start"):
            nn.init.uniform_(parameter, -EMBEDDED, EMBEDDED)


def _start_attention(layer: MaskedLayer) -> None:
    """Kernels [d, heads, size] of queries, keys and values, and [heads, size, d] of the output.

    Keras counts the first dimension of three as that of a receptive field.
    """
    width, heads, size = layer.shape.width, layer.shape.heads, layer.shape.size
    for matrix in (layer.query, layer.key, layer.value):
        _draw_glorot(matrix.weight, heads * width, size * width)
    if layer.output is not None:
        _draw_glorot(layer.output.weight, size * heads, width * heads)


def _draw_glorot(weight: torch.Tensor, fan_in: int, fan_out: int) -> None:
    limit = math.sqrt(6 / (fan_in + fan_out))
    nn.init.uniform_(weight, -limit, limit)
