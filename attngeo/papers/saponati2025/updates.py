"""The implicit update of W_qk, and what the training objective does to it.

Propositions 2.1 and 2.2 and Remark S1.6: a sum of rank-1 matrices, for a layer of attention with a residual connection,
a tanh layer, and logits; N tokens x_i, rows of X [N, d]. M is W_qk.

Theorems 2.3 and 2.4 and Corollary S1.12, simulated under the assumptions of their proofs: a token t* has the embedding
y ~ N(0, I); all other embeddings are drawn from N(0, Σ) with different variances; the β are independent. Claims are
about expectations: an error is how far the claim is outside a confidence interval. A printed claim fails if a strict
interval contradicts it.

Source: Saponati et al. 2025 (arXiv 2502.10927), sections 2.2 to 2.4, appendices S1.4 and S1.5.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attngeo.papers.statements import INTERVAL, SAPONATI, Residuals, difference, shortfall, statement
from attngeo.training.loop import seeded

TOKENS, SMALL_SIZE, WORDS, TRIALS = 6, 5, 9, 5


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
    dimensions: int = SMALL_SIZE,
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
    "proposition-2.1-softmax", SAPONATI, "Proposition 2.1, equation (1)",
    "Σ β·K with the softmax's derivative in β = gradient by autograd",
)  # fmt: skip
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


Array = np.ndarray[Any, np.dtype[Any]]

DIMENSIONS, LENGTH, SEQUENCES, DRAWS = 16, 10, 8, 6000
# Variances of the embeddings' coordinates: a quarter of them is large, the others spread over the small ones.
LARGE, SMALL = 3.0, (0.02, 0.75)
# Share of masked tokens, quantiles at which tails are compared, and the size of W_qk before training.
MASKED, QUANTILES, BEFORE = 0.15, (0.5, 0.9, 0.99), 0.5
# Half widths of confidence intervals in standard errors: 95%, and one that chance leaves once in 16,000 times.
USUAL, STRICT = 1.96, 4.0


class Effect(NamedTuple):
    """A measured mean and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} [{self.mean - USUAL * self.error:.3g}, {self.mean + USUAL * self.error:.3g}]"

    @property
    def low(self) -> float:
        """The lower end of the 95% interval."""
        return self.mean - USUAL * self.error

    @property
    def contradiction(self) -> float:
        """How far the whole strict interval is below 0; 0 if it is not."""
        return max(0.0, -self.mean - STRICT * self.error)

    def miss(self, claimed: float = 0.0) -> float:
        """How far a claimed value is outside the strict interval; 0 if it is inside."""
        return max(0.0, abs(self.mean - claimed) - STRICT * self.error)


def measure(values: Array) -> Effect:
    """The mean of independent values [n] and its standard error."""
    return Effect(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5))


def measure_log_ratio(numerator: Array, denominator: Array) -> Effect:
    """log(E numerator / E denominator) of paired draws [n], by the delta method."""
    top, bottom = float(numerator.mean()), float(denominator.mean())
    return Effect(float(np.log(top / bottom)), measure(numerator / top - denominator / bottom).error)


def embedding_variances(dimensions: int = DIMENSIONS) -> Array:
    """The diagonal of Σ, [d], with a mean of 1."""
    large = dimensions // 4
    variances = np.concatenate([np.full(large, LARGE), np.linspace(*SMALL, dimensions - large)])
    scaled: Array = variances / variances.mean()
    return scaled


