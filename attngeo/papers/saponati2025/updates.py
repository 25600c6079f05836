"""The implicit update of W_qk: a sum of rank-1 matrices. Propositions 2.1 and 2.2, Remark S1.6, Theorem 2.4 (19, 20).

A layer of attention with a residual connection, a tanh layer, and logits; N tokens x_i, rows of X [N, d]. M is W_qk.

Source: Saponati et al. 2025 (arXiv 2502.10927), sections 2.2 to 2.4, appendix S1.4.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.papers.residuals import Residuals, difference
from attngeo.training.loop import seeded

TOKENS = 6
DIMENSIONS = 5
WORDS = 9
TRIALS = 5
# The rate of the gradient step of Remark S1.6.
STEP = 1e-2


class TokenSequence(NamedTuple):
    """A layer and one sequence.

    Attributes:
        x: tokens, [N, d].
        form: M, [d, d].
        value: W_v, [d, d].
        inner: the tanh layer, [d, d].
        outer: W_u, [d, |V|].
        targets: token that is predicted at each position, [N].
        allowed: whether i sees j, [N, N].
    """

    x: Tensor
    form: Tensor
    value: Tensor
    inner: Tensor
    outer: Tensor
    targets: Tensor
    allowed: Tensor


def draw_sequence(
    seed: int,
    *,
    bidirectional: bool = False,
    tokens: int = TOKENS,
    dimensions: int = DIMENSIONS,
    words: int = WORDS,
) -> TokenSequence:
    """A random layer and sequence; i sees the tokens before it, or all others if `bidirectional`."""

    def draw_rows(rows: int) -> Tensor:
        return torch.randn(rows, dimensions, dtype=torch.float64) / math.sqrt(dimensions)

    with seeded(seed):
        x = draw_rows(tokens)
        form = draw_rows(dimensions)
        value = draw_rows(dimensions)
        inner = draw_rows(dimensions)
        outer = torch.randn(dimensions, words, dtype=torch.float64)
        targets = torch.randint(words, (tokens,))
    others = ~torch.eye(tokens, dtype=torch.bool)
    allowed = others if bidirectional else others.tril()
    return TokenSequence(x, form, value, inner, outer, targets, allowed)


def draw_sequences(seed: int, trials: int, **sizes: int) -> list[TokenSequence]:
    """Random sequences, for each trial an autoregressive and a bidirectional one."""
    sequences = []
    for trial in range(trials):
        trial_seed = 1000 * seed + trial
        sequences.append(draw_sequence(trial_seed, bidirectional=False, **sizes))
        sequences.append(draw_sequence(trial_seed, bidirectional=True, **sizes))
    return sequences


def scores_of(sequence: TokenSequence) -> Tensor:
    """x_i·M·x_jᵀ, [N, N]; 0 where i does not see j."""
    return (sequence.x @ sequence.form @ sequence.x.T) * sequence.allowed


def attention_weights(sequence: TokenSequence, scores: Tensor) -> Tensor:
    """Softmax of scores/√d over the tokens that each token sees, [N, N]; all 0 for a token that sees none."""
    scaled = (scores / math.sqrt(sequence.x.shape[1])).masked_fill(~sequence.allowed, -torch.inf)
    return torch.softmax(scaled, 1).nan_to_num()


def log_likelihood(sequence: TokenSequence, scores: Tensor, *, softmax: bool) -> Tensor:
    """The log-likelihood of the targets, from raw scores [N, N].

    softmax: whether weights are the softmax of scores/√d over the visible tokens; otherwise they are the scores.
    """
    weights = attention_weights(sequence, scores) if softmax else scores
    hidden = sequence.x + weights @ sequence.x @ sequence.value
    logits = (hidden + torch.tanh(hidden @ sequence.inner)) @ sequence.outer
    return torch.log_softmax(logits, 1).gather(1, sequence.targets[:, None]).sum()


def contributions(sequence: TokenSequence, *, softmax: bool) -> Tensor:
    """β_ij as the proof derives it, δ_i·(x_j·W_v)ᵀ, [N, N]; 0 where i does not see j.

    δ_i is (t_i − σ(z_i)) carried back through W_u and the tanh layer (S28), here without W_v.
    """
    scores = scores_of(sequence)
    weights = attention_weights(sequence, scores) if softmax else scores
    hidden = sequence.x + weights @ sequence.x @ sequence.value
    inside = torch.tanh(hidden @ sequence.inner)
    logits = (hidden + inside) @ sequence.outer
    targets = torch.nn.functional.one_hot(sequence.targets, logits.shape[1])
    error = (targets - torch.softmax(logits, 1)) @ sequence.outer.T  # [N, d]
    delta = error + (error * (1 - inside**2)) @ sequence.inner.T
    return (delta @ (sequence.x @ sequence.value).T) * sequence.allowed


def softmax_contributions(sequence: TokenSequence) -> Tensor:
    """β_ij for attention with the softmax of equation (1): α_ij/√d·(δ_i·v_j − Σ_k α_ik·δ_i·v_k), [N, N]."""
    beta = contributions(sequence, softmax=True)
    weights = attention_weights(sequence, scores_of(sequence))
    return weights * (beta - (weights * beta).sum(1, keepdim=True)) / math.sqrt(sequence.x.shape[1])


def rank_one_sum(x: Tensor, beta: Tensor) -> Tensor:
    """Σ_ij β_ij·x_iᵀ·x_j, added one rank-1 matrix after the other, [d, d]."""
    total = x.new_zeros(x.shape[1], x.shape[1])
    for i, row in enumerate(beta):
        for j, weight in enumerate(row):
            total = total + weight * torch.outer(x[i], x[j])
    return total


def update_by_autograd(sequence: TokenSequence, *, softmax: bool, pairs: Tensor | None = None) -> Tensor:
    """The gradient of the log-likelihood by M, [d, d]. pairs: only through these scores, [N, N]; default: all."""
    form = sequence.form.clone().requires_grad_()
    scores = scores_of(sequence._replace(form=form))
    if pairs is not None:
        scores = torch.where(pairs, scores, scores.detach())
    (gradient,) = torch.autograd.grad(log_likelihood(sequence, scores, softmax=softmax), form)
    return gradient


def check_proposition_2_1(seed: int = 0, *, trials: int = TRIALS, **sizes: int) -> Residuals:
    """Proposition 2.1 for linear attention, as the proof has it: Σ β_ij·K_ij against autograd, in both groupings."""
    errors = []
    for sequence in draw_sequences(seed, trials, **sizes):
        beta = contributions(sequence, softmax=False)
        gradient = update_by_autograd(sequence, softmax=False)
        errors.append(difference(rank_one_sum(sequence.x, beta), gradient))
        errors.append(difference(rank_one_sum(sequence.x, beta.T).T, gradient))
    return Residuals(f"gradients of {2 * trials} sequences, autoregressive and bidirectional", tuple(errors))


def check_proposition_2_1_softmax(seed: int = 0, *, trials: int = TRIALS, **sizes: int) -> Residuals:
    """Proposition 2.1 for equation (1), which has a softmax: β gets its derivative. Printed: the proof's β."""
    errors = []
    printed = []
    for sequence in draw_sequences(seed, trials, **sizes):
        gradient = update_by_autograd(sequence, softmax=True)
        errors.append(difference(rank_one_sum(sequence.x, softmax_contributions(sequence)), gradient))
        total = rank_one_sum(sequence.x, contributions(sequence, softmax=True))
        scale = (total * gradient).sum() / (total * total).sum()  # the proposition is up to a factor
        printed.append(float((total * scale - gradient).norm() / gradient.norm()))
    computed = f"printed: off by {min(printed):.0%} to {max(printed):.0%} of the gradient, with the best factor"
    return Residuals(computed, tuple(errors), tuple(printed))


