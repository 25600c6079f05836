"""The steps of the proofs of Theorems 2.3 and 2.4: Propositions S1.7 and S1.9, Corollary S1.8, Lemma S1.11, remarks.

Expectations are exact: every embedding, sequence and mask of a small space is enumerated, with its probability.
N tokens in a sequence; a token t* has the embedding y, all others are drawn independently with the covariance Σ.
`count_roles` counts the tokens of a text as Remark S1.10 does: how often each is a context, and how often predicted.

Source: Saponati et al. 2025 (arXiv 2502.10927), appendix S1.5.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy import stats

from attngeo.papers.saponati2025.updates import (
    DIMENSIONS,
    Array,
    Effect,
    contributions,
    correlated_contributions,
    draw_sequence,
    embedding_variances,
    measure,
    rank_one_sum,
    symmetries,
    update_by_autograd,
)
from attngeo.papers.statements import SAPONATI, Residuals, difference, shortfall, statement
from attngeo.papers.wibisono2023.analogies import read_corpus
from attngeo.provenance import software

TRIALS = 5
# Of S1.7 and S1.8: dimensions, and embeddings that are enumerated for each of some tokens.
SIZE, TOKENS = 4, 3
# Of S1.9 and S1.10: words, and positions of a sequence.
WORDS, LENGTH = 3, 5
# Of S1.11: families of a location and a scale, the deviations of a and b, and pairs of distributions.
FAMILIES = (stats.norm, stats.uniform, stats.laplace, partial(stats.t, 5), stats.expon)
WIDE, NARROW = 2.0, 1.0
PAIRS = 200
# Of S1.13: shares of masked tokens, the length of the sequence whose pairs are counted, and the printed share.
MASKED, MANY, PRINTED_SHARE = (0.15, 0.2, 0.25, 0.3), 400, 0.25
ROLE_COLUMNS = ("token", "count", "position", "length", "context", "predicted", "ratio", "z")


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


@statement(
    "proposition-s1.7", SAPONATI, "Proposition S1.7",
    "context: E‖Δw_·k‖²/E‖Δw_m·‖² = tr Σ/(d·Σ_mm), above 1 if Σ_mm < tr Σ/d",
)  # fmt: skip
@statement(
    "corollary-s1.8", SAPONATI, "Corollary S1.8",
    "predicted: E‖Δw_·k‖²/E‖Δw_m·‖² = d·Σ_kk/tr Σ, below 1 if Σ_kk < tr Σ/d", predicted=True,
)  # fmt: skip
def check_norm_ratios(seed: int = 0, *, trials: int = TRIALS, predicted: bool = False) -> Residuals:
    """Proposition S1.7: a token as context adds more to columns than to rows of small variance; predicted, S1.8.

    The proof takes y as isotropic and independent of the others, and the β as constants, which the proposition does not
    say. If y has the covariance Σ as well, the ratio is Σ_kk/Σ_mm. "Non-isotropic" is not enough, either: if all
    variances are equal, there is no m with Σ_mm < tr Σ/d.
    """
    random = np.random.default_rng(seed)
    errors, alike = [], []
    for _ in range(trials):
        x = random.normal(size=(SIZE, SIZE)) * random.uniform(0.3, 2, size=SIZE)
        x = np.concatenate([x, -x])  # mean 0
        frame = np.linalg.qr(random.normal(size=(SIZE, SIZE)))[0] * SIZE**0.5
        beta = random.normal(size=TOKENS)
        columns, rows = expected_norms(x, np.concatenate([frame, -frame]), beta, predicted=predicted)
        variances = (x**2).mean(0)
        share, small = variances / variances.mean(), variances < variances.mean()
        ratios = columns[:, None] / rows
        errors.append(difference(ratios, np.broadcast_to(share[:, None] if predicted else 1 / share, ratios.shape)))
        one_sided = 1 / ratios[small] if predicted else ratios[:, small]
        errors.append(shortfall(one_sided.ravel(), 1.0))
        columns, rows = expected_norms(x, x, beta, predicted=predicted)
        same = columns[small, None] / rows if predicted else columns[:, None] / rows[small]
        alike.append(same.max() if predicted else same.min())
    extreme = f"{'largest' if predicted else 'smallest'} {max(alike) if predicted else min(alike):.2g}"
    computed = f"{trials} covariances, d = {SIZE}, isotropic y; {extreme} if y has the covariance Σ"
    return Residuals(computed, tuple(errors))


def expected_roles(probability: Array, tokens: Array, allowed: Array) -> tuple[Array, Array]:
    """How often each word is expected to be a context, and to be predicted, [|V|] each.

    probability: of each sequence, [n]. tokens: whether word v stands at a place, [n, N, |V|]. allowed: whether place i
    is predicted from place j, [N, N].
    """
    context, predicted = np.einsum("ij,ujv->uv", allowed, tokens), np.einsum("ij,uiv->uv", allowed, tokens)
    return probability @ context, probability @ predicted


def _enumerate_sequences() -> tuple[Array, Array, Array]:
    """All sequences [n, N], their words one-hot [n, N, |V|], and whether i is predicted from j < i, [N, N]."""
    sequences = np.array(list(product(range(WORDS), repeat=LENGTH)))
    return sequences, (sequences[..., None] == np.arange(WORDS)).astype(float), np.tri(LENGTH, k=-1)


@statement(
    "proposition-s1.9", SAPONATI, "Proposition S1.9",
    "expected counts as context / as predicted: autoregressive Σ(N−k)·Pr/Σ(k−1)·Pr, bidirectional 1",
)  # fmt: skip
def check_proposition_s1_9(seed: int = 0, *, trials: int = TRIALS) -> Residuals:
    """Proposition S1.9: the counts of all sequences and masks against the formulas, for any distribution of sequences.

    A token that is masked is no context. The sums (S73) and (S74) of the proof have a factor N too many, which cancels.
    """
    random = np.random.default_rng(seed)
    sequences, tokens, causal = _enumerate_sequences()
    places = np.arange(LENGTH)
    errors = []
    for _ in range(trials):
        probability = random.dirichlet(np.full(len(sequences), 0.3))
        marginal = np.einsum("u,unv->nv", probability, tokens)  # Pr[t_k = v]
        context, predicted = expected_roles(probability, tokens, causal)
        errors.append(difference(context / predicted, (LENGTH - 1 - places) @ marginal / (places @ marginal)))
        rate, both = random.uniform(0.05, 0.6), np.zeros((2, WORDS))
        for mask in product((0.0, 1.0), repeat=LENGTH):
            masked = np.array(mask)
            weight = rate ** masked.sum() * (1 - rate) ** (1 - masked).sum()
            both += weight * np.array(expected_roles(probability, tokens, np.outer(masked, 1 - masked)))
        errors += [difference(side, rate * (1 - rate) * (LENGTH - 1) * marginal.sum(0)) for side in both]
    computed = f"{trials} distributions of all {len(sequences)} sequences of {LENGTH} from {WORDS} words, all masks"
    return Residuals(computed, tuple(errors))


@statement(
    "remark-s1.10", SAPONATI, "Remark S1.10",
    "autoregressive ratio = (N−μ)/(μ−1) ≥ 1 + 2δ/(μ−1); 1 if no place is special",
)  # fmt: skip
def check_remark_s1_10(seed: int = 0, *, trials: int = TRIALS) -> Residuals:
    """Remark S1.10: the ratio by the mean position μ, its bound if μ ≤ (N+1)/2 − δ, and 1 for independent tokens.

    Correlations do not make the ratio differ from 1 by themselves: it is also 1 for a stationary Markov chain. The
    places of a token do. The remark says that μ > 1 if the token can stand at place 1; it has to stand elsewhere, too.
    """
    random = np.random.default_rng(seed)
    sequences, tokens, causal = _enumerate_sequences()
    errors, ratios = [], []
    for _ in range(trials):
        step = random.dirichlet(np.full(WORDS, 0.5), size=WORDS)
        start = np.linalg.matrix_power(step, 4096)[0]
        chain = start[sequences[:, 0]] * step[sequences[:, :-1], sequences[:, 1:]].prod(1)
        for probability in (start[sequences].prod(1), chain):
            context, predicted = expected_roles(probability, tokens, causal)
            errors.append(difference(context, predicted))
        probability = random.dirichlet(np.full(len(sequences), 0.3))
        context, predicted = expected_roles(probability, tokens, causal)
        marginal = np.einsum("u,unv->nv", probability, tokens)
        mean = np.arange(1, LENGTH + 1) @ marginal / marginal.sum(0)
        ratio = context / predicted
        errors.append(difference(ratio, (LENGTH - mean) / (mean - 1)))
        delta = random.uniform(0, 1, size=WORDS) * ((LENGTH + 1) / 2 - mean)
        early = delta > 0
        errors.append(shortfall([0.0, *(ratio - 1 - 2 * delta / (mean - 1))[early]]))
        ratios += ratio.tolist()
    return Residuals(
        f"ratios {min(ratios):.2f} to {max(ratios):.2f}; 1 for {trials} Markov chains as well", tuple(errors)
    )


@statement(
    "lemma-s1.11", SAPONATI, "Lemma S1.11", "same family, equal means, σ_a > σ_b: Pr[X_a > z] ≥ Pr[X_b > z] for z ≥ μ"
)
def check_lemma_s1_11(seed: int = 0, *, pairs: int = PAIRS) -> Residuals:
    """Lemma S1.11 for X = μ + σ·Z of one family, z ≥ μ; and of any two, Pr[|X_a − μ| > u] is larger for some u.

    Printed: for any two distributions, and all z > √(σ_a·σ_b) − μ. A counterexample: a = ±2, and b = ±10 with a
    probability of 0.5% each, else 0; at z = 2.5 it is 0 and 0.5%. (S87) gives the limit μ + √(σ_a·σ_b), which does not
    help; (S86) leaves (μ − z)² out of E[(X_a − z)²], and its inequality is for variables that are not negative.
    """
    random = np.random.default_rng(seed)
    mean, errors = float(random.normal()), []
    values = mean + np.linspace(0, 8 * WIDE, 400)
    for family in FAMILIES:
        wide, narrow = (
            family(loc=mean - scale * family().mean() / family().std(), scale=scale / family().std())
            for scale in (WIDE, NARROW)
        )
        errors.append(shortfall(wide.sf(values) - narrow.sf(values)))
    printed = [_exceed(np.array([2.0, -2]), np.full(2, 0.5), np.array([10.0, 0, -10]), np.array([0.005, 0.99, 0.005]))]
    for _ in range(pairs):
        a, b = (_draw_points(random, scale) for scale in (WIDE, NARROW))
        far = np.abs(np.concatenate([a[0], b[0]]))
        gaps = _tail(np.abs(a[0]), a[1], far) - _tail(np.abs(b[0]), b[1], far)
        errors.append(float(gaps.max() <= 0))
        printed.append(_exceed(*a, *b))
    wrong = sum(error > 0 for error in printed[1:])
    computed = (
        f"{len(FAMILIES)} families; printed: off by {printed[0]:.1%} for the counterexample, and wrong for {wrong} of "
        f"{pairs} pairs of distributions of 3 points"
    )
    return Residuals(computed, tuple(errors), tuple(printed))


def _draw_points(random: np.random.Generator, deviation: float) -> tuple[Array, Array]:
    """Three points and their probabilities, of mean 0."""
    points, probability = random.normal(size=3), random.dirichlet(np.ones(3))
    points = points - points @ probability
    return points * deviation / (points**2 @ probability) ** 0.5, probability


def _tail(points: Array, probability: Array, limits: Array) -> Array:
    """Pr[X ≥ z] for each limit z; just below z it is Pr[X > z]."""
    tail: Array = (points >= limits[:, None]) @ probability
    return tail


def _exceed(a: Array, of_a: Array, b: Array, of_b: Array) -> float:
    """By how much Pr[X_b > z] exceeds Pr[X_a > z] at most, for z > √(σ_a·σ_b); points of mean 0, and probabilities."""
    limit = ((a**2 @ of_a) * (b**2 @ of_b)) ** 0.25
    limits = b[b > limit]
    return float(max([0.0, *(_tail(b, of_b, limits) - _tail(a, of_a, limits))]))


@statement(
    "remark-s1.13", SAPONATI, "Remark S1.13",
    "masked: update = diagonal + pairs + rest; pairs/rest → p/(1−p), pairs/all → p",
)  # fmt: skip
def check_remark_s1_13(seed: int = 0, *, trials: int = TRIALS, correlation: float = 0.9) -> Residuals:
    """Remark S1.13: the update of masked tokens by its three sums (S108), and the number of terms of each.

    Printed: p from 15% to 30% leads to ≈ 25% symmetric updates. That is the ratio to the rest for p = 20%; of all terms
    the share is p. correlation: of β_ij and β_ji, for the symmetry of an update.
    """
    random = np.random.default_rng(seed)
    errors = []
    for trial in range(trials):
        sequence = draw_sequence(1000 * seed + trial, bidirectional=True)
        masked = torch.from_numpy(random.permutation(len(sequence.x)) < 3)
        beta = contributions(sequence, softmax=False)
        pairs = beta * torch.outer(masked, masked).triu(1), (beta.T * torch.outer(masked, masked)).triu(1)
        terms = rank_one_sum(sequence.x, pairs[0]) + rank_one_sum(sequence.x, pairs[1]).T
        terms += rank_one_sum(sequence.x, beta * torch.outer(masked, ~masked))
        part = masked[:, None].expand_as(beta)
        errors.append(difference(terms, update_by_autograd(sequence, softmax=False, part=part)))
    for share in MASKED:
        hidden = random.permutation(MANY) < round(share * MANY)
        count = round(share * MANY)
        both, rest = int(np.outer(hidden, hidden).sum()) - count, int(np.outer(hidden, ~hidden).sum())
        errors += [difference(both, count * (count - 1)), difference(rest, count * (MANY - count))]
        errors.append(max(0.0, abs(both / rest - share / (1 - share)) - 1 / (MANY - count)))
        errors.append(max(0.0, abs(both / (both + rest) - share) - 1 / MANY))
    ratios = np.array(MASKED) / (1 - np.array(MASKED))
    shown = ", ".join(f"{share:.0%}: {ratio:.0%}" for share, ratio in zip(MASKED, ratios, strict=True))
    scores = ", ".join(f"{score.mean:.2f}" for score in _masked_symmetries(random, correlation))
    return Residuals(
        f"pairs/rest {shown}; printed ≈ {PRINTED_SHARE:.0%}; symmetry of an update with 15%, 30% and 100% predicted "
        f"{scores}, if β_ij and β_ji have a correlation of {correlation}",
        tuple(errors),
        tuple(np.abs(ratios[[0, -1]] - PRINTED_SHARE).tolist()),
    )


def _masked_symmetries(random: np.random.Generator, correlation: float) -> list[Effect]:
    """The mean symmetry of updates in which 15%, 30% and all of 40 tokens are predicted from all others."""
    draws, length = 100, 40
    x = random.normal(size=(draws, length, DIMENSIONS)) * np.sqrt(embedding_variances())
    beta = correlated_contributions(random, draws, length, correlation)
    order = random.permuted(np.tile(np.arange(length), (draws, 1)), axis=1)
    return [measure(symmetries(beta * (order < share * length)[:, :, None], x)) for share in (0.15, 0.3, 1.0)]


def count_roles(source: str | Path) -> pd.DataFrame:
    """How often each token of a text is a context, and how often predicted, if each is predicted from those before it.

    source: a UTF-8 text with one sequence a line, split at white space, or "toy" (see `toy_corpus`). Lines of one token
    are left out.

    Returns a row for each token, with the columns ROLE_COLUMNS, the largest |z| first. `position` μ and `length` N are
    means over the occurrences, `context` and `predicted` the sums of N − k and of k − 1 over their positions k, and
    `ratio` is context/predicted = (N − μ)/(μ − 1), infinite for a token that only begins lines. `z` is context −
    predicted in standard deviations of what independent, uniform positions would give.
    Raises DataUnavailableError if there is no such file, DataError if it is no text or has no line of two tokens.

    >>> float(count_roles("toy").set_index("token").loc["I", "ratio"])
    inf
    """
    corpus = read_corpus(source)
    tokens = np.concatenate(corpus.sentences)
    lengths = np.repeat([len(sentence) for sentence in corpus.sentences], [len(part) for part in corpus.sentences])
    places = np.concatenate([np.arange(len(sentence)) for sentence in corpus.sentences])
    count, context, predicted, length, variance = (
        np.bincount(tokens, weights, corpus.size)
        for weights in (np.ones_like(places), lengths - 1 - places, places, lengths, (lengths**2 - 1) / 3)
    )
    with np.errstate(divide="ignore"):
        ratio = context / predicted
    values = (corpus.words, count.astype(int), 1 + predicted / count, length / count, context.astype(int),
              predicted.astype(int), ratio, (context - predicted) / np.sqrt(variance))  # fmt: skip
    frame = pd.DataFrame(dict(zip(ROLE_COLUMNS, values, strict=True)))
    frame = frame.sort_values("z", key=abs, ascending=False, kind="stable", ignore_index=True)
    frame.attrs |= {"title": "Tokens as contexts and as predicted", "text": str(source), **software()}
    return frame
