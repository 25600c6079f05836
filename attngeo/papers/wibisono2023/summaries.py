"""Tables 1 and 2 of the paper over data sets and seeds: means of methods, and the advantage of attention.

Imports nothing heavy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from attngeo.estimators.tabular.options import OURS
from attngeo.questions.conditions import Checkable
from attngeo.tables.read import require_columns

if TYPE_CHECKING:
    import pandas as pd

SETTING = ("n_c", "noise", "corr")
SCORES = ("accuracy", "mse")
PUBLISHED = ("published_accuracy", "published_mse")
# The columns of numbers, which conditions may name.
METHOD_NUMBERS = (*SCORES, *PUBLISHED)
# What conditions may say of both tables.
SIMULATION_CHECKS = Checkable(METHOD_NUMBERS, about=("method", "n_c", "noise", "corr"), units=("rows",))
AUTO_MPG_CHECKS = Checkable(METHOD_NUMBERS, about=("method", "data"), units=("rows",))
SIMULATION_COLUMNS = (*SETTING, "method", "seed", *SCORES, *PUBLISHED)
AUTO_MPG_COLUMNS = ("data", "method", "seed", *SCORES, *PUBLISHED)
AUTO_MPG = "auto-mpg"
# Columns that tell data sets apart, in tables of either experiment.
LABELS = ("n_c", "noise", "corr", "data")
# The columns of `summarize_methods` and of `measure_advantage` after those that tell data sets apart.
METHOD_COLUMNS = ("method", "runs", *(f"{score}_{name}" for score in SCORES for name in ("mean", "sd")), *PUBLISHED)
ADVANTAGE_COLUMNS = ("best", "runs", "advantage", "error", "is_larger")


def labels_of(frame: pd.DataFrame) -> list[str]:
    """The columns of a table of results that name its settings."""
    return [name for name in LABELS if name in frame.columns]


def summarize_methods(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per setting and method: number of data sets or seeds, mean and standard deviation of each score.

    Columns: the columns of the setting, method, runs, accuracy_mean, accuracy_sd, mse_mean, mse_sd, published_accuracy
    and published_mse. Standard deviations divide by n − 1, and are missing for one run. Raises DataError if a column is
    missing.
    """
    _require_results(frame)
    grouped = frame.groupby([*labels_of(frame), "method"], sort=False, dropna=False)
    named: dict[str, Any] = {"runs": ("seed", "size")}
    for score in SCORES:
        named |= {f"{score}_mean": (score, "mean"), f"{score}_sd": (score, "std")}
    named |= {name: (name, "first") for name in PUBLISHED if name in frame.columns}
    summary: pd.DataFrame = grouped.agg(**named).reset_index()
    return summary


def measure_advantage(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per setting: how much more accurate attention is than the best baseline.

    Columns: the columns of the setting; best (the baseline with the highest mean accuracy, if possible with all runs of
    attention); runs (with both methods); advantage (mean difference); error (standard error of the differences, paired
    by seed; NaN for one run); is_larger (advantage > error). Settings without attention or without a baseline are left
    out. Raises DataError if a column is missing.
    """
    import pandas as pd

    _require_results(frame)
    rows = []
    labels = labels_of(frame)
    for setting, results in frame.groupby(labels, sort=False, dropna=False):
        by_seed = results.pivot_table(index="seed", columns="method", values="accuracy", sort=False)
        baselines = [name for name in by_seed.columns if name != OURS]
        if OURS not in by_seed.columns or not baselines:
            continue
        runs_of_ours = by_seed[by_seed[OURS].notna()]
        complete = [name for name in baselines if runs_of_ours[name].notna().all()]
        best = by_seed[complete or baselines].mean().idxmax()
        difference = (by_seed[OURS] - by_seed[best]).dropna()
        advantage = difference.mean()
        error = difference.std() / math.sqrt(len(difference)) if len(difference) else math.nan
        rows.append(
            {
                **dict(zip(labels, setting, strict=True)),
                "best": best,
                "runs": len(difference),
                "advantage": advantage,
                "error": error,
                "is_larger": bool(advantage > error),
            }
        )
    return pd.DataFrame(rows, columns=[*labels, *ADVANTAGE_COLUMNS])


def _require_results(frame: pd.DataFrame) -> None:
    require_columns(frame, ["method", "seed", *SCORES], "the table", "attngeo tabular simulate")
    if not labels_of(frame):
        require_columns(frame, LABELS[:3], "the table", "attngeo tabular simulate")


def describe_advantage(advantages: pd.DataFrame) -> str:
    """The sentence that counts the settings with an advantage larger than its standard error."""
    larger = int(advantages["is_larger"].sum())
    return (
        f"In {larger} of {len(advantages)} settings, ATN is more accurate than the best baseline by more than the "
        "standard error of the difference."
    )
