"""How well rows are predicted, with and without a context, against counts by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.sequences import make_efa, measure_fit

from attngeo.estimators.efa.families import ExponentialFamily

ITEMS = list("abcdefg")
SMALL: dict[str, Any] = {"width": 4, "max_epochs": 2, "validation_fraction": 0, "device": "cpu"}


def draw_baskets(sequences: int = 40) -> pd.DataFrame:
    """Baskets of two to five of seven items, each once, and a count for each; frequencies differ."""
    draw = np.random.default_rng(0)
    chances = np.arange(1, 8) / 28
    rows = []
    for number in range(sequences):
        chosen = draw.choice(ITEMS, draw.integers(2, 6), replace=False, p=chances)
        rows += [{"sequence": number, "item": item, "value": float(draw.poisson(ord(item) - 95))} for item in chosen]
    return pd.DataFrame(rows)


def guess_popular(rows: pd.DataFrame, direction: str, *, can_repeat: bool) -> list[str]:
    """The most frequent item that is not in the context of each row."""
    ranking = (rows["item"].value_counts().reindex(ITEMS)).sort_values(ascending=False, kind="stable").index
    guesses = []
    for at, sequence in enumerate(rows["sequence"]):
        is_context = (rows["sequence"] == sequence) & (rows.index != at)
        if direction == "uni":
            is_context &= rows.index < at
        context = set() if can_repeat else set(rows["item"][is_context])
        guesses.append(next(item for item in ranking if item not in context))
    return guesses


@pytest.mark.parametrize("direction", ["bi", "uni"])
@pytest.mark.parametrize("can_repeat", [False, True])
def test_accuracy_is_the_share_of_right_items_beside_that_of_the_most_frequent_one(
    direction: str, can_repeat: bool
) -> None:
    rows = draw_baskets()
    if can_repeat:
        rows = pd.concat([rows, rows[:1].assign(sequence=1)], ignore_index=True)
    model = make_efa(**SMALL, part="items", direction=direction).fit(rows)
    measured = measure_fit(model)["train"]
    assert measured.accuracy == pytest.approx((model.predict(rows)["item"] == rows["item"]).mean())
    popular = guess_popular(rows, direction, can_repeat=can_repeat)
    assert measured.popularity_accuracy == pytest.approx((rows["item"] == popular).mean())
    assert np.isnan([measured.rmse, measured.item_mean_rmse]).all()


def test_the_error_of_means_is_beside_that_of_the_mean_of_each_item() -> None:
    train, test = draw_baskets(), draw_baskets(50).query("sequence >= 20")
    for family in ("poisson", "gaussian"):
        model = make_efa(**SMALL, family=family, part="values").fit(train, test=test)
        measured = measure_fit(model)["test"]
        errors = model.predict(test)["mean"] - test["value"]
        assert measured.rmse == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)
        of_item = test["item"].map(train.groupby("item")["value"].mean())
        assert measured.item_mean_rmse == pytest.approx(np.sqrt(((of_item - test["value"]) ** 2).mean()), rel=1e-6)
        assert np.isnan([measured.accuracy, measured.popularity_accuracy]).all()


def test_a_family_without_a_mean_has_no_error() -> None:
    class Exponential(ExponentialFamily):
        """Positive numbers; η is −rate."""

        def log_partition(self, natural: Any) -> Any:
            """−log(−η)."""
            return -(-natural).log()

        def log_base(self, value: Any) -> Any:
            """0."""
            return value * 0

        def natural(self, raw: Any) -> Any:
            """−exp(−raw)."""
            return -(-raw).exp()

    rows = draw_baskets().assign(value=lambda table: table["value"] + 1)
    model = make_efa(**SMALL, family=Exponential(), part="values").fit(rows)
    measured = measure_fit(model)["train"]
    assert np.isfinite([measured.log_prob, measured.without_context, measured.item_mean_rmse]).all()
    assert np.isnan(measured.rmse)
