"""Which column of a table holds its text, and how names and reasons go into one line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attngeo.errors import DataError
from attngeo.pretrain.hub_data import list_names

Row = Mapping[str, Any]
# Of a column: "text", "numbers" where every string is a number, or "other".
NUMBER = re.compile(r"\s*[-+]?[\d.,]+(?:[eE][-+]?\d+)?\s*")


def kinds_of_rows(sample: Sequence[Row]) -> dict[str, str]:
    """The kind of each column, from some rows."""
    kinds: dict[str, str] = {}
    for row in sample:
        for name, value in row.items():
            string = isinstance(value, str) and value.strip()
            kind = "other" if not string else "numbers" if NUMBER.fullmatch(value) else "text"
            kinds[name] = max(kind, kinds.get(name, kind), key=("other", "numbers", "text").index)
    return kinds


def kinds_of_features(features: Mapping[str, Any]) -> dict[str, str]:
    """The kind of each column, from the features of a table of `datasets`."""
    return {
        name: "text" if getattr(kind, "dtype", "") in ("string", "large_string") else "other"
        for name, kind in features.items()
    }


def text_column(reference: str, kinds: Mapping[str, str], column: str) -> str:
    """`column`, or else the one that can be meant. Raises DataError where it is not there or not clear."""
    texts = [name for name, kind in kinds.items() if kind == "text"]
    wanted = column or ("text" if kinds.get("text", "other") != "other" else texts[0] if len(texts) == 1 else "")
    if wanted and kinds.get(wanted, "other") != "other":
        return wanted
    if wanted:
        problem = f"column {wanted!r} holds no text" if wanted in kinds else f"there is no column {wanted!r}"
    else:
        problem = "which column holds the text is not clear" if texts else "no column holds text"
    raise DataError(f"{reference}: {problem}, its columns are {list_names(kinds)}; choose with --text-column")
