"""The dense definitions of the scores on matrices with known values, and that wrong scores are noticed."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from attngeo.papers.saponati2025 import scores
from attngeo.papers.saponati2025.scores import dense_directionality, dense_symmetry, outlier_sums

CHECKS = [
    scores.check_definition_3_1, scores.check_proposition_s1_15_range, scores.check_proposition_s1_16_range,
    scores.check_cheap_scores, partial(scores.check_cheap_scores, score="directionality"),
]  # fmt: skip


def test_scores_of_known_matrices() -> None:
    assert dense_symmetry(np.array([[1.0, 2], [2, 5]])) == pytest.approx(1)
    assert dense_symmetry(np.array([[0.0, 2], [-2, 0]])) == pytest.approx(-1)
    assert dense_symmetry(np.array([[0.0, 2], [0, 0]])) == pytest.approx(0)
    rows = np.ones((20, 20))
    rows[3] = 50
    assert outlier_sums(rows) == (pytest.approx(50 * 20**0.5), 0)
    assert (dense_directionality(rows), dense_directionality(rows.T)) == (1, -1)
    assert dense_directionality(np.eye(4)) == 0


@given(st.integers(0, 10_000), st.integers(2, 12), st.floats(-3, 3).filter(lambda value: abs(value) > 0.01))
def test_scores_do_not_depend_on_scale_and_mirror(seed: int, size: int, scale: float) -> None:
    matrix = np.random.default_rng(seed).normal(size=(size, size))
    assert dense_symmetry(scale * matrix) == pytest.approx(dense_symmetry(matrix))
    assert dense_symmetry(matrix.T) == pytest.approx(dense_symmetry(matrix))
    assert dense_directionality(matrix.T) == pytest.approx(-dense_directionality(matrix))


@pytest.mark.parametrize("check", CHECKS)
def test_the_statements_hold(check: Any) -> None:
    assert check(4).worst < 1e-6


def test_chance_levels_hold_and_the_printed_one_does_not() -> None:
    found = scores.check_proposition_s1_15_chance(2, draws=600)
    assert found.worst == 0
    assert found.worst_printed > 0.5
    assert scores.check_proposition_s1_16_chance(2, draws=200).worst == 0


@pytest.mark.parametrize(
    ("name", "wrong", "checks"),
    [
        ("symmetry", lambda wq, wk: 2 * scores.dense_symmetry((wq @ wk.T).double().numpy()), CHECKS[:2] + CHECKS[3:4]),
        ("directionality", lambda wq, wk: scores.dense_directionality((wq @ wk.T).double().numpy(), 1.0), CHECKS[4:]),
    ],
)
def test_wrong_scores_are_noticed(name: str, wrong: Any, checks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, name, wrong)
    for check in checks:
        assert check(0).worst > 1e-3
