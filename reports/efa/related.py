"""The products that go with each product, by fits of Instacart's baskets, beside the paper's lists of five.

    python reports/efa/related.py PUBLISHED MODEL=NAME [MODEL=NAME ...]

writes related.csv beside this file. MODEL: a folder that `attngeo efa fit --save` or `attngeo efa run instacart --save`
wrote, with the names of products. NAME: its model in PUBLISHED, a table of the lists in the outputs that the authors
stored: model (bidir_fm, unidir_fm, bidir_efa or unidir_efa), item, rank, neighbour.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa import rank_similar

TARGET = Path(__file__).with_name("related.csv")
LONGEST = 5


def compare_lists(fits: Mapping[str, ExponentialFamilyAttention], published: pd.DataFrame) -> pd.DataFrame:
    """A row for each model and product. fits: by the names of the published models.

    Columns: model, item, ours (the products of our list, best first), shared (how many of them the published list has),
    listed (its products other than the item itself, which some lists have), by_chance (the mean of shared if our list
    is random).
    """
    rows = []
    for name, fit in fits.items():
        lists = published[published["model"] == name].groupby("item")["neighbour"].agg(set)
        for item in fit.items_:
            ours = rank_similar(fit.model_, fit.items_, item, LONGEST)["item"].tolist()
            theirs = lists[item] - {item}
            by_chance = LONGEST * len(theirs) / (len(fit.items_) - 1)
            shared = len(theirs & set(ours))
            about = {"model": name, "item": item, "ours": "; ".join(ours)}
            rows.append({**about, "shared": shared, "listed": len(theirs), "by_chance": by_chance})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    path, *models = sys.argv[1:]
    folders = {name: folder for folder, name in (model.rsplit("=", 1) for model in models)}
    fits = {name: ExponentialFamilyAttention.load(folder) for name, folder in folders.items()}
    compare_lists(fits, pd.read_csv(path)).to_csv(TARGET, index=False)
