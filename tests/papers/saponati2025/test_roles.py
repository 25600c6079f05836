"""Roles of tokens: how often each is a context, and how often it is predicted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.messages import refuses

from attngeo.errors import DataError, DataUnavailableError
from attngeo.papers.saponati2025.roles import ROLE_COLUMNS, count_roles

LINES = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), min_size=1, max_size=8).filter(
    lambda lines: any(len(line) > 1 for line in lines)
)


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
