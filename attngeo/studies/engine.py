"""One engine for many independent runs: a list of settings and a function of one of them.

    outcomes = run_study(function, settings, Session(study=StudyOptions(jobs=4)))

Runs are done in this process, in processes of this machine by joblib, or on a Dask cluster (see `cluster`). The engine
keeps no results. The function of a run does, each in its own way, and may be called twice for one setting, because a
cluster may do so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial

from attngeo.bounds.names import list_names
from attngeo.errors import InterruptedTrainingError
from attngeo.progress import Progress
from attngeo.session import Session
from attngeo.studies.processes import run_in_processes
from attngeo.studies.run import Function, Result, RunOutcome, Setting, StudyTask, run_task


def run_study(
    function: Function[Setting, Result],
    settings: Sequence[Setting],
    session: Session = Session(),
    *,
    names: Sequence[str] | None = None,
    on_outcome: Callable[[RunOutcome[Result]], None] = lambda _: None,
    saves: bool = False,
) -> list[RunOutcome[Result]]:
    """Call `function(setting, session)` for each setting. Returns the outcomes in the order of the settings.

    A run that fails does not stop the others, unless `fail_fast` is set: then unfinished runs end at once, and are
    missing from the list. The same happens on Ctrl-C, or if `on_outcome` or `progress` raises, also if a training saved
    its state and ended; the exception goes to the caller. With several processes or a cluster, function, settings,
    session and results are pickled.

    Args:
        function: function of a setting and a session.
        settings: one for each run.
        session: its `study` sets the number of processes, or the cluster; its `progress` is called as a run proceeds,
            and for runs in other processes when one ends.
        names: readable name of each setting; by default the settings themselves.
        on_outcome: called in this process with each outcome as it arrives, in any order.
        saves: whether a run saves its state and ends at Ctrl-C: then Ctrl-C, SIGTERM and SIGHUP reach the runs in other
            processes of this machine, no further run begins, and the outcomes are waited for. A second one ends all
            processes.

    Raises:
        UsageError: distributed is not installed, or the address of the scheduler is invalid.
        ClusterError: the scheduler cannot be reached, or is lost.
    """
    if names is None:
        names = [str(setting) for setting in settings]
    tasks = [StudyTask(i, name, setting) for i, (name, setting) in enumerate(zip(names, settings, strict=True))]
    options = session.study
    progress = session.progress
    jobs = min(options.jobs, len(tasks))
    is_elsewhere = jobs > 1 or options.cluster is not None
    arrived: dict[int, RunOutcome[Result]] = {}

    def report_several() -> None:
        """The number of finished runs, and the runs in progress: in order, as many as there are processes."""
        working = [task.name for task in tasks if task.number not in arrived][:jobs]
        what = list_names(working) if options.cluster is None else f"on {options.cluster}"
        progress(Progress("study", what, len(arrived), len(tasks), "steps"))

    if is_elsewhere:
        report_several()
    if options.cluster is not None:
        from attngeo.studies.cluster import run_on_cluster

        running: AbstractContextManager[Iterable[RunOutcome[Result]]]
        running = closing(run_on_cluster(function, tasks, session, options.cluster))
    elif is_elsewhere:
        running = closing(run_in_processes(function, tasks, session, jobs, saves=saves))
    else:
        running = nullcontext(map(partial(run_task, function, session=session, total=len(tasks)), tasks))
    with running as outcomes:
        for outcome in outcomes:
            arrived[outcome.number] = outcome
            if is_elsewhere:
                report_several()
            on_outcome(outcome)
            if isinstance(outcome.failure, InterruptedTrainingError) and not is_elsewhere:
                raise outcome.failure  # the user stopped the study, not only this run
            if outcome.failure is not None and options.fail_fast:
                break
    return [arrived[number] for number in sorted(arrived)]
