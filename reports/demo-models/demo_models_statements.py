"""The numbers of README.md, computed from the tables beside it.

Each function takes a table and gives the numbers of one place in the text, in the order in which they are written
there. The comments of README.md call them.
"""

from __future__ import annotations

from typing import Any

import pandas as pd


def _select_layers(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of whole layers, without those of heads."""
    return table[table["head"].isna()]


def final_scores(encoder: pd.DataFrame, decoder: pd.DataFrame) -> list[float]:
    """The table of scores: symmetry and directionality of each layer at the end, and the loss, of both models."""
    numbers: list[Any] = []
    for table in (encoder, decoder):
        rows = _select_layers(table)
        rows = rows[rows["step"] == 12000]
        numbers += [*rows["symmetry"], *rows["directionality"], rows["loss"].iloc[0]]
    return numbers


def largest_directionality(encoder: pd.DataFrame, decoder: pd.DataFrame) -> float:
    """The largest size of the median over layers at any step of both trainings."""
    medians = [_select_layers(table).groupby("step")["directionality"].median() for table in (encoder, decoder)]
    return max(float(median.abs().max()) for median in medians)


def variations(table: pd.DataFrame, model: str) -> pd.DataFrame:
    """How much norms of columns and of rows differ: a row for each layer."""
    rows = table[table["model"] == model]
    return rows.pivot(index="layer", columns="side", values="variation")[["column", "row"]]


def excess_of_columns(table: pd.DataFrame, model: str) -> list[float]:
    """How much more columns differ than rows, by layer."""
    by_layer = variations(table, model)
    return [*(by_layer["column"] / by_layer["row"] - 1)]


def losses_at_steps(table: pd.DataFrame) -> list[float]:
    """Losses with long sequences, each before its step."""
    losses = table.groupby("step")["loss"].first()
    return [number for step in (1000, 2500) for number in (losses[step], step)]
