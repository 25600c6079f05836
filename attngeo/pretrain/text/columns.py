"""Which column of a table holds its text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attngeo.errors import DataError
from attngeo.pretrain.hub_data import list_names

# One row of a table: column name → value.
Row = Mapping[str, Any]

# The kinds of a value. A column has the last of these kinds that occurs in it.
OTHER, NUMBERS, TEXT = "other", "numbers", "text"
KINDS = (OTHER, NUMBERS, TEXT)
NUMBER = re.compile(r"\s*[-+]?[\d.,]+(?:[eE][-+]?\d+)?\s*")


def classify_columns(rows: Sequence[Row]) -> dict[str, str]:
    """The kind of each column, from some rows: "text", "numbers" (as strings), or "other" (not strings, or empty)."""
    kinds: dict[str, str] = {}
    for row in rows:
        for name, value in row.items():
            kinds[name] = max(_classify(value), kinds.get(name, OTHER), key=KINDS.index)
    return kinds


def _classify(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        return OTHER
    return NUMBERS if NUMBER.fullmatch(value) else TEXT


def classify_features(features: Mapping[str, Any]) -> dict[str, str]:
    """The kind of each column, from the features of a table of `datasets`: "text" for strings, else "other"."""
    return {
        name: TEXT if getattr(feature, "dtype", "") in ("string", "large_string") else OTHER
        for name, feature in features.items()
    }


def choose_text_column(reference: str, kinds: Mapping[str, str], column: str = "") -> str:
    """The column to train on: `column` if given, else "text", else the only column of kind "text".

    reference: names the data set in messages. kinds: the kind of each column. Raises DataError if the column that was
    asked for does not exist or holds no strings, or if none was asked for and several or none could be meant.
    """
    texts = [name for name, kind in kinds.items() if kind == TEXT]
    wanted = column or "text"
    if kinds.get(wanted, OTHER) != OTHER:
        return wanted
    if column:
        problem = f"column {column!r} holds no text" if column in kinds else f"there is no column {column!r}"
    elif len(texts) == 1:
        return texts[0]
    else:
        problem = "several columns hold text" if texts else "no column holds text"
    raise DataError(f"{reference}: {problem}, its columns are {list_names(kinds)}; choose one with --text-column")
