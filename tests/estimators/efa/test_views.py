"""What a fitted model has learned, as tables and pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import Command
from support.measure import LargestTensor
from support.messages import assert_fails, refuses

import attngeo
from attngeo.errors import ModelNotFoundError, TableError, UsageError
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa.vectors import rank_similar
from attngeo.estimators.efa.views import BLOCK, tabulate_places, tabulate_vectors

CITIES = {"Boise": (43.6, -116.2), "Boston": (42.4, -71.0), "Fresno": (36.8, -119.7)}


@pytest.fixture(scope="module")
def baskets() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    names = np.array(["tea", "jam", "rye", "oil"])
    return pd.DataFrame(
        [{"sequence": f"b{at}", "item": item} for at in range(12) for item in draw.permutation(names)[:3]]
    )


@pytest.fixture(scope="module")
def items(baskets: pd.DataFrame) -> ExponentialFamilyAttention:
    model = ExponentialFamilyAttention(
        width=6, n_heads=2, n_layers=2, max_epochs=2, direction="uni", validation_fraction=0
    )
    return model.fit(baskets)


@pytest.fixture(scope="module")
def days() -> pd.DataFrame:
    """More days than are read at once."""
    draw = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {"sequence": day, "position": at, "item": name, "value": draw.normal(), "north": place[0],
             "east": place[1], "yesterday": draw.normal()}
            for day in range(BLOCK + 3) for at, (name, place) in enumerate(CITIES.items())
        ]
    )  # fmt: skip


@pytest.fixture(scope="module")
def places(days: pd.DataFrame) -> ExponentialFamilyAttention:
    model = ExponentialFamilyAttention(
        width=4, n_heads=2, n_layers=2, max_epochs=2, coordinates=("north", "east"), lags=("yesterday",),
        item_vectors=False, order=False, validation_fraction=0,
    )  # fmt: skip
    return model.fit(days)


def test_vectors_of_heads_are_parts_of_the_projected_embeddings(items: ExponentialFamilyAttention) -> None:
    rows = tabulate_vectors(items)
    assert list(rows.columns) == ["item", "vector", "head", "number", "value"]
    embeddings = items.embeddings()
    for (vector, head), own in rows.groupby(["vector", "head"]):
        table = own.pivot_table(index="item", columns="number", values="value", sort=False).reindex(items.items_)
        np.testing.assert_array_equal(table.to_numpy(), embeddings[vector].to_numpy()[:, 3 * head : 3 * head + 3])
    assert len(rows) == 3 * 2 * 4 * 3


def test_similar_items_are_found_without_the_products_of_all_pairs(items: ExponentialFamilyAttention) -> None:
    many = pd.DataFrame({"sequence": np.arange(200) // 2, "item": np.arange(200)})
    model = ExponentialFamilyAttention(width=4, max_epochs=1, validation_fraction=0).fit(many)
    with LargestTensor() as largest:
        rank_similar(model.model_, model.items_, 7)
    assert 0 < largest.numbers <= 201 * 4  # the vectors, with that of [MASK]
    vectors = items.embeddings()
    products = vectors["center"].to_numpy(float) @ vectors["context"].to_numpy(float).T
    found = rank_similar(items.model_, items.items_, "jam").set_index("item")["score"]
    expected = pd.Series((products + products.T)[items.items_.index("jam")], items.items_)
    np.testing.assert_allclose(found, expected[found.index], rtol=1e-6)


def test_models_without_queries_of_items_are_refused(baskets: pd.DataFrame, places: ExponentialFamilyAttention) -> None:
    factors = ExponentialFamilyAttention(model="fm", width=4, max_epochs=1, validation_fraction=0).fit(baskets)
    for model in (factors, places):
        with refuses(UsageError, "items"):
            tabulate_vectors(model)


def test_weights_of_places_are_means_over_days_and_heads(
    places: ExponentialFamilyAttention, days: pd.DataFrame
) -> None:
    rows = tabulate_places(places, days)
    assert list(rows.columns) == ["place", "attended_place", "latitude", "longitude", "layer", "lag", "weight"]
    assert len(rows) == 3 * 3 * 2 * 2
    np.testing.assert_allclose(rows.groupby(["place", "layer"])["weight"].sum(), 1, atol=1e-5)
    whole = places.attention_weights(days)
    own = whole[
        (whole["position"] == 0) & (whole["attended_position"] == 2) & (whole["layer"] == 1) & (whole["lag"] == 1)
    ]
    found = rows.query("place == 'Boise' and attended_place == 'Fresno' and layer == 1 and lag == 1")
    assert found["weight"].item() == pytest.approx(own["weight"].mean(), rel=1e-5)
    assert (
        dict(zip(rows["attended_place"], zip(rows["latitude"], rows["longitude"], strict=True), strict=True)) == CITIES
    )
    named = tabulate_places(places, days.drop(columns=["item", "position"]).assign(sequence=days["sequence"]))
    assert set(named["place"]) == {0, 1, 2}


def test_tables_and_models_without_places_are_refused(
    places: ExponentialFamilyAttention, days: pd.DataFrame, items: ExponentialFamilyAttention, baskets: pd.DataFrame
) -> None:
    with refuses(UsageError, 0, "latitude", "longitude"):
        tabulate_places(items, baskets)
    wrong = days.assign(value=days["value"].where(days.index != 3 * BLOCK + 4))
    with pytest.raises(TableError, match=rf"\b{3 * BLOCK + 5}\b"):  # the row of the whole table
        tabulate_places(places, wrong)
    with pytest.raises(TableError, match="sequence"):
        tabulate_places(places, days.drop(columns="sequence"))


def test_commands_write_what_the_pictures_are_drawn_from(
    items: ExponentialFamilyAttention, places: ExponentialFamilyAttention, days: pd.DataFrame, inside: Command,
    tmp_path: Path,
) -> None:  # fmt: skip
    items.save(tmp_path / "items")
    places.save(tmp_path / "places")
    days.to_csv(tmp_path / "days.csv", index=False)
    assert inside("efa", "attention", tmp_path / "items", "tea,jam", "-o", tmp_path / "weights.csv").returncode == 0
    first, _ = attngeo.plot("item-attention", tmp_path / "weights.csv").data
    assert np.isnan(first.z[0][1])
    np.testing.assert_allclose(np.nansum(first.z, 1), 1, atol=1e-5)
    run = inside("efa", "attention", tmp_path / "places", tmp_path / "days.csv", "--places-output",
                 tmp_path / "places.csv")  # fmt: skip
    assert (run.returncode, run.stdout) == (0, "")
    figure = attngeo.plot("place-attention", tmp_path / "places.csv", where={"place": "Boise", "lag": 1, "layer": 0})
    assert list(figure.data[1].y) == [43.6]
    assert len(attngeo.plot("item-vectors", tmp_path / "items").data) == 6
    assert_fails(inside("plot", "item-vectors", tmp_path / "places", "-o", tmp_path / "f.json"), 2, "items")
    assert_fails(
        inside("plot", "item-vectors", tmp_path, "-o", tmp_path / "f.json"), ModelNotFoundError, "efa fit --save"
    )
    assert_fails(inside("efa", "attention", tmp_path / "items", "tea,jam", "--places-output", tmp_path / "p.csv"), 2,
                 "coordinates")  # fmt: skip
