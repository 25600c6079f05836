"""The steps of the proofs of Saponati et al.: known answers, and that wrong numbers are noticed."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from attngeo.papers.saponati2025 import steps

CHECKS = [
    steps.check_norm_ratios, partial(steps.check_norm_ratios, predicted=True), steps.check_proposition_s1_9,
    steps.check_remark_s1_10, steps.check_lemma_s1_11, partial(steps.check_remark_s1_13, draws=100),
]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("seed", range(2))
def test_the_statements_hold(check: Any, seed: int) -> None:
    assert check(seed).worst < 1e-11


def test_norms_of_a_known_update() -> None:
    """One other token ±(1, 2) and t* ±(3, 0): the update is ±(1, 2)ᵀ(3, 0), or its transpose if t* is predicted."""
    x, y = np.array([[1.0, 2], [-1, -2]]), np.array([[3.0, 0], [-3, 0]])
    columns, rows = steps.expected_norms(x, y, np.ones(1), predicted=False)
    assert (columns.tolist(), rows.tolist()) == ([45, 0], [9, 36])
    columns, rows = steps.expected_norms(x, y, np.ones(1), predicted=True)
    assert (columns.tolist(), rows.tolist()) == ([9, 36], [45, 0])


@pytest.mark.parametrize(
    ("name", "wrong", "checks"),
    [
        ("expected_norms", lambda norms: (norms[0], norms[1] * [1, 1, 1, 1.001]), CHECKS[:2]),
        ("expected_roles", lambda roles: (roles[0], roles[1] * [1, 1, 1.001]), CHECKS[2:4]),
        ("tail_probability", lambda tail: 1 - tail, CHECKS[4:5]),
        ("contributions", lambda beta: beta * 1.001, CHECKS[5:]),
    ],
)
def test_wrong_numbers_are_noticed(name: str, wrong: Any, checks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(steps, name)
    monkeypatch.setattr(steps, name, lambda *args, **more: wrong(original(*args, **more)))
    for check in checks:
        assert check(0).worst > 1e-6


def test_tails_of_one_family_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "WIDE", 0.9)
    assert steps.check_lemma_s1_11(0, pairs=0).worst > 1e-3


def test_the_counterexample_is_one() -> None:
    """At z = 2.5, above √(σ_a·σ_b) = √2, a = ±2 never exceeds, and b exceeds with 0.5%."""
    found = steps.check_lemma_s1_11(0, pairs=0)
    assert found.printed == (0.005,)


def test_more_predicted_tokens_make_the_update_more_symmetric() -> None:
    """With β_ij = β_ji an update of all tokens is symmetric; other seeds give the same means within their errors."""
    few, some, every = steps.masked_symmetries(np.random.default_rng(0), 500, 1.0)
    assert every.mean == pytest.approx(1.0)
    assert few.mean < some.mean < 0.5
    assert some.miss(few.mean) > 0
    for effect, other in zip((few, some), steps.masked_symmetries(np.random.default_rng(1), 500, 1.0), strict=False):
        assert effect.miss(other.mean) == 0.0
    *_, every = steps.masked_symmetries(np.random.default_rng(0), 500, 0.9)
    assert 0.85 < every.mean < 0.95
