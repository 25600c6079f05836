"""Networks: the two parts of exponential family attention.

    log p(x, y) = Σ_i log p(x_i | other items) + log p(y_i | all items, other values)

Other items and values are those before position i, or, with a pseudo-likelihood, all others. The parts share nothing
and can be trained apart. Each gives numbers for each position of a batch, which a family makes a natural parameter of.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), sections 2.1 and 2.2, Algorithm 1, appendix H.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from attngeo.estimators.efa.attention import AttentionShape, MaskedAttention, MaskedLayer

# Keras' embeddings are uniform between ± this.
EMBEDDED = 0.05


@dataclass(frozen=True)
class Batch:
    """B sequences of up to I positions. Numbers where nothing is known or present are not read.

    Attributes:
        known: whether what is modelled is known at a position, so that others see it, [B, I].
        items: numbers of the items, [B, I]; None if the data lack them, as for all tensors below.
        values: y, [B, I, columns]; NaN if a known position lacks one.
        coordinates: τ, [I, dimensions] or [B, I, dimensions].
        lagged: values of the same positions at earlier times, the latest first, [B, lags, I].
        categories: categories of covariates, [B, I, …].
        numbers: numbers of covariates, [B, I, …].
        present: whether there is a row, [B, I]; it is predicted even if it is not known. The known ones by default.
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
        """A batch with changed tensors. change: called with the name of each existing tensor, and the tensor."""
        return Batch(**{name: change(name, tensor) for name, tensor in vars(self).items() if tensor is not None})

    def take(self, rows: Tensor, length: int) -> Batch:
        """Some of the sequences, up to a length."""
        return self.apply(lambda name, tensor: tensor[rows, :, :length] if name == "lagged" else tensor[rows, :length])

    def to(self, *arguments: Any, **named: Any) -> Batch:
        """The batch on a device; parameters are as for `Tensor.to`."""
        return self.apply(lambda _, tensor: tensor.to(*arguments, **named))


class Tokens(NamedTuple):
    """The input of the layers.

    Attributes:
        tokens: [B, J, d].
        masked: replacements of the first I tokens, [B, I, d].
        known: which tokens are known, [B, J].
        present: which of the first I positions are read, [B, I].
    """

    tokens: Tensor
    masked: Tensor
    known: Tensor
    present: Tensor


class Covariates(nn.Module):
    """The covariate vector of a position: the sum of its categories' vectors, and a vector made from its numbers.

    categories: number of categories of all columns. numbers: number of numbers per position. size: size of the vector.
    """

    def __init__(self, categories: int, numbers: int, size: int, hidden: int = 128) -> None:
        super().__init__()
        self.category = nn.Embedding(categories, size) if categories else None
        self.number = make_network(numbers, (hidden,), size) if numbers else None

    def forward(self, batch: Batch) -> Tensor:
        """[B, I, size]."""
        vectors = []
        if self.category is not None:
            vectors.append(self.category(batch.categories).sum(-2))
        if self.number is not None:
            vectors.append(self.number(batch.numbers))
        return torch.stack(vectors).sum(0)


class AttentionNetwork(nn.Module):
    """Attention layers, read at masked positions, and the map from their vectors to numbers.

    Attributes:
        attention: the layers.
        position: its weight is p, the vectors of positions, [positions, d]; None without positions.
        causal: whether a position sees only those before it.
    """

    attention: MaskedAttention
    position: nn.Embedding | None

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def embed(self, batch: Batch) -> Tokens:
        """The input of the layers."""
        raise NotImplementedError

    def decode(self, vectors: Tensor) -> Tensor:
        """Numbers, [..., n], from the vectors of masked positions."""
        raise NotImplementedError

    def read(self, batch: Batch) -> Tensor:
        """The vector of each masked position, [B, I, d]: X'_ii of items, Y'_ii of values."""
        vectors: Tensor = self.attention(*self.embed(batch), causal=self.causal)
        return vectors

    def forward(self, batch: Batch) -> Tensor:
        """Numbers for each position, [B, I, n]: logits of items, or the input of `family.natural`."""
        return self.decode(self.read(batch))


