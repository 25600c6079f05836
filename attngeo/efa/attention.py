"""Layers of attention that are read at each position as if that position alone were masked.

Copying a sequence once for each of its positions, with that position masked, costs as many passes as it has positions.
The numbers of all copies follow from fewer:

- In one direction, what comes before a masked position does not change. One stream of tokens and one of masks suffice.
- In both directions, the first layer of a copy has the queries, keys and values of the sequence but for one token.
- Of the last layer, only the masked position is read. Its key and value matrices are applied to the query and to the
  weighted sum, not to each token of each copy.

Only the layers between the first and the last are computed for each copy.

Shapes: B sequences, I positions of which each is masked in turn, J positions in all (the first I, then those that are
context only), d numbers of a token, H heads of size c.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 2.1, equation (1), and section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from attngeo.choices import whole
from attngeo.efa.copies import Copies, MixedCopies, WholeCopies, mark_own
from attngeo.errors import UsageError

Kind = Literal["softmax", "linear"]
Scale = Literal["width", "head"]
# Sequences are computed together if the shortest has this share of the longest one, or if apart they would save fewer
# numbers of tokens of copies than this.
SIMILAR, SPLIT = 0.75, 2**17
# The most numbers of tokens of copies that are computed together on a CPU: its cache holds them.
LARGEST_GROUP = 2**20
# Rows of logits from here on are as long as the vectors of a processor.
SHORT_ROW = 16


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """The sizes and the kind of the layers. Raises UsageError for sizes below 1.

    width: d. kind: "softmax", or "linear" for the products themselves as weights. scale: of the products, 1/"width" as
    in the paper, or 1/√"head" as in its code. bias: of the four matrices. output: a matrix after the heads; without it,
    heads·head_size must be the width. norm: layer normalisation after each residual connection. feed_forward: hidden
    units of a layer after the attention, 0 for none.
    """

    width: int
    layers: int = 1
    heads: int = 1
    head_size: int | None = None
    kind: Kind = "softmax"
    scale: Scale = "width"
    residual: bool = True
    bias: bool = False
    output: bool = True
    norm: bool = False
    feed_forward: int = 0

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads"):
            whole(name, getattr(self, name), 1)
        if self.head_size is None and self.width % self.heads:
            raise UsageError(f"width is {self.width}, expected a multiple of heads, {self.heads}; or set head_size")
        if not self.output and self.size * self.heads != self.width:
            raise UsageError(f"heads·head_size is {self.size * self.heads}, expected the width, {self.width}")

    @property
    def size(self) -> int:
        """The size of a head."""
        return self.width // self.heads if self.head_size is None else self.head_size

    @property
    def factor(self) -> float:
        """What products of queries and keys are multiplied by."""
        return 1 / self.width if self.scale == "width" else self.size**-0.5


class Keys(NamedTuple):
    """Keys and values of tokens, [..., H, N, c] each."""

    key: Tensor
    value: Tensor


class MaskedLayer(nn.Module):
    """One layer. Parameters: query, key, value (Linear, d → H·c), output (H·c → d), norms and feed-forward if any."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape
        inner = shape.heads * shape.size
        self.query, self.key, self.value = (nn.Linear(shape.width, inner, bias=shape.bias) for _ in range(3))
        self.output = nn.Linear(inner, shape.width, bias=shape.bias) if shape.output else None
        self.norm1 = nn.LayerNorm(shape.width) if shape.norm else nn.Identity()
        self.norm2 = nn.LayerNorm(shape.width) if shape.norm and shape.feed_forward else nn.Identity()
        self.feed_forward = (
            nn.Sequential(
                nn.Linear(shape.width, shape.feed_forward), nn.ReLU(), nn.Linear(shape.feed_forward, shape.width)
            )
            if shape.feed_forward
            else None
        )

    def queries(self, x: Tensor) -> Tensor:
        """Queries of tokens, scaled: [..., H, N, c]."""
        return self._split(self.query(x)) * self.shape.factor

    def keys(self, x: Tensor) -> Keys:
        """Keys and values of tokens."""
        return Keys(self._split(self.key(x)), self._split(self.value(x)))

    def weigh(self, logits: Tensor, seen: Tensor) -> Tensor:
        """The weights of tokens, over the last dimension; 0 for those that are not seen, if one is."""
        if self.shape.kind == "linear":
            return logits.masked_fill(~seen, 0)
        return _softmax(logits.masked_fill(~seen, torch.finfo(logits.dtype).min))

    def add(self, mixed: Tensor) -> Tensor:
        """What the heads' values, [..., H, N, c], add to the tokens: [..., N, d]."""
        joined = mixed.transpose(-2, -3).flatten(-2)
        return joined if self.output is None else self.output(joined)

    def join(self, x: Tensor, added: Tensor) -> Tensor:
        """The tokens after the layer, [..., N, d], from those before and what the attention adds to them."""
        return self.finish(x + added if self.shape.residual else added)

    def finish(self, x: Tensor) -> Tensor:
        """The tokens after the layer from those after its attention."""
        x = self.norm1(x)
        if self.feed_forward is not None:
            hidden = self.feed_forward(x)
            x = self.norm2(x + hidden if self.shape.residual else hidden)
        return x

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.shape.heads, self.shape.size).transpose(-2, -3)


