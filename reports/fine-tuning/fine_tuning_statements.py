"""The numbers of README.md, computed from the tables beside it.

Each function takes a table and gives the numbers of one place in the text, in the order in which they are written
there. The comments of README.md call them.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

SCORES = ["symmetry", "heads_symmetry", "directionality", "heads_directionality"]
OVERLAPS = ["change", "cosine", "query_overlap", "key_overlap"]


def first_and_last(table: pd.DataFrame) -> list[float]:
    """The table of curves: step, loss and scores at the start and at the end, for each objective."""
    rows = table[table["step"].isin([0, 1000])]
    means = rows.groupby(["objective", "step"])[["loss", *SCORES]].mean().reset_index()
    return [row[name] for _, row in means.iterrows() for name in ("step", "loss", *SCORES)]


def count_falls(layers: pd.DataFrame, objective: str) -> list[int]:
    """Layers whose symmetry falls, of how many."""
    rows = layers[layers["objective"] == objective]
    return [int((rows["symmetry_other"] < rows["symmetry"]).sum()), len(rows)]


def share_of_falls(heads: pd.DataFrame, objective: str) -> float:
    """The share of heads whose directionality falls."""
    rows = heads[heads["objective"] == objective]
    return float((rows["directionality_other"] < rows["directionality"]).mean())


def updates(layers: pd.DataFrame, heads: pd.DataFrame) -> list[float]:
    """The table of updates: seed, then medians over layers and over heads, for each objective."""
    numbers: list[Any] = []
    for (objective, seed), rows in layers.groupby(["objective", "seed"]):
        same = heads[(heads["objective"] == objective) & (heads["seed"] == seed)]
        numbers.append(seed)
        numbers += [part[score].median() for part in (rows, same) for score in ("symmetry", "directionality")]
    return numbers


def quantised(heads: pd.DataFrame) -> list[float]:
    """The table of quantised models, the most bits first: bits, medians, and how far the scores move."""
    numbers: list[Any] = []
    for bits, rows in heads.sort_values("bits", ascending=False).groupby("bits", sort=False):
        symmetry = (rows["symmetry_other"] - rows["symmetry"]).abs()
        directionality = (rows["directionality_other"] - rows["directionality"]).abs()
        numbers.append(bits)
        numbers += [rows[name].median() for name in OVERLAPS]
        numbers += [symmetry.max(), directionality.median(), directionality.max()]
    return numbers


def slopes(heads: pd.DataFrame) -> list[float]:
    """Symmetry of quantised heads in that of the model, by least squares, with 4 and with 3 bits, which follow."""
    numbers = []
    for bits in (4, 3):
        rows = heads[heads["bits"] == bits]
        numbers += [(rows["symmetry"] * rows["symmetry_other"]).sum() / (rows["symmetry"] ** 2).sum(), bits]
    return numbers


def share_of_rises(heads: pd.DataFrame) -> float:
    """The share of heads whose directionality rises by 3 bits."""
    rows = heads[heads["bits"] == 3]
    return float((rows["directionality_other"] > rows["directionality"]).mean())


def changes_of_growths(table: pd.DataFrame, objective: str) -> pd.DataFrame:
    """What a training adds to both growths of each layer, a row for each seed and layer."""
    growths = ["symmetric_growth", "antisymmetric_growth"]
    before = table[table["objective"] == "none"].set_index("layer")[growths]
    after = table[table["objective"] == objective].set_index(["seed", "layer"])[growths]
    return after.sub(before, level="layer")


def growths_after(table: pd.DataFrame, objective: str) -> list[float]:
    """Layers whose symmetric growth falls, of how many, the least and the largest change; and of the antisymmetric."""
    changes = changes_of_growths(table, objective)
    numbers: list[float] = []
    for name in changes:
        numbers += [int((changes[name] < 0).sum()), len(changes), changes[name].min(), changes[name].max()]
    return numbers


def growths_before(table: pd.DataFrame) -> list[float]:
    """The least and the largest symmetric growth of a layer before training; and antisymmetric growth."""
    before = table[table["objective"] == "none"]
    return [bound(before[f"{part}_growth"]) for part in ("symmetric", "antisymmetric") for bound in (min, max)]
