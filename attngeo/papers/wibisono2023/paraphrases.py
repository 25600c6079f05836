"""Analogies as paraphrases: the error terms of two word sets, and what follows from them for embeddings.

W = {w_b, w_a*} and W* = {w_b*, w_a} are two word sets; p is a joint distribution of words and contexts; Lemma 11 and
Propositions 12 and 13 have the error terms. The same formulas hold for the p̄ of attention, which weights each pair by
γ: Lemma 15 and Propositions 16 and 17.
Source: Wibisono and Wang 2023 (arXiv 2307.04057), section 4.2, appendices H, J, K and L.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from attngeo.papers.residuals import Residuals, difference, shortfall
from attngeo.papers.wibisono2023.corpus import Array, Corpus
from attngeo.papers.wibisono2023.factorisation import AttentionSums, attention_matrix, shifted_log_ratios

# Words of a distribution, and how many are drawn.
WORDS = 7
TRIALS = 20
# Of Propositions 13 and 17: the words {r, s} and {t, u}, by how much each assumption fails, and the rank of log p.
FIRST = [0, 1]
SECOND = [2, 3]
FAILURES = (1e-2, 1e-4, 1e-6)
SIZE = 3
KERNEL = np.array([1.0, -0.7, 0.5])


class ParaphraseErrors(NamedTuple):
    """The error terms of two word sets for each context word, [|V|] each; NaN where a probability is 0.

    Attributes:
        rho: log p(c_j|W*)/p(c_j|W).
        sigma: log p(W|c_j)/Π p(w_i|c_j).
        sigma_star: the same for W*.
        delta: log p(W*)/p(W).
        xi: log p(W*|c_j)/p(W|c_j).
    """

    rho: Array
    sigma: Array
    sigma_star: Array
    delta: Array
    xi: Array


def paraphrase_errors(
    pairs: Array,
    joint: Array,
    joint_star: Array,
    first: Sequence[int],
    second: Sequence[int],
    every: Array | None = None,
) -> ParaphraseErrors:
    """The error terms of the word sets W = `first` and W* = `second`, which have as many words.

    Args:
        pairs: p(w_i, c_j) or counts, [|V|, |V|].
        joint: p(W, c_j), [|V|], or counts of the same scale as `joint_star`.
        joint_star: p(W*, c_j), [|V|].
        first: the words of W.
        second: the words of W*.
        every: the sum of p(W, c_j) over all sets W, [|V|]; default: p(c_j) of the pairs.
    """
    context = pairs.sum(0)  # p(c_j)
    single = pairs / context  # p(w_i | c_j)
    if every is not None:
        context = every
    with np.errstate(divide="ignore", invalid="ignore"):
        log_set = np.log(joint / context)  # log p(W | c_j)
        log_set_star = np.log(joint_star / context)  # log p(W* | c_j)
        log_single = np.log(single[list(first)]).sum(0)
        log_single_star = np.log(single[list(second)]).sum(0)
        terms = ParaphraseErrors(
            rho=np.log(joint_star / joint_star.sum()) - np.log(joint / joint.sum()),
            sigma=log_set - log_single,
            sigma_star=log_set_star - log_single_star,
            delta=np.full(len(context), np.log(joint_star.sum()) - np.log(joint.sum())),
            xi=log_set_star - log_set,
        )
    return ParaphraseErrors(*(np.where(np.isfinite(term), term, np.nan) for term in terms))


def count_sets(
    corpus: Corpus, first: tuple[int, int], second: tuple[int, int], tau: Array
) -> tuple[Array, Array, Array]:
    """How often two sets of two words each, and all pairs of words, occur with each context word, [|V|] each.

    Counts are over ordered triples of places in a sentence: of both words and of the context. Each is weighted by the γ
    of the context word, as the mean over the two words as the masked one: the paper defines p̄ for single words only.
    tau: [|V| + 1], the mask last; ones and 0 count plainly, up to the length of the sentence.
    """
    joint, joint_star, every = np.zeros((3, corpus.size))
    for sentence, repeats in corpus.distinct:
        weights = tau[sentence]
        shares = weights / (weights.sum() - weights + tau[-1])[:, None]  # γ of j with i masked: [i, j]
        np.fill_diagonal(shares, 0)
        shares *= repeats
        np.add.at(every, sentence, shares.sum(0) * (len(sentence) - 2))
        _count_set(joint, first, sentence, shares)
        _count_set(joint_star, second, sentence, shares)
    return joint, joint_star, every


def _count_set(total: Array, words: tuple[int, int], sentence: Array, shares: Array) -> None:
    """Add what a sentence has of a word set to its total, [|V|]. shares: γ of j with i masked, [places, places]."""
    left, right = words
    for i, j in product(np.flatnonzero(sentence == left), np.flatnonzero(sentence == right)):
        if i != j:
            weights = (shares[i] + shares[j]) / 2
            weights[[i, j]] = 0
            np.add.at(total, sentence, weights)


def combine(terms: ParaphraseErrors) -> tuple[Array, Array]:
    """ρ + σ^W − σ^W* + δ and ξ + σ^W − σ^W*, the two right-hand sides of Lemma 11, [|V|] each."""
    between = terms.sigma - terms.sigma_star
    return terms.rho + between + terms.delta, terms.xi + between


def check_sums(seed: int = 0, *, words: int = WORDS, trials: int = TRIALS, weighted: bool = False) -> Residuals:
    """Lemma 11: both right-hand sides against Σ_W* M_i − Σ_W M_i, for word sets of one, two and three words.

    Weighted: Lemma 15, which is Lemma 11 for p̄; also w_i·c̃_j = |V|·p̄(w_i, c_j)/p̄(c_j) − 1, from Equation (2).
    """
    random = np.random.default_rng(seed)
    errors = []
    for trial in range(trials):
        pairs = _draw_pairs(random, words, weighted=weighted)
        size = 1 + trial % 3
        first = random.choice(words, size, replace=False)
        second = random.choice(words, size, replace=False)
        joint, joint_star = random.gamma(1.0, size=(2, words))
        ratios = shifted_log_ratios(pairs)
        expected = ratios[second].sum(0) - ratios[first].sum(0)
        terms = paraphrase_errors(pairs, joint, joint_star, list(first), list(second))
        errors += [difference(side, expected) for side in combine(terms)]
    computed = f"{trials} random distributions of {words} words, sets of 1 to 3"
    if weighted:
        length = 5
        for _ in range(trials):
            sums = _draw_weighted(random, words)
            scaled_products = attention_matrix(sums, length) * (length * sums.zeta)
            errors.append(difference(scaled_products, words * sums.gamma / sums.gamma.sum(0) - 1))
        computed += f"; w·c̃ of {trials} more"
    return Residuals(computed, errors)


def check_analogies(seed: int = 0, *, words: int = WORDS, trials: int = TRIALS, weighted: bool = False) -> Residuals:
    """Proposition 12: w_b* = w_a* − w_a + w_b + C†(…), for embeddings with W·Cᵀ = M exactly; weighted, 16 for p̄."""
    random = np.random.default_rng(seed)
    errors = []
    for _ in range(trials):
        pairs = _draw_pairs(random, words, weighted=weighted)
        # A well-conditioned square C.
        rotation, _ = np.linalg.qr(random.normal(size=pairs.shape))
        context = rotation * random.uniform(0.5, 2, size=words)
        centre = np.linalg.solve(context, shifted_log_ratios(pairs).T).T
        inverse = np.linalg.pinv(context)  # C†: [p, |V|]
        a, a_star, b, b_star = random.choice(words, 4, replace=False)
        joint, joint_star = random.gamma(1.0, size=(2, words))
        terms = paraphrase_errors(pairs, joint, joint_star, (b, a_star), (b_star, a))
        linear = centre[a_star] - centre[a] + centre[b]
        errors += [difference(linear + inverse @ side, centre[b_star]) for side in combine(terms)]
    return Residuals(f"{trials} analogies among {words} words, W·Cᵀ = M", errors)


def _draw_pairs(random: np.random.Generator, words: int, *, weighted: bool) -> Array:
    """A random distribution p(w_i, c_j), [|V|, |V|], which is symmetric; or the sums of γ."""
    if weighted:
        return _draw_weighted(random, words).gamma
    counts = random.gamma(1.0, size=(words, words))
    pairs: Array = (counts + counts.T) / (2 * counts.sum())
    return pairs


def _draw_weighted(random: np.random.Generator, words: int) -> AttentionSums:
    """Sums of γ and γ² over random pairs: γ is not symmetric."""
    gamma = random.uniform(0.05, 1, size=(9, words, words))
    return AttentionSums(gamma.sum(0), (gamma**2).sum(0))


def check_conclusions(seed: int = 0, *, trials: int = TRIALS, asymmetry: float = 0.0) -> Residuals:
    """Propositions 13 and 17: ‖c_r + c_s − c_t − c_u‖ against its bound, for c̃ and p̄ with the asymmetry of p̄ as well.

    The error is given as a share of the bound, if each assumption fails by about each of FAILURES: w_r + w_s ≈ w_t +
    w_u, p(W) ≈ p(c_r)·p(c_s) and so on, where log p = B·K·Bᵀ with symmetric K.

    With W·Cᵀ = M, the identity W·Δc = Σ± log p(w_v, c_·) − Σ± log p(c_·) gives the bound
    ‖Δc‖ ≤ (‖C‖·‖Δw‖ + √|V|·errors)/σ_min(W), where Δ is r + s − t − u.
    """
    random = np.random.default_rng(seed)
    shares: list[float] = []
    conclusions = dict.fromkeys(FAILURES, 0.0)
    for _ in range(trials):
        _, exact = solve_factors(random)  # B, with which the assumptions hold
        for failure in FAILURES:
            factors = exact + failure * random.normal(size=exact.shape)
            left = factors * KERNEL + asymmetry * failure * random.normal(size=exact.shape)
            pairs, context = embed(left, factors)
            centre = np.column_stack([left, np.ones(WORDS)])
            marginal = pairs.sum(0)
            together = marginal[FIRST].prod() * np.exp(failure * random.normal())
            together_star = marginal[SECOND].prod() * np.exp(failure * random.normal())
            conclusion = float(np.linalg.norm(_subtract_sets(context)))
            assumed = float(np.linalg.norm(_subtract_sets(centre)))
            errors = assumption_errors(pairs, FIRST, SECOND, together, together_star)
            largest = float(np.linalg.norm(context, 2))
            smallest = float(np.linalg.svd(centre, compute_uv=False)[-1])
            shares.append(conclusion * smallest / (largest * assumed + WORDS**0.5 * errors))
            conclusions[failure] = max(conclusions[failure], conclusion)
    shown = ", ".join(f"{error:.0e} if they fail by {failure:.0e}" for failure, error in conclusions.items())
    return Residuals(f"conclusion off by {shown}; {max(shares):.2f} of the bound", shares)


def _subtract_sets(embeddings: Array) -> Array:
    """v_r + v_s − v_t − v_u of embeddings v, [p]."""
    gap: Array = embeddings[FIRST].sum(0) - embeddings[SECOND].sum(0)
    return gap


def embed(left: Array, factors: Array) -> tuple[Array, Array]:
    """Distribution p ∝ exp(L·Bᵀ), [|V|, |V|], and C = [B, a], a_j = log |V| − log p(c_j), with which M = [L, 1]·Cᵀ."""
    pairs = np.exp(left @ factors.T)
    pairs /= pairs.sum()
    # log p in the same scale as `pairs`: the constant belongs to a.
    shift = np.log(pairs[0, 0]) - left[0] @ factors[0]
    return pairs, np.column_stack([factors, shift + np.log(len(pairs)) - np.log(pairs.sum(0))])


def solve_factors(random: np.random.Generator, *, symmetric: bool = True) -> tuple[Array, Array]:
    """L and B [|V|, SIZE] with l_r + l_s = l_t + l_u and p(c_r)·p(c_s) = p(c_t)·p(c_u) for p ∝ exp(L·Bᵀ).

    symmetric: whether L = B·K, so that p is symmetric; else L has nothing to do with B.
    """
    fixed = None if symmetric else _complete(random.normal(scale=0.5, size=WORDS * SIZE))

    def factorize(free: Array) -> tuple[Array, Array]:
        if fixed is not None:
            return fixed, free.reshape(WORDS, SIZE)
        factors = _complete(free)
        return factors * KERNEL, factors

    def ratio(free: Array) -> float:
        left, factors = factorize(free)
        marginal = np.log(np.exp(left @ factors.T).sum(0))
        return float(marginal[FIRST].sum() - marginal[SECOND].sum())

    solved = least_squares(ratio, random.normal(scale=0.5, size=WORDS * SIZE), xtol=1e-15, ftol=1e-15, gtol=1e-15)
    return factorize(solved.x)


def _complete(free: Array) -> Array:
    """Rows v [|V|, SIZE] of free numbers, of which v_r is replaced so that v_r + v_s = v_t + v_u."""
    factors: Array = free.reshape(-1, SIZE).copy()
    factors[FIRST[0]] = factors[SECOND].sum(0) - factors[FIRST[1]]
    return factors


def assumption_errors(
    pairs: Array, first: Sequence[int], second: Sequence[int], together: float, together_star: float
) -> float:
    """The error of the assumptions of Propositions 13 and 17, as a sum of absolute logarithms.

    p(W) ≈ p(W*); independence in each set, p(W) ≈ p(c_r)·p(c_s); and symmetry, p(w_i, c_j) ≈ p(w_j, c_i), whose largest
    error over the context words counts.

    Args:
        pairs: p(w_i, c_j) up to a factor, [|V|, |V|].
        first: words of W.
        second: words of W*.
        together: p(W).
        together_star: p(W*).
    """
    marginal = pairs.sum(0) / pairs.sum()
    dependence = abs(np.log(together / marginal[list(first)].prod()))
    dependence_star = abs(np.log(together_star / marginal[list(second)].prod()))
    gap = np.log(pairs) - np.log(pairs.T)
    asymmetry = np.abs(gap[:, list(first)].sum(1) - gap[:, list(second)].sum(1)).max()
    return float(abs(np.log(together_star / together)) + (dependence + dependence_star) + asymmetry)


def check_tokens(seed: int = 0) -> Residuals:
    """Propositions 8 and 17: if all assumptions hold, both sums of c̃ are equal, and those of c if ζ is constant.

    These conditions are needed: if only one of them fails, the sums differ. Errors are shares of the largest ‖c‖.
    """
    random = np.random.default_rng(seed)
    errors = []
    unequal = []
    skewed = []
    for _ in range(5):
        _, scaled = embed(*solve_factors(random))
        zeta = np.ones((WORDS, 1))
        zeta[FIRST[0]] = 1.5
        errors.append(_measure_gap(scaled))
        unequal.append(_measure_gap(scaled / zeta))
        _, asymmetric = embed(*solve_factors(random, symmetric=False))
        skewed.append(_measure_gap(asymmetric))
    errors.append(shortfall([*unequal, *skewed], 0.01))
    return Residuals(
        f"if ζ of one word is 1.5 times that of the others, the sums of c are off by {min(unequal):.0%} to "
        f"{max(unequal):.0%}; without symmetry those of c̃ by {min(skewed):.0%} to {max(skewed):.0%}",
        errors,
    )


def _measure_gap(contexts: Array) -> float:
    """‖c_r + c_s − c_t − c_u‖ as a share of the largest ‖c‖."""
    return float(np.linalg.norm(_subtract_sets(contexts)) / np.linalg.norm(contexts, axis=1).max())
