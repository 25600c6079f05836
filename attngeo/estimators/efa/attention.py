"""Layers of attention that are read at each position as if that position alone were masked.

Copying a sequence once for each of its positions, with that position masked, costs as many passes as it has positions.
The numbers of all copies follow from fewer:

- In one direction, what comes before a masked position does not change. One stream of tokens and one of masks suffice.
- In both directions, the first layer of a copy has the queries, keys and values of the sequence but for one token.
- Of the last layer, only the masked position is read. Its key and value matrices are applied to the query and to the
  weighted sum, not to each token of each copy.

Only the layers between the first and the last are computed for each copy. After a layer without a norm, each token of a
copy is a fixed vector plus a matrix times the weighted sum of its values. The last layer is read from these sums; the
tokens, which are larger, are not computed.

A position that is not known is read, too: from the known tokens and those of earlier times at its own position.

Shapes: B sequences, I positions of which each is masked in turn, J positions in all (the first I, then those that are
context only), d numbers of a token, H heads of size c.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 2.1, equation (1), and section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attngeo.errors import UsageError
from attngeo.estimators.efa.options import Scale, Weights

# Sequences are computed together if the shortest has this share of the longest one,
SIMILAR = 0.75
# or if apart they would save fewer numbers of tokens of copies than this.
SPLIT = 2**17
# The most numbers of tokens of copies that are computed together on a CPU: its cache holds them.
LARGEST_GROUP = 2**20
# Rows of logits from here on are as long as the vectors of a processor.
SHORT_ROW = 16


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """The sizes and the kind of the layers.

    Attributes:
        width: d, the numbers of a token.
        layers: number of layers.
        heads: heads of a layer, H.
        head_size: numbers of a head, c; None for width / heads.
        kind: weights of tokens: "softmax"; "linear" for the products themselves; "relu" for their positive part,
            divided by the number of tokens that are seen (Bai et al. 2023, arXiv 2306.04637, definition 1).
        scale: factor of the products: 1/"width" as in the paper, or 1/√"head" as in its code.
        residual: whether each layer has a residual connection.
        bias: whether the four matrices and the feed-forward layer have biases.
        output: whether a matrix follows the heads; without it, heads·head_size must be the width.
        norm: whether layer normalisation follows each residual connection.
        feed_forward: hidden units of a layer after the attention; 0 for none.

    Raises:
        UsageError: the heads do not divide the width.
    """

    width: int
    layers: int = 1
    heads: int = 1
    head_size: int | None = None
    kind: Weights = "softmax"
    scale: Scale = "width"
    residual: bool = True
    bias: bool = False
    output: bool = True
    norm: bool = False
    feed_forward: int = 0

    def __post_init__(self) -> None:
        if self.head_size is None and self.width % self.heads:
            raise UsageError(
                f"$width is {self.width}, expected a multiple of $n_heads, {self.heads}; or set head_size",
                "width",
                "n_heads",
            )

    @property
    def size(self) -> int:
        """The size of a head."""
        return self.width // self.heads if self.head_size is None else self.head_size

    @property
    def factor(self) -> float:
        """The factor of products of queries and keys."""
        return 1 / self.width if self.scale == "width" else self.size**-0.5


class Keys(NamedTuple):
    """Keys and values of tokens, [..., H, N, c] each."""

    key: Tensor
    value: Tensor


class MaskedLayer(nn.Module):
    """One layer of attention.

    Attributes:
        shape: its sizes and its kind.
        query: Linear, d → H·c.
        key: Linear, d → H·c.
        value: Linear, d → H·c.
        output: Linear, H·c → d; None if there is none.
        norm1: normalisation after the attention; the identity if there is none.
        norm2: normalisation after the feed-forward layer; the identity if there is none.
        feed_forward: layer after the attention, d → d; None if there is none.
    """

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape
        inner = shape.heads * shape.size
        self.query = nn.Linear(shape.width, inner, bias=shape.bias)
        self.key = nn.Linear(shape.width, inner, bias=shape.bias)
        self.value = nn.Linear(shape.width, inner, bias=shape.bias)
        self.output = nn.Linear(inner, shape.width, bias=shape.bias) if shape.output else None
        self.norm1 = nn.LayerNorm(shape.width) if shape.norm else nn.Identity()
        self.norm2 = nn.LayerNorm(shape.width) if shape.norm and shape.feed_forward else nn.Identity()
        self.feed_forward: nn.Module | None = None
        if shape.feed_forward:
            up = nn.Linear(shape.width, shape.feed_forward, bias=shape.bias)
            down = nn.Linear(shape.feed_forward, shape.width, bias=shape.bias)
            self.feed_forward = nn.Sequential(up, nn.ReLU(), down)

    def queries(self, x: Tensor) -> Tensor:
        """Queries of tokens, scaled: [..., H, N, c]."""
        return self._split(self.query(x)) * self.shape.factor

    def keys(self, x: Tensor) -> Keys:
        """Keys and values of tokens."""
        return Keys(self._split(self.key(x)), self._split(self.value(x)))

    def weigh(self, logits: Tensor, seen: Tensor) -> Tensor:
        """The weights of tokens, over the last dimension; 0 for unseen tokens, if at least one is seen."""
        if self.shape.kind == "linear":
            return logits.masked_fill(~seen, 0)
        if self.shape.kind == "relu":
            return logits.relu().masked_fill(~seen, 0) / seen.sum(-1, keepdim=True).clamp(min=1)
        return _softmax(logits.masked_fill(~seen, torch.finfo(logits.dtype).min))

    def add(self, mixed: Tensor) -> Tensor:
        """The vectors that the heads' values, [..., H, N, c], add to the tokens: [..., N, d]."""
        joined = mixed.transpose(-2, -3).flatten(-2)
        return joined if self.output is None else self.output(joined)

    def join(self, x: Tensor, added: Tensor) -> Tensor:
        """The tokens after the layer, [..., N, d], from the tokens before it and the output of the attention."""
        return self.finish(x + added if self.shape.residual else added)

    def finish(self, x: Tensor) -> Tensor:
        """The tokens after the layer from those after its attention."""
        x = self.norm1(x)
        if self.feed_forward is None:
            return x
        hidden = self.feed_forward(x)
        if self.shape.residual:
            hidden = x + hidden
        finished: Tensor = self.norm2(hidden)
        return finished

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.shape.heads, self.shape.size).transpose(-2, -3)


