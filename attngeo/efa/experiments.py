"""The paper's experiments as studies, and their table: each model beside the paper's number and trivial baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attngeo.efa.datasets import EXPERIMENTS, load_dataset
from attngeo.efa.experiment_options import RunOptions
from attngeo.efa.options import EfaOptions
from attngeo.efa.published import SOURCE, ResultName, published_results
from attngeo.efa.runs import LABELS, EfaRun, perform
from attngeo.efa.settings import SETTINGS, TEMPERATURE, ModelSetting, list_settings
from attngeo.errors import UsageError
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.scores.options import ResultOptions
from attngeo.studies.engine import RunOutcome, StudyOptions, require_all, run_study

if TYPE_CHECKING:
    import pandas as pd

Outcome = RunOutcome[list[dict[str, Any]]]
COLUMNS = (*LABELS, "metric", "value", "published")


def plan_runs(experiment: str, options: RunOptions) -> list[EfaRun]:
    """The runs of an experiment: baselines, then all models with the first seed, with the second, and so on.

    Raises UsageError for an unknown experiment, or if nothing is left to run.
    """
    found = list_settings(experiment, options)
    if not found:
        directions = " and ".join(SETTINGS[experiment].directions)
        raise UsageError(f"direction is {options.direction!r}, expected {directions} for {experiment}")
    runs = [
        EfaRun(experiment, each.model, each.direction, each.setting, seed, EfaOptions(**each.options, seed=seed),
               options.data, options.published, options.save)
        for seed in range(options.seeds)
        for each in found
    ]  # fmt: skip
    return [*_plan_baselines(experiment, options, found), *runs]


def _plan_baselines(experiment: str, options: RunOptions, models: Sequence[ModelSetting]) -> list[EfaRun]:
    """Each baseline once for each direction, and for each setting whose numbers are other ones."""
    if not options.baselines:
        return []
    about = SETTINGS[experiment]
    settings = list(about.families)
    if experiment == "temperature":
        days = {each.setting.partition(", ")[2] for each in models if each.model == "efa"}
        settings = sorted(days | {""})
    return [
        EfaRun(experiment, name, direction, setting, 0, None, options.data, options.published)
        for name in about.trivial
        for direction in options.directions
        if direction in about.directions
        for setting in (settings if name != "day-before" else [""])
    ]


def run_planned(
    runs: Sequence[EfaRun],
    *,
    results: ResultOptions = ResultOptions(),
    study: StudyOptions = StudyOptions(),
    progress: ProgressCallback = ignore_progress,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """The rows of each run, as `perform` returns them, or its error. Parameters and errors are those of `run_study`."""
    function = partial(perform, fresh=results.fresh)
    names = [run.name for run in runs]
    return run_study(function, runs, names=names, options=study, progress=progress, on_outcome=on_outcome)


def compare_models(
    experiment: str,
    options: RunOptions = RunOptions(),
    *,
    study: StudyOptions = StudyOptions(),
    progress: ProgressCallback = ignore_progress,
) -> pd.DataFrame:
    """`build_frame` of all runs of an experiment. Raises as `plan_runs` and `load_dataset`, and the error of the first
    run that fails, at the end.
    """
    runs = plan_runs(experiment, options)
    load_dataset(EXPERIMENTS[experiment].dataset, options.data, progress)  # one error, not one of each run
    outcomes = require_all(run_planned(runs, study=study, progress=progress))
    return build_frame(outcomes, options)


def build_frame(outcomes: Sequence[Outcome], options: RunOptions) -> pd.DataFrame:
    """The rows of all runs, in the order of their plan; columns: `COLUMNS`.

    The last one is the paper's number, unless the options are not those of the paper.
    """
    import pandas as pd

    known = published_results()
    rows = [row for each in sorted(outcomes, key=lambda outcome: outcome.number) for row in each.result or ()]
    for row in rows:
        name = ResultName(*(row[name] for name in (*COLUMNS[:4], "metric")))
        row["published"] = known.get(name) if _is_of_paper(name, options) else None
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"value": "float64", "published": "float64"})
    frame.attrs = {"title": "Exponential family attention", "published": SOURCE, "as_published": options.published}
    return frame


def _is_of_paper(name: ResultName, options: RunOptions) -> bool:
    """Whether a model is the paper's. The number of layers is part of the setting for temperatures only."""
    layers = SETTINGS[name.experiment].efa.get("layers")
    has_layers = options.layers in (None, layers) or name.model != "efa" or name.experiment == TEMPERATURE
    return options.epochs is None and has_layers