def check_remark_s1_6(seed: int = 0, *, trials: int = TRIALS, rank: int = 2, **sizes: int) -> Residuals:
    """Remark S1.6: a step of Wq and Wk changes M by η(G·Wk·Wkᵀ + Wq·Wqᵀ·G) + η²·G·Wk·Wqᵀ·G. Printed: ∝ G = Σ β·K."""
    errors = []
    printed = []
    for number, drawn in enumerate(draw_sequences(seed, trials, **sizes)):
        with seeded(seed + number):
            wq = torch.randn(drawn.x.shape[1], rank, dtype=torch.float64).requires_grad_()
            wk = torch.randn(drawn.x.shape[1], rank, dtype=torch.float64).requires_grad_()
        sequence = drawn._replace(form=wq @ wk.T)
        likelihood = log_likelihood(sequence, scores_of(sequence), softmax=False)
        by_query, by_key = torch.autograd.grad(likelihood, (wq, wk))
        q = wq.detach()
        k = wk.detach()
        change = (q + STEP * by_query) @ (k + STEP * by_key).T - q @ k.T
        constant = sequence._replace(form=sequence.form.detach())
        g = rank_one_sum(constant.x, contributions(constant, softmax=False))
        expected = STEP * (g @ k @ k.T + q @ q.T @ g) + STEP**2 * g @ k @ q.T @ g
        errors.append(difference(change / STEP, expected / STEP))
        printed.append(1 - float(torch.cosine_similarity(change.flatten(), g.flatten(), dim=0)))
    computed = f"printed: cosine of the change with the sum is {1 - max(printed):.2f} to {1 - min(printed):.2f}"
    return Residuals(computed, tuple(errors), tuple(printed))


