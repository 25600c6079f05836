"""Runs that differ in their initialisation, and how their results differ."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pandas as pd

from attngeo.choices import Objective
from attngeo.errors import AttnGeoError, InterruptedTrainingError, UsageError
from attngeo.figures.kinds import LOSS, PlotOptions
from attngeo.figures.training import draw_training, draw_training_layers
from attngeo.options import takes_after_two
from attngeo.pretrain.callback import geometry_columns
from attngeo.pretrain.initialisation import check_init
from attngeo.pretrain.options import (
    SETTINGS,
    ComparisonOptions,
    RunOptions,
    TextPretrainOptions,
    make_absolute,
    resume_options,
)
from attngeo.pretrain.runs import STOPPING, Run, load_run, refuse_other_runs, run_locked, spread_at
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.scores.spec import score_names
from attngeo.scores.summary import QUARTILES, statistics
from attngeo.studies.engine import RunOutcome, StudyOptions, interrupt_processes, run_study
from attngeo.tables import write as tables
from attngeo.tables.files import SIGNALS, atomic_write, lock_folder

RUN_COLUMNS = ("objective", "init", "seed")
ADVICE = "resume with the same command and --resume"
RESULTS = ("final_loss", "steps_to_baseline", "speed_up")


def comparison_columns() -> tuple[str, ...]:
    """The columns of a comparison's rows, in their order; there is one row for each run."""
    return ("model", *RUN_COLUMNS, "steps", *RESULTS, *statistics(QUARTILES))


@dataclass(frozen=True)
class Comparison:
    """Finished runs. rows: one for each run. curves: their geometry and loss at every log."""

    folder: Path
    rows: pd.DataFrame
    curves: pd.DataFrame

    @property
    def spread(self) -> pd.DataFrame:
        """One row for each objective and initialisation: mean, min and max over seeds of each result.

        Those of `steps_to_baseline` are over the runs that reached the baseline's loss, `reached` of them.
        """
        grouped = self.rows.groupby(["model", "objective", "init"], sort=False)
        frame = grouped[[*RESULTS, *statistics(["median"])]].agg(["mean", "min", "max"])
        frame.columns = pd.Index(["_".join(pair) for pair in frame.columns])
        frame.insert(0, "seeds", grouped.size())
        frame.insert(1, "reached", grouped["steps_to_baseline"].count())
        frame = frame.reset_index()
        frame.attrs = {"title": "Initialisations compared"}
        return frame


class CompareKeywords(ComparisonOptions, StudyOptions):
    """The keywords of `compare`."""

    comparison: ComparisonOptions | None = None
    study: StudyOptions | None = None
    resume: bool = False
    progress: ProgressCallback | None = None


@takes_after_two(CompareKeywords)
def compare(
    options: RunOptions,
    folder: str | Path,
    comparison: ComparisonOptions,
    *,
    study: StudyOptions,
    resume: bool = False,
    progress: ProgressCallback | None = None,
) -> Comparison:
    """Train once for each objective, initialisation and seed, with the same data in the same order.

    options: of every run; see `attngeo.pretrain.make_options`. The seeds are counted from `options.seed` on.
    {comparison}
    {study}
    resume: keep the finished runs in `folder`, and resume those that are not. progress: called as by `run`; for runs in
    other processes, when one ends.

    Writes to `folder` a folder for each run, `comparison.csv` and `.parquet` (a row for each run), `spread.csv` (over
    seeds), `curves.parquet` and `curves.html`. A run that fails does not stop the others, unless `fail_fast`: its error
    is raised at the end. Raises as `run` does. All these folders are locked from the start.
    """
    folder, report = Path(folder), progress or ignore_progress
    inits = [make_absolute("init", init) for init in comparison.compare or ()]
    plan = {_folder_name(planned): planned for planned in _plan(options, inits, comparison)}
    with ExitStack() as locks:
        locks.enter_context(lock_folder(folder))
        for name in plan:
            if not study.elsewhere:
                locks.enter_context(lock_folder(folder / name))
            else:
                with lock_folder(folder / name):
                    pass  # it is free; the process of the run locks it
        for name, planned in plan.items():  # what would fail later, after hours
            if not resume:
                refuse_other_runs(folder / name, resume=False)
            check_init(planned.init)
        runs = _train_all(plan, folder, study, resume=resume, report=report)
        if not all(run.summary for run in runs):  # not the first process, which has the scores
            return Comparison(folder, pd.DataFrame(columns=list(comparison_columns())), pd.DataFrame())
        compared = Comparison(folder, _build_rows(runs, inits[0]), build_curves(runs))
        _write(compared)
    return compared


