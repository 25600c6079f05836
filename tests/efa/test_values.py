"""Values that are large, or of a kind that an embedding does not have; and how probable they are without a context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from support.messages import refuses
from torch import Tensor, nn
from torch.nn import functional

from attngeo.efa import ExponentialFamilyAttention, load_model, register_family
from attngeo.efa.embeddings import rank_similar
from attngeo.efa.factors import ItemFactors, ValueFactors
from attngeo.efa.families import ExponentialFamily, Ordinal
from attngeo.efa.family_names import FAMILY_NAMES
from attngeo.efa.options import EfaOptions
from attngeo.errors import TableError, UnknownOptionError, UsageError

SMALL: dict[str, Any] = {"width": 4, "epochs": 2, "validation_fraction": 0, "learning_rate": 1e-3, "device": "cpu"}
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
    """The mean is in single precision, and its logarithm was: about 1e-6 of it, which moves log p by |y − mean| times
    as much, or less.
    """
    rows = draw_rows(lambda draw, count: draw.poisson(1e6, count))
    model = ExponentialFamilyAttention(**SMALL, family=family).fit(rows)
    mean = model.predict(rows)["mean"].to_numpy()
    expected = make(mean).logpmf(rows["value"])
    error = np.abs(model.log_prob(rows) - expected)
    assert (error <= 1e-3 + 4e-6 * np.abs(rows["value"] - mean)).all()


@pytest.mark.parametrize("family", ["gaussian", "gaussian:2", "poisson", "poisson-from-1", "gamma:2", "ordinal:9"])
def test_the_measures_of_a_file_that_is_read_in_parts_are_those_of_its_rows(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = draw_rows(lambda draw, count: draw.poisson(4, count).clip(1, 8))
    rows.loc[rows["item"] == "tea", "value"] = 7
    rows.to_parquet(tmp_path / "rows.parquet")
    model = ExponentialFamilyAttention(**SMALL, family=family).fit(rows)
    expected = model.measure(rows, rows)
    monkeypatch.setattr("attngeo.efa.stores.ROWS_AT_ONCE", 5)
    found = model.measure(tmp_path / "rows.parquet", tmp_path / "rows.parquet")
    assert found == pytest.approx(expected, nan_ok=True, rel=1e-5, abs=1e-5)


def test_without_a_context_gamma_values_have_the_mean_of_their_item() -> None:
    rows = draw_rows(lambda draw, count: draw.gamma(3, 20, count))
    model = ExponentialFamilyAttention(**SMALL, family="gamma:3").fit(rows)
    means = rows.groupby("item")["value"].transform("mean")
    expected = stats.gamma(3, scale=means / 3).logpdf(rows["value"]).mean()
    assert model.measure(rows, rows).without_context == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", ["poisson", "gamma:2", "gaussian:2"])
def test_an_item_that_no_training_row_has_is_as_all_rows_without_a_context(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = draw_rows(lambda draw, count: draw.poisson(50, count))
    rows.to_parquet(tmp_path / "rows.parquet")
    shown = rows.assign(item="honey")
    model = ExponentialFamilyAttention(**SMALL, family=family).fit(rows, shown)
    alone = ExponentialFamilyAttention(**SMALL, family=family).fit(shown)
    expected = alone.measure(shown, shown).without_context
    assert model.measure(shown, rows).without_context == pytest.approx(expected, rel=1e-3)
    monkeypatch.setattr("attngeo.efa.stores.ROWS_AT_ONCE", 5)
    parts = model.measure(shown, tmp_path / "rows.parquet")
    assert parts.without_context == pytest.approx(expected, rel=1e-3)


def test_items_of_very_different_means_have_their_own_mean_without_a_context() -> None:
    draw = np.random.default_rng(1)
    of = draw.permutation(np.repeat(range(30), 8))
    rates = np.exp(draw.uniform(-5, 9, 30))
    rows = pd.DataFrame({"sequence": np.arange(240) // 4, "item": of, "value": draw.poisson(rates[of])})
    model = ExponentialFamilyAttention(**SMALL, family="poisson").fit(rows)
    expected = stats.poisson(rows.groupby("item")["value"].transform("mean")).logpmf(rows["value"]).mean()
    assert model.measure(rows, rows).without_context == pytest.approx(expected, abs=1e-3)


class Above(ExponentialFamily):
    """Whether a value is above 2, by a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def log_partition(self, natural: Tensor) -> Tensor:
        return functional.softplus(natural)

    def log_base(self, value: Tensor) -> Tensor:
        return 0 * self.layer(value[..., None])[..., 0]

    def sufficient(self, value: Tensor) -> Tensor:
        return (value > 2).float()


