"""Rows whose value or item is missing: each is asked for in a copy of its sequence without the other missing ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from attngeo.efa.columns import TABLE, show_name
from attngeo.errors import TableError

# Rows of copies that are made at once.
MOST_COPIED = 2**20
# Whole numbers below these are exact in float64, and fit into int64.
LARGEST_EXACT, LARGEST_INT = 2**53, 2**63


def copy_for_missing(
    table: pd.DataFrame, missing: np.ndarray, *, sequence: str, column: str, fill: Any
) -> Iterator[tuple[np.ndarray, pd.DataFrame]]:
    """Some missing rows at a time, [rows], and their copies, which have not many more than `MOST_COPIED` rows.

    A copy has the rows of the sequence that are not missing, and the missing one with `fill` in `column`. table: with
    numbers of rows as its index, which the copies keep. missing: [rows]. sequence: the column that names sequences;
    copies have names of their own.
    """
    codes, names = pd.factorize(table[sequence])
    every, there = np.flatnonzero(missing), np.flatnonzero(~missing)
    there = there[np.argsort(codes[there], kind="stable")]
    starts, ends = (np.searchsorted(codes[there], codes[every], side) for side in ("left", "right"))
    group = (ends - starts + 1).cumsum() // MOST_COPIED
    for number in np.unique(group):
        own = group == number
        asked = every[own]
        copies = [
            np.sort([*there[start:end], at]) for at, start, end in zip(asked, starts[own], ends[own], strict=True)
        ]
        rows = np.concatenate(copies)
        labels = [f"{names[codes[at]]} (row {at + 1})" for at in asked]
        found = table.iloc[rows].assign(**{sequence: np.repeat(labels, [len(each) for each in copies])})
        found[column] = found[column].astype(object).where(~missing[rows], fill)
        some = np.zeros(len(table), bool)
        some[asked] = True
        yield some, found


def rows_with_others(
    table: pd.DataFrame, missing: np.ndarray, *, sequence: str, whole: bool, may_be_alone: bool
) -> pd.DataFrame:
    """The rows that are not missing, and are not alone in their sequence because the others are.

    whole: only those of sequences without a missing row. may_be_alone: those that are left alone, too.
    """
    if whole:
        return table[~table[sequence].isin(table[sequence][missing])]
    there = table[~missing]
    was_alone = ~table[sequence].duplicated(keep=False)
    return there if may_be_alone else there[there[sequence].duplicated(keep=False) | was_alone[~missing]]


def drop_alone(rows: pd.DataFrame, *, sequence: str) -> pd.DataFrame:
    """The rows that are not alone in their sequence."""
    return rows[rows[sequence].duplicated(keep=False)]


def check_others(table: pd.DataFrame, missing: np.ndarray, *, sequence: str, what: str) -> None:
    """Raise TableError if all rows of a sequence are missing, so that no other row predicts one. what: they lack."""
    names = table[sequence]
    alone = ~names.isin(names[~missing]) & names.notna()
    if alone.any():
        raise TableError(
            f"{TABLE}: sequence {show_name(names[alone].iloc[0])} has no row with {what}, so no row predicts another; "
            "leave it out, or set short of fit or predict to drop or keep"
        )


def check_single(table: pd.DataFrame, missing: np.ndarray, *, sequence: str) -> None:
    """Raise TableError if a sequence has two missing rows, so that one is not predicted from all others."""
    names = table[sequence][missing]
    if names.duplicated().any():
        name = names[names.duplicated()].iloc[0]
        raise TableError(
            f"{TABLE}: sequence {show_name(name)} has {int((names == name).sum())} missing values, expected at most "
            "one: a factor model of places adds up all others; leave such sequences out, or fit one with model efa"
        )


def keep_whole(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column of whole numbers, of which some are missing, as such; others in the kind that their values have."""
    known = column.dropna()
    if pd.api.types.is_float_dtype(column.dtype):
        is_whole = bool(((known % 1 == 0) & (known.abs() < LARGEST_EXACT)).all())
    else:
        is_whole = column.dtype == object and all(type(each) is int and abs(each) < LARGEST_INT for each in known)
    return column.astype("Int64") if is_whole and len(known) < len(column) else column.infer_objects()
