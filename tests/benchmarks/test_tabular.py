"""The bars for attention on tables, against the same recipe written plainly in one run.

Both are trained for some of the 200 epochs: an epoch costs the same at the end.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from support.plain_recipe import fit_plain

from attngeo.estimators import AttentionClassifier, fit_together

ROWS, CLASSES, COLUMNS, MODELS = 2000, 10, 6, 20
PLAIN_EPOCHS = 5


def draw_tables() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, CLASSES, (ROWS, COLUMNS)) for _ in range(MODELS)]


def time_plain(epochs: int = PLAIN_EPOCHS) -> float:
    """Seconds of an epoch."""
    start = time.perf_counter()
    fit_plain(draw_tables()[0], CLASSES, epochs=epochs, seed=0)
    return (time.perf_counter() - start) / epochs


def time_fast(models: int, epochs: int) -> float:
    """Seconds of an epoch of all models, everything of a fit included."""
    tables = draw_tables()[:models]
    start = time.perf_counter()
    estimators = [
        AttentionClassifier(vocabulary="shared", max_epochs=epochs, random_state=seed, device="cpu")
        for seed in range(models)
    ]
    fit_together(estimators, [(each[:, :-1], each[:, -1]) for each in tables])
    return (time.perf_counter() - start) / epochs


@pytest.mark.parametrize(("models", "epochs", "bar"), [(1, 10, 2.0), (MODELS, 10, 10.0)])
def test_fits_are_faster_than_the_plain_recipe(
    models: int, epochs: int, bar: float, benchmark: BenchmarkFixture
) -> None:
    """One fit at least 2 times, and 20 data sets at least 10 times faster than 20 plain fits one after the other."""
    benchmark.pedantic(lambda: None)
    time_plain(1), time_fast(models, 1)
    pairs = [(time_plain(), time_fast(models, epochs)) for _ in range(3)]
    plain, fast = (min(times) for times in zip(*pairs, strict=True))
    ratio = plain * models / fast
    benchmark.extra_info |= {"baseline: plain, s/epoch": plain, "all models, s/epoch": fast, "ratio": ratio}
    print(f"\n{models} data sets: {fast:.2f} s an epoch, plainly {plain * models:.2f} s: {ratio:.1f} times faster")
    assert ratio > bar