def _plan(options: RunOptions, inits: Sequence[str], comparison: ComparisonOptions) -> list[RunOptions]:
    """The options of every run. Raises UsageError."""
    if len(inits) < 2 or len(set(inits)) < len(inits):
        raise UsageError(f"$compare is {','.join(inits)!r}, expected two or more different initialisations", "compare")
    by_objective = [options]
    if comparison.objectives:
        if not isinstance(options, TextPretrainOptions):
            raise UsageError("$objectives is for texts, but these runs are on images; leave it out", "objectives")
        known = cast(Sequence[Objective], comparison.objectives)  # ComparisonOptions has checked them
        by_objective = [options.replace(objective=objective) for objective in known]
    plan = [
        planned.replace(init=init, seed=options.seed + number)
        for planned, number, init in product(by_objective, range(comparison.seeds), inits)
    ]
    if len({_folder_name(planned) for planned in plan}) < len(plan):
        raise UsageError(f"$compare is {','.join(inits)!r}: two of them would have folders of the same name", "compare")
    if options.steps % options.log_every:
        raise UsageError(
            f"$steps is {options.steps}, expected a multiple of $log_every {options.log_every}: otherwise the last "
            "loss is a mean of fewer steps than the others; change one of them",
            "steps",
            "log_every",
        )
    return plan


def _folder_name(options: RunOptions) -> str:
    init = re.sub(r"[^\w.-]+", "-", options.init).strip("-.")
    return f"{options.objective_name}-{init}-seed{options.seed}"


def _train_all(
    plan: Mapping[str, RunOptions],
    folder: Path,
    study: StudyOptions,
    *,
    resume: bool,
    report: ProgressCallback,
) -> list[Run]:
    """Train each run in a folder of its own, or read it if it is finished. The caller has locked `folder`.

    plan: name of the folder → options. With one process, the caller has also locked the folders of the runs.
    Raises InterruptedTrainingError if a signal stopped the runs, otherwise the first failure, after the other runs.
    """
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1  # that accelerate started, and that train each run together
    if several and study.elsewhere:
        raise UsageError(
            "$jobs and $cluster are for one process a run; start without accelerate launch", "jobs", "cluster"
        )
    stop = _StopRuns(report)

    def note(outcome: RunOutcome[Run]) -> None:
        if study.elsewhere:
            how = "failed" if outcome.failure is not None else "finished"
            report(Progress("train", f"{outcome.name}  {how}"))
            is_last = outcome.failure is not None and (study.fail_fast or _is_interrupted(outcome))
            if is_last and study.jobs > 1:
                stop.stop()
        elif _is_interrupted(outcome) or (outcome.result and outcome.result.stopped and outcome.number + 1 < len(plan)):
            raise _explain_interrupt([outcome])

    # Other processes of this machine save checkpoints before they end. The first process of several that train each run
    # would go on to the next run without the others.
    fail_fast = several or (study.fail_fast and study.jobs == 1)
    train = partial(_train_one, folder=folder, resume=resume, locked=not study.elsewhere)
    with stop.listening() if study.jobs > 1 else nullcontext():
        outcomes = run_study(
            train, list(plan.items()), names=list(plan), options=study.replace(fail_fast=fail_fast),
            progress=report, on_outcome=note, is_stopped=stop.is_requested,
        )  # fmt: skip
    if failed := [outcome for outcome in outcomes if outcome.failure is not None]:
        raise _explain_failures(failed, len(plan))
    if len(outcomes) < len(plan):
        name = next(name for name in plan if name not in {outcome.name for outcome in outcomes})
        raise InterruptedTrainingError(f"{name}: interrupted before this run was started", ADVICE)
    return [outcome.result for outcome in outcomes if outcome.result is not None]


