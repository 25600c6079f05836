"""One engine for many independent runs: a list of settings and a function of one of them.

    outcomes = run_study(function, settings, names=names, options=StudyOptions(jobs=4))

The engine keeps no results. The function of a run does, each in its own way, and may be called twice for one setting,
because a cluster may do so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, TypeVar

from attngeo.errors import InterruptedTrainingError
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.studies.options import StudyOptions
from attngeo.studies.tasks import Function, RunOutcome, StudyTask, run_task

Setting = TypeVar("Setting")
Result = TypeVar("Result")
# Names of runs that the progress shows at most.
MOST_NAMES = 3


def run_study(
    function: Function[Setting, Result],
    settings: Sequence[Setting],
    *,
    names: Sequence[str],
    options: StudyOptions = StudyOptions(),
    progress: ProgressCallback = ignore_progress,
    on_outcome: Callable[[RunOutcome[Result]], None] = lambda _: None,
) -> list[RunOutcome[Result]]:
    """Call `function(setting, progress)` for each setting. Returns the outcomes in the order of the settings.

    names: of each setting, for people. options: in how many processes, or on which cluster. progress: called as a run
    proceeds; for runs in other processes, when one ends. on_outcome: called in this process with each outcome as it
    arrives, in any order.

    A run that fails does not stop the others, unless `options.fail_fast`: then the runs that are not finished end at
    once, and are missing from the list. The same happens if `on_outcome` or `progress` raises, or on Ctrl-C, also if a
    training saved its state and ended; the exception goes to the caller. With several processes or a cluster, function,
    settings and results are pickled.
    Raises UsageError or ClusterError if the cluster cannot be used.
    """
    tasks = [StudyTask(i, name, setting) for i, (name, setting) in enumerate(zip(names, settings, strict=True))]
    options = options.replace(jobs=max(1, min(options.jobs, len(tasks))))
    found: dict[int, RunOutcome[Result]] = {}
    with closing(_start(function, tasks, options, progress)) as outcomes:
        for outcome in outcomes:
            found[outcome.number] = outcome
            if options.elsewhere:
                _report_several(tasks, found, options, progress)
            on_outcome(outcome)
            if isinstance(outcome.failure, InterruptedTrainingError) and not options.elsewhere:
                raise outcome.failure  # the user stopped the study, not only this run
            if outcome.failure is not None and options.fail_fast:
                break
    return [found[number] for number in sorted(found)]


def _start(
    function: Function[Any, Any], tasks: Sequence[StudyTask[Any]], options: StudyOptions, progress: ProgressCallback
) -> Generator[RunOutcome[Any], None, None]:
    """The outcomes as they arrive, by the means that the options name."""
    if options.cluster is not None:
        from attngeo.studies.cluster import run_on_cluster

        _report_several(tasks, {}, options, progress)
        return run_on_cluster(function, tasks, options.cluster)
    if options.jobs > 1:
        from attngeo.studies.processes import run_in_processes

        _report_several(tasks, {}, options, progress)
        return run_in_processes(function, tasks, options.jobs)
    return _run_here(function, tasks, progress)


def _run_here(
    function: Function[Any, Any], tasks: Sequence[StudyTask[Any]], progress: ProgressCallback
) -> Generator[RunOutcome[Any], None, None]:
    """One run after the other in this process. Its progress is that of the run, named by the run's position."""
    for task in tasks:
        label = f"{task.number + 1}/{len(tasks)} {task.name}  " if len(tasks) > 1 else ""

        def report(step: Progress, label: str = label) -> None:
            progress(dataclasses.replace(step, what=f"{label}{step.what}"))

        yield run_task(function, task, report)


def _report_several(
    tasks: Sequence[StudyTask[Any]],
    found: dict[int, RunOutcome[Any]],
    options: StudyOptions,
    progress: ProgressCallback,
) -> None:
    """Report how many runs are finished, and which are in work: in their order, as many as there are processes."""
    left = [task.name for task in tasks if task.number not in found]
    working = left[: options.jobs]
    more = f" and {len(working) - MOST_NAMES} more" if len(working) > MOST_NAMES else ""
    what = f"on {options.cluster}" if options.cluster is not None else ", ".join(working[:MOST_NAMES]) + more
    progress(Progress("study", what, len(found), len(tasks), "steps"))
