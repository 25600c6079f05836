"""The script that fits models to the sequences of a known one."""

from __future__ import annotations

import runpy

import pandas as pd
import pytest
from support.readme import ROOT


@pytest.mark.parametrize(
    ("sizes", "last_gap"),
    [
        pytest.param((100, 1600), 0.05, marks=pytest.mark.slow),
        pytest.param((100, 400, 1600, 6400), 0.02, marks=pytest.mark.explore),
    ],
)
def test_a_known_model_is_found_again_as_the_data_grow(sizes: tuple[int, ...], last_gap: float) -> None:
    """The held-out cross-entropy of the fitted model approaches that of the true one; the factor model's does not."""
    script = runpy.run_path(str(ROOT / "reports/efa/recovery.py"))
    rows = script["measure_models"](sizes)
    values = rows[rows["metric"] == "cross_entropy"].set_index(["model", "setting"])["value"]
    truth = values["bayes", ""]
    gaps = [values["efa", f"N={size}"] - truth for size in sizes]
    assert gaps == sorted(gaps, reverse=True)
    assert 0 < gaps[-1] < last_gap <= 0.1 < gaps[0]
    assert values["fm", f"N={sizes[-1]}"] - truth > 0.1
    assert values["unigram", ""] > values["fm", f"N={sizes[-1]}"]
    written = pd.read_csv(script["TARGET"], keep_default_na=False)
    assert list(written.columns) == list(rows.columns)
