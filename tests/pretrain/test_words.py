"""What is said of a run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from attngeo.pretrain.runs import Run
from attngeo.pretrain.settings import Settings
from attngeo.pretrain.words import describe, sentence

WORDS = ("more symmetric", "more skew-symmetric")


@pytest.mark.parametrize(
    ("start", "end", "chance", "said"),
    [
        (0.001, 0.36, 0.02, "x of layers went from +0.00 to +0.36: more symmetric than by chance (±0.02)"),
        (-0.001, -0.36, 0.02, "x of layers went from +0.00 to -0.36: more skew-symmetric than by chance (±0.02)"),
        (0.0, 0.01, 0.02, "x of layers went from +0.00 to +0.01, which chance would do (±0.02)"),
        (1.0, 0.99, 0.02, "x of layers went from +1.00 to +0.99, where chance gives ±0.02"),
        (0.2, 0.9, 1.07, "x of layers went from +0.20 to +0.90, which says nothing at this width"),
    ],
)
def test_a_move_is_set_against_chance(start: float, end: float, chance: float, said: str) -> None:
    assert sentence("x", start, end, chance, WORDS) == said


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([0, 10, 20], "the loss went from 6.50 in the first 10 to 5.00 in the last."),
        ([0, 20], "the loss was 5.00 on average."),
    ],
)
def test_losses_are_means_over_logs(steps: list[int], said: str) -> None:
    scores = {"symmetry": [0, 0.1, 0.2], "directionality": [0, 0, 0]}
    summary = {
        "start": {"layers": scores}, "end": {"layers": scores}, "first_loss": 6.5, "final_loss": 5.0, "d_model": 128,
        "settings": {"steps": 20},
    }  # fmt: skip
    geometry = pd.DataFrame({"step": steps, "layer": 0})
    text = describe(Run(Path(), Settings.of("tiny"), summary, geometry))
    assert f"In 20 steps of predicting masked tokens, {said}" in text
