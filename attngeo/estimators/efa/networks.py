"""Networks: the two parts of exponential family attention, and the factor models that they are compared with.

    log p(x, y) = Σ_i log p(x_i | other items) + log p(y_i | all items, other values)

Other items and values are those before position i, or, with a pseudo-likelihood, all others. The parts share nothing
and can be trained apart. Each gives numbers for each position of a batch, which a family makes a natural parameter of.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), sections 2.1 and 2.2, Algorithm 1, appendix H; propositions 1 to 3,
sections 6.2 and 6.4 for the factor models.
"""

from __future__ import annotations

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
    """B sequences of up to I positions; a tensor that the data lack is None.

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
        """A batch of changed tensors. change: called with the name of each tensor that there is, and the tensor."""
        changed: dict[str, Any] = {}
        for field in fields(self):
            tensor = getattr(self, field.name)
            if tensor is not None:
                changed[field.name] = change(field.name, tensor)
        return Batch(**changed)

    def to(self, *arguments: Any, **named: Any) -> Batch:
        """The batch on a device; parameters are those of `Tensor.to`."""
        return self.apply(lambda _, tensor: tensor.to(*arguments, **named))


class Tokens(NamedTuple):
    """The input of the layers.

    tokens: [B, J, d]. masked: what replaces the first I of them, [B, I, d]. known: which tokens are known, [B, J].
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
        vectors = []
        if self.category is not None:
            vectors.append(self.category(batch.categories).sum(-2))
        if self.number is not None:
            vectors.append(self.number(batch.numbers))
        return torch.stack(vectors).sum(0)


