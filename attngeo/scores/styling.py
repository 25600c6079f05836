"""A table of scores as a notebook shows it, with bars."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attngeo.errors import DataError
from attngeo.scores.spec import SCORES
from attngeo.tables.read import require_frame

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

# Colours of bars below and above the middle of a score, as in figures.
BELOW, ABOVE = "#C2A5CF", "#A6DBA0"
# Columns that identify a layer or head, and those that are shown beside the scores.
SHOWN = ("model", "stack", "circuit", "layer", "head", *SCORES, "frobenius_norm", "note")


def style(rows: pd.DataFrame) -> Styler:
    """A table of scores for a notebook: its main columns, with a bar in the cells of scores that have a range.

    Args:
        rows: table of `attngeo.score`, or rows of it.

    Returns:
        A pandas Styler, which a notebook shows as HTML; a full bar is the end of the score's range.

    Raises:
        DataError: the rows have no score.
        UsageError: they are not a DataFrame.

    >>> import attngeo
    >>> attngeo.style(attngeo.score("demo:decoder")).data.columns.tolist()
    ['model', 'stack', 'layer', 'symmetry', 'directionality', 'frobenius_norm']
    """
    require_frame(rows, "the table", "attngeo.score")
    scores = [name for name in SCORES if name in rows]
    if not scores:
        raise DataError(f"the rows have none of the columns {', '.join(SCORES)}; expected the output of attngeo.score")
    shown = rows[[name for name in SHOWN if name in rows]]
    # A column without values says nothing: no heads, no notes.
    is_empty = (shown.isna() | (shown == "")).all()
    styled = shown.loc[:, ~is_empty].style.hide(axis="index").format(precision=3, na_rep="")
    for name in scores:
        spec = SCORES[name]
        if math.isinf(spec.low) or math.isinf(spec.high):
            continue
        styled = styled.bar([name], align="mid", vmin=spec.low, vmax=spec.high, color=[BELOW, ABOVE], height=60)
    return styled
