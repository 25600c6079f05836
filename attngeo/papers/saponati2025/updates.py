"""The implicit update of W_qk as a sum of rank-1 matrices: Propositions 2.1 and 2.2, Remark S1.6.

A layer of attention with a residual connection, a tanh layer, and logits; N tokens x_i, rows of X [N, d]. M is W_qk.
Source: Saponati et al. 2025 (arXiv 2502.10927), sections 2.2 and 2.3, appendices S1.4 and S1.5.1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.papers.statements import SAPONATI, Residuals, difference, statement
from attngeo.training.loop import seeded

TOKENS, DIMENSIONS, WORDS, TRIALS = 6, 5, 9, 5


class TokenSequence(NamedTuple):
    """A layer and one sequence. x: [N, d]. form: M, [d, d]. value, inner: W_v and the tanh layer, [d, d]. outer: W_u,
    [d, |V|]. targets: the token that is predicted at each position, [N]. allowed: whether i sees j, [N, N].
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
    with seeded(seed):
        x, form, value, inner = (
            torch.randn(rows, dimensions, dtype=torch.float64) / math.sqrt(dimensions)
            for rows in (tokens, dimensions, dimensions, dimensions)
        )
        outer = torch.randn(dimensions, words, dtype=torch.float64)
        targets = torch.randint(words, (tokens,))
    others = ~torch.eye(tokens, dtype=torch.bool)
    return TokenSequence(x, form, value, inner, outer, targets, others if bidirectional else others.tril())


def scores_of(sequence: TokenSequence) -> Tensor:
    """x_i·M·x_jᵀ, [N, N]; 0 where i does not see j."""
    return (sequence.x @ sequence.form @ sequence.x.T) * sequence.allowed


def log_likelihood(sequence: TokenSequence, scores: Tensor, *, softmax: bool) -> Tensor:
    """The log-likelihood of the targets, from raw scores [N, N].

    softmax: weights are the softmax of scores/√d over what each token sees; else they are the scores.
    """
    weights = attention_weights(sequence, scores) if softmax else scores
    hidden = sequence.x + weights @ sequence.x @ sequence.value
    logits = (hidden + torch.tanh(hidden @ sequence.inner)) @ sequence.outer
    return torch.log_softmax(logits, 1).gather(1, sequence.targets[:, None]).sum()


def attention_weights(sequence: TokenSequence, scores: Tensor) -> Tensor:
    """Softmax of scores/√d over what each token sees, [N, N]; a token that sees nothing has no weights."""
    scaled = (scores / math.sqrt(sequence.x.shape[1])).masked_fill(~sequence.allowed, -torch.inf)
    return torch.softmax(scaled, 1).nan_to_num()


def contributions(sequence: TokenSequence, *, softmax: bool) -> Tensor:
    """β_ij as the proof derives it, δ_i·(x_j·W_v)ᵀ, [N, N]; 0 where i does not see j.

    δ_i is (t_i − σ(z_i)) carried back through W_u and the tanh layer (S28), here without W_v.
    """
    scores = scores_of(sequence)
    weights = attention_weights(sequence, scores) if softmax else scores
    hidden = sequence.x + weights @ sequence.x @ sequence.value
    inside = torch.tanh(hidden @ sequence.inner)
    logits = (hidden + inside) @ sequence.outer
    wanted = torch.nn.functional.one_hot(sequence.targets, logits.shape[1])
    error = (wanted - torch.softmax(logits, 1)) @ sequence.outer.T  # [N, d]
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


def update_by_autograd(sequence: TokenSequence, *, softmax: bool, part: Tensor | None = None) -> Tensor:
    """The gradient of the log-likelihood by M, [d, d]. part: only through these scores, [N, N]; default: all."""
    form = sequence.form.clone().requires_grad_()
    scores = scores_of(sequence._replace(form=form))
    if part is not None:
        scores = torch.where(part, scores, scores.detach())
    (gradient,) = torch.autograd.grad(log_likelihood(sequence, scores, softmax=softmax), form)
    return gradient


@statement("proposition-2.1-linear", SAPONATI, "Proposition 2.1, linear attention", "Σ β·K = gradient by autograd")
def check_proposition_2_1(seed: int = 0, *, trials: int = TRIALS, **sizes: int) -> Residuals:
    """Proposition 2.1 for linear attention, as the proof has it: Σ β_ij·K_ij against autograd, in both groupings."""
    errors = []
    for sequence in _draw_sequences(seed, trials, **sizes):
        beta, expected = contributions(sequence, softmax=False), update_by_autograd(sequence, softmax=False)
        errors.append(difference(rank_one_sum(sequence.x, beta), expected))
        errors.append(difference(rank_one_sum(sequence.x, beta.T).T, expected))
    return Residuals(f"gradients of {2 * trials} sequences, autoregressive and bidirectional", tuple(errors))


