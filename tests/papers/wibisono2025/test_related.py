"""The script that compares lists of related products with the paper's."""

from __future__ import annotations

import runpy

import pandas as pd
import pytest
from support.readme import ROOT

from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa import rank_similar


def test_lists_are_compared_with_the_published_ones_without_the_item_itself() -> None:
    script = runpy.run_path(str(ROOT / "reports/efa/related.py"))
    items = list("abcdefg")
    baskets = pd.DataFrame({"sequence": [0] * 4 + [1] * 3, "item": items})
    fit = ExponentialFamilyAttention(width=4, max_epochs=1, validation_fraction=0, device="cpu").fit(baskets)
    best = rank_similar(fit.model_, fit.items_, "a", 5)["item"].tolist()
    rows = [("bidir_efa", "a", 1, best[0]), ("bidir_efa", "a", 2, "a"), ("unidir_fm", "a", 1, best[1])]
    rows += [("bidir_efa", item, 1, "a") for item in "bcdefg"]
    published = pd.DataFrame(rows, columns=["model", "item", "rank", "neighbour"])
    table = script["compare_lists"]({"bidir_efa": fit}, published).set_index("item")
    assert table["shared"]["a"] == 1
    assert table["listed"]["a"] == 1
    assert table["by_chance"]["a"] == pytest.approx(5 / 6)
    assert table["ours"]["a"].split("; ") == best
    for item in "bcdefg":
        assert table["shared"][item] == int("a" in table["ours"][item].split("; "))
    written = pd.read_csv(script["TARGET"])
    assert set(table.reset_index()) == set(written)
