"""Rows about layers and heads: the columns that tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

# The first columns of every table about a model, and of one about a model and another one.
ABOUT_MODEL = ("model", "revision")
ABOUT_BOTH = (*ABOUT_MODEL, "other", "other_revision")
PLACE = ("layer", "head")
IDENTITY = ("model", "stack", *PLACE)
# Of a row about a pair of heads: the other one.
OTHER_PLACE = ("other_layer", "other_head")
# Which matrix of a head a row is about; tables of W_qk alone lack it.
CIRCUIT = "circuit"


def name_circuits(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose stack is named with their circuit, such as "decoder ov", one circuit after the other.

    Rows without a circuit, and stacks already named, stay unchanged. Splitting such a table into stacks also splits it
    into circuits.
    """
    if CIRCUIT not in rows:
        return rows
    ordered = rows.sort_values(CIRCUIT, kind="stable", key=lambda circuits: circuits == "ov")
    stacks = []
    for stack, circuit in zip(ordered["stack"].astype("str"), ordered[CIRCUIT].astype("str"), strict=True):
        stacks.append(stack if stack.endswith(f" {circuit}") else f"{stack} {circuit}")
    return ordered.assign(stack=stacks)


def refuse_repeated(rows: pd.DataFrame, identity: Sequence[str] = IDENTITY) -> None:
    """Raise DataError if a layer or head of a model has two rows, for example of two conventions joined in one file.

    identity: the columns that tell rows apart.
    """
    rows = name_circuits(rows)
    repeated = rows.duplicated([*identity])
    if repeated.any():
        row = rows[repeated].iloc[0]
        model, *others = (str(row[name]) for name in identity if name not in (*PLACE, *OTHER_PLACE))
        raise DataError(
            f"layer {row['layer']} of {model} ({', '.join(others)}) has two rows, expected one; give each model "
            "once, or select rows with where, for example those with the same note"
        )
