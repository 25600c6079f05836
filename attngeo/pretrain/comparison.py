"""Comparisons of runs that differ in their initialisation."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import pandas as pd

from attngeo.bounds.disks import fold_name
from attngeo.errors import AttnGeoError, InterruptedTrainingError, UsageError
from attngeo.keywords import takes_after_two
from attngeo.pretrain.curves import EVALUATION, RUN_COLUMNS, summarize_layers, summarize_runs
from attngeo.pretrain.initialisation import check_init
from attngeo.pretrain.options import ComparisonOptions, RunOptions, TextPretrainOptions, make_absolute
from attngeo.pretrain.runs import Run, refuse_other_runs, require_run, run, run_or_read
from attngeo.progress import ProgressCallback
from attngeo.scores.spec import scores_in
from attngeo.scores.summary import statistics
from attngeo.session import Session, StudyOptions
from attngeo.studies.engine import run_study
from attngeo.studies.run import RunOutcome
from attngeo.tables import write as tables
from attngeo.tables.files import lock_folder

ADVICE = "resume with the same command and --resume"
RESULTS = ("final_loss", "steps_to_baseline", "speed_up")
# Characters of a path that are part of the name of a folder; a name has 255 bytes at most.
LONGEST_INIT = 180


@dataclass(frozen=True)
class Comparison:
    """A comparison of finished runs.

    Attributes:
        folder: folder of the comparison.
        rows: the main table, one row per run.
        curves: scores and loss of all runs at every log.
    """

    folder: Path
    rows: pd.DataFrame
    curves: pd.DataFrame

    @property
    def spread(self) -> pd.DataFrame:
        """One row per objective and initialisation: mean, min and max of each result over the seeds.

        `steps_to_baseline` covers only the runs that reached the baseline's loss; `reached` is their number.
        """
        grouped = self.rows.groupby(["model", "objective", "init"], sort=False)
        evaluated = [name for name in EVALUATION if name in self.rows]
        medians = statistics(["median"], scores_in(self.curves.columns))
        frame = grouped[[*RESULTS, *evaluated, *medians]].agg(["mean", "min", "max"])
        frame.columns = pd.Index(["_".join(pair) for pair in frame.columns])
        frame.insert(0, "seeds", grouped.size())
        frame.insert(1, "reached", grouped["steps_to_baseline"].count())
        frame = frame.reset_index()
        frame.attrs = {"title": "Initialisations compared"}
        return frame

    @property
    def layers(self) -> pd.DataFrame:
        """One row per layer of each run: its scores at the last step, and the steps at which they settled.

        `symmetry` is the score of the whole layer; `heads_symmetry_median` and the quartiles are over its heads. From
        step `symmetry_settled` (or `heads_symmetry_settled`) on, the score (or its median over heads) stays within 10%
        of its last value.
        """
        return summarize_layers(self.curves)


class CompareKeywords(ComparisonOptions, StudyOptions):
    """The keywords of `compare_runs`."""

    comparison: ComparisonOptions | None = None
    study: StudyOptions | None = None
    resume: bool = False
    progress: ProgressCallback | None = None


@takes_after_two(CompareKeywords)
def compare_runs(
    options: RunOptions,
    folder: str | Path,
    comparison: ComparisonOptions,
    *,
    session: Session,
    resume: bool = False,
) -> Comparison:
    """Train once per objective, initialisation and seed, with the same data in the same order.

    Writes a folder for each run to `folder`, and `comparison.csv` and `.parquet` (one row per run), `spread.csv` (over
    seeds), `layers.csv` (one row per layer of each run) and `curves.parquet`. If a run fails, the others continue,
    unless `fail_fast` is set, and its error is raised at the end. `folder` is locked, and so is each run's folder while
    it trains.

    Args:
        options: options of every run; see `attngeo.pretrain.make_options`. The first seed is `options.seed`.
        folder: folder of the comparison.
        {comparison}
        {study}
        resume: keep the finished runs in `folder`, and resume the others.
        progress: called as in `run`; for runs in other processes, when a run ends.

    Returns:
        The finished runs.

    Raises:
        AttnGeoError: as `run` does.
    """
    require_run(options, folder)
    folder = Path(folder)
    inits = [make_absolute("init", init) for init in comparison.compare or ()]
    plan = {_folder_name(planned): planned for planned in _plan(options, inits, comparison)}
    with lock_folder(folder):
        for name, planned in plan.items():  # what would fail later, after hours
            with lock_folder(folder / name):
                if not resume:
                    refuse_other_runs(folder / name, resume=False)
            check_init(planned.init, "compare")
        runs = _train_all(plan, folder, session, resume=resume)
        if not all(run.summary for run in runs):  # not the first process, which has the scores
            return Comparison(folder, pd.DataFrame(), pd.DataFrame())
        curves = build_curves(runs)
        rows = summarize_runs(curves)
        rows.insert(0, "model", [trained.options.model_name for trained in runs])
        rows["steps"] = [trained.summary["settings"]["steps"] for trained in runs]
        rows.attrs = {"title": "Initialisations compared, run by run"}
        compared = Comparison(folder, rows, curves)
        tables.write_table(rows, folder / "comparison.csv")
        tables.write_table(rows, folder / "comparison.parquet")
        tables.write_table(compared.spread, folder / "spread.csv")
        tables.write_table(compared.layers, folder / "layers.csv")
        tables.write_table(curves, folder / "curves.parquet")
    return compared


def _plan(options: RunOptions, inits: Sequence[str], comparison: ComparisonOptions) -> list[RunOptions]:
    """The options of every run. Raises UsageError."""
    if len(inits) < 2 or len(set(inits)) < len(inits):
        raise UsageError(f"$compare is {','.join(inits)!r}, expected two or more, all different", "compare")
    by_objective = [options]
    if comparison.objectives:
        if not isinstance(options, TextPretrainOptions):
            raise UsageError("$objectives applies to text, but these runs use images; leave it out", "objectives")
        by_objective = [options.replace(objective=objective) for objective in comparison.objectives]
    plan = [
        planned.replace(init=init, seed=options.seed + number)
        for planned, number, init in product(by_objective, range(comparison.seeds), inits)
    ]
    if len({fold_name(_folder_name(planned)) for planned in plan}) < len(plan):
        raise UsageError(
            f"$compare is {','.join(inits)!r}: two of them would have folders with the same name, or with names that "
            "differ only in case, which some disks treat as equal; rename one of them",
            "compare",
        )
    if options.steps % options.log_every:
        raise UsageError(
            f"$steps is {options.steps}, expected a multiple of $log_every {options.log_every}, so that every logged "
            "loss is a mean over equally many steps; change one of them",
            "steps",
            "log_every",
        )
    return plan


def _folder_name(options: RunOptions) -> str:
    init = re.sub(r"[^\w.-]+", "-", options.init)[-LONGEST_INIT:].strip("-.")
    return f"{options.objective_name}-{init}-seed{options.seed}"


def _train_all(plan: Mapping[str, RunOptions], folder: Path, session: Session, *, resume: bool) -> list[Run]:
    """Train each run in a folder of its own, or read it if it is finished. plan: name of the folder → options.

    Raises InterruptedTrainingError if a signal stopped the runs, otherwise the first failure, after the other runs.
    """
    study = session.study
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1  # that accelerate started, and that train each run together
    if several and study.elsewhere:
        raise UsageError(
            "$jobs and $cluster need one process per run; start without accelerate launch", "jobs", "cluster"
        )
    # Of several processes that train each run, the first would go on to the next run without the others. A cluster may
    # repeat a run whose worker was lost, and which has saved a checkpoint or is finished.
    outcomes = run_study(
        partial(_train_one, folder=folder, resume=resume or study.elsewhere),
        list(plan.items()),
        replace(session, study=study.replace(fail_fast=study.fail_fast or several)),
        names=list(plan),
        saves=True,
    )
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    if failed:
        raise _explain_failures(failed, len(plan))
    if len(outcomes) < len(plan):
        raise InterruptedTrainingError(f"interrupted after {len(outcomes)} of {len(plan)} runs", ADVICE)
    return [outcome.result for outcome in outcomes if outcome.result is not None]


def _train_one(setting: tuple[str, RunOptions], session: Session, *, folder: Path, resume: bool) -> Run:
    """One run of the study, in the folder of its name. resume: it may be there."""
    name, options = setting
    train = run_or_read if resume else run
    try:
        return train(options, folder / name, progress=session.progress)
    except InterruptedTrainingError as error:
        raise InterruptedTrainingError(error.what, ADVICE, subject=name) from None


def _explain_failures(failed: Sequence[RunOutcome[Run]], total: int) -> AttnGeoError:
    """The error for runs that did not finish: that of the first which failed by itself, not by a signal."""
    faults = [outcome for outcome in failed if not isinstance(outcome.failure, InterruptedTrainingError)]
    error = (faults or failed)[0].failure
    assert error is not None
    if len(faults) > 1:
        names = ", ".join(outcome.name for outcome in faults)
        error.args = (f"{error.args[0]}; {len(faults)} of {total} runs failed: {names}", *error.option)
    return error


def build_curves(runs: Iterable[Run]) -> pd.DataFrame:
    """The scores of all runs, with the columns `RUN_COLUMNS` first and, for images, `EVALUATION` last.

    The values of `EVALUATION` are in the rows of the last step.
    """
    geometries = {}
    for trained in runs:
        options = trained.options
        geometry = trained.rows.copy()
        is_last = geometry["step"] == geometry["step"].max()
        for name in EVALUATION:
            if name in trained.summary:
                geometry.loc[is_last, name] = trained.summary[name]
        geometries[options.objective_name, options.init, options.seed] = geometry
    curves = pd.concat(geometries, names=[*RUN_COLUMNS]).reset_index([*RUN_COLUMNS]).reset_index(drop=True)
    curves.attrs = {"title": "Training curves"}
    return curves