def _train_one(
    setting: tuple[str, RunOptions],
    progress: ProgressCallback,
    *,
    folder: Path,
    resume: bool,
    locked: bool,
) -> Run:
    """One run of the study, in the folder of its name. A finished one is read."""
    name, options = setting
    place = folder / name
    with nullcontext() if locked else lock_folder(place):
        # A cluster may repeat a run whose worker was lost, and which has saved a checkpoint or is finished.
        resume = resume or not locked
        if resume and (done := load_run(place)) is not None:
            resume_options(done.options, dict(options), place)  # raises if they differ
            return done
        started = (place / SETTINGS).is_file()
        try:
            return run_locked(options, place, resume=resume and started, report=progress)
        except KeyboardInterrupt:
            if locked:  # this is the process of the command
                raise
            raise InterruptedTrainingError("interrupted while no checkpoint could be saved") from None


class _StopRuns:
    """Stops the runs in other processes of this machine: they save checkpoints and end, and no further run begins."""

    def __init__(self, report: ProgressCallback) -> None:
        self._report, self._requested = report, False

    def is_requested(self) -> bool:
        """Whether the runs were asked to stop."""
        return self._requested

    def stop(self) -> None:
        """Ask the runs to stop, as Ctrl-C does."""
        self._requested = True
        interrupt_processes()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Stop the runs at the first Ctrl-C or SIGTERM inside the block; at the second one, end the study."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}

        def pass_on(number: int, frame: FrameType | None) -> None:
            if self._requested:
                handler: Any = before[signal.Signals(number)]
                if callable(handler):
                    handler(number, frame)
                raise KeyboardInterrupt
            self.stop()
            self._report(Progress("train", STOPPING))

        try:
            for number in SIGNALS:
                signal.signal(number, pass_on)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _is_interrupted(outcome: RunOutcome[Run]) -> bool:
    return isinstance(outcome.failure, InterruptedTrainingError)


def _explain_interrupt(outcomes: Sequence[RunOutcome[Run]]) -> InterruptedTrainingError:
    """The error for runs that a signal stopped. It names the first."""
    failure = outcomes[0].failure
    what = failure.what if isinstance(failure, InterruptedTrainingError) else "interrupted after this run was finished"
    return InterruptedTrainingError(f"{outcomes[0].name}: {what}", ADVICE)


def _explain_failures(failed: Sequence[RunOutcome[Run]], total: int) -> AttnGeoError:
    """The error for runs that did not finish: that of the first which failed by itself."""
    faults = [outcome for outcome in failed if not _is_interrupted(outcome)]
    if not faults:
        return _explain_interrupt(failed)
    error = faults[0].failure
    assert error is not None
    if len(faults) == 1:
        return error
    others = ", ".join(outcome.name for outcome in faults[1:])
    return type(error)(f"{faults[0].name}: {error}; {len(faults)} of {total} runs failed, also {others}")


def find_speed_up(losses: Sequence[float], baseline: Sequence[float]) -> tuple[int | None, float]:
    """The first log at which `losses` is below the last of `baseline`, counted from 1, and the share of logs it saves.

    The share is (T − t)/T, where T is the number of logs; None and 0.0 if no log is below.
    Source: Saponati et al. 2025 (arXiv 2502.10927), Table 1.

    >>> find_speed_up([5.0, 3.0, 1.0, 0.5], [5.0, 4.0, 3.0, 2.0])
    (3, 0.25)
    """
    for number, loss in enumerate(losses, 1):
        if loss < baseline[-1]:
            return number, (len(losses) - number) / len(losses)
    return None, 0.0


