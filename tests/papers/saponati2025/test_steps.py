"""The steps of the proofs of Saponati et al.: known answers, that wrong numbers are noticed, and roles of tokens."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.messages import refuses

from attngeo.errors import DataError, DataUnavailableError
from attngeo.papers.saponati2025 import steps
from attngeo.papers.saponati2025.steps import ROLE_COLUMNS, count_roles

CHECKS = [
    steps.check_norm_ratios, partial(steps.check_norm_ratios, predicted=True), steps.check_proposition_s1_9,
    steps.check_remark_s1_10, steps.check_lemma_s1_11, steps.check_remark_s1_13,
]  # fmt: skip
LINES = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), min_size=1, max_size=8).filter(
    lambda lines: any(len(line) > 1 for line in lines)
)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("seed", range(10))
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
        ("_tail", lambda tail: 1 - tail, CHECKS[4:5]),
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
    few, some, every = (score.mean for score in steps._masked_symmetries(np.random.default_rng(0), 0.9))
    assert few < some < 0.5 < 0.85 < every


@given(LINES)
def test_roles_are_those_of_a_loop_over_pairs(tmp_path_factory: pytest.TempPathFactory, lines: list[list[str]]) -> None:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(map(" ".join, lines)), "utf-8")
    context, predicted = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
    for line in lines:
        for place, token in enumerate(line):
            for earlier in line[:place]:
                context[earlier] += 1
                predicted[token] += 1
    frame = count_roles(path)
    assert tuple(frame.columns) == ROLE_COLUMNS
    assert frame["z"].abs().is_monotonic_decreasing
    for row in frame.to_dict("records"):
        assert (row["context"], row["predicted"]) == (context[row["token"]], predicted[row["token"]])
        if row["predicted"]:
            assert row["ratio"] == pytest.approx((row["length"] - row["position"]) / (row["position"] - 1))
        else:
            assert row["ratio"] == np.inf


def test_z_of_lines_in_random_order_is_that_of_chance(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    path = tmp_path / "text.txt"
    path.write_text("\n".join(" ".join(random.permutation(list("abcdef"))) for _ in range(1000)))
    assert 0.1 < count_roles(path)["z"].abs().max() < 4


def test_texts_that_cannot_be_counted(tmp_path: Path) -> None:
    with refuses(DataUnavailableError, "nowhere.txt"):
        count_roles(tmp_path / "nowhere.txt")
    for name, data in (("one.txt", b"one\ntwo\n"), ("empty.txt", b""), ("bytes.txt", b"\xff\xfe\x00 a")):
        (tmp_path / name).write_bytes(data)
        with refuses(DataError, name):
            count_roles(tmp_path / name)
