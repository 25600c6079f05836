"""The numbers of running.md, computed from the tables beside it.

Each function takes a table and gives the numbers of one place in the text, in the order in which they are written
there. The comments of running.md call them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

MINILM = "all-MiniLM-L6-v2"
PAIR = ["layer", "head", "other"]


def _choose(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The pairs of a kind, those with the largest antisymmetric cosine of the weights first."""
    rows = table[table["kind"] == kind]
    return rows.loc[rows["antisymmetric"].abs().sort_values(ascending=False).index]


def _choose_effects(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    """The effects of ablation on MiniLM, with the share of the excess in the sum, and its rank in its layer."""
    rows = table[(table["model"] == MINILM) & (table["measure"] == measure)]
    share = rows["excess"] / (rows["head_effect"] + rows["other_effect"])
    return rows.assign(share=share, rank=share.groupby(rows["layer"]).rank(ascending=False))


def mirrors_of_logits(table: pd.DataFrame) -> pd.DataFrame:
    """The table of the mirrors: what their weights say, and the correlations of their logits."""
    bounds = ["running_mirror_low", "running_mirror_high"]
    columns = ["mirror", "antisymmetric", "running_mirror", *bounds, "mirror_rank", "running_twin"]
    return _choose(table, "mirror")[[*PAIR, *columns, "running_antisymmetric", "raw_mirror", "raw_mirror_rank"]]


def range_of(table: pd.DataFrame, kind: str, column: str) -> list[float]:
    """The least and the largest value of a column, over the pairs of a kind."""
    values = _choose(table, kind)[column]
    return [values.min(), values.max()]


def median_of(table: pd.DataFrame, kind: str, column: str) -> float:
    """The median of a column over the pairs of a kind."""
    return float(_choose(table, kind)[column].median())


def mean_of(table: pd.DataFrame, kind: str, *columns: str) -> list[float]:
    """The means of some columns over the pairs of a kind."""
    return [_choose(table, kind)[column].mean() for column in columns]


def count_above(table: pd.DataFrame, column: str) -> int:
    """Other pairs with a value above the least one of the mirrors."""
    least = range_of(table, "mirror", column)[0]
    return int((_choose(table, "other")[column] > least).sum())


def compare_signs(table: pd.DataFrame, least: float) -> list[int]:
    """Pairs whose antisymmetric cosine has one sign by weights and by logits, of those with a larger one by weights."""
    clear = table[table["antisymmetric"].abs() > least]
    same = np.sign(clear["antisymmetric"]) == np.sign(clear["running_antisymmetric"])
    return [int(same.sum()), len(same)]


def compare_signs_of_layer(table: pd.DataFrame, layer: int) -> list[int]:
    """The same of all pairs of one layer."""
    return compare_signs(table[table["layer"] == layer], 0)


def rank_correlations_of_layers(table: pd.DataFrame) -> list[float]:
    """The Spearman correlation of both antisymmetric cosines over the pairs of each layer."""
    columns = ["antisymmetric", "running_antisymmetric"]
    return [float(rows[columns].corr("spearman").to_numpy()[0, 1]) for _, rows in table.groupby("layer")]


def mirrors_by_position(table: pd.DataFrame) -> pd.DataFrame:
    """The table of positions: weights without their directions, logits in another order, and where both heads look."""
    columns = ["antisymmetric", "antisymmetric_without_positions", "by_position", "own_by_position", "by_token"]
    looks = ["beside", "beside_weight", "other_beside", "other_beside_weight"]
    return _choose(table, "mirror")[[*PAIR, *columns, *looks]]


def least_share_by_position(table: pd.DataFrame) -> float:
    """The least ratio of the mirrors' correlation at the same positions to that of both heads with themselves."""
    rows = _choose(table, "mirror")
    return float((rows["by_position"] / rows["own_by_position"]).min())


def count_same_side(table: pd.DataFrame, kind: str) -> list[int]:
    """Pairs of a kind that look to the same side, and all of them."""
    rows = _choose(table, kind)
    return [int((np.sign(rows["beside"]) == np.sign(rows["other_beside"])).sum()), len(rows)]


def count_exact_opposites(table: pd.DataFrame) -> int:
    """Mirrors whose heads look equally far, to opposite sides."""
    rows = _choose(table, "mirror")
    return int((rows["beside"] == -rows["other_beside"]).sum())


def effects_by_kind(table: pd.DataFrame) -> list[float]:
    """The table of ablations: of each kind and measure, pairs, their shares, their ranks, and clear excesses."""
    numbers: list[float] = []
    for kind in ("mirror", "twin", "other"):
        for measure in ("tokens", "sentence"):
            rows: Any = _choose(_choose_effects(table, measure), kind)
            share = rows["share"]
            numbers += [len(rows), share.median(), share.min(), share.max(), rows["rank"].mean()]
            numbers += [(rows["excess_low"] > 0).sum(), (rows["excess_high"] < 0).sum()]
    return numbers


def masked_effects(table: pd.DataFrame, model: str) -> list[float]:
    """Of the strongest mirror of a small encoder, the effects on its loss: of each head, of both, and the excess."""
    row = _choose(table[table["model"] == model], "mirror").iloc[0]
    columns = ["head_effect", "other_effect", "both_effect", "excess", "excess_low", "excess_high"]
    return [row[column] for column in columns]


def masked_shares(table: pd.DataFrame, model: str) -> list[float]:
    """The share of the excess of that mirror in the sum, and the range of the other pairs of its layer."""
    rows = table[table["model"] == model]
    shares = rows["excess"] / (rows["head_effect"] + rows["other_effect"])
    mirror = rows["kind"] == "mirror"
    of_layer = shares[~mirror & rows["layer"].isin(rows.loc[mirror, "layer"])]
    return [shares[mirror].iloc[0], of_layer.min(), of_layer.max()]
