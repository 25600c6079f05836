"""The numbers of README.md, computed from the tables beside it.

Each function takes a table and gives the numbers of one place in the text, in the order in which they are written
there. The comments of README.md call them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

SMALL = "SmolLM2-135M-Instruct"
THRESHOLDS = (0.3, 0.4, 0.5)


def _select(table: pd.DataFrame, **cells: str) -> pd.DataFrame:
    """The rows with these cells."""
    for column, cell in cells.items():
        table = table[table[column] == cell]
    return table


def roc_areas(heads: pd.DataFrame, measure: str, signs: dict[str, int]) -> list[float]:
    """A table of areas under the ROC curve: for each threshold, heads above it, and the area of each quantity.

    signs: the quantities; -1 where a low one is a sign of a high measure.
    """
    rows = _select(heads, model=SMALL)
    numbers: list[Any] = []
    for threshold in THRESHOLDS:
        is_above = rows[measure] > threshold
        numbers += [threshold, is_above.sum()]
        for quantity, sign in signs.items():
            above = sign * rows[quantity][is_above].to_numpy()
            below = sign * rows[quantity][~is_above].to_numpy()
            numbers.append(np.greater.outer(above, below).mean())
    return numbers


def previous_areas(heads: pd.DataFrame) -> list[float]:
    """The table of the weight on the previous token."""
    signs = {"fast_share": 1, "folded_fast_share": 1, "previous_token": 1, "folded_previous_token": 1}
    return roc_areas(heads, "previous", signs)


def induction_areas(heads: pd.DataFrame) -> list[float]:
    """The table of the weight on what followed the first copy."""
    return roc_areas(heads, "induction", {"fast_share": -1, "folded_fast_share": -1})


def largest_heads(heads: pd.DataFrame, measure: str) -> list[float]:
    """The five largest: layer.head, and the measure."""
    numbers = []
    for _, row in _select(heads, model=SMALL).nlargest(5, measure).iterrows():
        numbers += [row["layer"] + row["head"] / 10, row[measure]]
    return numbers


def first_of_ranking(heads: pd.DataFrame) -> list[int]:
    """Of the ten heads with the largest of each quantity, those above the threshold; then with norm and biases."""
    rows = _select(heads, model=SMALL)
    numbers = []
    for quantity in ("fast_share", "previous_token", "fast_previous", "fast_previous_of_all"):
        for prefix in ("", "folded_"):
            first = rows.nlargest(10, prefix + quantity)
            numbers.append(int((first["previous"] > 0.3).sum()))
    return numbers


def range_of_other_peaks(heads: pd.DataFrame) -> list[float]:
    """Offsets of the peaks that are not at 1, of heads above the threshold."""
    rows = _select(heads, model=SMALL)
    peaks = rows["peak"][(rows["previous"] > 0.4) & (rows["peak"] != 1)]
    return [peaks.min(), peaks.max()]


def rank_correlations(heads: pd.DataFrame, model: str) -> list[float]:
    """Spearman's, of the weight on the previous token with the kernel, and with norm and biases folded in."""
    rows = _select(heads, model=model)
    return [rows["previous"].corr(rows[name], "spearman") for name in ("previous_token", "folded_previous_token")]


def last_rank_of_encoder(heads: pd.DataFrame) -> int:
    """By the kernel, of the heads of MiniLM above 0.2."""
    rows = _select(heads, model="all-MiniLM-L6-v2")
    ranks = rows["previous_token"].rank(ascending=False)
    return int(ranks[rows["previous"] > 0.2].max())


def last_rank_of_decoders(heads: pd.DataFrame) -> float:
    """By the kernel, of the heads above the threshold in the two decoders with learned positions."""
    rows = heads[heads["model"].isin(["whisper-base", "demo:decoder"])]
    ranks = rows.groupby("model")["previous_token"].rank(ascending=False)
    return float(ranks[rows["previous"] > 0.3].max())


def heads_of_decoders(heads: pd.DataFrame) -> list[int]:
    """Heads above the threshold, of how many, in both."""
    numbers = []
    for model in ("whisper-base", "demo:decoder"):
        rows = _select(heads, model=model)
        numbers += [int((rows["previous"] > 0.3).sum()), len(rows)]
    return numbers


def composition(table: pd.DataFrame) -> pd.DataFrame:
    """The table of compositions without folded norms."""
    columns = ["circuits_among_strongest", "threshold", "above", "expected", "circuits_above"]
    return table[~table["fold_norm"]][columns]


def edges(table: pd.DataFrame, repeats: pd.DataFrame, kind: str) -> pd.Series[Any]:
    """The z of edges of a kind that begin at the head of their seed that looks at the previous token."""
    writers = repeats[repeats["previous"] > 0.5][["seed", "head"]]
    rows = _select(table, kind=kind)
    return rows.merge(writers, left_on=["seed", "from_head"], right_on=["seed", "head"])["z"]


def range_of_circuits(table: pd.DataFrame, repeats: pd.DataFrame) -> list[float]:
    """The least and the largest z of the edges of the circuits."""
    z = edges(table, repeats, "k")
    return [z.min(), z.max()]


def largest_other_edge(table: pd.DataFrame, repeats: pd.DataFrame) -> float:
    """The largest z of all edges that are no circuit."""
    writers = repeats[repeats["previous"] > 0.5][["seed", "head"]]
    rows = table.merge(writers, left_on=["seed", "from_head"], right_on=["seed", "head"], how="left")
    is_other = (rows["kind"] != "k") | rows["head"].isna()
    return float(rows["z"][is_other].max())