class ItemAttention(nn.Module):
    """Logits of the item at each position, given the others: section 2.1.

    items: D. shape: of the layers; its width is K. positions: the longest sequence, or 0 for baskets without an order.
    causal: whether a position sees only those before it. covariates: how many categories and numbers, as those of
    `Covariates`, whose vector is added to that of the item. They may tell the item, so that [MASK] replaces both.

    context.weight: β, [D + 1, K], [MASK] last. center.weight: δ, [D, K]. position.weight: p, [positions, K].
    """

    def __init__(
        self,
        items: int,
        shape: AttentionShape,
        *,
        positions: int = 0,
        causal: bool = False,
        covariates: tuple[int, int] = (0, 0),
    ) -> None:
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
        tokens = _add_positions(self.position, tokens)
        masked = _add_positions(self.position, masked)
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
    """The parts of a token of the value part, and how its number is read. Raises UsageError for a token without any.

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
        vectors = [bool(self.coordinates), any(self.covariates), bool(self.lags), self.value != "identity"].count(True)
        if self.items:
            vectors += 2 if self.both else 1
        numbers = self.columns if self.value == "identity" else 0
        return numbers + self.size * vectors

    @property
    def attended(self) -> int:
        """The size of the vectors that the layers get."""
        return self.size if self.join else self.token


class ValueAttention(nn.Module):
    """Numbers for the values at each position, given all items and the other values: section 2.2.

    A family makes natural parameters of them. All values of the position are masked, also those of other columns: those
    of a row do not tell each other.

    shape: of the tokens. attention: of the layers; its width must be `shape.attended`. causal: whether a position sees
    only values before it.
    """

    def __init__(self, shape: ValueShape, attention: AttentionShape, *, causal: bool = False) -> None:
        super().__init__()
        if attention.width != shape.attended:
            raise UsageError(f"the layers have width {attention.width}, expected that of the tokens, {shape.attended}")
        self.shape = shape
        self.causal = causal
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
        lags = self.shape.lags
        assert batch.values is not None
        if lags and (batch.lagged is None or batch.lagged.shape[1] != lags):
            raise UsageError(f"the model requires values of {lags} earlier times")
        vectors = self._embed_context(batch)
        times = [torch.where(batch.known[..., None], batch.values, 0)]
        if batch.lagged is not None:
            earlier = batch.lagged[:, :lags, :, None].unbind(1)
            times += [torch.where(batch.present[..., None], values, 0) for values in earlier]
        tokens = torch.cat([self._join(vectors, self._embed(values), lag) for lag, values in enumerate(times)], 1)
        mask = batch.values.new_zeros(self.shape.columns) if self.shape.value == "identity" else self.mask
        masked = self._join(vectors, mask.expand(*batch.known.shape, -1), 0)
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

    def _embed_context(self, batch: Batch) -> list[Tensor]:
        """The vectors of a token beside that of its value, [B, I, n] each. Raises UsageError for missing data."""
        vectors = []
        if self.shape.items:
            if batch.items is None:
                raise UsageError("the model requires the items of the values")
            items = torch.where(batch.present, batch.items, 0)
            vectors.append(self.context(items))
            if self.center is not None:
                vectors.append(self.center(items))
        if self.shape.coordinates:
            if batch.coordinates is None:
                raise UsageError("the model requires the coordinates of the values")
            vectors.append(self.place(batch.coordinates).expand(*batch.known.shape, -1))
        if self.covariates is not None:
            vectors.append(self.covariates(batch))
        return vectors

    def _embed(self, values: Tensor) -> Tensor:
        """λ1(y), [..., K'], of values, [..., columns]; of NaN, 0, or no vector."""
        shape = self.shape
        is_stated = ~values.isnan()
        values = torch.where(is_stated, values, 0)
        if shape.value == "identity":
            return values
        if shape.value == "truncated":
            first = torch.arange(shape.columns, device=values.device) * shape.levels
            vectors: Tensor = self.level(values.long().clamp(0, shape.levels - 1) + first)
            return (vectors * is_stated[..., None]).sum(-2)
        if shape.columns > 1:
            values = torch.cat([values, is_stated.to(values)], -1)
        embedded: Tensor = self.level(values)
        return embedded

    def _join(self, vectors: Sequence[Tensor], value: Tensor, lag: int) -> Tensor:
        """Tokens of a time, [B, I, attended], from the vector of their values, [B, I, n], and the others."""
        vectors = list(vectors)
        if self.lag is not None:
            vectors.append(self.lag.weight[lag].expand(*value.shape[:-1], -1))
        tokens = torch.cat([*vectors, value], -1)
        if self.join is not None:
            tokens = self.join(tokens)
        return _add_positions(self.position, tokens)


def make_network(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Layers with ReLU units between an input and a linear output."""
    layers: list[nn.Module] = []
    for units in hidden:
        layers += [nn.Linear(inputs, units), nn.ReLU()]
        inputs = units
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def _add_positions(position: nn.Embedding | None, tokens: Tensor) -> Tensor:
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
        self.center = nn.Embedding(items, size)
        for table in (self.context, self.center):  # products of about 1/√K: those of torch's start overflow as counts
            nn.init.normal_(table.weight, std=size**-0.5)
        self.start = nn.Parameter(torch.zeros(size)) if start else None

    def forward(self, batch: Batch) -> Tensor:
        """A real number for each position, [B, I, 1]."""
        assert batch.items is not None
        assert batch.values is not None
        items = torch.where(batch.present, batch.items, 0)
        vectors = self.context(items) * torch.where(batch.known[..., None], batch.values, 0)
        center = self.center(items)
        context = pool_others(vectors, batch.known, causal=self.causal, pooling=self.pooling, window=self.window)
        if self.start is not None:
            context = context + self.start
        raw: Tensor = (center * context).sum(-1, keepdim=True)
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
        if neighbours is None:
            neighbours = places - 1
        if not 1 <= neighbours < places:
            raise UsageError(
                f"$neighbours is {neighbours}, expected from 1 to {places - 1}, the other places", "neighbours"
            )
        others = distances.masked_fill(torch.eye(places, dtype=torch.bool), float("inf"))
        nearest = others.argsort(dim=1, stable=True)[:, :neighbours]
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

    total = add_up(vectors)
    if pooling == "sum":
        return total
    if window is not None or (pooling == "seen" and causal):
        divisor = add_up(known.long()[..., None])
    else:
        divisor = (known.sum(1, keepdim=True) - known.long())[..., None]
    return total / divisor.clamp(min=1)


def _sum_before(vectors: Tensor, window: int | None) -> Tensor:
    """The sum of the vectors before each position, [B, I, K]. window: how many positions before it; None for all."""
    length = vectors.shape[1]
    if window is None or window >= length - 1:
        return torch.cat([torch.zeros_like(vectors[:, :1]), vectors[:, :-1].cumsum(1)], 1)
    total = torch.zeros_like(vectors)
    for distance in range(1, window + 1):
        total = total + functional.pad(vectors[:, :-distance], (0, 0, distance, 0))
    return total


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
