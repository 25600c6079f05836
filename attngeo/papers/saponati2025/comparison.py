"""Measured scores and trainings beside the published ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attngeo.papers.saponati2025.published import published_of, published_scores, published_training
from attngeo.pretrain.curves import summarize_runs
from attngeo.questions.spread import QUARTILES, statistic
from attngeo.scores.spec import score_names, scores_in
from attngeo.scores.summary import statistics, summarize

if TYPE_CHECKING:
    import pandas as pd


def _list_published() -> list[str]:
    """The scores that the paper published."""
    return [score for score in score_names() if score in published_scores()]


def published_columns() -> tuple[str, ...]:
    """The columns of `compare_with_published`, in their order."""
    scores = _list_published()
    beside = (f"{score}_{what}" for score in scores for what in ("median", "published", "difference"))
    return ("model", "stack", *beside, "erratum")


def compare_with_published(rows: pd.DataFrame) -> pd.DataFrame:
    """Compare each stack of each model with the paper: median of each score, published value, and their difference.

    The last column, erratum, is the known mistake in the published values; empty if none is known.
    """
    table = summarize(rows)
    values = [published_of(model, stack) or {} for model, stack in zip(table["model"], table["stack"], strict=True)]
    for score in _list_published():
        table[f"{score}_published"] = [float(row.get(score, "nan")) for row in values]
        table[f"{score}_difference"] = table[statistic(score, "median")] - table[f"{score}_published"]
    return table.assign(erratum=[row.get("erratum", "") for row in values])[list(published_columns())]


def compare_trainings(curves: pd.DataFrame) -> pd.DataFrame:
    """One row per run of a training, with the published results of the model on these data, if there are any.

    `attrs`, as in results of `pretrain`, name the model and the data. Columns without a value are left out.
    """
    runs = summarize_runs(curves)
    data = re.split("[:@#]", str(curves.attrs.get("data")))[0]
    published = published_training()
    published = published[(published["model"] == curves.attrs.get("model")) & (published["data"] == data)]
    beside = published.drop(columns=["model", "data"]).set_index(["objective", "init"]).add_suffix("_published")
    scores = scores_in(curves.columns)
    medians = statistics(["median"], scores)
    measured = [name for name in runs if name not in statistics(QUARTILES, scores)]
    table = runs[[*measured, *medians]].join(beside, on=["objective", "init"])
    return table.dropna(axis="columns", how="all")
