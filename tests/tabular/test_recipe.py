"""The fast form gives results of the same distribution over seeds as the recipe written plainly."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import log_loss
from support.plain_recipe import fit_plain, predict_plain

from attngeo.tabular import AttentionClassifier, fit_together

SEEDS, ROWS, EPOCHS, CLASSES = 20, 400, 25, 5


def draw_codes(seed: int) -> np.ndarray:
    """Three features and the sum of two of them, in five classes."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(2 * ROWS, 3))
    values = np.column_stack([x, x[:, 0] + x[:, 1]])
    edges = np.quantile(values, np.arange(1, CLASSES) / CLASSES, axis=0)
    return np.column_stack([np.searchsorted(edges[:, at], values[:, at]) for at in range(4)])


@pytest.mark.slow
def test_scores_have_the_same_distribution_over_seeds() -> None:
    """Accuracy and log-loss of the test rows, by Kolmogorov and Smirnov, and by Welch's test of the means."""
    data = [draw_codes(seed) for seed in range(SEEDS)]
    plain = [fit_plain(each[:ROWS], CLASSES, epochs=EPOCHS, seed=seed) for seed, each in enumerate(data)]
    models = [
        AttentionClassifier(vocabulary="shared", epochs=EPOCHS, random_state=seed, device="cpu")
        for seed in range(SEEDS)
    ]
    fast = fit_together(models, [(each[:ROWS, :3], each[:ROWS, 3]) for each in data])
    chances = {
        "plain": [predict_plain(model, each[ROWS:, :3]) for model, each in zip(plain, data, strict=True)],
        "fast": [model.predict_proba(each[ROWS:, :3]) for model, each in zip(fast, data, strict=True)],
    }
    truths = [each[ROWS:, 3] for each in data]
    scores = {
        name: (
            [float(np.mean(chance.argmax(1) == truth)) for chance, truth in zip(values, truths, strict=True)],
            [log_loss(truth, chance, labels=range(CLASSES)) for chance, truth in zip(values, truths, strict=True)],
        )
        for name, values in chances.items()
    }
    assert np.mean(scores["plain"][0]) > 0.3  # it has learned: chance is 0.2
    for one, other in zip(scores["plain"], scores["fast"], strict=True):
        assert stats.ks_2samp(one, other).pvalue > 0.01
        assert stats.ttest_ind(one, other, equal_var=False).pvalue > 0.01
        assert stats.levene(one, other).pvalue > 0.01