class MaskedAttention(nn.Module):
    """Layers of attention, read at masked positions."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(MaskedLayer(shape) for _ in range(shape.layers))

    def forward(
        self, tokens: Tensor, masked: Tensor, known: Tensor, present: Tensor | None = None, *, causal: bool
    ) -> Tensor:
        """The last layer's token at each position when that position is masked, [B, I, d].

        Args:
            tokens: [B, J, d].
            masked: replacement of each of the first I tokens, [B, I, d].
            known: whether other positions see the token, [B, J].
            present: which of the first I positions are read, [B, I]; the known ones by default. Numbers at other
                positions are meaningless.
            causal: whether each position sees those before it only; see `find_seen`.
        """
        if causal or len(self.layers) == 1 or tokens.shape[1] > masked.shape[1]:
            return self._read_all(tokens, masked, known, causal=causal)
        vectors = torch.zeros_like(masked)
        for rows, length in _group_by_length(known if present is None else present, tokens.shape[2]):
            group = self._read_all(tokens[rows, :length], masked[rows, :length], known[rows, :length], causal=False)
            positions = torch.arange(length, device=rows.device)
            vectors.index_put_((rows[:, None], positions), group.to(vectors.dtype))
        return vectors

    def step_copy(
        self, tokens: Tensor, masked: Tensor, known: Tensor, position: int, *, causal: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """After each layer of the copy with a masked position: all tokens, [B, J, d], and the weights, [B, H, J, J]."""
        total = tokens.shape[1]
        visible = known | mark_position(masked, total)[position]
        seen = find_seen(masked.shape[1], total, causal=causal, device=tokens.device) & visible[:, None]
        seen = seen | torch.eye(total, dtype=torch.bool, device=tokens.device)
        copy = tokens.clone()
        copy[:, position] = masked[:, position]
        for layer in self.layers:
            assert isinstance(layer, MaskedLayer)
            keys = layer.keys(copy)
            weights = layer.weigh(layer.queries(copy) @ keys.key.transpose(-1, -2), seen[:, None])
            copy = layer.join(copy, layer.add(weights @ keys.value))
            yield copy, weights

    def _read_all(self, tokens: Tensor, masked: Tensor, known: Tensor, *, causal: bool) -> Tensor:
        """What `forward` returns, for sequences that are computed together: every position is read."""
        layers: Sequence[MaskedLayer] = list(self.layers)  # type: ignore[arg-type]
        if causal or len(layers) == 1:
            seen = _see_known(known, masked.shape[1], causal=causal)
            for layer in layers[:-1]:
                keys = layer.keys(tokens)
                tokens = _step(layer, tokens, keys, seen)
                masked = _read(layer, masked, keys, layer.keys(masked), seen)
            return _read(layers[-1], masked, layers[-1].keys(tokens), layers[-1].keys(masked), seen)
        visible = known[:, None] | mark_position(masked, tokens.shape[1])  # in each copy, [B, I, J]
        started = _start_copies(layers[0], tokens, masked, visible)
        if len(layers) == 2 and not self.shape.norm and not self.shape.feed_forward:
            return _read_copies(layers[1], started, visible)
        is_masked = mark_masked(masked, tokens.shape[1])[..., None]
        copies = torch.where(is_masked, started.masked.unsqueeze(2), layers[0].finish(started.expand()))
        for layer in layers[1:-1]:
            copies = _step(layer, copies, layer.keys(copies), visible[:, :, None])
        return _read_copies(layers[-1], WholeCopies(copies), visible)


def _softmax(logits: Tensor) -> Tensor:
    """Softmax over the last dimension. On a CPU, that of torch is several times slower than this for short rows."""
    if logits.shape[-1] >= SHORT_ROW or logits.is_cuda or logits.dtype not in (torch.float32, torch.float64):
        return logits.softmax(-1)
    raised = (logits - logits.detach().amax(-1, keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True)


def _group_by_length(known: Tensor, width: int) -> Iterator[tuple[Tensor, int]]:
    """Rows of similar length, with the largest length of each group: copies of short sequences cost less alone.

    width: numbers of a token.
    """
    most = math.inf if known.is_cuda else LARGEST_GROUP
    lengths, order = measure_lengths(known).sort(descending=True, stable=True)
    start = 0
    while start < len(order):
        length = int(lengths[start])
        end = int((lengths >= SIMILAR * length).sum())
        if end < len(order):
            saved = (len(order) - end) * (length**2 - int(lengths[end]) ** 2) * width
            if saved < SPLIT:
                end = len(order)
        end = int(min(end, start + max(1, most // (length**2 * width))))
        yield order[start:end], length
        start = end


def measure_lengths(known: Tensor) -> Tensor:
    """The length of each sequence up to its last known position, at least 1: [B]. known: [B, J]."""
    return torch.where(known, torch.arange(1, known.shape[1] + 1, device=known.device), 1).amax(1)


def find_seen(positions: int, total: int, *, causal: bool, device: torch.device) -> Tensor:
    """Which tokens each token sees, [J, J]: all; or, if causal, those of positions up to its own.

    The context-only tokens are further ones of the same positions, in the same order, one time after the other. The
    value that one has of an earlier time may be that of an earlier position. They do not see the first I tokens.
    """
    if not causal:
        return torch.ones(total, total, dtype=torch.bool, device=device)
    position = torch.arange(total, device=device) % positions
    seen = position <= position[:, None]
    seen[positions:, :positions] = False
    return seen


def _see_known(known: Tensor, positions: int, *, causal: bool) -> Tensor:
    """Which tokens each token sees, [B, J, J]: known ones, and context-only ones of its own position."""
    total = known.shape[1]
    seen = find_seen(positions, total, causal=causal, device=known.device) & known[:, None]
    if total > positions:
        token = torch.arange(total, device=known.device)
        position = token % positions
        seen = seen | ((position == position[:, None]) & (token >= positions))
    return seen


def _step(layer: MaskedLayer, x: Tensor, keys: Keys, seen: Tensor) -> Tensor:
    """All tokens after a layer. keys: theirs. seen: [..., J, J], or broadcast to it."""
    weights = layer.weigh(layer.queries(x) @ keys.key.transpose(-1, -2), seen.unsqueeze(-3))
    return layer.join(x, layer.add(weights @ keys.value))


def _read(layer: MaskedLayer, masked: Tensor, keys: Keys, masked_keys: Keys, seen: Tensor) -> Tensor:
    """The masked tokens after a layer: each sees the other tokens, and itself as it is masked.

    keys: of the tokens. masked_keys: of the masked ones. seen: [B, I or more, J].
    """
    query = layer.queries(masked)
    is_own = mark_masked(masked, seen.shape[-1])
    own_logits = (query * masked_keys.key).sum(-1, keepdim=True)
    logits = torch.where(is_own, own_logits, query @ keys.key.transpose(-1, -2))
    weights = layer.weigh(logits, (seen[:, : masked.shape[1]] | is_own)[:, None])  # [B, H, I, J]
    others = weights.masked_fill(is_own, 0)
    mixed = others @ keys.value
    own = (weights - others).sum(-1, keepdim=True)  # [B, H, I, 1]
    return layer.join(masked, layer.add(mixed + own * masked_keys.value))


def _start_copies(layer: MaskedLayer, tokens: Tensor, masked: Tensor, visible: Tensor) -> MixedCopies:
    """The tokens of all copies after the attention of the first layer; the masked ones after all of the layer.

    The copies have the queries, keys and values of the sequence, but for those of the masked token. visible: which
    tokens those of each copy see, [B, I, J].
    """
    keys = layer.keys(tokens)
    masked_keys = layer.keys(masked)
    query = layer.queries(tokens)
    is_own = mark_masked(masked, tokens.shape[1]).unsqueeze(1)  # [I, 1, J]
    logits = (query @ keys.key.transpose(-1, -2)).unsqueeze(2)
    # Each token's logit for the mask, [B, H, I, J, 1].
    masks = (masked_keys.key @ query.transpose(-1, -2)).unsqueeze(-1)
    weights = layer.weigh(torch.where(is_own, masks, logits), visible[:, None, :, None])  # [B, H, I, J, J]
    others = weights.masked_fill(is_own, 0)
    mixed = (others.flatten(2, 3) @ keys.value).view(*others.shape[:4], -1)
    own = (weights - others).sum(-1, keepdim=True)  # [B, H, I, J, 1]
    mixed = mixed + own * masked_keys.value.unsqueeze(3)
    once = tokens if layer.shape.residual else torch.zeros_like(tokens)
    if layer.output is None:
        output = torch.eye(layer.shape.width).to(tokens)
    else:
        output = layer.output.weight
        if layer.shape.bias:
            once = once + layer.output.bias
    masked = _read(layer, masked, keys, masked_keys, visible)
    return MixedCopies(once, mixed.permute(0, 2, 3, 1, 4).flatten(3), output, masked)


def _read_copies(layer: MaskedLayer, copies: WholeCopies | MixedCopies, visible: Tensor) -> Tensor:
    """The masked token of each copy after a layer, [B, I, d]."""
    shape = layer.shape
    query = layer.queries(copies.masked)  # [B, H, I, c]
    by_head = (shape.heads, shape.size, shape.width)
    logits = copies.dot(torch.einsum("bhic,hcd->bihd", query, layer.key.weight.view(by_head)))
    if shape.bias:
        bias = layer.key.bias.view(shape.heads, 1, shape.size)
        logits = logits + (query * bias).sum(-1).transpose(1, 2)[..., None]
    weights = layer.weigh(logits, visible[:, :, None])
    mixed = torch.einsum("bihd,hcd->bihc", copies.mix(weights), layer.value.weight.view(by_head))
    if shape.bias:
        mixed = mixed + weights.sum(-1, keepdim=True) * layer.value.bias.view(shape.heads, shape.size)
    return layer.join(copies.masked, layer.add(mixed.transpose(1, 2)))


@dataclass(frozen=True)
class WholeCopies:
    """All tokens of all copies, [B, I, J, d]."""

    tokens: Tensor

    @property
    def masked(self) -> Tensor:
        """The masked token of each copy, [B, I, d]."""
        return self.tokens.diagonal(dim1=1, dim2=2).transpose(-1, -2)

    def dot(self, vectors: Tensor) -> Tensor:
        """Products of vectors of each copy, [B, I, H, d], with its tokens: [B, I, H, J]."""
        return vectors @ self.tokens.transpose(-1, -2)

    def mix(self, weights: Tensor) -> Tensor:
        """Sums of the tokens of each copy with weights [B, I, H, J]: [B, I, H, d]."""
        return weights @ self.tokens


@dataclass(frozen=True)
class MixedCopies:
    """Copies of the tokens: token j of copy i is once[j] + output·mixed[i, j], and masked[i] for j = i.

    Attributes:
        once: [B, J, d].
        mixed: joint result of the heads' values, [B, I, J, n].
        output: [d, n].
        masked: [B, I, d].
    """

    once: Tensor
    mixed: Tensor
    output: Tensor
    masked: Tensor

    def dot(self, vectors: Tensor) -> Tensor:
        """Products of vectors of each copy, [B, I, H, d], with its tokens: [B, I, H, J]."""
        with_once = (vectors.flatten(1, 2) @ self.once.transpose(-1, -2)).view(*vectors.shape[:3], -1)
        with_mixed = (vectors @ self.output) @ self.mixed.transpose(-1, -2)
        with_masked = (vectors * self.masked.unsqueeze(2)).sum(-1, keepdim=True)
        return torch.where(self._is_masked, with_masked, with_once + with_mixed)

    def mix(self, weights: Tensor) -> Tensor:
        """Sums of the tokens of each copy with weights [B, I, H, J]: [B, I, H, d]."""
        others = weights.masked_fill(self._is_masked, 0)
        of_once = (others.flatten(1, 2) @ self.once).view(*weights.shape[:3], -1)
        of_masked = (weights - others).sum(-1, keepdim=True) * self.masked.unsqueeze(2)
        return of_once + (others @ self.mixed) @ self.output.T + of_masked

    def expand(self) -> Tensor:
        """All tokens but the masked ones, [B, I, J, d]."""
        return self.once.unsqueeze(1) + self.mixed @ self.output.T

    @property
    def _is_masked(self) -> Tensor:
        """Which token of each copy is the masked one, [I, 1, J]."""
        return mark_masked(self.masked, self.mixed.shape[2]).unsqueeze(1)


def mark_masked(masked: Tensor, total: int) -> Tensor:
    """Whether each token is the masked one, for each copy, [I, total]. masked: [B, I, d]."""
    return torch.eye(masked.shape[1], total, dtype=torch.bool, device=masked.device)


def mark_position(masked: Tensor, total: int) -> Tensor:
    """Whether each token is at the position of the copy: masked or context-only, [I, total]."""
    return mark_masked(masked, masked.shape[1]).repeat(1, total // masked.shape[1])
