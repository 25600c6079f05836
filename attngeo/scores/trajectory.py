"""Scores along a training: revisions as steps, and the first step at which a score has left its chance level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from attngeo.bounds.names import list_names
from attngeo.errors import DataError
from attngeo.questions.rows import IDENTITY, name_circuits
from attngeo.scores.spec import SCORES, ScoreSpec, scores_in
from attngeo.studies.steps import TrainingStep, split_step
from attngeo.tables.read import require_columns

if TYPE_CHECKING:
    import pandas as pd

# Standard deviations of one random form on both sides of the mean: the chance band of a score.
BAND = 2.0
# The columns of `find_departures`.
DEPARTURE_COLUMNS = ("model", "stack", "score", "step", "after", "steps")
Over = Literal["layers", "heads"]


def follow_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of training checkpoints, with a column `step`, and with the steps removed from the model names.

    Rows of a model whose name states no step, such as org/name@main, are left out.

    Args:
        rows: table of `attngeo.score`, of several revisions or folders; see `split_step` for their names.

    Raises:
        DataError: no name states a step, or two names state the same one for one model.
    """
    names = [str(name) for name in rows["model"].unique()]
    checkpoints = {name: split_step(name) for name in names}
    stated = {name: checkpoint for name, checkpoint in checkpoints.items() if checkpoint.step is not None}
    if not stated:
        raise DataError(
            f"no model name states a step: {list_names(names)}; expected revisions such as "
            "org/name@step1000, or folders such as run/checkpoint-500"
        )
    seen: dict[TrainingStep, str] = {}
    for name, checkpoint in stated.items():
        if checkpoint in seen:
            advice = "leave out one of them"
            if name.startswith(f"{checkpoint.model}@"):
                advice = f"score one stage only, for example {checkpoint.model}@stage1-*"
            raise DataError(
                f"{seen[checkpoint]} and {name} both state step {checkpoint.step:,} of {checkpoint.model}, expected "
                f"each step once; {advice}"
            )
        seen[checkpoint] = name
    followed = rows[rows["model"].isin(stated)]
    steps = {name: checkpoint.step for name, checkpoint in stated.items()}
    models = {name: checkpoint.model for name, checkpoint in stated.items()}
    return followed.assign(step=followed["model"].map(steps).astype("int64"), model=followed["model"].map(models))


def find_departures(rows: pd.DataFrame, over: Over = "layers") -> pd.DataFrame:
    """The step at which each score leaves its chance band for good, for each stack of each model.

    The score of a step is the median over layers, or over heads, in standard deviations of the score of one random form
    of the same width (z): its factors are Gaussian, like those of an untrained model; see `SCORES`. The band is −2 ≤ z
    ≤ 2. The step is the first one from which z is above the band at every scored step, or below it at every one. The
    score left the band between the scored step before it and this step. This is not a test of significance: the median
    of several layers varies less than the score of one, and layers of one model are not independent.

    Args:
        rows: table of `attngeo.score`, of several revisions or folders; see `split_step` for their names.
        over: whether medians are over whole layers or over heads.

    Returns:
        The columns `DEPARTURE_COLUMNS`, one row for each stack of each model and each score that has a chance level.
        step: that step, missing if the score is inside the band at the last scored step. after: the scored step
        before it, missing if it is the first one. steps: how many steps have the score.

    Raises:
        DataError: `rows` lacks a column, or as `follow_steps`.
    """
    import pandas as pd

    require_columns(rows, (*IDENTITY, "d_model"), "the table", "attngeo.score")
    followed = follow_steps(name_circuits(rows))
    chosen = followed[followed["head"].notna() == (over == "heads")]
    departures = []
    for (model, stack), members in chosen.groupby(["model", "stack"], sort=False):
        for spec in scores_with_chance(rows):
            z = standardize(members, spec).groupby("step")["z"].median().dropna()
            step = find_departure(z)
            earlier = [] if step is None else z.index[z.index < step]
            after = earlier[-1] if len(earlier) else None
            departures.append((model, stack, spec.name, step, after, len(z)))
    frame = pd.DataFrame(departures, columns=[*DEPARTURE_COLUMNS])
    return frame.astype({"step": "Int64", "after": "Int64", "steps": "Int64"})


def scores_with_chance(rows: pd.DataFrame) -> Iterator[ScoreSpec]:
    """The scores of a table that have a chance level."""
    for name in scores_in(rows.columns):
        if SCORES[name].chance is not None and name in rows:
            yield SCORES[name]


def standardize(rows: pd.DataFrame, spec: ScoreSpec) -> pd.DataFrame:
    """Rows with a column `z`: a score with a chance level, in standard deviations above chance."""
    scores = rows[spec.name].astype("float64")
    return rows.assign(z=[spec.z(score, int(width)) for score, width in zip(scores, rows["d_model"], strict=True)])


def find_departure(z: pd.Series) -> Any:
    """The step from which a curve stays outside the chance band, on one side; None if it ends inside.

    z: by step, in their order, none of them missing.

    >>> import pandas as pd
    >>> int(find_departure(pd.Series([0.3, 4.0, 1.0, 2.5, 9.0], index=[0, 1, 2, 4, 8])))
    4
    """
    if z.empty:
        return None
    side = (z > BAND).astype(int) - (z < -BAND).astype(int)
    last = side.iloc[-1]
    if last == 0:
        return None
    stays = (side == last)[::-1].cummin()
    return stays[stays].index[-1]
