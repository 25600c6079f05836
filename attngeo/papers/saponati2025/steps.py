"""The steps of the proofs of Theorems 2.3 and 2.4: Propositions S1.7 and S1.9, Corollary S1.8, Lemma S1.11, remarks.

Expectations are exact: every embedding, sequence and mask of a small space is enumerated, with its probability.
N tokens in a sequence; a token t* has the embedding y, all others are drawn independently with the covariance Σ.

Source: Saponati et al. 2025 (arXiv 2502.10927), appendix S1.5.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats

from attngeo.papers.residuals import Effect, Residuals, difference, measure_effect, shortfall
from attngeo.papers.saponati2025.simulation import (
    DIMENSIONS,
    Array,
    correlated_contributions,
    embedding_variances,
    symmetries,
)
from attngeo.papers.saponati2025.updates import contributions, draw_sequence, rank_one_sum, update_by_autograd

TRIALS = 5
# Of S1.7 and S1.8: dimensions, and embeddings that are enumerated for each of some tokens.
SIZE = 4
TOKENS = 3
# Of S1.9 and S1.10: words, and positions of a sequence.
WORDS = 3
LENGTH = 5
# Of S1.11: families of a location and a scale, the deviations of a and b, and pairs of distributions.
FAMILIES = (stats.norm, stats.uniform, stats.laplace, partial(stats.t, 5), stats.expon)
WIDE = 2.0
NARROW = 1.0
PAIRS = 200
# Of S1.13: shares of masked tokens, the length of the sequence whose pairs are counted, the printed share, and the
# number and the length of simulated sequences.
MASKED = (0.15, 0.2, 0.25, 0.3)
MANY = 400
PRINTED_SHARE = 0.25
UPDATES = 3000
LONG = 40


def expected_norms(x: Array, y: Array, beta: Array, *, predicted: bool) -> tuple[Array, Array]:
    """E‖Δw_·k‖² and E‖Δw_m·‖² of the update by t* as context, Σ β_i·x_iᵀ·y, or as predicted, Σ β_j·yᵀ·x_j; [d] each.

    x [n, d], y [m, d]: the equally likely embeddings of each other token, and of t*. beta: [N], constants.
    """
    draws = np.array(list(product(range(len(x)), repeat=len(beta))))
    sums = np.einsum("i,sid->sd", beta, x[draws])
    updates = sums[:, None, :, None] * y[None, :, None]
    if predicted:
        updates = updates.swapaxes(2, 3)
    return (updates**2).sum(2).mean((0, 1)), (updates**2).sum(3).mean((0, 1))


def check_norm_ratios(seed: int = 0, *, trials: int = TRIALS, predicted: bool = False) -> Residuals:
    """Proposition S1.7: a token as context adds more to columns than to rows of small variance; predicted, S1.8.

    The proof takes y as isotropic and independent of the others, and the β as constants, which the proposition does not
    say. If y has the covariance Σ as well, the ratio is Σ_kk/Σ_mm. "Non-isotropic" is not enough, either: if all
    variances are equal, there is no m with Σ_mm < tr Σ/d.
    """
    random = np.random.default_rng(seed)
    errors = []
    extremes = []
    for _ in range(trials):
        x = random.normal(size=(SIZE, SIZE)) * random.uniform(0.3, 2, size=SIZE)
        x = np.concatenate([x, -x])  # mean 0
        basis = np.linalg.qr(random.normal(size=(SIZE, SIZE)))[0] * SIZE**0.5
        isotropic = np.concatenate([basis, -basis])
        beta = random.normal(size=TOKENS)
        variances = (x**2).mean(0)
        share = variances / variances.mean()
        small = share < 1
        columns, rows = expected_norms(x, isotropic, beta, predicted=predicted)
        ratios = columns[:, None] / rows
        columns, rows = expected_norms(x, x, beta, predicted=predicted)
        ratios_of_alike = columns[:, None] / rows
        if predicted:
            errors.append(difference(ratios, np.broadcast_to(share[:, None], ratios.shape)))
            errors.append(shortfall((1 / ratios[small]).ravel(), 1.0))
            extremes.append(ratios_of_alike[small].max())
        else:
            errors.append(difference(ratios, np.broadcast_to(1 / share, ratios.shape)))
            errors.append(shortfall(ratios[:, small].ravel(), 1.0))
            extremes.append(ratios_of_alike[:, small].min())
    extreme = f"largest {max(extremes):.2g}" if predicted else f"smallest {min(extremes):.2g}"
    computed = f"{trials} covariances, d = {SIZE}, isotropic y; {extreme} if y has the covariance Σ"
    return Residuals(computed, tuple(errors))


def expected_roles(probability: Array, tokens: Array, allowed: Array) -> tuple[Array, Array]:
    """The expected number of times that each word is a context, and that it is predicted, [|V|] each.

    Args:
        probability: probability of each sequence, [n].
        tokens: whether word v is at a position, [n, N, |V|].
        allowed: whether position i is predicted from position j, [N, N].
    """
    context = np.einsum("ij,ujv->uv", allowed, tokens)
    predicted = np.einsum("ij,uiv->uv", allowed, tokens)
    return probability @ context, probability @ predicted


def _enumerate_sequences() -> tuple[Array, Array, Array]:
    """All sequences [n, N], their words one-hot [n, N, |V|], and whether i is predicted from j < i, [N, N]."""
    sequences = np.array(list(product(range(WORDS), repeat=LENGTH)))
    one_hot = (sequences[..., None] == np.arange(WORDS)).astype(float)
    return sequences, one_hot, np.tri(LENGTH, k=-1)


def check_proposition_s1_9(seed: int = 0, *, trials: int = TRIALS) -> Residuals:
    """Proposition S1.9: the counts of all sequences and masks against the formulas, for any distribution of sequences.

    A token that is masked is no context. The sums (S73) and (S74) of the proof have a factor N too many, which cancels.
    """
    random = np.random.default_rng(seed)
    sequences, tokens, causal = _enumerate_sequences()
    positions = np.arange(LENGTH)  # k − 1
    errors = []
    for _ in range(trials):
        probability = random.dirichlet(np.full(len(sequences), 0.3))
        marginal = np.einsum("u,unv->nv", probability, tokens)  # Pr[t_k = v]
        context, predicted = expected_roles(probability, tokens, causal)
        ratio = (LENGTH - 1 - positions) @ marginal / (positions @ marginal)
        errors.append(difference(context / predicted, ratio))
        rate = random.uniform(0.05, 0.6)
        roles = np.zeros((2, WORDS))
        for mask in product((0.0, 1.0), repeat=LENGTH):
            masked = np.array(mask)
            weight = rate ** masked.sum() * (1 - rate) ** (1 - masked).sum()
            roles += weight * np.array(expected_roles(probability, tokens, np.outer(masked, 1 - masked)))
        expected = rate * (1 - rate) * (LENGTH - 1) * marginal.sum(0)
        errors += [difference(role, expected) for role in roles]
    computed = f"{trials} distributions of all {len(sequences)} sequences of {LENGTH} from {WORDS} words, all masks"
    return Residuals(computed, tuple(errors))


def check_remark_s1_10(seed: int = 0, *, trials: int = TRIALS) -> Residuals:
    """Remark S1.10: the ratio by the mean position μ, its bound if μ ≤ (N+1)/2 − δ, and 1 for independent tokens.

    Correlations do not make the ratio differ from 1 by themselves: it is also 1 for a stationary Markov chain. The
    places of a token do. The remark says that μ > 1 if the token can stand at place 1; it has to stand elsewhere, too.
    """
    random = np.random.default_rng(seed)
    sequences, tokens, causal = _enumerate_sequences()
    errors = []
    ratios: list[float] = []
    for _ in range(trials):
        step = random.dirichlet(np.full(WORDS, 0.5), size=WORDS)
        start = np.linalg.matrix_power(step, 4096)[0]
        independent = start[sequences].prod(1)
        chain = start[sequences[:, 0]] * step[sequences[:, :-1], sequences[:, 1:]].prod(1)
        for stationary in (independent, chain):
            context, predicted = expected_roles(stationary, tokens, causal)
            errors.append(difference(context, predicted))
        probability = random.dirichlet(np.full(len(sequences), 0.3))
        context, predicted = expected_roles(probability, tokens, causal)
        marginal = np.einsum("u,unv->nv", probability, tokens)
        mean = np.arange(1, LENGTH + 1) @ marginal / marginal.sum(0)  # μ of each word
        ratio = context / predicted
        errors.append(difference(ratio, (LENGTH - mean) / (mean - 1)))
        delta = random.uniform(0, 1, size=WORDS) * ((LENGTH + 1) / 2 - mean)
        above_bound = ratio - 1 - 2 * delta / (mean - 1)
        errors.append(shortfall([0.0, *above_bound[delta > 0]]))
        ratios += ratio.tolist()
    return Residuals(
        f"ratios {min(ratios):.2f} to {max(ratios):.2f}; 1 for {trials} Markov chains as well", tuple(errors)
    )


def check_lemma_s1_11(seed: int = 0, *, pairs: int = PAIRS) -> Residuals:
    """Lemma S1.11 for X = μ + σ·Z of one family, z ≥ μ; and of any two, Pr[|X_a − μ| > u] is larger for some u.

    Printed: for any two distributions, and all z > √(σ_a·σ_b) − μ. A counterexample: a = ±2, and b = ±10 with a
    probability of 0.5% each, else 0; at z = 2.5 it is 0 and 0.5%. (S87) gives the limit μ + √(σ_a·σ_b), which does not
    help; (S86) leaves (μ − z)² out of E[(X_a − z)²], and its inequality is for variables that are not negative.
    """
    random = np.random.default_rng(seed)
    mean = float(random.normal())
    values = mean + np.linspace(0, 8 * WIDE, 400)
    errors = []
    for family in FAMILIES:
        wide = _scale(family, mean, WIDE)
        narrow = _scale(family, mean, NARROW)
        errors.append(shortfall(wide.sf(values) - narrow.sf(values)))
    wide_example = Points(np.array([2.0, -2]), np.full(2, 0.5))
    narrow_example = Points(np.array([10.0, 0, -10]), np.array([0.005, 0.99, 0.005]))
    printed = [_exceed(wide_example, narrow_example)]
    for _ in range(pairs):
        a = _draw_points(random, WIDE)
        b = _draw_points(random, NARROW)
        distances = np.abs(np.concatenate([a.values, b.values]))
        gaps = tail_probability(a.absolute(), distances) - tail_probability(b.absolute(), distances)
        errors.append(float(gaps.max() <= 0))
        printed.append(_exceed(a, b))
    wrong = sum(error > 0 for error in printed[1:])
    computed = (
        f"{len(FAMILIES)} families; printed: for a = ±2 with 50% each, and b = ±10 with 0.5% each, else 0, "
        f"Pr[X_b > 2.5] is {printed[0]:.1%} above Pr[X_a > 2.5], and wrong for {wrong} of "
        f"{pairs} pairs of distributions of 3 points"
    )
    return Residuals(computed, tuple(errors), tuple(printed))


class Points(NamedTuple):
    """A distribution of mean 0 on a few values. values, probability: [n] each."""

    values: Array
    probability: Array

    def absolute(self) -> Points:
        """The distribution of |X|."""
        return Points(np.abs(self.values), self.probability)

    @property
    def variance(self) -> float:
        """σ², for the mean 0."""
        return float(self.values**2 @ self.probability)


def _scale(family: Any, mean: float, deviation: float) -> Any:
    """The distribution of a family of scipy with this mean and standard deviation."""
    standard = family()
    scale = deviation / standard.std()
    return family(loc=mean - deviation * standard.mean() / standard.std(), scale=scale)


def _draw_points(random: np.random.Generator, deviation: float) -> Points:
    """Three values and their probabilities, of mean 0."""
    values = random.normal(size=3)
    probability = random.dirichlet(np.ones(3))
    values = values - values @ probability
    return Points(values * deviation / (values**2 @ probability) ** 0.5, probability)


def tail_probability(points: Points, limits: Array) -> Array:
    """Pr[X ≥ z] for each limit z; just below z it is Pr[X > z]."""
    tail: Array = (points.values >= limits[:, None]) @ points.probability
    return tail


def _exceed(a: Points, b: Points) -> float:
    """By how much Pr[X_b > z] exceeds Pr[X_a > z] at most, for z > √(σ_a·σ_b)."""
    limits = b.values[b.values > (a.variance * b.variance) ** 0.25]
    return float(max([0.0, *(tail_probability(b, limits) - tail_probability(a, limits))]))


def check_remark_s1_13(
    seed: int = 0, *, trials: int = TRIALS, draws: int = UPDATES, correlation: float = 0.9
) -> Residuals:
    """Remark S1.13: the update of masked tokens by its three sums (S108), and the number of terms of each.

    Printed: p from 15% to 30% leads to ≈ 25% symmetric updates. That is the ratio to the rest for p = 20%; of all terms
    the share is p. draws: simulated updates, whose β_ij and β_ji have the correlation.
    """
    random = np.random.default_rng(seed)
    errors = []
    for trial in range(trials):
        sequence = draw_sequence(1000 * seed + trial, bidirectional=True)
        masked = torch.from_numpy(random.permutation(len(sequence.x)) < 3)
        beta = contributions(sequence, softmax=False)
        both_masked = torch.outer(masked, masked)
        terms = rank_one_sum(sequence.x, beta * both_masked.triu(1))
        terms = terms + rank_one_sum(sequence.x, (beta.T * both_masked).triu(1)).T
        terms = terms + rank_one_sum(sequence.x, beta * torch.outer(masked, ~masked))
        rows_of_masked = masked[:, None].expand_as(beta)
        errors.append(difference(terms, update_by_autograd(sequence, softmax=False, pairs=rows_of_masked)))
    for share in MASKED:
        count = round(share * MANY)
        masked_places = random.permutation(MANY) < count
        both = int(np.outer(masked_places, masked_places).sum()) - count
        rest = int(np.outer(masked_places, ~masked_places).sum())
        errors.append(difference(both, count * (count - 1)))
        errors.append(difference(rest, count * (MANY - count)))
        errors.append(max(0.0, abs(both / rest - share / (1 - share)) - 1 / (MANY - count)))
        errors.append(max(0.0, abs(both / (both + rest) - share) - 1 / MANY))
    ratios = np.array(MASKED) / (1 - np.array(MASKED))
    shown = ", ".join(f"{share:.0%}: {ratio:.0%}" for share, ratio in zip(MASKED, ratios, strict=True))
    scores = ", ".join(map(str, masked_symmetries(random, draws, correlation)))
    return Residuals(
        f"pairs/rest {shown}; printed ≈ {PRINTED_SHARE:.0%}; symmetry of {draws:,} updates with 15%, 30% and 100% "
        f"predicted {scores}, if β_ij and β_ji have a correlation of {correlation}",
        tuple(errors),
        tuple(np.abs(ratios[[0, -1]] - PRINTED_SHARE).tolist()),
    )


def masked_symmetries(random: np.random.Generator, draws: int, correlation: float) -> list[Effect]:
    """The mean symmetry of updates in which 15%, 30% and all of 40 tokens are predicted from all others."""
    x = random.normal(size=(draws, LONG, DIMENSIONS)) * np.sqrt(embedding_variances())
    beta = correlated_contributions(random, draws, LONG, correlation)
    order = random.permuted(np.tile(np.arange(LONG), (draws, 1)), axis=1)
    effects = []
    for share in (MASKED[0], MASKED[-1], 1.0):
        is_predicted = order < share * LONG
        effects.append(measure_effect(symmetries(beta * is_predicted[:, :, None], x)))
    return effects
