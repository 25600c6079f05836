"""Updates of W_qk by one token, simulated: Theorems 2.3 and 2.4 (21) and Corollary S1.12.

Under the assumptions of their proofs, a token t* has the embedding y ~ N(0, I); all other embeddings are drawn from
N(0, Σ) with different variances; the β are independent. Claims are about expectations: an error is how far the claim is
outside a confidence interval. A printed claim fails if a strict interval contradicts it.

Source: Saponati et al. 2025 (arXiv 2502.10927), sections 2.3 and 2.4, appendix S1.5.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attngeo.papers.residuals import Effect, Residuals, measure_effect, shortfall

Array = np.ndarray[Any, np.dtype[Any]]

DIMENSIONS = 16
LENGTH = 10
SEQUENCES = 8
DRAWS = 6000
# Variances of the embeddings' coordinates: a quarter of them is large, the others spread over the small ones.
LARGE = 3.0
SMALL = (0.02, 0.75)
# Share of masked tokens, quantiles at which tails are compared, and the size of W_qk before training.
MASKED = 0.15
QUANTILES = (0.5, 0.9, 0.99)
BEFORE = 0.5


def measure_log_ratio(numerator: Array, denominator: Array) -> Effect:
    """log(E numerator / E denominator) of paired draws [n], by the delta method."""
    top = float(numerator.mean())
    bottom = float(denominator.mean())
    return Effect(float(np.log(top / bottom)), measure_effect(numerator / top - denominator / bottom).error)


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

    Autoregressive: t* is a context of the tokens after it, and is predicted from the tokens before it. Bidirectional:
    if t* is not masked, it is a context of the masked tokens; otherwise it is predicted from the unmasked ones.
    """
    positions = np.arange(LENGTH)
    early = np.arange(LENGTH, 0, -1.0)
    token = random.choice(LENGTH, size=(draws, SEQUENCES, 1), p=early / early.sum())
    if bidirectional:
        masked = random.random((draws, SEQUENCES, LENGTH)) < MASKED
        is_masked = np.take_along_axis(masked, token, 2)
        context = masked & ~is_masked & (positions != token)
        prediction = ~masked & is_masked & (positions != token)
    else:
        context = positions > token
        prediction = positions < token
    y = random.normal(size=(draws, dimensions))
    x = random.normal(size=(draws, SEQUENCES, LENGTH, dimensions)) * np.sqrt(embedding_variances(dimensions))
    beta = random.normal(size=(draws, SEQUENCES, LENGTH))
    predicted = np.einsum("rsn,rsnd->rd", beta * context, x)
    seen = np.einsum("rsn,rsnd->rd", beta * prediction, x)
    updates: Array = predicted[:, :, None] * y[:, None] + y[:, :, None] * seen[:, None]
    return updates


def square_norms(matrices: Array) -> tuple[Array, Array]:
    """The squared norms of the columns and of the rows of matrices [n, d, d], [n, d] each."""
    squares = matrices**2
    return squares.sum(1), squares.sum(2)


def check_theorem_2_3_norms(seed: int = 0, *, draws: int = DRAWS) -> Residuals:
    """Theorem 2.3 (17): E‖Δw_·k‖² > E‖Δw_k·‖² if Σ_kk < tr Σ/d. Printed: > E‖Δw_m·‖² for any k."""
    columns, rows = square_norms(draw_updates(np.random.default_rng(seed), bidirectional=False, draws=draws))
    same = []
    every = []
    for m in np.flatnonzero(embedding_variances() < 1):
        same.append(measure_log_ratio(columns[:, m], rows[:, m]))
        every += [measure_log_ratio(column, rows[:, m]) for column in columns.T]
    worst = min(same, key=lambda effect: effect.low)
    worst_printed = min(every, key=lambda effect: effect.low)
    return Residuals(
        f"smallest log ratio {worst}; printed, any k: {worst_printed}",
        (shortfall(effect.low for effect in same),),
        tuple(effect.contradiction for effect in every),
    )


def check_theorem_2_3_tails(seed: int = 0, *, draws: int = DRAWS) -> Residuals:
    """Theorem 2.3 (18): column k is more often large than row k, if Σ_kk < tr Σ/d. Printed: any of them.

    The norms are those of W_qk after the update, which began with independent entries.
    """
    random = np.random.default_rng(seed)
    updates = draw_updates(random, bidirectional=False, draws=draws)
    columns, rows = square_norms(updates + BEFORE * updates.std() * random.normal(size=updates.shape))
    small = embedding_variances() < 1
    same = []
    every = []
    for quantile in QUANTILES:
        same.append(_compare_tails(columns[:, small], rows[:, small], quantile))
        every.append(_compare_tails(columns, rows, quantile))
    return Residuals(
        f"Pr[column] - Pr[row] above the {QUANTILES[-1]:.0%} quantile {same[-1]}; printed, all: {every[-1]}",
        (shortfall(effect.low for effect in same),),
        tuple(effect.contradiction for effect in every),
    )


def _compare_tails(columns: Array, rows: Array, quantile: float) -> Effect:
    """By how much more of the columns' than of the rows' norms are above the quantile of both, over draws [n, k]."""
    limit = np.quantile(np.concatenate([columns, rows]), quantile)
    return measure_effect((columns > limit).mean(1) - (rows > limit).mean(1))


def check_corollary_s1_12(seed: int = 0, *, draws: int = DRAWS) -> Residuals:
    """Corollary S1.12: under the bidirectional objective E‖Δw_·k‖² = E‖Δw_k·‖². Printed: Var of any row and column."""
    columns, rows = square_norms(draw_updates(np.random.default_rng(seed), bidirectional=True, draws=draws))
    same = [measure_log_ratio(column, row) for column, row in zip(columns.T, rows.T, strict=True)]
    column_spreads = _square_deviations(np.sqrt(columns))
    row_spreads = _square_deviations(np.sqrt(rows))
    every = []
    for column_spread in column_spreads.T:
        every += [measure_log_ratio(column_spread, row_spread) for row_spread in row_spreads.T]
    worst = max(same, key=lambda effect: abs(effect.mean))
    worst_printed = max(every, key=lambda effect: abs(effect.mean))
    return Residuals(
        f"largest log ratio {worst}; printed, variances of any row and column: {worst_printed}",
        tuple(effect.miss() for effect in same),
        tuple(effect.miss() for effect in every),
    )


def _square_deviations(norms: Array) -> Array:
    """The squared deviations of norms [n, d] from their means."""
    deviations: Array = (norms - norms.mean(0)) ** 2
    return deviations


def check_theorem_2_4_symmetry(seed: int = 0, *, draws: int = DRAWS, correlation: float = 0.9) -> Residuals:
    """Theorem 2.4 (21): with correlated β_ij and β_ji the bidirectional update is more symmetric than the other one.

    correlation: of β_ij and β_ji, which the theorem assumes to be near 1. The autoregressive update has i > j only.
    """
    random = np.random.default_rng(seed)
    x = random.normal(size=(draws, LENGTH, DIMENSIONS)) * np.sqrt(embedding_variances())
    beta = correlated_contributions(random, draws, LENGTH, correlation)
    bidirectional = symmetries(beta, x)
    autoregressive = symmetries(np.tril(beta), x)
    gain = measure_effect(bidirectional - autoregressive)
    computed = (
        f"symmetry {measure_effect(bidirectional)}, autoregressive {measure_effect(autoregressive)}, "
        f"difference {gain}; "
        f"correlation of β_ij and β_ji {correlation}"
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