@statement(
    "proposition-2.1-softmax",
    SAPONATI,
    "Proposition 2.1, equation (1)",
    "Σ β·K with the softmax's derivative in β = gradient by autograd",
)
def check_proposition_2_1_softmax(seed: int = 0, *, trials: int = TRIALS, **sizes: int) -> Residuals:
    """Proposition 2.1 for equation (1), which has a softmax: β gets its derivative. Printed: the proof's β."""
    errors, printed = [], []
    for sequence in _draw_sequences(seed, trials, **sizes):
        expected = update_by_autograd(sequence, softmax=True)
        errors.append(difference(rank_one_sum(sequence.x, softmax_contributions(sequence)), expected))
        total = rank_one_sum(sequence.x, contributions(sequence, softmax=True))
        scale = (total * expected).sum() / (total * total).sum()  # the proposition is up to a factor
        printed.append(float((total * scale - expected).norm() / expected.norm()))
    computed = f"printed: off by {min(printed):.0%} to {max(printed):.0%} of the gradient, with the best factor"
    return Residuals(computed, tuple(errors), tuple(printed))


@statement("remark-s1.6", SAPONATI, "Remark S1.6", "change of Wq·Wkᵀ by a step = η(G·Wk·Wkᵀ + Wq·Wqᵀ·G) + O(η²)")
def check_remark_s1_6(seed: int = 0, *, trials: int = TRIALS, rank: int = 2, **sizes: int) -> Residuals:
    """Remark S1.6: a step of Wq and Wk changes M by η(G·Wk·Wkᵀ + Wq·Wqᵀ·G) + η²·G·Wk·Wqᵀ·G. Printed: ∝ G = Σ β·K."""
    errors, printed, step = [], [], 1e-2
    for place, drawn in enumerate(_draw_sequences(seed, trials, **sizes)):
        with seeded(seed + place):
            wq, wk = (torch.randn(drawn.x.shape[1], rank, dtype=torch.float64).requires_grad_() for _ in range(2))
        sequence = drawn._replace(form=wq @ wk.T)
        likelihood = log_likelihood(sequence, scores_of(sequence), softmax=False)
        by_query, by_key = torch.autograd.grad(likelihood, (wq, wk))
        q, k, plain = wq.detach(), wk.detach(), sequence._replace(form=sequence.form.detach())
        change = (q + step * by_query) @ (k + step * by_key).T - q @ k.T
        g = rank_one_sum(plain.x, contributions(plain, softmax=False))
        expected = step * (g @ k @ k.T + q @ q.T @ g) + step**2 * g @ k @ q.T @ g
        errors.append(difference(change / step, expected / step))
        printed.append(1 - float(torch.cosine_similarity(change.flatten(), g.flatten(), dim=0)))
    computed = f"printed: cosine of the change with the sum is {1 - max(printed):.2f} to {1 - min(printed):.2f}"
    return Residuals(computed, tuple(errors), tuple(printed))


@statement("proposition-2.2", SAPONATI, "Proposition 2.2", "columns and rows (13) to (16) = parts of the gradient")
def check_proposition_2_2(seed: int = 0, *, trials: int = TRIALS, **sizes: int) -> Residuals:
    """Proposition 2.2: columns and rows of the update by one token as context, and as prediction (13 to 16).

    Printed: (15) names row k where its text and its proof mean column k.
    """
    errors, printed = [], []
    for place, sequence in enumerate(_draw_sequences(seed, trials, **sizes)):
        x, beta = sequence.x, contributions(sequence, softmax=False)
        token = 1 + place % (len(x) - 2)  # both a context and a prediction
        only = torch.zeros_like(sequence.allowed)
        only[:, token] = True
        context = update_by_autograd(sequence, softmax=False, part=only)
        prediction = update_by_autograd(sequence, softmax=False, part=only.T)
        predicted, seen = beta[:, token] @ x, beta[token] @ x  # Σ_i β_i*·x_i and Σ_j β_*j·x_j, [d]
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


def _draw_sequences(seed: int, trials: int, **sizes: int) -> list[TokenSequence]:
    """Random sequences, autoregressive and bidirectional."""
    return [
        draw_sequence(1000 * seed + trial, bidirectional=bidirectional, **sizes)
        for trial in range(trials)
        for bidirectional in (False, True)
    ]
