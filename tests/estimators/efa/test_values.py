"""Values that are large, or of a kind that an embedding does not have; and how probable they are without a context."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from support.messages import refuses
from support.sequences import make_efa, measure_fit
from torch import Tensor, nn
from torch.nn import functional

from attngeo.errors import TableError, UsageError
from attngeo.estimators.efa.factors import ItemFactors, ValueFactors
from attngeo.estimators.efa.families import ExponentialFamily, Ordinal
from attngeo.estimators.efa.networks import Batch
from attngeo.estimators.efa.vectors import rank_similar

SMALL: dict[str, Any] = {"width": 4, "max_epochs": 2, "validation_fraction": 0, "learning_rate": 1e-3, "device": "cpu"}
ITEMS = ["bread", "jam", "milk", "tea"]


def draw_rows(values: Any) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    rows = pd.DataFrame({"sequence": np.repeat(range(8), 3), "item": draw.choice(ITEMS, 24)})
    return rows.assign(value=values(draw, len(rows)))


@pytest.mark.parametrize(
    ("family", "make"),
    [
        ("poisson", stats.poisson),
        ("binomial:20000000", lambda mean: stats.binom(20_000_000, mean / 2e7)),
        ("negative-binomial:5", lambda mean: stats.nbinom(5, 5 / (5 + mean))),
    ],
)
def test_log_p_of_large_counts_is_that_of_scipy(family: str, make: Any) -> None:
    """The mean is in single precision, and its logarithm was.

    That is about 1e-6 of it, which moves log p by |y − mean| times as much, or less.
    """
    rows = draw_rows(lambda draw, count: draw.poisson(1e6, count))
    model = make_efa(**SMALL, family=family).fit(rows)
    mean = model.predict(rows)["predicted_mean"].to_numpy()
    expected = make(mean).logpmf(rows["value"])
    error = np.abs(model.log_prob(rows) - expected)
    assert (error <= 1e-3 + 4e-6 * np.abs(rows["value"] - mean)).all()


def test_without_a_context_gamma_values_have_the_mean_of_their_item() -> None:
    rows = draw_rows(lambda draw, count: draw.gamma(3, 20, count))
    model = make_efa(**SMALL, family="gamma:3").fit(rows)
    means = rows.groupby("item")["value"].transform("mean")
    expected = stats.gamma(3, scale=means / 3).logpdf(rows["value"]).mean()
    assert measure_fit(model)["train"].without_context == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", ["poisson", "gamma:2", "gaussian:2"])
def test_an_item_that_no_training_row_has_is_as_all_rows_without_a_context(family: str) -> None:
    rows = draw_rows(lambda draw, count: draw.poisson(50, count))
    shown = rows.assign(item="honey")
    model = make_efa(**SMALL, family=family).fit(rows, validation=shown)
    alone = make_efa(**SMALL, family=family).fit(shown)
    expected = measure_fit(alone)["train"].without_context
    assert measure_fit(model)["validation"].without_context == pytest.approx(expected, rel=1e-3)


def test_items_of_very_different_means_have_their_own_mean_without_a_context() -> None:
    draw = np.random.default_rng(1)
    of = draw.permutation(np.repeat(range(30), 8))
    rates = np.exp(draw.uniform(-5, 9, 30))
    rows = pd.DataFrame({"sequence": np.arange(240) // 4, "item": of, "value": draw.poisson(rates[of])})
    model = make_efa(**SMALL, family="poisson").fit(rows)
    expected = stats.poisson(rows.groupby("item")["value"].transform("mean")).logpmf(rows["value"]).mean()
    assert measure_fit(model)["train"].without_context == pytest.approx(expected, abs=1e-3)


class Above(ExponentialFamily):
    """Whether a value is above 2, by a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def log_partition(self, natural: Tensor) -> Tensor:
        return functional.softplus(natural)

    def log_base(self, value: Tensor) -> Tensor:
        return 0 * self.layer(value[..., None])[..., 0]

    def distribution(self, natural: Tensor) -> torch.distributions.Distribution:
        return torch.distributions.Bernoulli(logits=natural)

    def sufficient(self, value: Tensor) -> Tensor:
        return (value > 2).float()


def test_a_family_of_ones_own_may_have_layers_and_other_kinds_of_statistics() -> None:
    rows = draw_rows(lambda draw, count: draw.normal(2, 1, count))
    model = make_efa(**SMALL, family=Above()).fit(rows)
    shares = rows.groupby("item")["value"].transform(lambda values: (values > 2).mean())
    expected = stats.bernoulli(shares).logpmf(rows["value"] > 2).mean()
    assert measure_fit(model)["train"].without_context == pytest.approx(expected, abs=1e-3)


