"""Layers of attention that are read at each position as if that position alone were masked.

Copying a sequence once for each of its positions, with that position masked, costs as many passes as it has positions.
The numbers of all copies follow from fewer:

- In one direction, what comes before a masked position does not change. One stream of tokens and one of masks suffice.
- In both directions, the first layer of a copy differs from that of the sequence in one key and one value. Its sums are
  those over the other positions, plus one term.
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
from torch.nn import functional

from attngeo.efa.copies import Copies, FactoredCopies, WholeCopies
from attngeo.errors import UsageError

Kind = Literal["softmax", "linear"]
Scale = Literal["width", "head"]
# The smallest sum of weights: two logits may differ by 87 before it matters.
LEAST_SUM = 1e-38
# Sequences are computed together if the shortest has this share of the longest one, or if they are a few.
SIMILAR, SMALLEST_GROUP = 0.75, 8


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
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.head_size is None and self.width % self.heads:
            raise UsageError(f"width is {self.width}, expected a multiple of heads, {self.heads}; or set head_size")
        if not self.output and self.size * self.heads != self.width:
            raise UsageError(f"heads·head_size is {self.size * self.heads}, expected the width, {self.width}")

    @property
    def size(self) -> int:
        """The size of a head."""
        return self.width // self.heads if self.head_size is None else self.head_size

    @property
    def is_factored(self) -> bool:
        """Whether the copies after a layer are linear in its values, and smaller in factors."""
        return not self.norm and not self.feed_forward and self.heads * (1 + 2 * self.heads) <= self.width

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
        self.norm1, self.norm2 = (nn.LayerNorm(shape.width) if shape.norm else nn.Identity() for _ in range(2))
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
        weights: Tensor = logits.masked_fill(~seen, torch.finfo(logits.dtype).min).softmax(-1)
        return weights

    def add(self, mixed: Tensor) -> Tensor:
        """What the heads' values, [..., H, N, c], add to the tokens: [..., N, d]."""
        joined = mixed.transpose(-2, -3).flatten(-2)
        return joined if self.output is None else self.output(joined)

    def add_by_head(self, mixed: Tensor) -> Tensor:
        """The same for each head, [..., N, H, d]; the sum over heads is what `add` gives, but for the bias."""
        matrix = torch.eye(self.shape.width).to(mixed) if self.output is None else self.output.weight
        by_head = matrix.view(self.shape.width, self.shape.heads, self.shape.size)
        return torch.einsum("...hnc,dhc->...nhd", mixed, by_head)

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
        [B, J]; numbers at other positions are meaningless. causal: each position sees those before it only, and the
        context-only ones.
        """
        if causal or len(self.layers) == 1 or tokens.shape[1] > masked.shape[1]:
            return self._read_all(tokens, masked, known, causal=causal)
        found = torch.zeros_like(masked)
        for rows, length in _group_by_length(known):
            parts = (each[rows, :length] for each in (tokens, masked, known))
            read = self._read_all(*parts, causal=False)
            found = found.index_put((rows[:, None], torch.arange(length, device=rows.device)), read)
        return found

    def _read_all(self, tokens: Tensor, masked: Tensor, known: Tensor, *, causal: bool) -> Tensor:
        """The same for sequences that are computed together."""
        layers: Sequence[MaskedLayer] = list(self.layers)  # type: ignore[arg-type]
        positions = masked.shape[1]
        seen = _see(positions, tokens.shape[1], causal=causal, device=tokens.device) & known[:, None]  # [B, J, J]
        if causal or len(layers) == 1:
            for layer in layers[:-1]:
                tokens, masked = _step(layer, tokens, seen), _read(layer, tokens, masked, seen)
            return _read(layers[-1], tokens, masked, seen)
        started = _start_copies(layers[0], tokens, masked, known)
        if len(layers) == 2 and self.shape.is_factored:
            return _read_copies(layers[1], started, known)
        copies = _expand(layers[0], started)
        for layer in layers[1:-1]:
            copies = _step(layer, copies, known[:, None, None])
        return _read_copies(layers[-1], WholeCopies(copies), known)


def _group_by_length(known: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Rows of similar length, with the largest length of each group: copies of short sequences cost less alone."""
    last = torch.where(known, torch.arange(1, known.shape[1] + 1, device=known.device), 1).amax(1)
    lengths, order = last.sort(descending=True, stable=True)
    start = 0
    while start < len(order):
        shorter = lengths < SIMILAR * lengths[start]
        end = max(int((~shorter).sum()), start + SMALLEST_GROUP)
        yield order[start:end], int(lengths[start])
        start = end


def _see(positions: int, total: int, *, causal: bool, device: torch.device) -> Tensor:
    """Which tokens each token sees, [J, J]: all, or those up to itself; the context-only ones always."""
    if not causal:
        return torch.ones(total, total, dtype=torch.bool, device=device)
    seen = torch.ones(total, total, dtype=torch.bool, device=device).tril()
    seen[:, positions:] = True
    seen[positions:, :positions] = False
    return seen


def _step(layer: MaskedLayer, x: Tensor, seen: Tensor) -> Tensor:
    """All tokens after a layer. seen: [..., J, J], or broadcast to it."""
    key, value = layer.keys(x)
    weights = layer.weigh(layer.queries(x) @ key.transpose(-1, -2), seen.unsqueeze(-3))
    return layer.join(x, layer.add(weights @ value))


