"""The numbers of README.md, computed from the tables beside it.

Each function takes a table and gives the numbers of one place in the text, in the order in which they are written
there. The comments of README.md call them.
"""

from __future__ import annotations

import pandas as pd


def verdicts(table: pd.DataFrame, family: str) -> pd.DataFrame:
    """A table of pairs of models: how many of each kind, their similarities, p, z and verdicts."""
    rows = table[table["family"] == family]
    rows = rows.assign(is_related=rows["related"].eq(True), is_suspicious=rows["verdict"].eq("suspicious"))
    return rows.groupby(["kind", "align"], sort=False).agg(
        pairs=("z", "size"),
        least=("similarity", "min"),
        most=("similarity", "max"),
        p_value=("p_value", "max"),
        least_z=("z", "min"),
        most_z=("z", "max"),
        related=("is_related", "sum"),
        suspicious=("is_suspicious", "sum"),
    )


def select_kin(table: pd.DataFrame) -> pd.DataFrame:
    """The pairs of models of one origin."""
    return table[~table["kind"].str.contains("independent|stream")]


def count_related(table: pd.DataFrame) -> list[int]:
    """Pairs of one origin that are found to be related, of how many."""
    kin = select_kin(table)
    return [int(kin["related"].eq(True).sum()), len(kin)]


def least_z(table: pd.DataFrame) -> float:
    """Of pairs of one origin, without those that were trained on other texts."""
    kin = select_kin(table)
    return float(kin["z"][~kin["kind"].str.contains("text")].min())


def spectra(table: pd.DataFrame) -> pd.DataFrame:
    """The table of spectra: pairs of each kind, extremes of their shares, and how many are equal."""
    return table.groupby("kind", sort=False).agg(
        pairs=("equal", "size"),
        low=("median_share", "min"),
        high=("median_share", "max"),
        equal=("equal", "sum"),
    )


def range_of_independent(table: pd.DataFrame) -> list[float]:
    """Similarity of aligned models of other seeds: the least and the largest."""
    rows = table[(table["kind"] == "independent seeds") & table["align"] & (table["family"] == "llama")]
    return [rows["similarity"].min(), rows["similarity"].max()]


def largest_excess(table: pd.DataFrame) -> list[float]:
    """How far the distribution of p is from uniform at most, at each percent: of all, then of each kind of null."""
    parts = [table, *(rows for _, rows in table.groupby("null"))]
    levels = [percent / 100 for percent in range(1, 101)]
    return [max(abs((part["p_value"] <= level + 1e-9).mean() - level) for level in levels) for part in parts]