class ItemAttention(AttentionNetwork):
    """Logits of the item at each position, given the others: section 2.1.

    The covariates may tell the item, so that [MASK] replaces both.

    Args:
        items: number of items, D.
        shape: shape of the layers; its width is K.
        positions: length of the longest sequence, or 0 for baskets without an order.
        causal: whether a position sees only those before it.
        covariates: number of categories and of numbers, as for `Covariates`, whose vector is added to that of the item.

    Attributes:
        context: its weight is β, [D + 1, K], [MASK] last.
        center: its weight is δ, [D, K].
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
        super().__init__(causal=causal)
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

    def decode(self, vectors: Tensor) -> Tensor:
        """Logits of all items, [..., D], from the vectors of masked positions."""
        logits: Tensor = self.center(vectors)
        return logits


@dataclass(frozen=True, kw_only=True)
class ValueShape:
    """The parts of a token of the value part, and how its number is read.

    Attributes:
        size: numbers of each vector that is a part of it: K, and K'.
        items: number of items, D, with an embedding each; 0 for none.
        two_item_vectors: whether the token has both center and context embedding of the item, as in the paper, or the
            context embedding only.
        coordinates: dimensions of τ, from which a network g makes a vector; 0 for none.
        hidden: hidden units of g.
        covariates: number of categories and of numbers, as for `Covariates`.
        columns: number of columns of values, d_y.
        lags: previous copies of the observations, with an embedding of time.
        value: λ1: "identity" (the values; [MASK] is 0), "lookup" (a vector for each of `levels` whole numbers from 0,
            the sum over columns; values lose their fractions, and others have the nearest vector) or "network" (of all
            columns, and which of them a position has).
        levels: number of vectors of "lookup".
        positions: length of the longest sequence; 0 without positions.
        join: units of a hidden layer through which each token goes first, to `size`; 0 for none.
        output_units: hidden units of λ2; None reads the last d_y numbers of the vector.
        bias: whether g has biases.
    """

    size: int = 32
    items: int = 0
    two_item_vectors: bool = True
    coordinates: int = 0
    hidden: int = 128
    covariates: tuple[int, int] = (0, 0)
    columns: int = 1
    lags: int = 0
    value: Literal["identity", "lookup", "network"] = "identity"
    levels: int = 0
    positions: int = 0
    join: int = 0
    output_units: tuple[int, ...] | None = ()
    bias: bool = True

    @property
    def token(self) -> int:
        """The size of a token: 2K + K' in the paper, if it has no more parts."""
        vectors = [bool(self.coordinates), any(self.covariates), bool(self.lags), self.value != "identity"].count(True)
        if self.items:
            vectors += 2 if self.two_item_vectors else 1
        numbers = self.columns if self.value == "identity" else 0
        return numbers + self.size * vectors

    @property
    def attended(self) -> int:
        """The size of the vectors that the layers get."""
        return self.size if self.join else self.token


