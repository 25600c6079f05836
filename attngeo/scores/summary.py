"""Statistics of the scores: from a row for each layer and head to a row for each stack.

Each statistic has one name: `symmetry_median` is over whole layers, `heads_symmetry_median` over heads.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, product
from typing import TYPE_CHECKING, Any

from attngeo.questions.rows import IDENTITY, name_circuits, refuse_repeated
from attngeo.questions.spread import QUANTILES, QUARTILES, statistic
from attngeo.scores.options import parse_scores
from attngeo.scores.spec import head_scores, score_names, scores_in
from attngeo.tables.read import require_columns

if TYPE_CHECKING:
    import pandas as pd

# A curve has settled where it stays within this share of its last value.
SETTLED = 0.1


def statistics(quantiles: Iterable[str] = tuple(QUANTILES), scores: Iterable[str] | None = None) -> list[str]:
    """The names of the statistics of scores over layers, then over heads; of scores of layers, over layers only.

    quantiles: keys of `QUANTILES`. scores: by default all but the optional ones.

    >>> statistics(["median"])[0]
    'symmetry_median'
    """
    names = score_names() if scores is None else tuple(scores)
    quantiles = tuple(quantiles)
    over_layers = [statistic(score, quantile) for score, quantile in product(names, quantiles)]
    over_heads = [statistic(score, quantile, heads=True) for score, quantile in product(head_scores(names), quantiles)]
    return over_layers + over_heads


def summary_columns(scores: str | Collection[str] = ()) -> tuple[str, ...]:
    """The columns of `summarize`, in their order, for rows with these optional scores, named as for `score`.

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
        for score in head_scores(names) if of_heads else names:
            for quantile, value in zip(QUANTILES, values[score], strict=True):
                spread[statistic(score, quantile, heads=of_heads)] = float(value)
    return spread


def find_settled(values: pd.Series) -> Any:
    """The step from which a curve stays within 10% of its last value; None if it has no values.

    values: by step, in their order. A curve that ends near 0 settles late, because 10% of its last value is less than
    its noise.

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


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """Statistics of the scores of each stack of each model: one row each, in the order of `rows`.

    Args:
        rows: table of `attngeo.score`.

    Returns:
        The columns `summary_columns(scores)` for the scores that `rows` have. `layers` and `heads` count the rows that
        have the first score of `SCORES`. A statistic is missing if there is nothing to summarise. Its `attrs` say how
        `rows` were made, if the `attrs` of `rows` do.

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


def brief_columns(scores: str | Collection[str] = (), *, per_head: bool = False) -> tuple[str, ...]:
    """The columns of a summary that fit on a page, for rows with these optional scores, as `summary_columns`.

    per_head: with those over heads, too.
    """
    names = score_names(parse_scores(scores))
    units = {False: names, True: head_scores(names)} if per_head else {False: names}
    spread = [
        [statistic(score, quartile, heads=heads) for score, quartile in product(scored, QUARTILES)]
        for heads, scored in units.items()
    ]
    return ("model", "stack", "parameters", "layers", "heads", *chain.from_iterable(spread))


def summarize_briefly(rows: pd.DataFrame, *, per_head: bool = False) -> pd.DataFrame:
    """The part of `summarize` that a page shows. per_head: include the statistics over heads."""
    return summarize(rows)[list(brief_columns(scores_in(rows.columns), per_head=per_head))]