def test_a_family_of_ones_own_may_have_layers_and_other_kinds_of_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attngeo.efa.family_names.FAMILY_NAMES", dict(FAMILY_NAMES))
    register_family("above", Above)
    rows = draw_rows(lambda draw, count: draw.normal(2, 1, count))
    model = ExponentialFamilyAttention(**SMALL, family="above").fit(rows)
    shares = rows.groupby("item")["value"].transform(lambda values: (values > 2).mean())
    expected = stats.bernoulli(shares).logpmf(rows["value"] > 2).mean()
    assert model.measure(rows, rows).without_context == pytest.approx(expected, abs=1e-3)


def test_levels_are_whole_numbers_and_truncated_ones_drop_the_fraction() -> None:
    rows = draw_rows(lambda draw, count: draw.uniform(0, 3, count))
    rows.loc[[0, 1], "value"] = [1.0, 2.0]
    with refuses(TableError, "row 3", "value", "levels", "truncated"):
        ExponentialFamilyAttention(**SMALL, embedding="levels").fit(rows)
    with refuses(TableError, "row 2", "-1", "levels"):
        ExponentialFamilyAttention(**SMALL, embedding="levels").fit(rows.assign(value=[3, -1] * 12))
    model = ExponentialFamilyAttention(**SMALL, embedding="truncated").fit(rows)
    whole = rows.assign(value=np.floor(rows["value"]))
    np.testing.assert_array_equal(model.predict(rows)["mean"], model.predict(whole)["mean"])
    with refuses(TableError, "an earlier value -1.5", "levels"):
        ExponentialFamilyAttention(**SMALL, embedding="levels", lags=("before",)).fit(rows.assign(value=1, before=-1.5))
    with refuses(UsageError, "embedding is levels", "2,000,000,000", "100,000", "network"):
        ExponentialFamilyAttention(**SMALL, embedding="levels").fit(rows.assign(value=2e9))
    with refuses(UsageError, "levels is 100000000000", "from 2 to 100000"):
        Ordinal(10**11)


def test_the_parameter_may_be_the_last_number_of_a_token(tmp_path: Path) -> None:
    rows = draw_rows(lambda draw, count: draw.normal(size=count))
    options: dict[str, Any] = SMALL | {"embedding": "identity", "readout": "last"}
    model = ExponentialFamilyAttention(**options).fit(rows)
    assert model.model_.network.head is None
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load_model(tmp_path / "m").log_prob(rows), model.log_prob(rows))
    with refuses(UsageError, "head has no effect", "last"):
        ExponentialFamilyAttention(**options, head=(8,))
    other = ExponentialFamilyAttention(options=EfaOptions(width=4), readout="last").options
    assert (other.head_units, other.replace(readout="network").head_units) == ((32,), (32,))


@pytest.mark.parametrize("causal", [False, True])
def test_a_factor_model_never_sees_what_it_predicts(causal: bool) -> None:
    torch.manual_seed(0)
    known, items = torch.ones(1, 4, dtype=torch.bool), torch.tensor([[0, 1, 2, 0]])
    of_values = ValueFactors(3, 5, causal=causal)
    values = torch.randn(1, 4)
    expected = of_values(values, known, items)[0, 1]
    for own in (1e6, 1e10, -1e18):
        values[0, 1] = own
        assert of_values(values, known, items)[0, 1] == expected
    of_items = ItemFactors(3, 5, causal=causal)
    expected = of_items(items, known)[0, 1]
    with torch.no_grad():
        of_items.context.weight[1] = 1e10
    assert of_items(items, known)[0, 1].equal(expected)


def test_only_products_that_a_model_has_rank_items() -> None:
    rows = draw_rows(lambda draw, count: draw.normal(size=count))
    values = ExponentialFamilyAttention(**SMALL).fit(rows)
    with refuses(UsageError, "of values by attention", "items", "fm"):
        rank_similar(values.model_, values.items_, "tea")
    for options in ({"part": "items"}, {"model": "fm"}):
        model = ExponentialFamilyAttention(**SMALL | options).fit(rows)
        assert len(rank_similar(model.model_, model.items_, "tea")) == 3