def _build_rows(runs: Sequence[Run], baseline: str) -> pd.DataFrame:
    baselines = {_pair(run): _losses(run) for run in runs if run.options.init == baseline}
    rows: list[dict[str, Any]] = []
    for run in runs:
        options, losses = run.options, _losses(run)
        number, gained = find_speed_up(list(losses), list(baselines[_pair(run)]))
        steps = run.summary["settings"]["steps"]
        reached_at = None if number is None else int(losses.index[number - 1])
        if options.init == baseline:
            reached_at, gained = int(losses.index[-1]), 0.0
        spread = spread_at(run.geometry, int(run.geometry["step"].max()))
        rows.append({
            "model": options.model_name, "objective": options.objective_name, "init": options.init,
            "seed": options.seed, "steps": steps, "final_loss": float(losses.iloc[-1]),
            "steps_to_baseline": reached_at, "speed_up": gained,
            **{name: spread[name] for name in statistics(QUARTILES)},
        })  # fmt: skip
    frame = pd.DataFrame(rows, columns=list(comparison_columns())).astype({"steps_to_baseline": "Int64"})
    frame.attrs = {"title": "Initialisations compared, run by run"}
    return frame


def _pair(run: Run) -> tuple[str, int]:
    """What a run has in common with its baseline: objective and seed."""
    return run.options.objective_name, run.options.seed


def _losses(run: Run) -> pd.Series[float]:
    """The logged losses, by step: each a mean of as many steps as the others.

    The number of steps of a run by epochs follows from the images. If its last log is a mean of fewer, it is left out,
    unless it is the only one.
    """
    losses = run.geometry[["step", "loss"]].dropna().drop_duplicates().set_index("step")["loss"]
    even = losses[losses.index % run.options.log_every == 0]
    return even if len(even) else losses


def list_curve_columns() -> tuple[str, ...]:
    """The columns of the curves of runs."""
    return (*RUN_COLUMNS, *geometry_columns())


def build_curves(runs: Iterable[Run]) -> pd.DataFrame:
    """The geometry of all runs, with the columns `RUN_COLUMNS` in front."""
    parts = []
    for run in runs:
        part = run.geometry.copy()
        values: list[Any] = [run.options.objective_name, run.options.init, run.options.seed]
        for place, (name, value) in enumerate(zip(RUN_COLUMNS, values, strict=True)):
            part.insert(place, name, value)
        parts.append(part)
    curves = pd.concat(parts, ignore_index=True)
    curves.attrs = {"title": "Training curves"}
    return curves


def build_figures(curves: pd.DataFrame) -> dict[str, Any]:
    """The paper's figures of training, by title: Fig. 3 if there are two objectives, Fig. S5 for each of them."""
    # Runs that are older than a score have no column of it.
    by_score = {name: PlotOptions(score=name) for name in score_names() if name in curves}
    figures: dict[str, Any] = {}
    baseline = curves[curves["init"] == curves["init"].iloc[0]]
    if baseline["objective"].nunique() > 1:
        for score, options in by_score.items():
            figures[f"{score} during training, by objective"] = draw_training(baseline, options)
            figures[f"{score} of each layer, by objective"] = draw_training_layers(baseline, options)
    for objective, rows in curves.groupby("objective", sort=False):
        figures[f"{objective}: loss, by initialisation"] = draw_training(rows, PlotOptions(score=LOSS))
        for score, options in by_score.items():
            figures[f"{objective}: {score}, by initialisation"] = draw_training(rows, options)
            figures[f"{objective}: {score} of each layer, by initialisation"] = draw_training_layers(rows, options)
    return figures


def _write(comparison: Comparison) -> None:
    folder = comparison.folder
    for name in ("comparison.csv", "comparison.parquet"):
        tables.write_table(comparison.rows, folder / name)
    tables.write_table(comparison.spread, folder / "spread.csv")
    tables.write_table(comparison.curves, folder / "curves.parquet")
    page = "\n".join(
        figure.to_html(full_html=False, include_plotlyjs=not number)
        for number, figure in enumerate(build_figures(comparison.curves).values())
    )
    with atomic_write(folder / "curves.html") as path:
        path.write_text(
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Training curves</title></head><body>\n'
            f"{page}\n</body></html>\n", "utf-8",
        )  # fmt: skip