def _read(layer: MaskedLayer, tokens: Tensor, masked: Tensor, seen: Tensor) -> Tensor:
    """The masked tokens after a layer: each sees the other tokens, and itself as it is masked."""
    key, value = layer.keys(tokens)
    own_key, own_value = layer.keys(masked)
    query = layer.queries(masked)
    positions = masked.shape[1]
    own = torch.eye(positions, tokens.shape[1], dtype=torch.bool, device=tokens.device)
    logits = torch.where(own, (query * own_key).sum(-1, keepdim=True), query @ key.transpose(-1, -2))
    weights = layer.weigh(logits, (seen[:, :positions] | own)[:, None])  # [B, H, I, J]
    others = weights.masked_fill(own, 0) @ value
    mixed = others + weights.diagonal(dim1=-2, dim2=-1)[..., None] * own_value
    return layer.join(masked, layer.add(mixed))


def _start_copies(layer: MaskedLayer, tokens: Tensor, masked: Tensor, known: Tensor) -> FactoredCopies:
    """The tokens of all copies after the attention of the first layer; the masked ones after all of the layer.

    The weighted sum of token j in copy i is that of all tokens, minus the term of token i, plus the term of its mask.
    If token i has most of the weight, the difference would lose the digits of the others; so the sum without the
    largest term is computed, too, and taken for that copy. Heads are added before anything has the size of the copies.
    """
    positions = masked.shape[1]
    key, value = layer.keys(tokens)
    own_key, own_value = layer.keys(masked)
    query = layer.queries(tokens)
    seen = known[:, None, None]
    logits = query @ key.transpose(-1, -2)  # [B, H, J, J]
    masks = query @ own_key.transpose(-1, -2)  # of each token for the mask of each copy: [B, H, J, I]
    if layer.shape.kind == "softmax":
        largest = logits.masked_fill(~seen, -math.inf).amax(-1, keepdim=True)
        largest = torch.maximum(largest, masks.amax(-1, keepdim=True)).detach()
        logits, masks = (logits - largest).exp(), (masks - largest).exp()
    weights = logits.masked_fill(~seen, 0)
    is_top = torch.zeros_like(weights, dtype=torch.bool).scatter_(-1, weights.argmax(-1, keepdim=True), True)
    without_top = weights.masked_fill(is_top, 0)
    weighted, is_top = weights[..., :positions], is_top[..., :positions]
    shares = torch.ones_like(masks)
    if layer.shape.kind == "softmax":
        total = weights.sum(-1, keepdim=True) - weighted
        total = torch.where(is_top, without_top.sum(-1, keepdim=True), total) + masks
        shares = 1 / total.clamp(min=LEAST_SUM)
    shares_of_sums = torch.stack([shares.masked_fill(is_top, 0), shares.masked_fill(~is_top, 0)], 1)
    shares_of_terms = torch.stack([-(shares * weighted).masked_fill(is_top, 0), shares * masks], 1)
    of_sums, of_terms = (each.flatten(1, 2).permute(0, 3, 2, 1) for each in (shares_of_sums, shares_of_terms))
    once = tokens if layer.shape.residual else torch.zeros_like(tokens)
    if layer.output is not None and layer.shape.bias:
        once = once + layer.output.bias
    sums = [once.unsqueeze(2), layer.add_by_head(weights @ value), layer.add_by_head(without_top @ value)]
    terms = [layer.add_by_head(value[..., :positions, :]), layer.add_by_head(own_value)]
    seen_by_masks = known[:, None].expand(-1, positions, -1)
    return FactoredCopies(
        torch.cat(sums, 2), functional.pad(of_sums, (1, 0), value=1.0), torch.cat(terms, 2), of_terms,
        _read(layer, tokens, masked, seen_by_masks),
    )  # fmt: skip


def _expand(layer: MaskedLayer, copies: FactoredCopies) -> Tensor:
    """All tokens of all copies after the first layer, [B, I, J, d]."""
    others = layer.finish(copies.expand())
    positions, total = others.shape[1:3]
    is_own = torch.eye(positions, total, dtype=torch.bool, device=others.device)[..., None]
    return torch.where(is_own, copies.own.unsqueeze(2), others)


def _read_copies(layer: MaskedLayer, copies: Copies, known: Tensor) -> Tensor:
    """The masked token of each copy after a layer, [B, I, d]."""
    shape = layer.shape
    query = layer.queries(copies.own)  # [B, H, I, c]
    by_head = (shape.heads, shape.size, shape.width)
    logits = copies.dot(torch.einsum("bhic,hcd->bihd", query, layer.key.weight.view(by_head)))
    if shape.bias:
        bias = layer.key.bias.view(shape.heads, 1, shape.size)
        logits = logits + (query * bias).sum(-1).transpose(1, 2)[..., None]
    seen = known[:, None] | torch.eye(*logits.shape[1::2], dtype=torch.bool, device=known.device)
    weights = layer.weigh(logits, seen[:, :, None])
    mixed = torch.einsum("bihd,hcd->bihc", copies.mix(weights), layer.value.weight.view(by_head))
    if shape.bias:
        mixed = mixed + weights.sum(-1, keepdim=True) * layer.value.bias.view(shape.heads, shape.size)
    return layer.join(copies.own, layer.add(mixed.transpose(1, 2)))