def check_proposition_2_2(seed: int = 0, *, trials: int = TRIALS, **sizes: int) -> Residuals:
    """Proposition 2.2: columns and rows of the update by one token as context, and as prediction (13 to 16).

    Printed: (15) names row k where its text and its proof mean column k.
    """
    errors = []
    printed = []
    for number, sequence in enumerate(draw_sequences(seed, trials, **sizes)):
        x = sequence.x
        beta = contributions(sequence, softmax=False)
        token = 1 + number % (len(x) - 2)  # both a context and a prediction
        of_token = torch.zeros_like(sequence.allowed)
        of_token[:, token] = True
        context = update_by_autograd(sequence, softmax=False, pairs=of_token)
        prediction = update_by_autograd(sequence, softmax=False, pairs=of_token.T)
        predicted = beta[:, token] @ x  # Σ_i β_i*·x_i, [d]
        seen = beta[token] @ x  # Σ_j β_*j·x_j, [d]
        for k in range(x.shape[1]):
            errors += [
                difference(x[token, k] * predicted, context[:, k]),  # (13)
                difference(predicted[k] * x[token], context[k]),  # (14)
                difference(seen[k] * x[token], prediction[:, k]),  # (15), of the column
                difference(x[token, k] * seen, prediction[k]),  # (16)
            ]
            printed.append(float((seen[k] * x[token] - prediction[k]).norm() / prediction.norm(dim=1).max()))
    computed = f"{len(errors)} columns and rows; (15) as printed is off by up to {max(printed):.0%} of the largest row"
    return Residuals(computed, tuple(errors), tuple(printed))


def check_theorem_2_4_pairs(seed: int = 0, *, trials: int = TRIALS) -> Residuals:
    """Theorem 2.4 (19, 20): the update is Σ_i<j (β_ij + β_ji)·S_ij + (β_ij − β_ji)·N_ij, by autograd.

    S_ij and N_ij are the symmetric and skew parts of K_ij. No token sees itself here, so there is no diagonal term.
    """
    errors = []
    for trial in range(trials):
        sequence = draw_sequence(1000 * seed + trial, bidirectional=True)
        beta = contributions(sequence, softmax=False)
        x = sequence.x
        total = torch.zeros_like(sequence.form)
        for i in range(len(x)):
            for j in range(i + 1, len(x)):
                outer = torch.outer(x[i], x[j])
                total += (beta[i, j] + beta[j, i]) * (outer + outer.T) / 2
                total += (beta[i, j] - beta[j, i]) * (outer - outer.T) / 2
        errors.append(difference(total, update_by_autograd(sequence, softmax=False)))
    return Residuals(f"gradients of {trials} sequences", tuple(errors))
