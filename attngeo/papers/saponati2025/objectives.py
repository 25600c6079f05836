"""What the training objective does to the update of W_qk, simulated under the assumptions of the proofs.

Theorems 2.3 and 2.4 and Corollary S1.12. A token t* has the embedding y ~ N(0, I); all other embeddings are drawn
from N(0, Σ) with different variances; the β are independent. Claims are about expectations: an error is how far the
claim is outside a confidence interval. A printed claim fails if a strict interval contradicts it.
Source: Saponati et al. 2025 (arXiv 2502.10927), section 2.4, appendices S1.5.2 to S1.5.6.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from attngeo.papers.saponati2025.updates import contributions, draw_sequence, update_by_autograd
from attngeo.papers.statements import INTERVAL, SAPONATI, Residuals, difference, shortfall, statement

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
    "theorem-2.3-norms",
    SAPONATI,
    "Theorem 2.3, (17)",
    "autoregressive: E‖Δw_·k‖² > E‖Δw_k·‖² if Σ_kk < tr Σ/d",
    INTERVAL,
)
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
    "theorem-2.3-tails",
    SAPONATI,
    "Theorem 2.3, (18)",
    "autoregressive: column k more often large than row k, same k",
    INTERVAL,
)
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
    column, row = (_square_deviations(np.sqrt(norms)) for norms in (columns, rows))
    every = [measure_log_ratio(column[:, k], row[:, m]) for k in range(column.shape[1]) for m in range(column.shape[1])]
    worst, printed = max(same, key=lambda effect: abs(effect.mean)), max(every, key=lambda effect: abs(effect.mean))
    return Residuals(
        f"largest log ratio {worst}; printed, variances of any row and column: {printed}",
        tuple(effect.miss() for effect in same),
        tuple(effect.miss() for effect in every),
    )


def _square_deviations(values: Array) -> Array:
    deviations: Array = (values - values.mean(0)) ** 2
    return deviations


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
    "theorem-2.4-symmetry",
    SAPONATI,
    "Theorem 2.4, (21)",
    "bidirectional update more symmetric than autoregressive one",
    INTERVAL,
)
def check_theorem_2_4_symmetry(seed: int = 0, *, draws: int = DRAWS, correlation: float = 0.9) -> Residuals:
    """Theorem 2.4 (21): with correlated β_ij and β_ji the bidirectional update is more symmetric than the other one.

    correlation: of β_ij and β_ji, which the theorem assumes to be near 1. The autoregressive update has i > j only.
    """
    random = np.random.default_rng(seed)
    x = random.normal(size=(draws, LENGTH, DIMENSIONS)) * np.sqrt(embedding_variances())
    first, second = random.normal(size=(2, draws, LENGTH, LENGTH))
    lower = np.tril(first, -1)
    mirrored = correlation * lower + (1 - correlation**2) ** 0.5 * np.tril(second, -1)
    scores = []
    for beta in (lower + mirrored.transpose(0, 2, 1), lower):
        update = np.einsum("rij,rid,rje->rde", beta, x, x, optimize=True)
        scores.append((update * update.transpose(0, 2, 1)).sum((1, 2)) / (update**2).sum((1, 2)))
    gain = measure(scores[0] - scores[1])
    both, before = (measure(values) for values in scores)
    computed = (
        f"symmetry {both}, autoregressive {before}, difference {gain}; correlation of β_ij and β_ji {correlation}"
    )
    return Residuals(computed, (shortfall([gain.low]),))
