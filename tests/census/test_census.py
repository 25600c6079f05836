"""The census stays as good as it is written down: a stratified tenth of all model types is examined again."""

from __future__ import annotations

import csv
from collections import Counter
from typing import Any

import pytest

from census.examine import OUTPUTS
from census.run import CSV, all_types, take_census

# From the worst to the best. "not verified" may change with what is installed.
BAD = ("wrong", "incomplete")
RANKS = (*BAD, "refused", "rest listed", "right")
MOST_REFUSED = 40
# What is before the unembedding.
HEAD = ("last_norm", "gain_offset", "head_layers", "head")


def read_census() -> dict[str, dict[str, Any]]:
    with CSV.open(encoding="utf-8", newline="") as file:
        return {row["model_type"]: row for row in csv.DictReader(file)}


def list_every_tenth(first: int) -> list[str]:
    """Every tenth model type of each verdict."""
    by_verdict: dict[str, list[str]] = {}
    for name, row in read_census().items():
        by_verdict.setdefault(row["verdict"], []).append(name)
    return [name for names in by_verdict.values() for name in names[first::10]]


def test_every_model_type_is_in_the_census() -> None:
    assert sorted(read_census()) == all_types(), "run `make census`"


@pytest.mark.parametrize("first", [pytest.param(0, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.explore)])
def test_no_model_type_got_worse(first: int) -> None:
    known = read_census()
    assert [row for row in take_census(list_every_tenth(first)) if _is_worse(row, known[row["model_type"]])] == []


def test_values_and_outputs_of_no_model_type_are_wrong() -> None:
    """Each type whose queries and keys are right has a result for them, and each result but "right" its reason."""
    for row in read_census().values():
        is_read = row["verdict"] in ("right", "rest listed")
        assert (row["outputs"] in OUTPUTS and row["outputs"] != "wrong") == is_read, row
        assert bool(row["output_reason"]) == (row["outputs"] not in ("", "right")), row


def test_no_model_type_is_wrong_or_silently_incomplete() -> None:
    """A model type that is, is mended or refused before its row is written."""
    verdicts = Counter(row["verdict"] for row in read_census().values())
    assert (verdicts["wrong"], verdicts["incomplete"]) == (0, 0)
    assert verdicts["refused"] <= MOST_REFUSED


def _is_worse(row: dict[str, Any], known: dict[str, Any]) -> bool:
    if known["head"] == "known" and any(row[name] != known[name] for name in HEAD):
        return True
    if known["verdict"] not in RANKS or row["verdict"] == "not verified":
        return row["verdict"] in BAD
    return row["verdict"] == "no attention" or _rate(row) < _rate(known)


def _rate(row: dict[str, Any]) -> tuple[int, int, int]:
    """The better, the higher: by verdict, by the number of sites, and by values and outputs."""
    outputs = -OUTPUTS.index(row["outputs"]) if row["outputs"] else 0
    return RANKS.index(row["verdict"]), int(row["sites"]), outputs
