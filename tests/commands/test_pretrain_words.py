"""The sentences about a run."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from attngeo.commands.pretrain import describe_move, describe_run

from attngeo.pretrain import TextPretrainOptions
from attngeo.pretrain.runs import Run
from attngeo.scores.spec import SCORES, Chance, default_scores
from attngeo.scores.summary import statistics

SYMMETRY = SCORES["symmetry"]
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


def find_meaning(said: str) -> str | None:
    """The end of the range that a sentence names."""
    found = re.search(rf"(?<![\w-])({SYMMETRY.positive}|{SYMMETRY.negative})\b", said)
    return found[1] if found else None


@pytest.mark.parametrize(
    ("start", "end", "chance", "numbers", "meaning"),
    [
        (0.001, 0.36, 0.02, ["+0.00", "+0.36", "+0.00", "0.02"], SYMMETRY.positive),
        (-0.001, -0.36, 0.02, ["+0.00", "-0.36", "+0.00", "0.02"], SYMMETRY.negative),
        (0.0, 0.01, 0.02, ["+0.00", "+0.01", "+0.00", "0.02"], None),  # may be chance
        (1.0, 0.99, 0.02, ["+1.00", "+0.99", "+0.00", "0.02"], None),  # not chance, but from the start
        (0.2, 0.9, 1.07, ["+0.20", "+0.90"], None),  # anything may be chance
    ],
)
def test_a_move_is_compared_with_chance(
    start: float, end: float, chance: float, numbers: list[str], meaning: str | None
) -> None:
    said = describe_move(SYMMETRY, start, end, Chance(0.0, chance))
    assert NUMBER.findall(said) == numbers
    assert find_meaning(said) == meaning


def test_chance_need_not_be_about_zero() -> None:
    chance = Chance(0.5, 0.1)
    assert find_meaning(describe_move(SYMMETRY, 0.45, 0.55, chance)) is None
    assert find_meaning(describe_move(SYMMETRY, 0.45, 0.3, chance)) == SYMMETRY.negative


@pytest.mark.parametrize(("steps", "losses"), [([0, 10, 20], ["20", "6.50", "10", "5.00"]), ([0, 20], ["20", "5.00"])])
def test_losses_are_means_over_logs(steps: list[int], losses: list[str]) -> None:
    scores = dict.fromkeys(statistics(), 0.1)
    summary = {
        "start": scores, "end": scores, "first_loss": 6.5, "final_loss": 5.0, "d_model": 128,
        "settings": {"steps": 20},
    }  # fmt: skip
    geometry = pd.DataFrame({"step": steps, "layer": 0})
    text = describe_run(Run(Path(), TextPretrainOptions.of("tiny"), summary, geometry))
    assert NUMBER.findall(text)[: len(losses)] == losses
    assert ("6.50" in text) == ("6.50" in losses)
    assert all(spec.label in text for spec in default_scores().values())
