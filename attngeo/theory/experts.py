"""Bidirectional attention as a mixture of word experts: Lemma 1 and Theorem 2, written from the statements.

The right-hand sides take weights from a `BidirectionalAttention` and use none of its layers.
Source: Wibisono and Wang 2023 (arXiv 2307.04057), Lemma 1, Theorem 2 and appendix C.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.theory.models import AttentionLayer, BidirectionalAttention, seeded
from attngeo.theory.residuals import Residuals, difference

WORDS, LENGTH, DIMENSIONS, SENTENCES = 11, 6, 8, 4


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
    layer = _first_layer(model)
    last = model.last.weight + model.last.weight @ layer.linear.weight
    scores, values = zip(*_heads(layer), strict=True)
    return ExpertWeights(
        torch.stack(scores), torch.stack([last @ value for value in values]),
        last @ model.tokens.weight[-1], last @ model.positions.weight.T,
    )  # fmt: skip


def _heads(layer: AttentionLayer) -> Iterator[tuple[Tensor, Tensor]]:
    """(W^K)ᵀW^Q/√d_w and (W^O)ᵀW^V of each head, each [p, p]."""
    for head in range(layer.heads):
        own = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
        key_query = layer.key.weight[own].T @ layer.query.weight[own] / math.sqrt(layer.head_dim)
        yield key_query, layer.output.weight[:, own] @ layer.value.weight[own]


def lemma_1_losses(model: BidirectionalAttention, sentence: Tensor, place: int) -> Tensor:
    """L_MLM(m, b) of Lemma 1 for every word b, [|V|]. sentence: tokens [S], with the mask at `place`."""
    weights, x = expert_weights(model), model.tokens.weight[sentence] + model.positions.weight
    middle = model.tokens.weight[-1] + model.positions.weight[place]
    theta = (x @ weights.key_query[0] @ middle).exp()  # [S]
    chi = x @ weights.experts[0].T + weights.mask + weights.position[:, place]  # [S, |V|]
    mean = (theta[:, None] * chi).sum(0) / theta.sum()
    return -mean + mean.exp().sum().log()


def mixture_logits(model: BidirectionalAttention, sentence: Tensor, place: int) -> Tensor:
    """F(X̄) = Σ_i Σ_j π_j^i f_j^i of Theorem 2, [|V|], for a model of one layer; i runs over heads, j over positions."""
    weights, heads = expert_weights(model), _first_layer(model).heads
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


def check_lemma_1(seed: int = 0, **sizes: int) -> Residuals:
    """Lemma 1: L_MLM(m, b) by θ and χ against the cross-entropy of the attention layer, for every m and b."""
    errors = []
    for model, sentence, place in _draw_cases(seed, **sizes):
        logits = model(sentence[None])[0, place]
        errors.append(difference(lemma_1_losses(model, sentence, place), -torch.log_softmax(logits, 0)))
    return Residuals(f"losses of {len(errors)} masked positions, every word", tuple(errors))


def check_theorem_2(seed: int = 0, *, heads: int = 1, **sizes: int) -> Residuals:
    """Theorem 2: F(X̄) against the logits of one layer of attention with any number of heads."""
    errors = [
        difference(mixture_logits(model, sentence, place), model(sentence[None])[0, place])
        for model, sentence, place in _draw_cases(seed, heads=heads, **sizes)
    ]
    return Residuals(
        f"logits of {len(errors)} masked positions, {heads} {'head' if heads == 1 else 'heads'}", tuple(errors)
    )


def check_theorem_2_layers(seed: int = 0, *, layers: int = 3, heads: int = 2, **sizes: int) -> Residuals:
    """Theorem 2 for several layers: the mixture of mixtures against the logits of the stacked layers."""
    errors = [
        difference(mixture_of_mixtures(model, sentence, place), model(sentence[None])[0, place])
        for model, sentence, place in _draw_cases(seed, layers=layers, heads=heads, **sizes)
    ]
    return Residuals(f"logits of {len(errors)} masked positions, {layers} layers of {heads} heads", tuple(errors))


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


def _first_layer(model: BidirectionalAttention) -> AttentionLayer:
    return model.layers[0]  # type: ignore[return-value]
