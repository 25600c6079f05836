"""Bidirectional attention as a mixture of word experts: Lemma 1, section 2.2, Theorem 2, written from the statements.

|V| words, the mask is one more token; S positions; embeddings of p dimensions; H heads of d_w dimensions.
The right-hand sides take weights from a `BidirectionalAttention` and use none of its layers.
Source: Wibisono and Wang 2023 (arXiv 2307.04057), Lemma 1, section 2.2, Theorem 2, appendices B and C.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from attngeo.papers.residuals import Residuals, difference
from attngeo.papers.wibisono2023.corpus import ContinuousBag
from attngeo.training.loop import seeded

WORDS = 11
LENGTH = 6
DIMENSIONS = 8
SENTENCES = 4


class AttentionLayer(nn.Module):
    """Attention and a linear layer, each with a residual connection: steps 2 to 6 of appendix B.

    Attributes:
        heads: number of heads, H.
        head_dim: width of a head, d_w.
        query: its weight is W^Q of all heads, [H·d_w, p].
        key: its weight is W^K of all heads, [H·d_w, p].
        value: its weight is W^V, [H·d_w, p].
        output: its weight is (W^O)ᵀ, [p, H·d_w].
        linear: its weight is W′, [p, p].
    """

    def __init__(self, dimensions: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim
        width = heads * head_dim
        self.query = nn.Linear(dimensions, width, bias=False, dtype=torch.float64)
        self.key = nn.Linear(dimensions, width, bias=False, dtype=torch.float64)
        self.value = nn.Linear(dimensions, width, bias=False, dtype=torch.float64)
        self.output = nn.Linear(width, dimensions, bias=False, dtype=torch.float64)
        self.linear = nn.Linear(dimensions, dimensions, bias=False, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """The representations after the layer, [n, S, p], from those before it."""
        q = self._split(self.query(x))
        k = self._split(self.key(x))
        v = self._split(self.value(x))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  # [n, S, H·d_w]
        x = x + self.output(mixed)
        after: Tensor = x + self.linear(x)
        return after

    def _split(self, projected: Tensor) -> Tensor:
        """The heads of a projection [n, S, H·d_w], [n, H, S, d_w]."""
        return projected.view(*projected.shape[:-1], self.heads, self.head_dim).transpose(1, 2)

    def head_forms(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(W^K)ᵀW^Q/√d_w and (W^O)ᵀW^V of each head, each [p, p]."""
        for head in range(self.heads):
            rows = slice(head * self.head_dim, (head + 1) * self.head_dim)
            key_query = self.key.weight[rows].T @ self.query.weight[rows] / math.sqrt(self.head_dim)
            yield key_query, self.output.weight[:, rows] @ self.value.weight[rows]


