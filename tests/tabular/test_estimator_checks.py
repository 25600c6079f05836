"""The checks of scikit-learn for estimators."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from attngeo.tabular import AttentionClassifier

BATCHES = "mini-batches in a random order: weights are repetitions only with one batch and without dropout"
EXPECTED = {"check_sample_weight_equivalence_on_dense_data": BATCHES}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([AttentionClassifier(epochs=20, device="cpu")], expected_failed_checks=lambda _: EXPECTED)  # type: ignore[untyped-decorator]
def test_checks_of_scikit_learn(estimator: AttentionClassifier, check: Any) -> None:
    check(estimator)
