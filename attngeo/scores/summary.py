"""Statistics of the scores: from a row for each layer and head to a row for each stack of each model.

Each statistic has one name everywhere: `symmetry_median` is over whole layers, `heads_symmetry_median` over heads;
conditions write them `symmetry.median` and `heads.symmetry.median`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.errors import DataError
from attngeo.scores.spec import score_names
from attngeo.tables.read import require_columns

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

# Statistic → the quantile that it is.
QUANTILES = {"min": 0.0, "lower": 0.25, "median": 0.5, "upper": 0.75, "max": 1.0}
QUARTILES = ("lower", "median", "upper")
HEADS = "heads_"
IDENTITY = ("model", "stack", "layer", "head")


def statistic(score: str, place: str, *, heads: bool = False) -> str:
    """The name of a statistic.

    >>> statistic("symmetry", "median"), statistic("symmetry", "max", heads=True)
    ('symmetry_median', 'heads_symmetry_max')
    """
    return f"{HEADS if heads else ''}{score}_{place}"


def statistics(places: Iterable[str] = tuple(QUANTILES)) -> dict[str, str]:
    """Name of each statistic, of every score over layers and then over heads, → how conditions write it.

    places: which statistics of a score, keys of `QUANTILES`.

    >>> statistics(["median"])["heads_symmetry_median"]
    'heads.symmetry.median'
    """
    places = tuple(places)
    return {
        statistic(score, place, heads=heads): f"{'heads.' if heads else ''}{score}.{place}"
        for heads in (False, True)
        for score in score_names()
        for place in places
    }


def summary_columns() -> tuple[str, ...]:
    """The columns of `summarise`, in their order."""
    return ("model", "stack", "parameters", "layers", "heads", *statistics())


def spread_of(rows: pd.DataFrame) -> dict[str, float]:
    """Every statistic of the scores in some rows; NaN if no row has the score, as in files older than the score.

    rows: of one stack of one model, with the columns head and one for each score. Quantiles are linear interpolations,
    as numpy's default.
    """
    heads = rows["head"].notna()
    known = rows.reindex(columns=list(score_names())).astype("float64")
    return {
        statistic(score, place, heads=of_heads): float(known.loc[heads if of_heads else ~heads, score].quantile(share))
        for of_heads in (False, True)
        for score in score_names()
        for place, share in QUANTILES.items()
    }


def refuse_repeated(rows: pd.DataFrame) -> None:
    """Raise DataError if a layer or head of a model has two rows, for example of two conventions joined in one file."""
    if (repeated := rows.duplicated(list(IDENTITY))).any():
        row = rows[repeated].iloc[0]
        raise DataError(
            f"layer {row['layer']} of {row['model']} ({row['stack']}) has two rows, expected one; give a model once, "
            "or select rows with where, for example those with one note"
        )


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Statistics of the scores of each stack of each model: one row each, in the order of `rows`.

    rows: of `attngeo.score`. Returns the columns `summary_columns()`; layers and heads count the rows that have the
    first score of `SCORES`.
    A statistic is missing if there is nothing to summarise. Raises DataError if `rows` lacks a column, or has a layer
    or head twice.
    """
    import pandas as pd

    first_score = score_names()[0]
    require_columns(rows, (*IDENTITY, first_score), "the table", "attngeo.score")
    refuse_repeated(rows)
    summaries = []
    for (model, stack), members in rows.groupby(["model", "stack"], sort=False):
        known = list(members["parameters"].dropna()) if "parameters" in members else []
        heads = members["head"].notna()
        counts = {
            "model": model, "stack": stack, "parameters": known[0] if known else pd.NA,
            "layers": int(members.loc[~heads, first_score].count()),
            "heads": int(members.loc[heads, first_score].count()),
        }  # fmt: skip
        summaries.append(counts | spread_of(members))
    kinds = {"parameters": "Int64"} | dict.fromkeys(statistics(), "float64")
    frame = pd.DataFrame(summaries, columns=list(summary_columns())).astype(kinds)
    frame.attrs = {"title": "Attention scores, summarised"}
    return frame