class ValueAttention(AttentionNetwork):
    """Numbers for the values at each position, given all items and the other values: section 2.2.

    A family makes natural parameters of them. All values of a position are masked, also those of other columns: the
    values of a row do not tell each other.

    Args:
        shape: parts of the tokens.
        attention: shape of the layers; its width must be `shape.attended`.
        causal: whether a position sees only values before it.

    Attributes:
        context: context embeddings of the items, [D, K].
        center: center embeddings of the items, [D, K]; None if tokens lack them.
        place: g, the network of coordinates.
        covariates: network of covariates; None if there are none.
        lag: embedding of time, [lags + 1, K]; None without lags.
        level: λ1, if it is not the identity.
        mask: vector of a masked value, [K'], if λ1 is not the identity.
        join: network through which each token goes first; None if there is none.
        head: λ2; None if the last numbers of the vector are read.
    """

    def __init__(self, shape: ValueShape, attention: AttentionShape, *, causal: bool = False) -> None:
        super().__init__(causal=causal)
        self.shape = shape
        if shape.items:
            self.context = nn.Embedding(shape.items, shape.size)
            self.center = nn.Embedding(shape.items, shape.size) if shape.two_item_vectors else None
        if shape.coordinates:
            self.place = make_network(shape.coordinates, (shape.hidden,), shape.size, bias=shape.bias)
        self.covariates = Covariates(*shape.covariates, shape.size, shape.hidden) if any(shape.covariates) else None
        self.lag = nn.Embedding(shape.lags + 1, shape.size) if shape.lags else None
        self.level: nn.Module
        if shape.value == "lookup":
            self.level = nn.Embedding(shape.columns * shape.levels, shape.size)
        elif shape.value == "network":
            inputs = 2 * shape.columns if shape.columns > 1 else 1
            self.level = make_network(inputs, (shape.hidden,), shape.size)
        if shape.value != "identity":
            self.mask = nn.Parameter(torch.randn(shape.size) / math.sqrt(shape.size))
        self.join = make_network(shape.token, (shape.join,), shape.size) if shape.join else None
        self.position = nn.Embedding(shape.positions, shape.attended) if shape.positions else None
        self.attention = MaskedAttention(attention)
        self.head = (
            None if shape.output_units is None else make_network(shape.attended, shape.output_units, shape.columns)
        )

    def embed(self, batch: Batch) -> Tokens:
        """The input of the layers."""
        assert batch.values is not None
        vectors = self._embed_context(batch)
        times = [torch.where(batch.known[..., None], batch.values, 0)]
        if batch.lagged is not None:
            earlier = batch.lagged[..., None].unbind(1)
            times += [torch.where(batch.present[..., None], values, 0) for values in earlier]
        tokens = torch.cat([self._join(vectors, self._embed(values), lag) for lag, values in enumerate(times)], 1)
        mask = batch.values.new_zeros(self.shape.columns) if self.shape.value == "identity" else self.mask
        masked = self._join(vectors, mask.expand(*batch.known.shape, -1), 0)
        return Tokens(tokens, masked, batch.known.repeat(1, len(times)), batch.present)

    def decode(self, vectors: Tensor) -> Tensor:
        """λ2 of the vectors of masked positions, [..., n]: [..., columns]."""
        raw: Tensor = vectors[..., -self.shape.columns :] if self.head is None else self.head(vectors)
        return raw

    def _embed_context(self, batch: Batch) -> list[Tensor]:
        """The vectors of a token beside that of its value, [B, I, n] each."""
        vectors = []
        if self.shape.items:
            assert batch.items is not None
            items = torch.where(batch.present, batch.items, 0)
            vectors.append(self.context(items))
            if self.center is not None:
                vectors.append(self.center(items))
        if self.shape.coordinates:
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
        if shape.value == "lookup":
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


def make_network(inputs: int, hidden: Sequence[int], outputs: int, *, bias: bool = True) -> nn.Sequential:
    """Layers with ReLU units between an input and a linear output."""
    layers: list[nn.Module] = []
    for units in hidden:
        layers += [nn.Linear(inputs, units, bias=bias), nn.ReLU()]
        inputs = units
    return nn.Sequential(*layers, nn.Linear(inputs, outputs, bias=bias))


def _add_positions(position: nn.Embedding | None, tokens: Tensor) -> Tensor:
    """Tokens, [B, I, n], plus the vectors of their positions, if there are some."""
    return tokens if position is None else tokens + position.weight[: tokens.shape[1]]


@torch.no_grad()
def start_like_keras(network: nn.Module) -> None:
    """Draw all parameters as Keras' modules of the published code do.

    Embeddings are uniform, ±0.05; positions and matrices follow Glorot and Bengio 2010, with three-dimensional matrices
    for attention; biases are 0.
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
    if isinstance(network, AttentionNetwork) and network.position is not None:
        nn.init.xavier_uniform_(network.position.weight)
    for name, parameter in network.named_parameters():
        if name in ("mask", "start"):
            nn.init.uniform_(parameter, -EMBEDDED, EMBEDDED)


def _start_attention(layer: MaskedLayer) -> None:
    """Kernels [d, heads, size] of queries, keys and values, and [heads, size, d] of the output.

    Keras counts the first dimension of three as that of a receptive field.
    """
    width, heads, size = layer.shape.width, layer.shape.heads, layer.shape.size
    limit = math.sqrt(6 / (width * (heads + size)))
    for matrix in (layer.query, layer.key, layer.value):
        nn.init.uniform_(matrix.weight, -limit, limit)
    if layer.output is not None:
        limit = math.sqrt(6 / (heads * (size + width)))
        nn.init.uniform_(layer.output.weight, -limit, limit)
