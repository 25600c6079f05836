"""Statistics of the scores: from a row for each layer and head to a row for each stack.

Each statistic has one name: `symmetry_median` is over whole layers, `heads_symmetry_median` over heads.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from attngeo.errors import DataError
from attngeo.scores.options import parse_scores
from attngeo.scores.spec import score_names, scores_in
from attngeo.tables.read import require_columns

if TYPE_CHECKING:
    import pandas as pd

# Statistic → the quantile that it is.
QUANTILES = {"min": 0.0, "lower": 0.25, "median": 0.5, "upper": 0.75, "max": 1.0}
QUARTILES = ("lower", "median", "upper")
# Of a quantity of which large values matter, and of one of which small ones do.
LARGE, SMALL = (*QUARTILES, "max"), ("min", *QUARTILES)
# A curve has settled where it stays within this share of its last value.
SETTLED = 0.1
HEADS = "heads_"
PLACE = ("layer", "head")
IDENTITY = ("model", "stack", *PLACE)
# Which matrix of a head a row is about; tables of W_qk alone lack it.
CIRCUIT = "circuit"


def statistic(score: str, quantile: str, *, heads: bool = False) -> str:
    """The name of a statistic: a quantile of a score over layers, or over heads.

    >>> statistic("symmetry", "median"), statistic("symmetry", "max", heads=True)
    ('symmetry_median', 'heads_symmetry_max')
    """
    prefix = HEADS if heads else ""
    return f"{prefix}{score}_{quantile}"


def statistics(quantiles: Iterable[str] = tuple(QUANTILES), scores: Iterable[str] | None = None) -> list[str]:
    """The names of the statistics of scores over layers, then over heads.

    quantiles: keys of `QUANTILES`. scores: by default those that are no optional ones.

    >>> statistics(["median"])[0]
    'symmetry_median'
    """
    named = [*product(score_names() if scores is None else scores, quantiles)]
    over_layers = [statistic(score, quantile) for score, quantile in named]
    over_heads = [statistic(score, quantile, heads=True) for score, quantile in named]
    return over_layers + over_heads


def name_circuits(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose stack is named with their circuit, such as "decoder ov", one circuit after the other.

    Rows that do not say of which circuit they are stay as they are, and so do stacks that are named already. To split
    such a table into stacks splits it into circuits, too.
    """
    if CIRCUIT not in rows:
        return rows
    ordered = rows.sort_values(CIRCUIT, kind="stable", key=lambda circuits: circuits == "ov")
    stacks = []
    for stack, circuit in zip(ordered["stack"].astype("str"), ordered[CIRCUIT].astype("str"), strict=True):
        stacks.append(stack if stack.endswith(f" {circuit}") else f"{stack} {circuit}")
    return ordered.assign(stack=stacks)


def summary_columns(scores: str | Collection[str] = ()) -> tuple[str, ...]:
    """The columns of `summarise`, in their order, for rows with these optional scores, named as for `score_columns`.

    Raises UsageError for an unknown score.
    """
    names = score_names(parse_scores(scores))
    return ("model", "stack", "parameters", "layers", "heads", *statistics(scores=names))


def spread_of(rows: pd.DataFrame) -> dict[str, float]:
    """Every statistic of the scores in some rows; NaN if no row has the score, as in files older than the score.

    rows: of one stack of one model, with the columns head and one for each score. Quantiles are linear interpolations,
    as numpy's default.
    """
    names = scores_in(rows.columns)
    scores = rows.reindex(columns=list(names)).astype("float64")
    heads = rows["head"].notna()
    spread = {}
    for of_heads, members in ((False, scores[~heads]), (True, scores[heads])):
        values = members.quantile(list(QUANTILES.values()))
        for score in names:
            for quantile, value in zip(QUANTILES, values[score], strict=True):
                spread[statistic(score, quantile, heads=of_heads)] = float(value)
    return spread


def find_settled(values: pd.Series) -> Any:
    """The step from which on a curve stays within 10% of its last value; None if it has no values.

    values: by step, in their order. A curve that ends near 0 settles late, as 10% of that are less than its noise.

    >>> import pandas as pd
    >>> int(find_settled(pd.Series([0.0, 0.5, 0.52, 0.5], index=[0, 10, 20, 30])))
    10
    """
    values = values.dropna()
    if values.empty:
        return None
    last = values.iloc[-1]
    is_near = (values - last).abs() <= SETTLED * abs(last)
    stays_near = is_near[::-1].cummin()
    return stays_near[stays_near].index[-1]