def test_values_that_are_looked_up_lose_their_fraction() -> None:
    rows = draw_rows(lambda draw, count: draw.uniform(0, 3, count))
    model = make_efa(**SMALL, value_embedding="lookup").fit(rows)
    whole = rows.assign(value=np.floor(rows["value"]))
    np.testing.assert_array_equal(model.predict(rows)["predicted_mean"], model.predict(whole)["predicted_mean"])
    with refuses(UsageError, "value_embedding is lookup", "2,000,000,000", "100,000", "network"):
        make_efa(**SMALL, value_embedding="lookup").fit(rows.assign(value=2e9))
    with refuses(UsageError, "levels is 100000000000", "from 2 to 100000"):
        Ordinal(10**11)


@pytest.mark.parametrize("causal", [False, True])
def test_a_factor_model_never_sees_what_it_predicts(causal: bool) -> None:
    torch.manual_seed(0)
    known, items = torch.ones(1, 4, dtype=torch.bool), torch.tensor([[0, 1, 2, 0]])
    of_values = ValueFactors(3, 5, causal=causal)
    batch = Batch(known, items, torch.randn(1, 4, 1))
    expected = of_values(batch)[0, 1]
    for own in (1e6, 1e10, -1e18):
        batch.values[0, 1] = own
        assert of_values(batch)[0, 1] == expected
    of_items = ItemFactors(3, 5, causal=causal)
    expected = of_items(batch)[0, 1]
    with torch.no_grad():
        of_items.context.weight[1] = 1e10
    assert of_items(batch)[0, 1].equal(expected)


def test_only_products_that_a_model_has_rank_items() -> None:
    rows = draw_rows(lambda draw, count: draw.normal(size=count))
    values = make_efa(**SMALL).fit(rows)
    with refuses(UsageError, "attention model of values", "items", "fm"):
        rank_similar(values.model_, values.items_, "tea")
    for options in ({"part": "items"}, {"model": "fm"}):
        model = make_efa(**SMALL | options).fit(rows)
        assert len(rank_similar(model.model_, model.items_, "tea")) == 3


def test_a_sequence_without_a_known_row_is_named_as_it_is() -> None:
    rows = draw_rows(lambda draw, count: draw.normal(size=count))
    empty = rows.assign(value=rows["value"].where(rows["sequence"] != 2))
    with refuses(TableError, "sequence 2", "no row with value", "short"):
        make_efa(**SMALL).fit(rows).predict(empty)


def test_what_is_no_table_is_refused() -> None:
    rows = draw_rows(lambda draw, count: draw.normal(size=count))
    with refuses(UsageError, "training table", "list", "DataFrame"):
        make_efa(**SMALL).fit([1, 2])  # type: ignore[arg-type]
    model = make_efa(**SMALL).fit(rows)
    for ask in (model.log_prob, model.predict, model.attention_weights, lambda rows: model.sample(data=rows)):
        with refuses(UsageError, "str", "DataFrame"):
            ask("rows.csv")  # type: ignore[arg-type]
    with refuses(UsageError, "sequences is 1.5"):
        make_efa(**SMALL, part="items").fit(rows).sample(sequences=1.5)  # type: ignore[arg-type]
    assert len(make_efa(**SMALL, part="items").fit(rows).sample(sequences=np.int64(2), length=np.int64(3))) == 6
    with refuses(TableError, "no column 'sequence'"):
        model.predict(rows.drop(columns="sequence").assign(value=np.nan))
    with refuses(TableError, "column 'value': has dates", "numbers"):
        make_efa(**SMALL).fit(rows.assign(value=pd.Timestamp("2020-01-01")))


def test_values_that_single_precision_cannot_tell_apart_are_refused_and_equal_ones_are_not() -> None:
    rows = draw_rows(lambda draw, count: draw.normal(size=count))
    with refuses(TableError, "column 'value'", "1.7e+09", "subtract a constant"):
        make_efa(**SMALL).fit(rows.assign(value=rows["value"] + 1.7e9))
    with refuses(TableError, "column 'x'", "subtract a constant"):
        make_efa(**SMALL, coordinates=("x",)).fit(rows.assign(x=rows["value"] - 1e8))
    for value in (0.0, 0.1, 1e9):
        equal = rows.assign(value=value)
        found = make_efa(**SMALL).fit(equal).predict(equal)["predicted_mean"]
        assert found.to_numpy() == pytest.approx(value, abs=3, rel=1e-6)


def test_a_negative_binomial_mean_has_no_limit() -> None:
    rows = draw_rows(lambda draw, count: draw.poisson(1e8, count))
    model = make_efa(**SMALL, n_layers=2, family="negative-binomial:1").fit(rows)
    assert model.predict(rows)["predicted_mean"].mean() == pytest.approx(1e8, rel=0.1)
    means = rows.groupby("item")["value"].transform("mean")
    expected = stats.nbinom(1, 1 / (1 + means)).logpmf(rows["value"]).mean()
    assert measure_fit(model)["train"].without_context == pytest.approx(expected, abs=1e-3)
