"""The script that fits models to the sequences of a known one."""

from __future__ import annotations

import itertools
import math
import runpy

import numpy as np
import pandas as pd
import pytest
from support.readme import ROOT

from attngeo.papers.wibisono2025.options import EXPERIMENT_COLUMNS

SCRIPT = ROOT / "reports/efa/recovery.py"


@pytest.mark.parametrize(
    ("sizes", "last_gap"),
    [
        pytest.param((100, 1600), 0.05, marks=pytest.mark.slow),
        pytest.param((100, 400, 1600, 6400), 0.02, marks=pytest.mark.explore),
    ],
)
def test_a_known_model_is_found_again_as_the_data_grow(sizes: tuple[int, ...], last_gap: float) -> None:
    """The held-out cross-entropy of the fitted model approaches that of the true one; the factor model's does not."""
    script = runpy.run_path(str(SCRIPT))
    rows = pd.DataFrame(itertools.chain(*script["measure_models"](sizes, [0])))
    wide = rows.pivot(index="metric", columns=["model", "setting"], values="value")
    values = wide.loc["cross_entropy"]
    truth = values["bayes", ""]
    gaps = [values["efa", f"N={size}"] - truth for size in sizes]
    assert gaps == sorted(gaps, reverse=True)
    assert 0 < gaps[-1] < last_gap <= 0.1 < gaps[0]
    assert wide.loc["excess", "efa"].to_numpy() == pytest.approx(gaps, abs=0.01)
    assert values["fm", f"N={sizes[-1]}"] - truth > 0.1
    assert values["unigram", ""] > values["fm", f"N={sizes[-1]}"]
    written = pd.read_csv(script["TARGET"], keep_default_na=False)
    assert list(written.columns) == list(EXPERIMENT_COLUMNS)
    assert set(rows) <= set(written)


def test_excess_is_measured_with_the_probabilities_that_sequences_were_drawn_with() -> None:
    script = runpy.run_path(str(SCRIPT))
    model = script["build_known_model"]()
    rows = script["draw_sequences"](model, 50, 3)
    other = script["draw_sequences"](model, 50, 4)
    assert list(rows["item"]) != list(other["item"])
    true = script["predict_items"](model, rows)
    drawn = true[np.arange(len(rows)), rows["item"]]
    assert np.log(drawn) == pytest.approx(rows["log_prob"].to_numpy(), abs=1e-9)
    assert script["measure_excess"](true, true) == 0
    fair = np.array([[0.5, 0.5]])
    biased = np.array([[0.8, 0.2]])
    assert script["measure_excess"](fair, biased) == pytest.approx(math.log(0.5 / 0.4))
    assert script["measure_excess"](biased, fair) == pytest.approx(0.8 * math.log(1.6) + 0.2 * math.log(0.4))


def test_rows_that_are_known_are_not_measured_again() -> None:
    script = runpy.run_path(str(SCRIPT))
    known = {("bayes", "", 0), ("efa", "N=100", 0), ("fm", "N=100", 0)}
    assert list(script["measure_models"]([100], [0], known)) == []
    (baselines,) = script["measure_models"]([100], [0], known - {("bayes", "", 0)})
    assert [row["model"] for row in baselines] == ["unigram", "bayes"]
