"""How well rows are predicted, with and without a context, against counts by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.sequences import make_efa, measure_fit

from attngeo.estimators.efa.families import ExponentialFamily
from attngeo.estimators.efa.files import _describe_baseline
from attngeo.estimators.efa.measuring import Measured

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
    assert measured.accuracy == pytest.approx((model.predict(rows)["predicted_item"] == rows["item"]).mean())
    popular = guess_popular(rows, direction, can_repeat=can_repeat)
    assert measured.popularity_accuracy == pytest.approx((rows["item"] == popular).mean())
    assert np.isnan([measured.rmse, measured.item_mean_rmse]).all()


def test_the_error_of_means_is_beside_that_of_the_mean_of_each_item() -> None:
    train, test = draw_baskets(), draw_baskets(50).query("sequence >= 20")
    for family in ("poisson", "gaussian"):
        model = make_efa(**SMALL, family=family, part="values").fit(train, test=test)
        measured = measure_fit(model)["test"]
        errors = model.predict(test)["predicted_mean"] - test["value"]
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


@pytest.mark.parametrize(("log_prob", "baseline", "is_worse"), [
    (0.0, 2.22e-16, False), (-1e4, -1e4 + 1e-3, False), (-1.0, -1.0 + 1e-7, False), (-1.0, -0.99, True),
])  # fmt: skip
def test_a_model_is_worse_than_its_baseline_only_by_more_than_rounding(
    log_prob: float, baseline: float, is_worse: bool
) -> None:
    measured = Measured(1, 10, log_prob, -np.inf, without_repeats=baseline)
    assert bool(_describe_baseline("test", "items", measured)) == is_worse


@pytest.mark.parametrize("seed", range(5))
def test_no_mean_log_p_of_an_item_that_is_certain_is_above_0(seed: int) -> None:
    """In whole baskets, the last item is the only one that the others leave."""
    draw = np.random.default_rng(seed)
    frequent = [(f"b{basket}", item) for basket in range(30) for item in ITEMS if item in "ab" or draw.random() < 0.6]
    whole = [("whole", item) for item in ITEMS]
    train = pd.DataFrame([*frequent, *whole], columns=["sequence", "item"])
    model = make_efa(**SMALL).fit(train, validation=pd.DataFrame(whole, columns=["sequence", "item"]))
    measured = measure_fit(model)["validation"]
    assert abs(measured.without_repeats) < 1e-12
    assert measured.without_repeats <= 0
