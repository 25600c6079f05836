"""Two fits compared up to linear maps: `attngeo efa compare`."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Command
from scipy.linalg import subspace_angles
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from support.messages import assert_fails, refuses

from attngeo.errors import DataUnavailableError, ModelNotFoundError, TableError, UsageError
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa import compare_fits
from attngeo.estimators.efa.relations import relate

SMALL = {"width": 4, "max_epochs": 3, "validation_fraction": 0, "learning_rate": 0.05}
TRUE_MAP = torch.eye(4) + torch.tensor([0.0, 1.0, -1.0, 2.0])


@pytest.fixture(scope="module")
def ratings() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    sequence, item = np.repeat(np.arange(30), 4), draw.integers(0, 12, 120)
    return pd.DataFrame({"sequence": sequence, "position": np.arange(120) % 4, "item": item,
                         "value": draw.normal(item / 4)})  # fmt: skip


def test_a_linear_map_is_recognised_and_noise_is_not() -> None:
    torch.manual_seed(0)
    first, noise = torch.randn(400, 3), torch.randn(400, 3)
    mapped = first @ torch.randn(3, 3)
    exact, partly, none = (relate(first, each) for each in (mapped, mapped + noise, noise))
    assert exact.error < 1e-5
    assert exact.correlation > 1 - 1e-5
    assert none.correlation < 0.2
    assert max(none.forward, none.backward) < 0.05
    assert none.correlation < partly.correlation < exact.correlation
    assert none.forward < partly.forward < exact.forward


def test_an_added_vector_needs_an_intercept() -> None:
    torch.manual_seed(1)
    first = torch.randn(100, 3)
    second = first @ torch.randn(3, 3) + 5
    assert relate(first, second, intercept=True).error < 1e-5
    assert relate(first, second).error > 0.5
    assert relate(first, second).correlation > 1 - 1e-5


def test_directions_differ_if_one_side_has_lost_a_dimension() -> None:
    torch.manual_seed(2)
    first = torch.randn(200, 3)
    found = relate(first, first @ torch.diag(torch.tensor([1.0, 1.0, 1e-9])) + 1e-6 * torch.randn(200, 3))
    assert found.forward > 1 - 1e-5
    assert found.backward < 0.8


@pytest.mark.parametrize("intercept", [False, True])
def test_r2_is_that_of_rows_left_out_and_correlations_are_cosines_of_angles(intercept: bool) -> None:
    first, second = torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    second = second[:, :3] + first[:, :3] + 1
    found = relate(first, second, intercept=intercept)
    fit = LinearRegression(fit_intercept=intercept)
    for inputs, outputs, r2 in ((first, second, found.forward), (second, first, found.backward)):
        predicted = cross_val_predict(fit, inputs, outputs, cv=PredefinedSplit(np.arange(50) % 20))
        spread = (outputs - outputs.mean(0)).square().sum()
        assert r2 == pytest.approx(1 - float(((outputs.numpy() - predicted) ** 2).sum() / spread), abs=1e-10)
    cosines = np.cos(subspace_angles(*((vectors - vectors.mean(0)).numpy() for vectors in (first, second))))
    assert (found.correlation, found.lowest) == pytest.approx((cosines.mean(), cosines.min()), abs=1e-10)
    assert 0 < found.correlation_chance < found.correlation


def test_chance_is_the_correlation_of_shuffled_rows() -> None:
    draw = np.random.default_rng(5)
    first = draw.normal(size=(400, 20))
    second = first + draw.normal(size=(400, 20))

    def correlate(order: np.ndarray) -> float:
        angles = subspace_angles(first - first.mean(0), (second - second.mean(0))[order])
        return float(np.cos(angles).mean())

    drawn = [correlate(draw.permutation(400)) for _ in range(40)]
    found = relate(torch.tensor(first), torch.tensor(second))
    assert abs(found.correlation_chance - np.mean(drawn)) < 5 * np.std(drawn)
    assert found.correlation == pytest.approx(correlate(np.arange(400)))
    for other in (found.correlation, found.lowest, found.forward, found.backward, 1.3 * found.correlation_chance):
        assert abs(other - np.mean(drawn)) > 5 * np.std(drawn)


def test_as_many_numbers_as_rows_explain_everything_and_so_nothing() -> None:
    found = relate(*torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)), intercept=True)
    assert np.isnan([found.forward, found.backward]).all()
    assert found.correlation_chance == pytest.approx(1)


def test_contexts_are_the_vectors_that_predictions_are_linear_in(ratings: pd.DataFrame) -> None:
    model = ExponentialFamilyAttention(part="both", direction="uni", **SMALL).fit(ratings)
    rows = ratings.drop(index=5)
    contexts = model.contexts(rows)
    logits = contexts["items"].to_numpy() @ model.embeddings()["center"].to_numpy(float).T
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(chances, model.predict_proba(rows), atol=1e-6)
    values = np.column_stack([contexts["values"], np.ones(len(rows))])
    means = model.predict(rows)["predicted_mean"].to_numpy()
    np.testing.assert_allclose(values @ np.linalg.lstsq(values, means, rcond=None)[0], means, atol=1e-5)
    assert contexts["items"].index.equals(rows.index)


def test_models_of_one_distribution_are_related_and_others_are_not(ratings: pd.DataFrame) -> None:
    first, other = (
        ExponentialFamilyAttention(part="items", direction="uni", model="fm", random_state=seed, **SMALL).fit(ratings)
        for seed in range(2)
    )
    same = deepcopy(first)
    network = same.model_.parts[0].network
    with torch.no_grad():  # other bases, and a vector that is added to all centers
        network.context.weight.copy_(network.context.weight @ TRUE_MAP.T)
        network.center.weight.copy_(network.center.weight @ TRUE_MAP.inverse() + 3)
    found = compare_fits(first, same, ratings)
    assert found["vectors"].tolist() == ["contexts", "centers"]
    assert found[["rows", "size", "items"]].to_numpy().tolist() == [[120, 4, 12], [12, 4, 12]]
    assert found["applies"].all()
    np.testing.assert_allclose(found[["forward", "backward", "correlation", "lowest"]], 1, atol=1e-5)
    assert (found["log_prob_difference"] < 1e-5).all()
    unrelated = compare_fits(first, other, ratings)
    assert (unrelated[["forward", "backward"]] < 0.9).all(axis=None)
    gap = (first.log_prob(ratings) - other.log_prob(ratings)).abs().mean()
    assert unrelated["log_prob_difference"].tolist() == pytest.approx([gap, gap])


def test_wide_models_may_differ_though_their_distributions_are_the_same(ratings: pd.DataFrame) -> None:
    wide = {**SMALL, "width": 12, "max_epochs": 1}
    model = ExponentialFamilyAttention(part="items", **wide).fit(ratings)
    found = compare_fits(model, model, ratings)
    assert not found["applies"].any()  # K = 12 > D − 1 = 11
    assert found.set_index("vectors")["forward"].isna().tolist() == [False, True]


def test_values_are_compared_by_the_vectors_that_are_read(ratings: pd.DataFrame) -> None:
    model = ExponentialFamilyAttention(**SMALL).fit(ratings)
    (row,) = compare_fits(model, model, ratings).to_dict("records")
    assert (row["part"], row["vectors"], row["size"]) == ("values", "contexts", 32)
    assert (row["forward"], row["lowest"], row["log_prob_difference"]) == pytest.approx(
        (1, 1, 0), abs=0.01
    )  # a unit may be on in one row
    assert pd.isna([row["items"], row["applies"]]).all()
    factors = ExponentialFamilyAttention(model="fm", **SMALL).fit(ratings)
    with refuses(UsageError, "factor model of values"):
        compare_fits(factors, factors, ratings)
    with refuses(UsageError, "family", "gaussian", "gaussian:1"):
        compare_fits(model, ExponentialFamilyAttention(family="gaussian:1", **SMALL).fit(ratings), ratings)
    with refuses(TableError, 8, 32):
        compare_fits(model, model, ratings[:8])


def test_saved_models_are_compared_by_the_command(inside: Command, ratings: pd.DataFrame, tmp_path: Path) -> None:
    table, fewer, folders = tmp_path / "rows.csv", tmp_path / "fewer.csv", {}
    ratings.to_csv(table, index=False)
    ratings[:3].to_csv(fewer, index=False)
    fits = {
        "uni": (ratings, {"direction": "uni"}), "bi": (ratings, {}), "values": (ratings, {"part": "values"}),
        "few": (ratings[ratings["item"] != 7], {"direction": "uni", "short": "keep"}),
        "other": (ratings, {"direction": "uni", "random_state": 1}),
    }  # fmt: skip
    for name, (rows, options) in fits.items():
        folders[name] = tmp_path / name
        ExponentialFamilyAttention(**{"part": "items", **SMALL, **options}).fit(rows).save(folders[name])
    run = inside("efa", "compare", folders["uni"], folders["other"], table, "-o", tmp_path / "relations.csv")
    assert run.returncode == 0
    assert [fact for fact in ("contexts", "centers", "K = 4 ≤ D − 1 = 11", "Log p") if fact not in run.stdout] == []
    assert max(map(len, run.stdout.splitlines())) <= 80
    rows = json.loads(inside("efa", "compare", folders["uni"], folders["other"], table, "--format", "json").stdout)
    assert [row["forward"] for row in rows] == pytest.approx(pd.read_csv(tmp_path / "relations.csv")["forward"])
    for name, data, code, facts in (
        ("bi", table, 2, ["direction", "uni", "bi"]),
        ("values", table, 2, ["part", "items", "values"]),
        ("few", table, 2, ["items", 7]),
        ("other", fewer, TableError, ["fewer.csv", 3]),
        ("other", tmp_path / "none.csv", DataUnavailableError, ["none.csv"]),
    ):
        assert_fails(inside("efa", "compare", folders["uni"], folders[name], data), code, *facts)
    assert_fails(inside("efa", "compare", folders["uni"], tmp_path / "none", table), ModelNotFoundError, "none")
