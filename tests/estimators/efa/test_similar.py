"""Items that go with an item: those that are together in training sequences, by the model's probabilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Command
from safetensors.torch import load_file, save_file
from support.messages import assert_fails, assert_states, refuses

from attngeo.errors import CorruptCheckpointError, UsageError
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa import counts
from attngeo.estimators.efa.counts import ItemCounts
from attngeo.estimators.efa.prediction import predict_beside
from attngeo.estimators.shared.paths import CONFIG
from attngeo.estimators.shared.saving import WEIGHTS
from attngeo.progress import Progress

EVERYWHERE = "bag"


def plant(seed: int, sizes: tuple[int, ...] = (2, 3, 4), baskets: int = 240) -> tuple[pd.DataFrame, list[list[str]]]:
    """Baskets of one group each, of which three in five have one more item that goes with none; and the groups."""
    draw = np.random.default_rng(seed)
    groups = [[f"{group}-{number}" for number in range(size)] for group, size in enumerate(sizes)]
    rows = []
    for basket in range(baskets):
        group = groups[draw.integers(len(groups))]
        chosen = list(draw.permutation(group)[: draw.integers(2, 4)])
        if draw.random() < 0.6:
            chosen.append(EVERYWHERE)
        rows += [{"sequence": basket, "item": item} for item in chosen]
    return pd.DataFrame(rows), groups


def count_pairs(rows: pd.DataFrame, item: str) -> tuple[pd.Series[int], pd.Series[float]]:
    """The sequences that an item is in with each other one, and the lift, by their definitions."""
    sets = rows.groupby("sequence")["item"].agg(set)
    others = sorted(set(rows["item"]) - {item})
    both = pd.Series({other: sum({item, other} <= basket for basket in sets) for other in others})
    shares = pd.Series({other: np.mean([other in basket for basket in sets]) for other in [item, *others]})
    return both, both / len(sets) / (shares[others] * shares[item])


def fit(rows: pd.DataFrame, **options: Any) -> ExponentialFamilyAttention:
    given: dict[str, Any] = {"max_epochs": 2, "width": 4, "validation_fraction": 0, "device": "cpu"}
    return ExponentialFamilyAttention(**given | options).fit(rows)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return plant(0, baskets=40)[0]


@pytest.fixture(scope="module")
def model(rows: pd.DataFrame) -> ExponentialFamilyAttention:
    return fit(rows)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
@pytest.mark.parametrize("sizes", [(2, 3, 4), (3, 3, 3)])
def test_the_items_of_a_group_come_first(sizes: tuple[int, ...], seed: int) -> None:
    rows, groups = plant(seed, sizes)
    model = ExponentialFamilyAttention(random_state=seed, device="cpu").fit(rows)
    for group in groups:
        for item in group:
            similar = model.similar(item, top=len(group) - 1)
            assert set(similar["item"]) == set(group) - {item}
            assert (similar["score"] > 1).all()


def test_an_item_has_the_probability_that_predict_gives_it_beside_the_other_one(
    rows: pd.DataFrame, model: ExponentialFamilyAttention
) -> None:
    items = model.items_
    asked = pd.DataFrame([{"sequence": item, "item": cell} for item in items for cell in (item, None)])
    table = model.predict_proba(asked)[1::2].set_axis(items)
    counted = rows.drop_duplicates()["item"].value_counts().reindex(items) + 1
    usual = pd.Series({to: np.average(table[to].drop(to), weights=counted.drop(to)) for to in items})
    for item in items:
        similar = model.similar(item, top=99).set_index("item")
        np.testing.assert_allclose(similar["probability"], table.loc[item, similar.index], rtol=1e-5)
        ratio, reverse = table.loc[item] / usual, table[item] / usual[item]
        np.testing.assert_allclose(similar["score"], np.sqrt(ratio * reverse)[similar.index], rtol=1e-4)
        assert similar["score"].is_monotonic_decreasing
        assert similar["rank"].tolist() == list(range(1, len(items)))


def test_in_order_only_what_comes_next_counts(rows: pd.DataFrame) -> None:
    model = fit(rows, direction="uni")
    number = model.items_.index("1-0")
    similar = model.similar("1-0", top=99).set_index("item")
    beside = predict_beside(model.model_, number, model.counts_.items + 1.0, model.options_)  # type: ignore[union-attr,arg-type]
    expected = pd.Series(beside.chances / beside.usual, model.items_)
    np.testing.assert_allclose(similar["score"], expected[similar.index], rtol=1e-5)


def test_sequences_with_both_items_and_their_lift_are_those_of_the_table(
    rows: pd.DataFrame, model: ExponentialFamilyAttention, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated = pd.concat([rows, rows[:5]], ignore_index=True)  # counts once in its basket
    for data, fitted in ((rows, model), (repeated, fit(repeated, validation_fraction=0.3))):
        both, lift = count_pairs(data, "2-1")
        similar = fitted.similar("2-1", top=99).set_index("item")
        assert similar["sequences"].to_dict() == both.to_dict()
        np.testing.assert_allclose(similar["lift"], lift[similar.index], rtol=1e-9)
    whole, _ = count_pairs(rows, "2-1")
    monkeypatch.setattr(counts, "MOST_PAIRS_KEPT", 9)
    monkeypatch.setattr(counts, "BLOCK", 2)
    few = fit(rows)
    assert few.counts_ is not None
    assert 0 < len(few.counts_.pairs) <= 9
    notes: list[Progress] = []
    similar = few.similar("2-1", top=99, progress=notes.append).set_index("item")
    assert_states(notes[0].what, few.counts_.least, "empty")
    shown = similar["sequences"].dropna()
    assert shown.to_dict() == whole[whole >= few.counts_.least].to_dict()
    assert similar["lift"].isna().equals(similar["sequences"].isna())
    monkeypatch.setattr(counts, "MOST_PAIRS_COUNTED", 9)
    assert fit(rows).similar("2-1")["sequences"].isna().all()


def test_of_many_items_the_mean_is_over_the_most_frequent_ones(
    model: ExponentialFamilyAttention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attngeo.estimators.efa.prediction.MOST_PROBABILITIES_BESIDE", 1)
    monkeypatch.setattr("attngeo.estimators.efa.prediction.FEWEST_ITEMS", 3)
    assert isinstance(model.counts_, ItemCounts)
    beside = predict_beside(model.model_, 0, model.counts_.items + 1.0, model.options_)  # type: ignore[arg-type]
    most = set(np.argsort(-model.counts_.items, kind="stable")[:3])
    assert set(np.flatnonzero(~np.isnan(beside.reverse))) == most
    assert (model.similar("1-0")["score"] > 0).all()


def test_a_saved_model_keeps_the_counts(
    rows: pd.DataFrame, model: ExponentialFamilyAttention, inside: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    model.save(folder)
    pd.testing.assert_frame_equal(ExponentialFamilyAttention.load(folder).similar("2-1"), model.similar("2-1"))
    listed = json.loads(inside("efa", "similar", folder, "2-1", "--top", "3", "--format", "json").stdout)
    assert [row["item"] for row in listed] == model.similar("2-1", top=3)["item"].tolist()
    vectors = json.loads(inside("efa", "similar", folder, "2-1", "--by", "vectors", "--format", "json").stdout)
    assert list(vectors[0]) == ["rank", "item", "score"]
    assert_fails(inside("efa", "similar", folder, "2-1", "--by", "products"), 2, "--by", "'products'", "vectors")
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, "counts.items": tensors["counts.items"] + 99}, folder / WEIGHTS)
    with refuses(CorruptCheckpointError, WEIGHTS, "counts", len(set(rows["sequence"]))):
        ExponentialFamilyAttention.load(folder)
    # As an older version saved it.
    about = json.loads((folder / CONFIG).read_text())
    del about["counts"]
    (folder / CONFIG).write_text(json.dumps(about | {"format": 4}))
    save_file({name: tensor for name, tensor in tensors.items() if "counts" not in name}, folder / WEIGHTS)
    run = inside("efa", "similar", folder, "2-1", "--format", "json")
    assert_states(run.stderr, "older version", "fit it again")
    older = pd.DataFrame(json.loads(run.stdout))
    assert set(older["item"]) == set(model.similar("2-1")["item"])
    assert older[["sequences", "lift"]].isna().all(axis=None)


def test_models_without_such_probabilities_say_so(rows: pd.DataFrame) -> None:
    draw = np.random.default_rng(0)
    rows = rows.assign(value=draw.normal(size=len(rows)), shop=draw.choice(["near", "far"], len(rows)))
    values = fit(rows, part="values", model="fm")
    shops = fit(rows.drop(columns="value"), covariates=("shop",))
    alone = fit(rows[["item"]].assign(sequence=range(len(rows))), direction="uni")
    for model, facts in ((values, ["predicts values", "--part items"]), (shops, ["covariates", "predict"])):
        with refuses(UsageError, *facts, "set by to vectors"):
            model.similar("2-1", by="probability")
        notes: list[Progress] = []
        similar = model.similar("2-1", progress=notes.append)
        pd.testing.assert_frame_equal(similar, model.similar("2-1", by="vectors"))
        assert_states(notes[0].what, "by vectors", *facts)
    with refuses(UsageError, "one row", "set by to vectors"):
        alone.similar("2-1", by="probability")
