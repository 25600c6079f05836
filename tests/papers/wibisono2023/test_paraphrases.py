"""The error terms of paraphrases against their definitions on a joint distribution, and what follows from them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from attngeo.papers.wibisono2023 import paraphrases
from attngeo.papers.wibisono2023.factorisation import shifted_log_ratios
from attngeo.papers.wibisono2023.paraphrases import assumption_errors, combine, paraphrase_errors

CHECKS = [
    paraphrases.check_sums,
    partial(paraphrases.check_sums, weighted=True),
    paraphrases.check_analogies,
    partial(paraphrases.check_analogies, weighted=True),
]


def exchangeable(seed: int, words: int = 5) -> np.ndarray:
    """A joint distribution of two words and a context, symmetric in the words, [|V|, |V|, |V|]."""
    counts = np.random.default_rng(seed).gamma(1.0, size=(words, words, words))
    counts = counts + counts.transpose(1, 0, 2)
    return counts / counts.sum()


@given(st.integers(0, 1000))
def test_error_terms_are_those_of_the_definitions(seed: int) -> None:
    p = exchangeable(seed)
    a, b, c, d = np.random.default_rng(seed).choice(5, 4, replace=False)
    terms = paraphrase_errors(p.sum(1), p[a, b], p[c, d], [a, b], [c, d])
    context, alone = p.sum((0, 1)), p.sum(1)
    for j in range(5):
        given_j, given_j_star = p[a, b, j] / context[j], p[c, d, j] / context[j]
        assert terms.rho[j] == pytest.approx(
            np.log((p[c, d, j] / p[c, d].sum()) / (p[a, b, j] / p[a, b].sum())), abs=1e-12
        )
        independent = alone[a, j] / context[j] * alone[b, j] / context[j]
        assert terms.sigma[j] == pytest.approx(np.log(given_j / independent), abs=1e-12)
        independent = alone[c, j] / context[j] * alone[d, j] / context[j]
        assert terms.sigma_star[j] == pytest.approx(np.log(given_j_star / independent), abs=1e-12)
        assert terms.delta[j] == pytest.approx(np.log(p[c, d].sum() / p[a, b].sum()), abs=1e-12)
        assert terms.xi[j] == pytest.approx(np.log(given_j_star / given_j), abs=1e-12)
    rows = shifted_log_ratios(p.sum(1))
    for side in combine(terms):
        assert np.allclose(side, rows[[c, d]].sum(0) - rows[[a, b]].sum(0), atol=1e-10)


def test_a_probability_of_zero_is_nan_there_only() -> None:
    p = exchangeable(0)
    joint = p[0, 1].copy()
    joint[2] = 0
    terms = paraphrase_errors(p.sum(1), joint, p[2, 3], [0, 1], [2, 3])
    for name in ("rho", "sigma", "xi"):
        assert np.flatnonzero(np.isnan(getattr(terms, name))).tolist() == [2], name
    assert not np.isnan(terms.sigma_star).any()
    assert not np.isnan(terms.delta).any()


def test_equal_sets_paraphrase_each_other() -> None:
    p = exchangeable(1)
    terms = paraphrase_errors(p.sum(1), p[0, 1], p[1, 0], [0, 1], [1, 0])
    assert np.allclose(terms.rho, 0)
    assert np.allclose(terms.delta, 0)
    assert np.allclose(terms.sigma, terms.sigma_star)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("seed", "words"), [(0, 4), (1, 7), (2, 15)])
def test_identities_hold_for_any_sizes(check: Any, seed: int, words: int) -> None:
    assert check(seed, words=words, trials=9).worst < 1e-10


@pytest.mark.parametrize("check", CHECKS)
def test_identities_without_a_term_are_noticed(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paraphrases, "combine", lambda terms: (terms.rho + terms.delta, terms.xi + terms.sigma))
    assert check(0).worst > 0.1


@pytest.mark.parametrize(
    "check", [paraphrases.check_conclusions, partial(paraphrases.check_conclusions, asymmetry=1.0)]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_conclusions_are_as_close_as_the_assumptions(check: Any, seed: int) -> None:
    found = check(seed, trials=3)
    assert 0 < found.worst <= 1
    assert "1e-06" in found.computed


def test_assumption_errors_count_each_assumption_once() -> None:
    """For a symmetric distribution whose sets are independent and equally likely, none of them fails."""
    marginal = np.array([0.3, 0.2, 0.2, 0.3])
    pairs = np.outer(marginal, marginal)
    both = 0.3 * 0.2
    assert assumption_errors(pairs, (0, 1), (2, 3), both, both) == pytest.approx(0, abs=1e-12)
    assert assumption_errors(pairs, (0, 1), (2, 3), both, 2 * both) == pytest.approx(2 * np.log(2))
    pairs[0, 1] *= 1.5
    assert assumption_errors(pairs, (0, 1), (2, 3), both, both) > 0.1


@pytest.mark.parametrize("seed", range(2))
def test_tokens_are_linear_under_all_conditions_only(seed: int) -> None:
    assert paraphrases.check_tokens(seed).worst < 1e-9


@pytest.mark.parametrize("symmetric", [True, False])
def test_each_condition_is_needed(symmetric: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distributions that are always or never symmetric are noticed."""
    original = paraphrases.solve_factors
    monkeypatch.setattr(paraphrases, "solve_factors", lambda random, **_: original(random, symmetric=symmetric))
    assert paraphrases.check_tokens(0).worst > 0.009