def draw_updates(
    random: np.random.Generator, *, bidirectional: bool, draws: int = DRAWS, dimensions: int = DIMENSIONS
) -> Array:
    """Updates of W_qk by a token t* that tends to occur early (S89), [draws, d, d].

    Autoregressive: t* is a context of the tokens after it, and is predicted from those before it. Bidirectional: it is
    a context of masked tokens if it is not masked, and else is predicted from those that are not.
    """
    places = np.arange(LENGTH)
    early = np.arange(LENGTH, 0, -1.0)
    token = random.choice(LENGTH, size=(draws, SEQUENCES, 1), p=early / early.sum())
    if bidirectional:
        masked = random.random((draws, SEQUENCES, LENGTH)) < MASKED
        hidden = np.take_along_axis(masked, token, 2)
        context, prediction = masked & ~hidden & (places != token), ~masked & hidden & (places != token)
    else:
        context, prediction = places > token, places < token
    y = random.normal(size=(draws, dimensions))
    x = random.normal(size=(draws, SEQUENCES, LENGTH, dimensions)) * np.sqrt(embedding_variances(dimensions))
    beta = random.normal(size=(draws, SEQUENCES, LENGTH))
    predicted, seen = (np.einsum("rsn,rsnd->rd", beta * part, x) for part in (context, prediction))
    updates: Array = predicted[:, :, None] * y[:, None] + y[:, :, None] * seen[:, None]
    return updates


@statement(
    "theorem-2.3-norms", SAPONATI, "Theorem 2.3, (17)",
    "autoregressive: E‖Δw_·k‖² > E‖Δw_k·‖² if Σ_kk < tr Σ/d", INTERVAL,
)  # fmt: skip
def check_theorem_2_3_norms(seed: int = 0, *, draws: int = DRAWS) -> Residuals:
    """Theorem 2.3 (17): E‖Δw_·k‖² > E‖Δw_k·‖² if Σ_kk < tr Σ/d. Printed: > E‖Δw_m·‖² for any k."""
    updates = draw_updates(np.random.default_rng(seed), bidirectional=False, draws=draws)
    columns, rows = (updates**2).sum(1), (updates**2).sum(2)
    small = np.flatnonzero(embedding_variances() < 1)
    same = [measure_log_ratio(columns[:, k], rows[:, k]) for k in small]
    every = [measure_log_ratio(columns[:, k], rows[:, m]) for m in small for k in range(columns.shape[1])]
    worst, printed = min(same, key=lambda effect: effect.low), min(every, key=lambda effect: effect.low)
    return Residuals(
        f"smallest log ratio {worst}; printed, any k: {printed}",
        (shortfall(effect.low for effect in same),),
        tuple(effect.contradiction for effect in every),
    )


@statement(
    "theorem-2.3-tails", SAPONATI, "Theorem 2.3, (18)",
    "autoregressive: column k more often large than row k, same k", INTERVAL,
)  # fmt: skip
def check_theorem_2_3_tails(seed: int = 0, *, draws: int = DRAWS) -> Residuals:
    """Theorem 2.3 (18): column k is more often large than row k, if Σ_kk < tr Σ/d. Printed: any of them.

    The norms are those of W_qk after the update, which began with independent entries.
    """
    random = np.random.default_rng(seed)
    updates = draw_updates(random, bidirectional=False, draws=draws)
    trained = updates + BEFORE * updates.std() * random.normal(size=updates.shape)
    columns, rows = (trained**2).sum(1), (trained**2).sum(2)
    small = embedding_variances() < 1
    same, every = [], []
    for quantile in QUANTILES:
        limit = np.quantile(np.concatenate([columns[:, small], rows[:, small]]), quantile)
        same.append(measure((columns[:, small] > limit).mean(1) - (rows[:, small] > limit).mean(1)))
        large = np.quantile(np.concatenate([columns, rows]), quantile)
        every.append(measure((columns > large).mean(1) - (rows > large).mean(1)))
    return Residuals(
        f"Pr[column] - Pr[row] above the {QUANTILES[-1]:.0%} quantile {same[-1]}; printed, all: {every[-1]}",
        (shortfall(effect.low for effect in same),),
        tuple(effect.contradiction for effect in every),
    )


