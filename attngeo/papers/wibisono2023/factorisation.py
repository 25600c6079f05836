"""The matrix that embeddings factorise: Propositions 9 for CBOW and 14 for attention.

Source: Wibisono and Wang 2023 (arXiv 2307.04057), appendices G, J and K.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr

from attngeo.papers.residuals import Residuals, difference, shortfall
from attngeo.papers.wibisono2023.corpus import (
    Array,
    ContinuousBag,
    Examples,
    WordAttention,
    count_pairs,
    examples_of,
    fit,
    toy_corpus,
)
from attngeo.training.loop import seeded

# Proposition 9 on the toy corpus, as published: dimension → Spearman, Pearson.
PUBLISHED = {30: (0.74, 0.67), 100: (0.77, 0.71), 300: (0.77, 0.70), 900: (0.77, 0.71)}
# Starts that Proposition 9 is averaged over: one alone varies by 0.02.
STARTS = 3


class AttentionSums(NamedTuple):
    """Sums over the center-context pairs (i, j) of a corpus, [|V|, |V|]: of γ_j^i, and of (γ_j^i)²."""

    gamma: Array
    squares: Array

    @property
    def zeta(self) -> Array:
        """ζ_j = Σ γ² / Σ γ over all centers, [|V|]."""
        zeta: Array = self.squares.sum(0) / self.gamma.sum(0)
        return zeta


def shifted_log_ratios(pairs: Array) -> Array:
    """M_ij = log(p(w_i, c_j)/p(c_j)) + log |V| of Proposition 9, [|V|, |V|]; −∞ if i and j never occur together."""
    with np.errstate(divide="ignore"):
        ratios: Array = np.log(pairs / pairs.sum(0)) + math.log(len(pairs))
    return ratios


def correlate(products: Array, pairs: Array) -> tuple[float, float]:
    """Spearman of w_i·c_j with p(w_i, c_j)/p(c_j), and Pearson with M_ij where that is finite."""
    shares = pairs / pairs.sum(0)
    spearman = float(spearmanr(products.ravel(), shares.ravel()).statistic)
    defined = pairs > 0
    pearson = float(pearsonr(products[defined], shifted_log_ratios(pairs)[defined]).statistic)
    return spearman, pearson


@torch.no_grad()
def products_of(model: ContinuousBag | WordAttention) -> Array:
    """w_i·c_j of a model's words, [|V|, |V|]."""
    words = len(model.center.weight)
    products: Array = (model.center.weight @ model.tokens.weight[:words].T).numpy()
    return products


def sum_attention(examples: Examples, tau: Array) -> AttentionSums:
    """The sums of γ_j^d = τ_j / Σ_s τ_(a_s) and of its square over all center-context pairs. tau: [|V| + 1]."""
    total = examples.contexts @ tau[:-1] + tau[-1]  # of each masked sentence, the mask included
    weights = examples.centres.T / total
    gamma = (weights @ examples.contexts) * tau[:-1]
    squares = ((weights / total) @ examples.contexts) * tau[:-1] ** 2
    return AttentionSums(gamma, squares)


def attention_matrix(sums: AttentionSums, length: int) -> Array:
    """Equation (2): the matrix that w_i·c_j approximates, [|V|, |V|]. length: S, of every sentence."""
    matrix: Array = (len(sums.gamma) * sums.gamma - sums.gamma.sum(0)) / (length * sums.squares.sum(0))
    return matrix


def surrogate_loss(products: torch.Tensor, examples: Examples, tau: Array, length: int) -> torch.Tensor:
    """The approximate loss whose minimum is Equation (2), as a sum over all tasks and the tokens of their contexts.

    exp(x) ≈ 1 + x + x²/2, log(1 + x) ≈ x, and (Σ_j γ_j·x_j)² ≤ S·Σ_j (γ_j·x_j)², as in the proof of Proposition 9.
    products: w_k·c_j as free variables, [|V|, |V|].
    """
    contexts = torch.from_numpy(examples.contexts)
    centres = torch.from_numpy(examples.centres)
    weights = torch.from_numpy(tau)
    gamma = weights[:-1] / (contexts @ weights[:-1] + weights[-1])[:, None]  # of word j, if it is in context n: [n, j]
    logits = (contexts * gamma) @ products.T
    squares = (contexts * gamma**2) @ products.T**2
    log_sums = logits.sum(1) + length * squares.sum(1) / 2  # times |V|
    losses = -(centres * logits).sum(1) + centres.sum(1) * log_sums / len(products)
    return losses.sum()


