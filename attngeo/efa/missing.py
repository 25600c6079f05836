"""Rows whose value or item is missing: each is asked for in a copy of its sequence without the other missing ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def copy_for_missing(
    table: pd.DataFrame, missing: np.ndarray, *, sequence: str, column: str, fill: Any
) -> pd.DataFrame:
    """For each missing row, the rows of its sequence that are not missing, and itself with `fill` in `column`.

    table: with numbers of rows as its index, which the copies keep. missing: [rows]. sequence: the column that names
    sequences; copies have names of their own.
    """
    names = table[sequence].to_numpy()
    asked = np.flatnonzero(missing)
    others = [np.flatnonzero((names == names[at]) & ~missing) for at in asked]
    copies = [
        table.loc[np.sort([*rows, at])].assign(**{sequence: f"{names[at]}, whose row {at + 1} is asked for"})
        for at, rows in zip(asked, others, strict=True)
    ]
    found = pd.concat(copies)
    return found.assign(**{column: found[column].where(found[column].notna(), fill)})


def rows_with_others(table: pd.DataFrame, missing: np.ndarray, *, sequence: str) -> pd.DataFrame:
    """The rows that are not missing, and are not alone in their sequence because the others are."""
    there = table[~missing]
    was_alone = ~table[sequence].duplicated(keep=False)
    return there[there[sequence].duplicated(keep=False) | was_alone[~missing]]