@statement("corollary-s1.12", SAPONATI, "Corollary S1.12", "bidirectional: E‖Δw_·k‖² = E‖Δw_k·‖²", INTERVAL)
def check_corollary_s1_12(seed: int = 0, *, draws: int = DRAWS) -> Residuals:
    """Corollary S1.12: under the bidirectional objective E‖Δw_·k‖² = E‖Δw_k·‖². Printed: Var of any row and column."""
    updates = draw_updates(np.random.default_rng(seed), bidirectional=True, draws=draws)
    columns, rows = (updates**2).sum(1), (updates**2).sum(2)
    same = [measure_log_ratio(columns[:, k], rows[:, k]) for k in range(columns.shape[1])]
    column, row = ((norms - norms.mean(0)) ** 2 for norms in (np.sqrt(columns), np.sqrt(rows)))
    every = [measure_log_ratio(column[:, k], row[:, m]) for k in range(column.shape[1]) for m in range(column.shape[1])]
    worst, printed = max(same, key=lambda effect: abs(effect.mean)), max(every, key=lambda effect: abs(effect.mean))
    return Residuals(
        f"largest log ratio {worst}; printed, variances of any row and column: {printed}",
        tuple(effect.miss() for effect in same),
        tuple(effect.miss() for effect in every),
    )


@statement("theorem-2.4-pairs", SAPONATI, "Theorem 2.4, (19, 20)", "gradient = sum of the parts of pairs")
def check_theorem_2_4_pairs(seed: int = 0, *, trials: int = 5) -> Residuals:
    """Theorem 2.4 (19, 20): the update is Σ_i<j (β_ij + β_ji)·S_ij + (β_ij − β_ji)·N_ij, by autograd.

    S_ij and N_ij are the symmetric and skew parts of K_ij. No token sees itself here, so there is no diagonal term.
    """
    errors = []
    for trial in range(trials):
        sequence = draw_sequence(1000 * seed + trial, bidirectional=True)
        beta, x = contributions(sequence, softmax=False), sequence.x
        total = torch.zeros_like(sequence.form)
        for i in range(len(x)):
            for j in range(i + 1, len(x)):
                outer = torch.outer(x[i], x[j])
                total += (beta[i, j] + beta[j, i]) * (outer + outer.T) / 2
                total += (beta[i, j] - beta[j, i]) * (outer - outer.T) / 2
        errors.append(difference(total, update_by_autograd(sequence, softmax=False)))
    return Residuals(f"gradients of {trials} sequences", tuple(errors))


@statement(
    "theorem-2.4-symmetry", SAPONATI, "Theorem 2.4, (21)",
    "bidirectional update more symmetric than autoregressive one", INTERVAL,
)  # fmt: skip
def check_theorem_2_4_symmetry(seed: int = 0, *, draws: int = DRAWS, correlation: float = 0.9) -> Residuals:
    """Theorem 2.4 (21): with correlated β_ij and β_ji the bidirectional update is more symmetric than the other one.

    correlation: of β_ij and β_ji, which the theorem assumes to be near 1. The autoregressive update has i > j only.
    """
    random = np.random.default_rng(seed)
    x = random.normal(size=(draws, LENGTH, DIMENSIONS)) * np.sqrt(embedding_variances())
    beta = correlated_contributions(random, draws, LENGTH, correlation)
    scores = [symmetries(part, x) for part in (beta, np.tril(beta))]
    gain = measure(scores[0] - scores[1])
    both, before = (measure(values) for values in scores)
    computed = (
        f"symmetry {both}, autoregressive {before}, difference {gain}; correlation of β_ij and β_ji {correlation}"
    )
    return Residuals(computed, (shortfall([gain.low]),))


def correlated_contributions(random: np.random.Generator, draws: int, length: int, correlation: float) -> Array:
    """β_ij of all pairs of tokens with a correlation of β_ij and β_ji, [draws, N, N]; 0 for i = j."""
    first, second = random.normal(size=(2, draws, length, length))
    lower = np.tril(first, -1)
    mirrored = correlation * lower + (1 - correlation**2) ** 0.5 * np.tril(second, -1)
    beta: Array = lower + mirrored.transpose(0, 2, 1)
    return beta


def symmetries(beta: Array, x: Array) -> Array:
    """The symmetry score of each update Σ β_ij·x_iᵀ·x_j, [draws]. beta: [draws, N, N]. x: [draws, N, d]."""
    updates = x.transpose(0, 2, 1) @ beta @ x
    scores: Array = (updates * updates.transpose(0, 2, 1)).sum((1, 2)) / (updates**2).sum((1, 2))
    return scores