def refuse_repeated(rows: pd.DataFrame, identity: Sequence[str] = IDENTITY) -> None:
    """Raise DataError if a layer or head of a model has two rows, for example of two conventions joined in one file.

    identity: the columns that tell rows apart.
    """
    rows = name_circuits(rows)
    repeated = rows.duplicated([*identity])
    if repeated.any():
        row = rows[repeated].iloc[0]
        model, *others = (str(row[name]) for name in identity if name not in PLACE)
        raise DataError(
            f"layer {row['layer']} of {model} ({', '.join(others)}) has two rows, expected one; give a model once, "
            "or select rows with where, for example those with one note"
        )


def split_stacks(rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """The model, the stack and the rows of each stack of each model, in the order of a table of scores.

    Stacks are named with their circuits, see `name_circuits`.

    Raises DataError if the table lacks a column, or has a layer or head twice.
    """
    require_columns(rows, (*IDENTITY, score_names()[0]), "the table", "attngeo.score")
    refuse_repeated(rows)
    for (model, stack), members in name_circuits(rows).groupby(["model", "stack"], sort=False):
        yield str(model), str(stack), members


def count_scored(rows: pd.DataFrame) -> dict[str, Any]:
    """The parameters of a model (NaN if unknown), and how many layers and heads of a stack have the first score."""
    sizes = list(rows["parameters"].dropna()) if "parameters" in rows else []
    is_scored = rows[score_names()[0]].notna()
    is_head = rows["head"].notna()
    return {
        "parameters": sizes[0] if sizes else math.nan,
        "layers": int((is_scored & ~is_head).sum()),
        "heads": int((is_scored & is_head).sum()),
    }


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Statistics of the scores of each stack of each model: one row each, in the order of `rows`.

    Args:
        rows: table of `attngeo.score`.

    Returns:
        The columns `summary_columns(scores)` for the scores that `rows` have. `layers` and `heads` count the rows that
        have the first score of `SCORES`. A statistic is missing if there is nothing to summarise. Its `attrs` say how
        `rows` were made, if those of `rows` do.

    Raises:
        DataError: `rows` lacks a column, or has a layer or head twice.
    """
    import pandas as pd

    summaries = []
    for model, stack, members in split_stacks(rows):
        summaries.append({"model": model, "stack": stack} | count_scored(members) | spread_of(members))
    scores = scores_in(rows.columns)
    dtypes = {"parameters": "Int64"} | dict.fromkeys(statistics(scores=scores), "float64")
    frame = pd.DataFrame(summaries, columns=list(summary_columns(scores))).astype(dtypes)
    frame.attrs = {**rows.attrs, "title": "Attention scores, summarised"}
    return frame


def spread_columns(
    spread: Mapping[str, Sequence[str]], keys: Sequence[str] = ("model", "stack"), *, only_heads: bool = False
) -> tuple[str, ...]:
    """The columns of `summarise_columns`."""
    units = (True,) if only_heads else (False, True)
    names = [(column, quantile) for column, quantiles in spread.items() for quantile in quantiles]
    statistics_of = [statistic(column, quantile, heads=heads) for heads in units for column, quantile in names]
    return (*keys, "layers", "heads", *statistics_of)


def summarise_columns(
    rows: pd.DataFrame,
    spread: Mapping[str, Sequence[str]],
    keys: Sequence[str] = ("model", "stack"),
    *,
    only_heads: bool = False,
) -> pd.DataFrame:
    """Quantiles of columns of numbers over the layers, and over the heads, of each stack: one row each.

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
    summarised = type(rows)(summaries, columns=list(spread_columns(spread, keys, only_heads=only_heads)))
    summarised.attrs = dict(rows.attrs)
    return summarised


def brief_columns(scores: str | Collection[str] = (), *, per_head: bool = False) -> tuple[str, ...]:
    """The columns of a summary that a page has room for, for rows with these optional scores, as `summary_columns`.

    per_head: with those over heads, too.
    """
    names = score_names(parse_scores(scores))
    units = (False, True) if per_head else (False,)
    spread = (statistic(score, quartile, heads=heads) for heads in units for score in names for quartile in QUARTILES)
    return ("model", "stack", "parameters", "layers", "heads", *spread)


def summarise_briefly(rows: pd.DataFrame, *, per_head: bool = False) -> pd.DataFrame:
    """What a page shows of `summarise`. per_head: with the statistics over heads."""
    return summarise(rows)[list(brief_columns(scores_in(rows.columns), per_head=per_head))]