class BidirectionalAttention(nn.Module):
    """Bidirectional attention: tokens and positions, one or several layers, and a linear layer to logits (appendix B).

    Attributes:
        tokens: its weight is C, [|V| + 1, p], the mask last.
        positions: its weight is P, [S, p].
        layers: the layers of attention.
        last: its weight is W″, [|V|, p].
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
    """The weights of Lemma 1 after reparameterisation, for a model with one layer.

    Attributes:
        key_query: W^KQ of each head, with the factor 1/√d_w, [H, p, p].
        experts: W^LOV of each head, [H, |V|, p].
        mask: g, [|V|].
        position: D, [|V|, S].
    """

    key_query: Tensor
    experts: Tensor
    mask: Tensor
    position: Tensor


def expert_weights(model: BidirectionalAttention) -> ExpertWeights:
    """W^KQ = (W^K)ᵀW^Q, W^LOV = W^ℓ(W^O)ᵀW^V, g = W^ℓ·c_mask and D = W^ℓ·Pᵀ with W^ℓ = W″ + W″W′."""
    layer = model.layers[0]
    assert isinstance(layer, AttentionLayer)
    last = model.last.weight + model.last.weight @ layer.linear.weight
    key_queries = []
    experts = []
    for key_query, value in layer.head_forms():
        key_queries.append(key_query)
        experts.append(last @ value)
    return ExpertWeights(
        key_query=torch.stack(key_queries),
        experts=torch.stack(experts),
        mask=last @ model.tokens.weight[-1],
        position=last @ model.positions.weight.T,
    )


def lemma_1_losses(model: BidirectionalAttention, sentence: Tensor, masked: int) -> Tensor:
    """L_MLM(m, b) of Lemma 1 for every word b, [|V|]. sentence: tokens [S], with the mask at position `masked`."""
    weights = expert_weights(model)
    x = model.tokens.weight[sentence] + model.positions.weight
    middle = model.tokens.weight[-1] + model.positions.weight[masked]
    theta = (x @ weights.key_query[0] @ middle).exp()  # [S]
    chi = x @ weights.experts[0].T + weights.mask + weights.position[:, masked]  # [S, |V|]
    mean = (theta[:, None] * chi).sum(0) / theta.sum()
    return -mean + mean.exp().sum().log()


class Parts(NamedTuple):
    """The four parts of the weight and of the similarity in section 2.2; a shape says what a part depends on.

    Attributes:
        token: part of the weight: on the token j, [|V| + 1].
        token_mask: part of the weight: on the token j and the position m of the mask, [|V| + 1, S].
        position: part of the weight: on the position j, [S].
        position_mask: part of the weight: on both positions, [S, S].
        word_token: part of the similarity: on the word in the center and the token j, [|V|, |V| + 1].
        word_position: part of the similarity: on the word and the position j, [|V|, S].
        word: part of the similarity: on the word alone, [|V|].
        word_mask: part of the similarity: on the word and the position m, [|V|, S].
    """

    token: Tensor
    token_mask: Tensor
    position: Tensor
    position_mask: Tensor
    word_token: Tensor
    word_position: Tensor
    word: Tensor
    word_mask: Tensor


def split_parts(model: BidirectionalAttention) -> Parts:
    """The parts of a model with one layer and head, from its tokens C, its positions P and the mask c."""
    weights = expert_weights(model)
    key_query = weights.key_query[0]
    experts = weights.experts[0]
    tokens = model.tokens.weight
    positions = model.positions.weight
    to_mask = key_query @ tokens[-1]
    to_positions = key_query @ positions.T
    return Parts(
        token=tokens @ to_mask,
        token_mask=tokens @ to_positions,
        position=positions @ to_mask,
        position_mask=positions @ to_positions,
        word_token=experts @ tokens.T,
        word_position=experts @ positions.T,
        word=weights.mask,
        word_mask=weights.position,
    )


def logits_from_parts(parts: Parts, sentence: Tensor, masked: int) -> Tensor:
    """Σ_j softmax(weight)_j·similarity_j, [|V|], each the sum of its four parts."""
    from_tokens = parts.token[sentence] + parts.token_mask[sentence, masked]
    weight = from_tokens + parts.position + parts.position_mask[:, masked]
    word = parts.word[:, None]
    similarity = parts.word_token[:, sentence] + parts.word_position + word + parts.word_mask[:, [masked]]
    return similarity @ torch.softmax(weight, 0)


def cbow_losses(centre: Tensor, context: Tensor, sentence: Tensor, position: int, window: int) -> Tensor:
    """L_CBOW(m, b) of section 2.2 for every word b, [|V|].

    Args:
        centre: W^LOV, [|V|, p].
        context: C, [|V|, p].
        sentence: tokens, [S].
        position: m.
        window: number of positions to read on each side.
    """
    distance = (torch.arange(len(sentence)) - position).abs()
    omega = ((distance >= 1) & (distance <= window)).to(context.dtype)
    xi = context[sentence] @ centre.T  # [S, |V|]
    mean = omega @ xi / omega.sum()
    return -mean + mean.exp().sum().log()


def mixture_logits(model: BidirectionalAttention, sentence: Tensor, masked: int) -> Tensor:
    """F(X̄) = Σ_i Σ_j π_j^i f_j^i of Theorem 2, [|V|], for a model of one layer; i runs over heads, j over positions."""
    weights = expert_weights(model)
    heads = len(weights.experts)
    x = model.tokens.weight[sentence] + model.positions.weight
    middle = model.tokens.weight[-1] + model.positions.weight[masked]
    total = torch.zeros_like(weights.mask)
    for key_query, experts in zip(weights.key_query, weights.experts, strict=True):
        shares = torch.softmax(x @ key_query @ middle, 0)
        for position, share in enumerate(shares):
            expert = experts @ x[position] + weights.mask / heads + weights.position[:, masked] / heads
            total = total + share * expert
    return total


def mixture_of_mixtures(model: BidirectionalAttention, sentence: Tensor, masked: int) -> Tensor:
    """Theorem 2 for any number of layers, [|V|]: the experts of a layer are linear in the mixtures of the layer below.

    In layer l, position i is Σ_heads Σ_j π_j·(I + W′)(z_i/H + (W^O)ᵀW^V·z_j), where z are the mixtures of layer l − 1,
    and the weights π are the softmax over j of z_jᵀ·W^KQ·z_i/√d_w.
    """
    z = list(model.tokens.weight[sentence] + model.positions.weight)
    for layer in model.layers:
        assert isinstance(layer, AttentionLayer)
        after = torch.eye(len(z[0]), dtype=z[0].dtype) + layer.linear.weight  # I + W′
        mixtures = []
        for middle in z:
            total = torch.zeros_like(middle)
            for key_query, value in layer.head_forms():
                shares = torch.softmax(torch.stack([other @ key_query @ middle for other in z]), 0)
                for share, other in zip(shares, z, strict=True):
                    total = total + share * after @ (middle / layer.heads + value @ other)
            mixtures.append(total)
        z = mixtures
    logits: Tensor = model.last.weight @ z[masked]
    return logits


class Case(NamedTuple):
    """A model, and a sentence with a masked position.

    Attributes:
        model: the model.
        sentence: tokens, [S], with the mask at the position `masked`.
        masked: position of the mask.
    """

    model: BidirectionalAttention
    sentence: Tensor
    masked: int

    def logits(self) -> Tensor:
        """The logits of the model at the mask, [|V|]."""
        logits: Tensor = self.model(self.sentence[None])[0, self.masked]
        return logits


@torch.no_grad()
def draw_cases(
    seed: int,
    *,
    words: int = WORDS,
    length: int = LENGTH,
    dimensions: int = DIMENSIONS,
    heads: int = 1,
    head_dim: int = 3,
    layers: int = 1,
) -> list[Case]:
    """A random model, and random sentences with the mask at each position in turn."""
    with seeded(seed):
        model = BidirectionalAttention(words, length, dimensions, heads=heads, head_dim=head_dim, layers=layers)
        model.requires_grad_(False)
        cases = []
        for masked in [*range(length)] * SENTENCES:
            sentence = torch.randint(words, (length,))
            sentence[masked] = words
            cases.append(Case(model, sentence, masked))
    return cases


def check_lemma_1(seed: int = 0, **sizes: int) -> Residuals:
    """Lemma 1: L_MLM(m, b) by θ and χ against the cross-entropy of the attention layer, for every m and b."""
    errors = []
    for case in draw_cases(seed, **sizes):
        losses = -torch.log_softmax(case.logits(), 0)
        errors.append(difference(lemma_1_losses(*case), losses))
    return Residuals(f"losses of {len(errors)} masked positions, every word", errors)


def check_parts(seed: int = 0, **sizes: int) -> Residuals:
    """Section 2.2: the four parts of weight and similarity, tables by what they may depend on, against the logits."""
    errors = []
    for case in draw_cases(seed, **sizes):
        logits = logits_from_parts(split_parts(case.model), case.sentence, case.masked)
        errors.append(difference(logits, case.logits()))
    return Residuals(f"logits of {len(errors)} masked positions", errors)


def check_cbow_loss(
    seed: int = 0, *, words: int = WORDS, length: int = LENGTH, dimensions: int = DIMENSIONS
) -> Residuals:
    """Section 2.2: L_CBOW(m, b) by ω and ξ against the cross-entropy of CBOW, for every m, b and window."""
    errors = []
    with seeded(seed):
        model = ContinuousBag(words, dimensions).requires_grad_(False)
        sentence = torch.randint(words, (length,))
    for window in range(1, length):
        for position in range(length):
            before = sentence[max(0, position - window) : position]
            after = sentence[position + 1 : position + window + 1]
            counts = torch.bincount(torch.cat([before, after]), minlength=words).to(torch.float64)
            expected = -torch.log_softmax(model(counts[None])[0], 0)
            losses = cbow_losses(model.center.weight, model.tokens.weight, sentence, position, window)
            errors.append(difference(losses, expected))
    return Residuals(f"losses of {length} positions, every word, windows of 1 to {length - 1}", errors)


def check_theorem_2(seed: int = 0, *, heads: int = 1, layers: int = 1, **sizes: int) -> Residuals:
    """Theorem 2: F(X̄) against the logits of attention; of several layers, the mixture of mixtures."""
    mix = mixture_logits if layers == 1 else mixture_of_mixtures
    errors = [difference(mix(*case), case.logits()) for case in draw_cases(seed, heads=heads, layers=layers, **sizes)]
    shape = f"{heads} head{'' if heads == 1 else 's'}"
    if layers > 1:
        shape = f"{layers} layers of {shape}"
    return Residuals(f"logits of {len(errors)} masked positions, {shape}", errors)