def test_a_sequence_without_a_known_row_is_named_as_it_is() -> None:
    rows = draw_rows(lambda draw, count: draw.normal(size=count))
    empty = rows.assign(value=rows["value"].where(rows["sequence"] != 2))
    with refuses(TableError, "sequence 2", "no row with value", "short"):
        ExponentialFamilyAttention(**SMALL).fit(rows).predict(empty)
    found = ExponentialFamilyAttention(**SMALL, short="drop").fit(rows).predict(empty)["mean"]
    assert found.isna().tolist() == (rows["sequence"] == 2).tolist()


def test_what_is_no_table_is_refused() -> None:
    rows = draw_rows(lambda draw, count: draw.normal(size=count))
    with refuses(UsageError, "training table", "list", "DataFrame"):
        ExponentialFamilyAttention(**SMALL).fit([1, 2])  # type: ignore[arg-type]
    model = ExponentialFamilyAttention(**SMALL).fit(rows)
    for ask in (model.log_prob, model.predict, model.attention_weights, lambda rows: model.sample(given=rows)):
        with refuses(UsageError, "str", "DataFrame"):
            ask("rows.csv")  # type: ignore[arg-type]
    with refuses(UsageError, "sequences is 1.5"):
        ExponentialFamilyAttention(**SMALL, part="items").fit(rows).sample(1.5)  # type: ignore[arg-type]
    assert len(ExponentialFamilyAttention(**SMALL, part="items").fit(rows).sample(np.int64(2), np.int64(3))) == 6
    with refuses(TableError, "no column 'sequence'"):
        model.predict(rows.drop(columns="sequence").assign(value=np.nan))
    with refuses(TableError, "no sequence of two or more rows"):
        ExponentialFamilyAttention(**SMALL, short="drop").fit(rows).measure(rows.drop_duplicates("sequence"), rows)
    with refuses(TableError, "column 'value' has dates", "numbers"):
        ExponentialFamilyAttention(**SMALL).fit(rows.assign(value=pd.Timestamp("2020-01-01")))
    with refuses(UnknownOptionError, "ExponentialFamilyAttention()", "'depth'"):
        ExponentialFamilyAttention(depth=3)


def test_values_that_single_precision_cannot_tell_apart_are_refused_and_equal_ones_are_not() -> None:
    rows = draw_rows(lambda draw, count: draw.normal(size=count))
    with refuses(TableError, "column 'value'", "1.7e+09", "subtract a constant"):
        ExponentialFamilyAttention(**SMALL).fit(rows.assign(value=rows["value"] + 1.7e9))
    with refuses(TableError, "column 'x'", "subtract a constant"):
        ExponentialFamilyAttention(**SMALL, coordinates=("x",)).fit(rows.assign(x=rows["value"] - 1e8))
    for value in (0.0, 0.1, 1e9):
        equal = rows.assign(value=value)
        found = ExponentialFamilyAttention(**SMALL).fit(equal).predict(equal)["mean"]
        assert found.to_numpy() == pytest.approx(value, abs=3, rel=1e-6)


def test_a_negative_binomial_mean_has_no_limit() -> None:
    rows = draw_rows(lambda draw, count: draw.poisson(1e8, count))
    model = ExponentialFamilyAttention(**SMALL, family="negative-binomial:1").fit(rows)
    assert model.predict(rows)["mean"].mean() == pytest.approx(1e8, rel=0.1)
    means = rows.groupby("item")["value"].transform("mean")
    expected = stats.nbinom(1, 1 / (1 + means)).logpmf(rows["value"]).mean()
    assert model.measure(rows, rows).without_context == pytest.approx(expected, abs=1e-3)


def test_training_rows_that_are_no_values_of_the_family_are_refused_for_a_measure() -> None:
    rows = draw_rows(lambda draw, count: draw.poisson(3, count))
    for family, bad in (("poisson", -1), ("ordinal:20", 99)):
        model = ExponentialFamilyAttention(**SMALL, family=family).fit(rows)
        with refuses(TableError, f"row 1 has value {bad}"):
            model.measure(rows, rows.assign(value=bad))
