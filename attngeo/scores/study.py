"""The scores of many models, one after the other or several at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from attngeo.bounds import available_memory
from attngeo.checkpoints.access import HubAccess
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.scores.options import ResultOptions, ScoreOptions
from attngeo.studies.engine import RunOutcome, StudyOptions, run_study

if TYPE_CHECKING:
    import pandas as pd


def score_models(
    models: Sequence[str],
    options: ScoreOptions = ScoreOptions(),
    *,
    hub: HubAccess = HubAccess(),
    results: ResultOptions = ResultOptions(),
    study: StudyOptions = StudyOptions(),
    progress: ProgressCallback = ignore_progress,
    on_outcome: Callable[[RunOutcome[pd.DataFrame]], None] = lambda _: None,
) -> list[RunOutcome[pd.DataFrame]]:
    """The table of scores of each model, as `attngeo.score` returns it, or the error; in the order of the models.

    models: references; see `attngeo.studies.models.list_models`. The other parameters are those of `attngeo.score` and
    of `attngeo.studies.engine.run_study`, and it raises what `run_study` raises. Several processes share a quarter of
    the free memory unless `options.memory` is given, which is for each of them.
    """
    if options.memory is None and study.jobs > 1:
        options = options.replace(memory=max(available_memory() // 4 // study.jobs, 1))
    run = partial(score_one, options=options, hub=hub, results=results)
    return run_study(run, models, names=models, options=study, progress=progress, on_outcome=on_outcome)


def score_one(
    model: str, progress: ProgressCallback, *, options: ScoreOptions, hub: HubAccess, results: ResultOptions
) -> pd.DataFrame:
    """One run of the study."""
    from attngeo.scores.scoring import score

    return score(model, options=options, hub=hub, results=results, progress=progress)
