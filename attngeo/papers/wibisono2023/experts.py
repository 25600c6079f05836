"""Bidirectional attention as a mixture of word experts: Lemma 1, section 2.2, Theorem 2, written from the statements.

|V| words, the mask is one more token; S positions; embeddings of p dimensions; H heads of d_w dimensions.
The right-hand sides take weights from a `BidirectionalAttention` and use none of its layers.
Source: Wibisono and Wang 2023 (arXiv 2307.04057), Lemma 1, section 2.2, Theorem 2, appendices B and C.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from attngeo.papers.statements import WIBISONO, Residuals, difference, statement
from attngeo.papers.wibisono2023.corpus import ContinuousBag
from attngeo.training.loop import seeded

WORDS, LENGTH, DIMENSIONS, SENTENCES = 11, 6, 8, 4


class AttentionLayer(nn.Module):
    """Attention and a linear layer, each with a residual connection: steps 2 to 6 of appendix B.

    query.weight, key.weight: W^Q and W^K of all heads, [H·d_w, p]. value.weight: W^V, [H·d_w, p]. output.weight:
    (W^O)ᵀ, [p, H·d_w]. linear.weight: W′, [p, p].
    """

    def __init__(self, dimensions: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.query, self.key, self.value = (
            nn.Linear(dimensions, heads * head_dim, bias=False, dtype=torch.float64) for _ in range(3)
        )
        self.output = nn.Linear(heads * head_dim, dimensions, bias=False, dtype=torch.float64)
        self.linear = nn.Linear(dimensions, dimensions, bias=False, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """The representations after the layer, [n, S, p], from those before it."""
        q, k, v = (
            part(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )  # [n, H, S, d_w]
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  # [n, S, H·d_w]
        x = x + self.output(mixed)
        after: Tensor = x + self.linear(x)
        return after


class BidirectionalAttention(nn.Module):
    """Bidirectional attention: tokens and positions, one or several layers, and a linear layer to logits (appendix B).

    tokens.weight: C, [|V| + 1, p], the mask last. positions.weight: P, [S, p]. last.weight: W″, [|V|, p].
    """

    def __init__(
        self, words: int, length: int, dimensions: int, *, heads: int = 1, head_dim: int = 4, layers: int = 1
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words + 1, dimensions, dtype=torch.float64)
        self.positions = nn.Embedding(length, dimensions, dtype=torch.float64)
        self.layers = nn.ModuleList(AttentionLayer(dimensions, heads, head_dim) for _ in range(layers))
        self.last = nn.Linear(dimensions, words, bias=False, dtype=torch.float64)

    def forward(self, sentences: Tensor) -> Tensor:
        """Logits [n, S, |V|] of the word in each position, from the numbers of the tokens, [n, S]."""
        x = self.tokens(sentences) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.last(x)
        return logits


class ExpertWeights(NamedTuple):
    """The weights of Lemma 1 after reparameterisation, of a model of one layer.

    key_query: W^KQ of each head, [H, p, p], with the factor 1/√d_w. experts: W^LOV of each head, [H, |V|, p].
    mask: g, [|V|]. position: D, [|V|, S].
    """

    key_query: Tensor
    experts: Tensor
    mask: Tensor
    position: Tensor


def expert_weights(model: BidirectionalAttention) -> ExpertWeights:
    """W^KQ = (W^K)ᵀW^Q, W^LOV = W^ℓ(W^O)ᵀW^V, g = W^ℓ·c_mask and D = W^ℓ·Pᵀ with W^ℓ = W″ + W″W′."""
    layer: Any = model.layers[0]
    last = model.last.weight + model.last.weight @ layer.linear.weight
    scores, values = zip(*_heads(layer), strict=True)
    return ExpertWeights(
        torch.stack(scores), torch.stack([last @ value for value in values]),
        last @ model.tokens.weight[-1], last @ model.positions.weight.T,
    )  # fmt: skip


def _heads(layer: AttentionLayer) -> Iterator[tuple[Tensor, Tensor]]:
    """(W^K)ᵀW^Q/√d_w and (W^O)ᵀW^V of each head, each [p, p]."""
    for head in range(layer.heads):
        rows = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
        key_query = layer.key.weight[rows].T @ layer.query.weight[rows] / math.sqrt(layer.head_dim)
        yield key_query, layer.output.weight[:, rows] @ layer.value.weight[rows]


def lemma_1_losses(model: BidirectionalAttention, sentence: Tensor, place: int) -> Tensor:
    """L_MLM(m, b) of Lemma 1 for every word b, [|V|]. sentence: tokens [S], with the mask at `place`."""
    weights, x = expert_weights(model), model.tokens.weight[sentence] + model.positions.weight
    middle = model.tokens.weight[-1] + model.positions.weight[place]
    theta = (x @ weights.key_query[0] @ middle).exp()  # [S]
    chi = x @ weights.experts[0].T + weights.mask + weights.position[:, place]  # [S, |V|]
    mean = (theta[:, None] * chi).sum(0) / theta.sum()
    return -mean + mean.exp().sum().log()


class Parts(NamedTuple):
    """The four parts of the weight and of the similarity in section 2.2; a shape says what a part depends on.

    weight: of the token j, [|V| + 1]; of the token j and the place m of the mask, [|V| + 1, S]; of the place j, [S]; of
    both places, [S, S]. similarity: of the word in the center with the token j, [|V|, |V| + 1]; with the place j,
    [|V|, S]; of the word alone, [|V|]; of the word and m, [|V|, S].
    """

    weight: tuple[Tensor, Tensor, Tensor, Tensor]
    similarity: tuple[Tensor, Tensor, Tensor, Tensor]


def split_parts(model: BidirectionalAttention) -> Parts:
    """The parts of a model of one layer and head, by its tokens C, its places P and the mask c."""
    weights, c, p = expert_weights(model), model.tokens.weight, model.positions.weight
    to_mask, to_places = weights.key_query[0] @ c[-1], weights.key_query[0] @ p.T
    return Parts(
        (c @ to_mask, c @ to_places, p @ to_mask, p @ to_places),
        (weights.experts[0] @ c.T, weights.experts[0] @ p.T, weights.mask, weights.position),
    )


def logits_from_parts(parts: Parts, sentence: Tensor, place: int) -> Tensor:
    """Σ_j softmax(weight)_j·similarity_j, [|V|], each the sum of its four parts."""
    places = torch.arange(len(sentence))
    token, token_place, position, positions = parts.weight
    weight = token[sentence] + token_place[sentence, place] + position[places] + positions[places, place]
    word_token, word_position, word, word_place = parts.similarity
    similarity = word_token[:, sentence] + word_position[:, places] + word[:, None] + word_place[:, [place]]
    return similarity @ torch.softmax(weight, 0)


def cbow_losses(centre: Tensor, context: Tensor, sentence: Tensor, place: int, window: int) -> Tensor:
    """L_CBOW(m, b) of section 2.2 for every word b, [|V|]. centre: W^LOV, [|V|, p]. context: C, [|V|, p]."""
    distance = (torch.arange(len(sentence)) - place).abs()
    omega = ((distance >= 1) & (distance <= window)).to(context.dtype)
    xi = context[sentence] @ centre.T  # [S, |V|]
    mean = omega @ xi / omega.sum()
    return -mean + mean.exp().sum().log()


def mixture_logits(model: BidirectionalAttention, sentence: Tensor, place: int) -> Tensor:
    """F(X̄) = Σ_i Σ_j π_j^i f_j^i of Theorem 2, [|V|], for a model of one layer; i runs over heads, j over positions."""
    weights = expert_weights(model)
    heads = len(weights.experts)
    x = model.tokens.weight[sentence] + model.positions.weight
    middle = model.tokens.weight[-1] + model.positions.weight[place]
    total = torch.zeros_like(weights.mask)
    for key_query, experts in zip(weights.key_query, weights.experts, strict=True):
        shares = torch.softmax(x @ key_query @ middle, 0)
        for position, share in enumerate(shares):
            expert = experts @ x[position] + weights.mask / heads + weights.position[:, place] / heads
            total = total + share * expert
    return total


def mixture_of_mixtures(model: BidirectionalAttention, sentence: Tensor, place: int) -> Tensor:
    """Theorem 2 for any number of layers, [|V|]: the experts of a layer are linear in the mixtures of the layer below.

    In layer l, position i is Σ_heads Σ_j π_j·(I + W′)(z_i/H + (W^O)ᵀW^V·z_j), where z are the mixtures of layer l − 1,
    and the weights π are the softmax over j of z_jᵀ·W^KQ·z_i/√d_w.
    """
    z = list(model.tokens.weight[sentence] + model.positions.weight)
    for layer in model.layers:
        z = [_mix(layer, z, middle) for middle in z]  # type: ignore[arg-type]
    logits: Tensor = model.last.weight @ z[place]
    return logits


def _mix(layer: AttentionLayer, z: list[Tensor], middle: Tensor) -> Tensor:
    """The mixture of the experts of one layer for one position: [p], from all positions below, each [p]."""
    identity = torch.eye(len(middle), dtype=middle.dtype)
    total = torch.zeros_like(middle)
    for key_query, value in _heads(layer):
        shares = torch.softmax(torch.stack([other @ key_query @ middle for other in z]), 0)
        for share, other in zip(shares, z, strict=True):
            total = total + share * (identity + layer.linear.weight) @ (middle / layer.heads + value @ other)
    return total


@statement("lemma-1", WIBISONO, "Lemma 1", "loss by θ and χ = cross-entropy of the attention layer")
def check_lemma_1(seed: int = 0, **sizes: int) -> Residuals:
    """Lemma 1: L_MLM(m, b) by θ and χ against the cross-entropy of the attention layer, for every m and b."""
    errors = []
    for model, sentence, place in _draw_cases(seed, **sizes):
        logits = model(sentence[None])[0, place]
        errors.append(difference(lemma_1_losses(model, sentence, place), -torch.log_softmax(logits, 0)))
    return Residuals(f"losses of {len(errors)} masked positions, every word", tuple(errors))


@statement(
    "section-2.2-parts", WIBISONO, "Section 2.2", "weight and similarity as sums of four parts = logits of attention"
)
def check_parts(seed: int = 0, **sizes: int) -> Residuals:
    """Section 2.2: the four parts of weight and similarity, tables by what they may depend on, against the logits."""
    errors = [
        difference(logits_from_parts(split_parts(model), sentence, place), model(sentence[None])[0, place])
        for model, sentence, place in _draw_cases(seed, **sizes)
    ]
    return Residuals(f"logits of {len(errors)} masked positions", tuple(errors))


@statement("section-2.2-cbow", WIBISONO, "Section 2.2, L_CBOW", "loss by ω and ξ = cross-entropy of CBOW with a window")
def check_cbow_loss(
    seed: int = 0, *, words: int = WORDS, length: int = LENGTH, dimensions: int = DIMENSIONS
) -> Residuals:
    """Section 2.2: L_CBOW(m, b) by ω and ξ against the cross-entropy of CBOW, for every m, b and window."""
    errors = []
    with seeded(seed), torch.no_grad():
        model = ContinuousBag(words, dimensions)
        sentence = torch.randint(words, (length,))
    for window in range(1, length):
        for place in range(length):
            near = torch.cat([sentence[max(0, place - window) : place], sentence[place + 1 : place + window + 1]])
            counts = torch.bincount(near, minlength=words).to(torch.float64)
            expected = -torch.log_softmax(model(counts[None])[0], 0)
            losses = cbow_losses(model.centre.weight, model.context.weight, sentence, place, window)
            errors.append(difference(losses.detach(), expected.detach()))
    return Residuals(f"losses of {length} positions, every word, windows of 1 to {length - 1}", tuple(errors))


@statement("theorem-2-one-head", WIBISONO, "Theorem 2", "mixture of word experts = logits of attention")
@statement(
    "theorem-2-several-heads", WIBISONO, "Theorem 2, several heads", "stacked mixtures = logits of attention", heads=3
)
@statement(
    "theorem-2-several-layers", WIBISONO, "Theorem 2, several layers", "mixture of mixtures = logits of attention",
    heads=2, layers=3,
)  # fmt: skip
def check_theorem_2(seed: int = 0, *, heads: int = 1, layers: int = 1, **sizes: int) -> Residuals:
    """Theorem 2: F(X̄) against the logits of attention; of several layers, the mixture of mixtures."""
    mix = mixture_logits if layers == 1 else mixture_of_mixtures
    errors = [
        difference(mix(model, sentence, place), model(sentence[None])[0, place])
        for model, sentence, place in _draw_cases(seed, heads=heads, layers=layers, **sizes)
    ]
    shape = f"{heads} {'head' if heads == 1 else 'heads'}"
    shape = shape if layers == 1 else f"{layers} layers of {shape}"
    return Residuals(f"logits of {len(errors)} masked positions, {shape}", tuple(errors))


@torch.no_grad()
def _draw_cases(
    seed: int,
    *,
    words: int = WORDS,
    length: int = LENGTH,
    dimensions: int = DIMENSIONS,
    heads: int = 1,
    head_dim: int = 3,
    layers: int = 1,
) -> list[tuple[BidirectionalAttention, Tensor, int]]:
    """A random model, and random sentences with the mask at each position in turn."""
    with seeded(seed):
        model = BidirectionalAttention(words, length, dimensions, heads=heads, head_dim=head_dim, layers=layers)
        model.requires_grad_(False)
        cases = []
        for place in [*range(length)] * SENTENCES:
            sentence = torch.randint(words, (length,))
            sentence[place] = words
            cases.append((model, sentence, place))
    return cases
