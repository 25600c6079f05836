"""What a fitted classifier has learned, as tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from attngeo.tabular.classifier import AttentionClassifier
from attngeo.tabular.views import MASK, tabulate_attention, tabulate_encodings


@pytest.fixture(scope="module")
def model() -> AttentionClassifier:
    draw = np.random.default_rng(0)
    x = pd.DataFrame({"colour": draw.choice(["red", "blue"], 40), "size": draw.integers(0, 3, 40)})
    return AttentionClassifier(epochs=2, random_state=0).fit(x, pd.Series(x["colour"] == "red", name="warm"))


def test_the_attention_of_each_cell_sums_to_one(model: AttentionClassifier) -> None:
    table = pd.DataFrame({"colour": ["blue", None], "size": [2, 1]})
    rows = tabulate_attention(model, table)
    sums = rows.groupby(["row", "cell", "head"])["attention"].sum()
    assert len(sums) == 2 * 3 * model.n_heads
    np.testing.assert_allclose(sums, 1, atol=1e-5)
    values = [dict(zip(own["on"], own["value"], strict=True)) for _, own in rows.groupby("row")]
    assert values == [{"colour": "blue", "size": "2", "warm": MASK}, {"colour": MASK, "size": "1", "warm": MASK}]
    first = rows[(rows["row"] == 2) & (rows["head"] == 1) & (rows["cell"] == "size") & (rows["on"] == "colour")]
    assert first["attention"].item() == pytest.approx(model.attention(table)[1, 1, 1, 0])


def test_an_unseen_value_that_is_masked_is_shown_as_masked(model: AttentionClassifier) -> None:
    masking = (
        clone(model)
        .set_params(unseen="mask")
        .fit(pd.DataFrame({"colour": ["red", "blue"] * 4, "size": [0, 1] * 4}), pd.Series([0, 1] * 4, name="warm"))
    )
    rows = tabulate_attention(masking, pd.DataFrame({"colour": ["green"], "size": [1]}))
    assert dict(zip(rows["on"], rows["value"], strict=True)) == {"colour": MASK, "size": "1", "warm": MASK}


def test_medians_of_bins_have_no_needless_digits() -> None:
    table = pd.DataFrame(
        {"year": [1937, 1940, 1951, 1960, 1972] * 4, "share": [0.1, 0.2, 0.30000000000000004] * 6 + [0.5] * 2}
    )
    model = AttentionClassifier(epochs=1, n_bins=3, random_state=0).fit(table, pd.Series([0, 1] * 10, name="y"))
    rows = tabulate_encodings(model)
    assert rows[rows["column"] == "year"]["value"].tolist() == ["1938.5", "1955.5", "1972"]
    assert "0.3" in set(rows[rows["column"] == "share"]["value"])


def test_encodings_keep_the_distances_that_two_dimensions_can(model: AttentionClassifier) -> None:
    rows = tabulate_encodings(model)
    assert set(zip(rows["column"], rows["value"], strict=True)) >= {("colour", "red"), ("size", "2"), ("warm", "True")}
    placed = rows[["x", "y"]].to_numpy()
    whole = model.category_encodings_.to_numpy() + model.feature_encodings_[[0, 0, 1, 1, 1, 2, 2]]
    whole -= whole.mean(0)
    np.testing.assert_allclose(placed.mean(0), 0, atol=1e-6)
    values = np.linalg.svd(whole, compute_uv=False)
    np.testing.assert_allclose(np.linalg.norm(placed, axis=0), values[:2], rtol=1e-4)
    pd.testing.assert_frame_equal(rows, tabulate_encodings(model))
