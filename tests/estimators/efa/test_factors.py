"""Factor models by their formulas, and attention with the parameters of propositions 1 to 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.messages import refuses
from torch import Tensor, nn

from attngeo.errors import TableError, UsageError
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa.factors import ItemFactors, SpatialFactors, ValueFactors
from attngeo.estimators.efa.networks import Batch
from attngeo.papers.wibisono2025.propositions import attention_of_items, attention_of_places, attention_of_values

ITEMS, SIZE, LENGTH = 7, 4, 5


def randomise(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    model.double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight))
    return model


def draw(batch: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Items, values, and which positions have some: sequences of length 5, 3 and 1."""
    torch.manual_seed(1)
    items = torch.stack([torch.randperm(ITEMS)[:LENGTH] for _ in range(batch)])
    known = torch.arange(LENGTH)[None] < torch.tensor([[LENGTH], [3], [1]])
    return items, torch.randn(batch, LENGTH, 1, dtype=torch.float64), known


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("pooling", "start"), [("mean", False), ("sum", True)])
@pytest.mark.parametrize("window", [None, 1, 2, 9])
def test_factor_models_are_their_formulas(causal: bool, pooling: str, start: bool, window: int | None) -> None:
    items, values, known = draw()
    options = {"causal": causal, "pooling": pooling, "start": start, "window": window}
    of_items = randomise(ItemFactors(ITEMS, SIZE, **options))
    of_values = randomise(ValueFactors(ITEMS, SIZE, **options))
    batch = Batch(known, items, values)
    logits, raw = of_items(batch), of_values(batch)
    for b, length in enumerate(known.sum(1).tolist()):
        for i in range(length):
            near = range(length) if window is None else range(max(0, i - window), min(length, i + window + 1))
            others = [j for j in near if (j < i if causal else j != i)]
            divisor = length - 1 if window is None else len(others)
            share = 1 if pooling == "sum" else 1 / max(divisor, 1)
            for model, found in ((of_items, logits), (of_values, raw)):
                context = model.start.clone() if start else torch.zeros(SIZE, dtype=torch.float64)
                for j in others:
                    factor = 1 if model is of_items else values[b, j, 0]
                    context = context + share * factor * model.context.weight[items[b, j]]
                expected = model.center.weight @ context
                torch.testing.assert_close(found[b, i], expected if model is of_items else expected[items[b, i]][None])


@pytest.mark.parametrize("n_neighbors", [1, 3, None])
def test_the_neighbours_of_a_place_are_the_nearest_ones(n_neighbors: int | None) -> None:
    torch.manual_seed(2)
    coordinates, values = torch.randn(6, 2, dtype=torch.float64), torch.randn(4, 6, 1, dtype=torch.float64)
    distances = torch.cdist(coordinates, coordinates)
    model = randomise(SpatialFactors(distances, 2, SIZE, n_neighbors=n_neighbors, hidden=8))
    batch = Batch(torch.ones(4, 6, dtype=torch.bool), values=values, coordinates=coordinates)
    found, h = model(batch), model.place(coordinates)
    for i in range(6):
        nearest = distances[i].argsort()[1 : 1 + (n_neighbors or 5)]
        expected = sum(values[:, j] * (h[i] @ h[j]) for j in nearest)
        torch.testing.assert_close(found[:, i], expected)


def test_a_window_is_fitted_saved_and_counts_positions(tmp_path: Path) -> None:
    """A row far away has no effect, in whatever order the table has its rows."""
    draws = np.random.default_rng(0)
    rows = pd.DataFrame({"sequence": np.repeat(np.arange(20), 6), "position": np.tile(np.arange(6), 20),
                         "item": draws.integers(0, 5, 120)})  # fmt: skip
    options: dict[str, Any] = {"model": "fm", "width": 4, "max_epochs": 2, "validation_fraction": 0}
    ExponentialFamilyAttention(window=1, **options).fit(rows).save(tmp_path / "model")
    model = ExponentialFamilyAttention.load(tmp_path / "model")
    assert model.options_.window == 1
    before = model.log_prob(rows)
    pd.testing.assert_series_equal(model.log_prob(rows.sample(frac=1, random_state=0)).sort_index(), before)
    changed = rows["position"] == 2
    after = model.log_prob(rows.assign(item=rows["item"].mask(changed, (rows["item"] + 1) % 5)))
    assert (after != before).groupby(rows["position"]).any().tolist() == [False, True, True, True, False, False]
    with refuses(TableError, "'position'"):
        model.log_prob(rows.drop(columns="position"))
    with refuses(UsageError, "window", "attention"):
        ExponentialFamilyAttention(window=1, width=4).fit(rows)
    places = rows.assign(value=1.0, north=rows["position"], east=0.0).drop(columns="item")
    with refuses(UsageError, "window", "places", "n_neighbors"):
        ExponentialFamilyAttention(window=1, coordinates=("north", "east"), **options).fit(places)


def test_attention_with_the_parameters_of_proposition_1() -> None:
    items, _, _ = draw()
    factors = randomise(ItemFactors(ITEMS, SIZE))
    known = torch.ones_like(items, dtype=torch.bool)
    batch = Batch(known, items)
    torch.testing.assert_close(attention_of_items(factors, LENGTH)(batch), factors(batch))


def test_attention_with_the_parameters_of_proposition_2() -> None:
    torch.manual_seed(3)
    coordinates, values = torch.randn(6, 2, dtype=torch.float64), torch.randn(4, 6, 1, dtype=torch.float64)
    factors = randomise(SpatialFactors(torch.cdist(coordinates, coordinates), 2, SIZE, hidden=8))
    known = torch.ones(4, 6, dtype=torch.bool)
    batch = Batch(known, values=values, coordinates=coordinates)
    torch.testing.assert_close(attention_of_places(factors)(batch), factors(batch))


def test_attention_with_the_parameters_of_proposition_3() -> None:
    items, values, _ = draw()
    factors = randomise(ValueFactors(ITEMS, SIZE))
    known = torch.ones_like(items, dtype=torch.bool)
    batch = Batch(known, items, values)
    torch.testing.assert_close(attention_of_values(factors, LENGTH)(batch), factors(batch))


def test_more_neighbours_than_other_places_are_refused() -> None:
    with refuses(UsageError, "n_neighbors", "4", "3"):
        SpatialFactors(torch.rand(4, 4), 2, n_neighbors=4)
