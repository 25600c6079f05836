"""The numbers of README.md, computed from the table of the losses and scores that the authors stored.

Each function takes the table and gives the numbers of one place in the text, in the order in which they are written
there. The comments of README.md call them.
"""

from __future__ import annotations

import pandas as pd


def late_gains(table: pd.DataFrame) -> list[float]:
    """Symmetry of the later half of an encoder's layers less that of the first: the least and the largest."""
    rows = table[table["objective"] == "mlm"]
    layers = rows.groupby(["model", "data"])["layer"].transform("size")
    rows = rows.assign(is_late=rows["layer"] >= layers / 2)
    means = rows.groupby(["model", "data", "is_late"])["symmetry"].mean().unstack("is_late")
    gains = means[True] - means[False]
    return [gains.min(), gains.max()]


def least_symmetric_layers(table: pd.DataFrame) -> list[int]:
    """The least symmetric layers of the decoder of 12 layers, each named once."""
    rows = table[(table["objective"] == "clm") & (table["model"] == "bert")]
    least = rows.groupby("data")["symmetry"].idxmin()
    return sorted(set(table["layer"].loc[least]))


def count_more_directional_encoders(table: pd.DataFrame) -> int:
    """In how many pairs the median layer of the encoder has the more negative directionality."""
    medians = table.groupby(["model", "data", "objective"])["directionality"].median().unstack("objective")
    return int((medians["mlm"] < medians["clm"]).sum())


def settled_by_half(table: pd.DataFrame, objective: str) -> pd.DataFrame:
    """The mean step at which a layer's symmetry settles, in the first half of the layers and in the later one."""
    rows = table[table["objective"] == objective]
    layers = rows.groupby(["model", "data"])["layer"].transform("size")
    rows = rows.assign(half=(rows["layer"] >= layers / 2).map({False: "early", True: "late"}))
    return rows.groupby(["model", "data", "half"])["symmetry_settled"].mean().unstack("half")


def count_late_sooner(table: pd.DataFrame, objective: str) -> int:
    """In how many models the later half of the layers settles before the first half."""
    means = settled_by_half(table, objective)
    return int((means["late"] < means["early"]).sum())