class MaskedAttention(nn.Module):
    """Layers of attention, read at masked positions."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(MaskedLayer(shape) for _ in range(shape.layers))

    def forward(self, tokens: Tensor, masked: Tensor, known: Tensor, *, causal: bool) -> Tensor:
        """The last layer's token at each position when that position is masked, [B, I, d].

        tokens: [B, J, d]. masked: what replaces each of the first I tokens, [B, I, d]. known: whether there is a token,
        [B, J]; numbers at other positions are meaningless. causal: each position sees those before it only; see
        `find_seen`.
        """
        if causal or len(self.layers) == 1 or tokens.shape[1] > masked.shape[1]:
            return self._read_all(tokens, masked, known, causal=causal)
        found = torch.zeros_like(masked)
        for rows, length in _group_by_length(known, tokens.shape[2]):
            parts = (each[rows, :length] for each in (tokens, masked, known))
            read = self._read_all(*parts, causal=False)
            found.index_put_((rows[:, None], torch.arange(length, device=rows.device)), read.to(found.dtype))
        return found

    def read_one(self, given: tuple[Tensor, Tensor, Tensor], position: int, *, causal: bool) -> Tensor:
        """The last layer's token at one position when that position is masked, [B, d]; given: as in `forward`."""
        *_, last = self.step_copy(given, position, causal=causal)
        return last[0][:, position]

    def step_copy(
        self, given: tuple[Tensor, Tensor, Tensor], position: int, *, causal: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """After each layer of the copy with a masked position: all tokens, [B, J, d], and the weights, [B, H, J, J]."""
        tokens, masked, known = given
        positions, total = masked.shape[1], tokens.shape[1]
        seen = find_seen(positions, total, causal=causal, device=tokens.device)
        seen = (seen & known[:, None]) | torch.eye(total, dtype=torch.bool, device=tokens.device)
        copy = tokens.clone()
        copy[:, position] = masked[:, position]
        for layer in self.layers:
            assert isinstance(layer, MaskedLayer)
            keys = layer.keys(copy)
            weights = layer.weigh(layer.queries(copy) @ keys.key.transpose(-1, -2), seen[:, None])
            copy = layer.join(copy, layer.add(weights @ keys.value))
            yield copy, weights

    def _read_all(self, tokens: Tensor, masked: Tensor, known: Tensor, *, causal: bool) -> Tensor:
        """The same for sequences that are computed together."""
        layers: Sequence[MaskedLayer] = list(self.layers)  # type: ignore[arg-type]
        if causal or len(layers) == 1:
            seen = find_seen(masked.shape[1], tokens.shape[1], causal=causal, device=tokens.device) & known[:, None]
            for layer in layers[:-1]:
                keys = layer.keys(tokens)
                tokens, masked = _step(layer, tokens, keys, seen), _read(layer, masked, keys, layer.keys(masked), seen)
            return _read(layers[-1], masked, layers[-1].keys(tokens), layers[-1].keys(masked), seen)
        started = _start_copies(layers[0], tokens, masked, known)
        if len(layers) == 2 and not self.shape.norm and not self.shape.feed_forward:
            return _read_copies(layers[1], started, known)
        copies = _expand(layers[0], started)
        for layer in layers[1:-1]:
            copies = _step(layer, copies, layer.keys(copies), known[:, None, None])
        return _read_copies(layers[-1], WholeCopies(copies), known)


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
        shorter = lengths < SIMILAR * lengths[start]
        length, end = int(lengths[start]), int((~shorter).sum())
        if end < len(order) and (len(order) - end) * (length**2 - int(lengths[end]) ** 2) * width < SPLIT:
            end = len(order)
        end = int(min(end, start + max(1, most // (length**2 * width))))
        yield order[start:end], length
        start = end


def measure_lengths(known: Tensor) -> Tensor:
    """The positions of each sequence up to the last known one, at least 1: [B]. known: [B, J]."""
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


def _step(layer: MaskedLayer, x: Tensor, keys: Keys, seen: Tensor) -> Tensor:
    """All tokens after a layer. keys: theirs. seen: [..., J, J], or broadcast to it."""
    weights = layer.weigh(layer.queries(x) @ keys.key.transpose(-1, -2), seen.unsqueeze(-3))
    return layer.join(x, layer.add(weights @ keys.value))


def _read(layer: MaskedLayer, masked: Tensor, keys: Keys, own: Keys, seen: Tensor) -> Tensor:
    """The masked tokens after a layer: each sees the other tokens, and itself as it is masked.

    keys: of the tokens. own: of the masked ones. seen: [B, I or more, J].
    """
    query = layer.queries(masked)
    is_own = mark_own(masked, seen.shape[-1])
    logits = torch.where(is_own, (query * own.key).sum(-1, keepdim=True), query @ keys.key.transpose(-1, -2))
    weights = layer.weigh(logits, (seen[:, : masked.shape[1]] | is_own)[:, None])  # [B, H, I, J]
    others = weights.masked_fill(is_own, 0)
    mixed = others @ keys.value + (weights - others).sum(-1, keepdim=True) * own.value
    return layer.join(masked, layer.add(mixed))


def _start_copies(layer: MaskedLayer, tokens: Tensor, masked: Tensor, known: Tensor) -> MixedCopies:
    """The tokens of all copies after the attention of the first layer; the masked ones after all of the layer.

    The copies have the queries, keys and values of the sequence, but for those of the masked token.
    """
    keys, own, query = layer.keys(tokens), layer.keys(masked), layer.queries(tokens)
    is_own = mark_own(masked, tokens.shape[1]).unsqueeze(1)  # [I, 1, J]
    logits = (query @ keys.key.transpose(-1, -2)).unsqueeze(2)
    masks = (own.key @ query.transpose(-1, -2)).unsqueeze(-1)  # each token's logit for the mask: [B, H, I, J, 1]
    weights = layer.weigh(torch.where(is_own, masks, logits), known[:, None, None, None] | is_own)  # [B, H, I, J, J]
    others = weights.masked_fill(is_own, 0)
    mixed = (others.flatten(2, 3) @ keys.value).view(*others.shape[:4], -1)
    mixed = mixed + (weights - others).sum(-1, keepdim=True) * own.value.unsqueeze(3)
    once = tokens if layer.shape.residual else torch.zeros_like(tokens)
    if layer.output is None:
        output = torch.eye(layer.shape.width).to(tokens)
    else:
        once, output = (once + layer.output.bias if layer.shape.bias else once), layer.output.weight
    read = _read(layer, masked, keys, own, known[:, None].expand(-1, masked.shape[1], -1))
    return MixedCopies(once, mixed.permute(0, 2, 3, 1, 4).flatten(3), output, read)


def _expand(layer: MaskedLayer, copies: MixedCopies) -> Tensor:
    """All tokens of all copies after the first layer, [B, I, J, d]."""
    others = layer.finish(copies.expand())
    return torch.where(mark_own(copies.own, others.shape[2])[..., None], copies.own.unsqueeze(2), others)


def _read_copies(layer: MaskedLayer, copies: Copies, known: Tensor) -> Tensor:
    """The masked token of each copy after a layer, [B, I, d]."""
    shape = layer.shape
    query = layer.queries(copies.own)  # [B, H, I, c]
    by_head = (shape.heads, shape.size, shape.width)
    logits = copies.dot(torch.einsum("bhic,hcd->bihd", query, layer.key.weight.view(by_head)))
    if shape.bias:
        bias = layer.key.bias.view(shape.heads, 1, shape.size)
        logits = logits + (query * bias).sum(-1).transpose(1, 2)[..., None]
    seen = known[:, None] | mark_own(copies.own, known.shape[1])
    weights = layer.weigh(logits, seen[:, :, None])
    mixed = torch.einsum("bihd,hcd->bihc", copies.mix(weights), layer.value.weight.view(by_head))
    if shape.bias:
        mixed = mixed + weights.sum(-1, keepdim=True) * layer.value.bias.view(shape.heads, shape.size)
    return layer.join(copies.own, layer.add(mixed.transpose(1, 2)))