def check_proposition_9(
    seed: int = 0, *, dimensions: tuple[int, ...] = tuple(PUBLISHED), starts: int = STARTS, sentences: int = 10_000
) -> Residuals:
    """Proposition 9: both correlations of CBOW trained on the toy corpus, as means over starts, against the published.

    Each start draws a corpus and the first weights. The errors are how far a correlation is below the published one:
    the proposition says that w_i·c_j approximates the matrix, and a higher correlation is no argument against it.
    """
    means = np.zeros((len(dimensions), 2))
    for start in range(seed, seed + starts):
        examples = examples_of(toy_corpus(sentences, start))
        pairs = count_pairs(examples)
        for row, size in enumerate(dimensions):
            with seeded(start):
                model = ContinuousBag(len(pairs), size)
            products = products_of(fit(model, examples, start))
            means[row] += np.array(correlate(products, pairs)) / starts
    errors = np.maximum([PUBLISHED[size] for size in dimensions] - means, 0)
    spearman, pearson = (" ".join(f"{value:.2f}" for value in column) for column in means.T)
    sizes = ", ".join(map(str, dimensions))
    return Residuals(
        f"Spearman {spearman}, Pearson {pearson} at {sizes} dimensions, means of {starts} starts",
        errors.ravel().tolist(),
    )


def check_proposition_14(seed: int = 0, *, sentences: int = 500) -> Residuals:
    """Proposition 14, derived: the gradient of the approximate loss is 0 at Equation (2), for random τ."""
    corpus = toy_corpus(sentences, seed)
    examples = examples_of(corpus)
    length = len(corpus.sentences[0])
    tau = np.exp(np.random.default_rng(seed).normal(size=corpus.size + 1))
    matrix = attention_matrix(sum_attention(examples, tau), length)
    products = torch.from_numpy(matrix).requires_grad_()
    (gradient,) = torch.autograd.grad(surrogate_loss(products, examples, tau, length), products)
    error = difference(gradient / examples.count, torch.zeros(()))
    return Residuals(f"largest derivative with respect to one of {matrix.size} products", (error,))


def check_proposition_14_constant(seed: int = 0, *, sentences: int = 500) -> Residuals:
    """Proposition 14 if τ is constant: Equation (2) is |V|·p(w_i, c_j)/p(c_j) − 1, as for CBOW."""
    corpus = toy_corpus(sentences, seed)
    examples = examples_of(corpus)
    length = len(corpus.sentences[0])
    tau = np.full(corpus.size + 1, np.random.default_rng(seed).uniform(0.5, 2))
    pairs = count_pairs(examples)
    expected = corpus.size * pairs / pairs.sum(0) - 1
    error = difference(attention_matrix(sum_attention(examples, tau), length), expected)
    return Residuals(f"{expected.size} entries, all gamma = 1/{length}", (error,))


def check_proposition_14_trained(seed: int = 0) -> Residuals:
    """Proposition 14 as measured: Spearman of w_i·c_j with Equation (2), for attention trained on the toy corpus.

    The paper states no number: the errors are how far it is below the published one of Proposition 9.
    """
    corpus = toy_corpus(seed=seed)
    examples = examples_of(corpus)
    dimensions = 100
    with seeded(seed):
        model = WordAttention(corpus.size, dimensions)
    products = products_of(fit(model, examples, seed))
    sums = sum_attention(examples, model.attention().detach().numpy())
    matrix = attention_matrix(sums, len(corpus.sentences[0]))
    measured = float(spearmanr(products.ravel(), matrix.ravel()).statistic)
    expected, _ = PUBLISHED[dimensions]
    return Residuals(
        f"Spearman {measured:.2f} at {dimensions} dimensions, {expected} for CBOW", (shortfall([measured], expected),)
    )
