"""The script that plants complements and substitutes in baskets, and scores all pairs by fitted models."""

from __future__ import annotations

import math
import runpy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.readme import ROOT

from attngeo.estimators import ExponentialFamilyAttention


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "reports/efa/planted.py"))


def count_together(baskets: pd.DataFrame, products: int) -> np.ndarray:
    """The number of baskets with both of two products, [products, products]."""
    table = np.zeros((baskets["sequence"].max() + 1, products))
    table[baskets["sequence"], baskets["item"]] = 1
    return table.T @ table


def test_groups_have_the_planted_odds_ratios(script: dict[str, Any]) -> None:
    """Given the other products of a group, that of a link is exp(link); a product alone has its own probability."""
    groups = script["plan_groups"]()
    products = 1 + max(groups[-1].products)
    log_odds = script["draw_popularity"](products, np.random.default_rng(5))
    alone = 1 / (1 + np.exp(-log_odds))
    assert (alone.min(), alone.max()) == pytest.approx((0.05, 0.3))
    for group in groups:
        states, chances = script["list_chances"](group, log_odds)
        assert chances.sum() == pytest.approx(1)
        chance_of = {tuple(state): chance for state, chance in zip(states.tolist(), chances, strict=True)}
        for first, second, link in group.links:
            cells = {}
            for pair in ((0, 0), (0, 1), (1, 0), (1, 1)):
                state = [0] * len(group.products)
                state[first], state[second] = pair
                cells[pair] = chance_of[tuple(state)]
            ratio = cells[1, 1] * cells[0, 0] / (cells[0, 1] * cells[1, 0])
            assert math.log(ratio) == pytest.approx(link)
        if not group.links:
            assert chance_of[1,] == pytest.approx(alone[group.products[0]])


def test_planted_pairs_are_together_more_and_less_often_than_by_chance(script: dict[str, Any]) -> None:
    groups = script["plan_groups"]()
    products = 1 + max(groups[-1].products)
    random = np.random.default_rng(2)
    baskets = script["draw_baskets"](groups, script["draw_popularity"](products, random), 20_000, random)
    assert baskets["sequence"].nunique() == 20_000
    assert baskets.groupby("sequence").size().min() == 2
    assert not baskets.duplicated().any()
    together = count_together(baskets, products)
    alone = np.diag(together)
    lift = together * 20_000 / np.outer(alone, alone)
    kinds = script["name_pairs"](groups, products)
    assert (kinds == kinds.T).all()
    for kind, is_more in script["KINDS"].items():
        assert (lift[kinds == kind].min() > 1.2) if is_more else (lift[kinds == kind].max() < 0.6)
    off_diagonal = (kinds == "unrelated") & ~np.eye(products, dtype=bool)
    assert lift[off_diagonal].mean() == pytest.approx(1, abs=0.02)
    assert (kinds[np.triu_indices(products, 1)] != "unrelated").sum() == 30


@pytest.mark.parametrize("model", ["fm", "efa"])
def test_scores_of_pairs_are_those_of_the_estimator(script: dict[str, Any], model: str) -> None:
    random = np.random.default_rng(0)
    baskets = pd.DataFrame({"sequence": np.repeat(range(60), 3), "item": random.integers(0, 6, 180)}).drop_duplicates()
    fit = ExponentialFamilyAttention(part="items", model=model, width=4, max_epochs=2, short="keep").fit(baskets)
    scores = script["score_pairs"](fit)
    for number, item in enumerate(fit.items_):
        by_vectors = fit.similar(item, by="vectors").set_index("item")["score"]
        by_chance = fit.similar(item, by="probability").set_index("item")
        others = [other for other in fit.items_ if other != item]
        places = [fit.items_.index(other) for other in others]
        assert scores["vectors"][number, places] == pytest.approx(by_vectors[others].to_numpy(), abs=1e-5)
        assert np.exp(scores["probability"][number, places]) == pytest.approx(by_chance["score"][others].to_numpy())
        assert np.exp(scores["lift"][number, places]) == pytest.approx(by_chance["lift"][others].to_numpy())
    assert scores["centred vectors"].sum(0) == pytest.approx(np.zeros(6), abs=1e-4)
    is_same = np.diff(np.diff(scores["vectors"] - scores["centred vectors"], axis=0), axis=1)
    assert is_same == pytest.approx(np.zeros((5, 5)), abs=1e-4)  # up to a number for each row and column
    assert ("vectors through values" in scores) == (model == "efa")
    if model == "efa":
        # One product, and a mask that attends to it: what changes if its vector is moved is linear in δ·(β·Wv·Wo).
        part = fit.model_.parts[0]
        layer = part.attention.layers[0]
        vectors = {name: torch.tensor(table.to_numpy()) for name, table in fit.embeddings().items()}
        nothing = torch.zeros_like(vectors["context"])
        added = layer.add(layer.keys(vectors["context"]).value) - layer.add(layer.keys(nothing).value)
        one_order = part.network.decode(added).detach()
        assert scores["vectors through values"] == pytest.approx((one_order + one_order.T).numpy(), abs=1e-5)


def test_shares_and_areas_are_those_of_the_pairs(script: dict[str, Any]) -> None:
    """Four products: a pair of complements (0, 1), one of substitutes (2, 3), and four unrelated pairs."""
    kinds = np.full((4, 4), "unrelated", dtype=object)
    kinds[0, 1], kinds[2, 3], kinds[1, 2] = "complements", "substitutes", "substitutes with a common complement"
    scores = np.zeros((4, 4))
    scores[0, 1], scores[2, 3], scores[1, 2] = 1.5, 0.5, -np.inf
    scores[0, 2], scores[0, 3], scores[1, 3] = 1.0, 2.0, -1.0
    rows = {row["pairs"]: row for row in script["measure_scores"](scores, kinds, np.array([4, 3, 2, 1]))}
    assert [rows[kind]["positive"] for kind in script["KINDS"]] == [1, 1, 0]
    assert [rows[kind]["auc"] for kind in script["KINDS"]] == pytest.approx([2 / 3, 2 / 3, 1])
    assert rows["unrelated"]["count"] == 3
    assert rows["unrelated"]["positive"] == pytest.approx(2 / 3)
    assert rows["unrelated"]["with_popularity"] == pytest.approx(0.5)  # counts 8, 4, 3 with scores 1, 2, −1
    assert set(rows["complements"]) | {"seed", "baskets", "model", "score"} <= set(script["COLUMNS"])
    assert list(pd.read_csv(script["TARGET"]).columns) == list(script["COLUMNS"])
