"""How the numbers of a column spread over layers and over heads: quantiles, each with one name.

`change_median` is over whole layers, `heads_change_median` over heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attngeo.questions.rows import name_circuits

if TYPE_CHECKING:
    import pandas as pd

# Statistic → the quantile that it is.
QUANTILES = {"min": 0.0, "lower": 0.25, "median": 0.5, "upper": 0.75, "max": 1.0}
QUARTILES = ("lower", "median", "upper")
# Of a quantity of which large values matter, and of one of which small ones do.
LARGE, SMALL = (*QUARTILES, "max"), ("min", *QUARTILES)
HEADS = "heads_"


def statistic(score: str, quantile: str, *, heads: bool = False) -> str:
    """The name of a statistic: a quantile of a score over layers, or over heads.

    >>> statistic("symmetry", "median"), statistic("symmetry", "max", heads=True)
    ('symmetry_median', 'heads_symmetry_max')
    """
    prefix = HEADS if heads else ""
    return f"{prefix}{score}_{quantile}"


def spread_columns(
    spread: Mapping[str, Sequence[str]], keys: Sequence[str] = ("model", "stack"), *, only_heads: bool = False
) -> tuple[str, ...]:
    """The columns of `summarize_columns`."""
    units = (True,) if only_heads else (False, True)
    names = [(column, quantile) for column, quantiles in spread.items() for quantile in quantiles]
    statistics_of = [statistic(column, quantile, heads=heads) for heads in units for column, quantile in names]
    return (*keys, "layers", "heads", *statistics_of)


def summarize_columns(
    rows: pd.DataFrame,
    spread: Mapping[str, Sequence[str]],
    keys: Sequence[str] = ("model", "stack"),
    *,
    only_heads: bool = False,
) -> pd.DataFrame:
    """Quantiles of number columns over the layers, and over the heads, of each stack: one row per stack.

    Args:
        rows: a row for each layer (without `head`) or head.
        spread: each column that is summarised, and its quantiles, keys of `QUANTILES`.
        keys: the columns that tell stacks apart.
        only_heads: leaves out the quantiles over layers, for tables that have heads alone.

    Returns:
        The columns `spread_columns(spread, keys, only_heads=only_heads)`; a statistic is missing if there is nothing to
        summarise. Its `attrs` are those of `rows`.
    """
    summaries = []
    for names, members in name_circuits(rows).groupby([*keys], sort=False):
        is_head = members["head"].notna()
        summary = dict(zip(keys, names, strict=True)) | {
            "layers": members["layer"].nunique(),
            "heads": int(is_head.sum()),
        }
        for heads, kept in ((False, members[~is_head]), (True, members[is_head])):
            for column, quantiles in spread.items():
                values = kept[column].astype("float64")
                for quantile in quantiles:
                    summary[statistic(column, quantile, heads=heads)] = float(values.quantile(QUANTILES[quantile]))
        summaries.append(summary)
    summarized = type(rows)(summaries, columns=list(spread_columns(spread, keys, only_heads=only_heads)))
    summarized.attrs = dict(rows.attrs)
    return summarized
