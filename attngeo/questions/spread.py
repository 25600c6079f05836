"""How the numbers of a column spread over layers and over heads: quantiles, each with one name.

`change_median` is over whole layers, `heads_change_median` over heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.questions.rows import name_circuits

if TYPE_CHECKING:
    import pandas as pd

# Statistic → the quantile that it is.
QUANTILES = {"min": 0.0, "lower": 0.25, "median": 0.5, "upper": 0.75, "max": 1.0}
QUARTILES = ("lower", "median", "upper")
SPREAD = (*QUARTILES, "max")
HEADS = "heads_"


def statistic(score: str, quantile: str, *, heads: bool = False) -> str:
    """The name of a statistic: a quantile of a score over layers, or over heads.

    >>> statistic("symmetry", "median"), statistic("symmetry", "max", heads=True)
    ('symmetry_median', 'heads_symmetry_max')
    """
    prefix = HEADS if heads else ""
    return f"{prefix}{score}_{quantile}"


def spread_columns(columns: Sequence[str], keys: Sequence[str] = ("model", "stack")) -> tuple[str, ...]:
    """The columns of `summarise_columns`."""
    spread = [statistic(column, quantile) for column in columns for quantile in SPREAD]
    of_heads = [statistic(column, quantile, heads=True) for column in columns for quantile in SPREAD]
    return (*keys, "layers", "heads", *spread, *of_heads)


def summarise_columns(
    rows: pd.DataFrame, columns: Sequence[str], keys: Sequence[str] = ("model", "stack")
) -> pd.DataFrame:
    """Quartiles and maximum of columns of numbers over the layers, and over the heads, of each stack: one row each.

    Args:
        rows: a row for each layer (without `head`) or head.
        columns: what is summarised.
        keys: the columns that tell stacks apart.

    Returns:
        The columns `spread_columns(columns, keys)`; a statistic is missing if there is nothing to summarise.
    """
    summaries = []
    for names, members in name_circuits(rows).groupby([*keys], sort=False):
        is_head = members["head"].notna()
        summary = dict(zip(keys, names, strict=True)) | {
            "layers": members["layer"].nunique(),
            "heads": int(is_head.sum()),
        }
        for heads, kept in ((False, members[~is_head]), (True, members[is_head])):
            for column in columns:
                values = kept[column].astype("float64")
                for quantile in SPREAD:
                    summary[statistic(column, quantile, heads=heads)] = float(values.quantile(QUANTILES[quantile]))
        summaries.append(summary)
    return type(rows)(summaries, columns=list(spread_columns(columns, keys)))
