"""A third score, which no module of the project knows."""

from __future__ import annotations

import pytest

from attngeo.scores.spec import SCORES, Chance, ScoreSpec

# The share of the first row in the squared norm: from 0 to 1, at chance 1/d_model.
TOY = ScoreSpec(
    name="toy", label="toy share", low=0.0, high=1.0, negative="no first row", positive="only the first row",
    compute=lambda statistics, _: (statistics.row_norms[:, 0] ** 2 / statistics.squared_norm).double(),
    chance=lambda d_model: Chance(1 / d_model, 1 / d_model),
)  # fmt: skip


def add_toy_score(monkeypatch: pytest.MonkeyPatch) -> ScoreSpec:
    """Add the score to the table, until the end of the test."""
    monkeypatch.setitem(SCORES, TOY.name, TOY)
    return TOY
