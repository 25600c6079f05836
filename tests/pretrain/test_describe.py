"""The sentences about a run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from attngeo.geometry.chance import Chance
from attngeo.pretrain import TextPretrainOptions
from attngeo.pretrain.describe import describe_move, describe_run
from attngeo.pretrain.runs import Run
from attngeo.scores.spec import SCORES
from attngeo.scores.summary import statistics

SYMMETRY = SCORES["symmetry"]


@pytest.mark.parametrize(
    ("start", "end", "chance", "numbers", "meaning"),
    [
        (0.001, 0.36, 0.02, "+0.00 to +0.36", "more symmetric than"),
        (-0.001, -0.36, 0.02, "+0.00 to -0.36", "more skew-symmetric than"),
        (0.0, 0.01, 0.02, "+0.00 to +0.01", "may be chance"),
        (1.0, 0.99, 0.02, "+1.00 to +0.99", "(chance: +0.00 ± 0.02)"),
        (0.2, 0.9, 1.07, "+0.20 to +0.90", "any value may be chance"),
    ],
)
def test_a_move_is_compared_with_chance(start: float, end: float, chance: float, numbers: str, meaning: str) -> None:
    said = describe_move(SYMMETRY, start, end, Chance(0.0, chance))
    assert numbers in said
    assert meaning in said


def test_chance_need_not_be_about_zero() -> None:
    chance = Chance(0.5, 0.1)
    assert "may be chance" in describe_move(SYMMETRY, 0.45, 0.55, chance)
    assert "more skew-symmetric than" in describe_move(SYMMETRY, 0.45, 0.3, chance)


@pytest.mark.parametrize(("steps", "losses"), [([0, 10, 20], ["6.50", "first 10", "5.00"]), ([0, 20], ["5.00"])])
def test_losses_are_means_over_logs(steps: list[int], losses: list[str]) -> None:
    scores = dict.fromkeys(statistics(), 0.1)
    summary = {
        "start": scores, "end": scores, "first_loss": 6.5, "final_loss": 5.0, "d_model": 128,
        "settings": {"steps": 20},
    }  # fmt: skip
    geometry = pd.DataFrame({"step": steps, "layer": 0})
    text = describe_run(Run(Path(), TextPretrainOptions.of("tiny"), summary, geometry))
    assert "20 steps of predicting masked tokens" in text
    assert all(each in text for each in losses)
    assert ("6.50" in text) == ("6.50" in losses)
    assert all(f"median {name}" in text for name in SCORES)
