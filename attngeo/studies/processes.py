"""Runs in processes of this machine, by joblib."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from typing import Any

from attngeo.errors import StudyError
from attngeo.studies.tasks import Function, RunOutcome, StudyEnvironment, StudyTask, run_elsewhere, take_outcome

# Seconds between two looks at the process that started this one, and to save a checkpoint after it was killed.
POLL, GRACE = 1, 60
# What joblib warns of: a process whose memory grew is replaced, and a study ended before all runs were finished.
JOBLIB_WARNINGS = ("A worker stopped while some jobs were given", ".*(have been cancelled|successfully executed)")


def run_in_processes(
    function: Function[Any, Any], tasks: Sequence[StudyTask[Any]], jobs: int
) -> Generator[RunOutcome[Any], None, None]:
    """The outcome of each run as it arrives. Closing the iterator ends all processes at once.

    If a process is killed, for example because memory ran out, joblib ends the others, too. The runs that were lost are
    then repeated one at a time, so that only the run that is to blame fails.
    """
    environment, waiting = StudyEnvironment(), {task.number: task for task in tasks}
    while waiting:
        started: dict[int, StudyTask[Any]] = {}
        try:
            with closing(_run_pool(function, list(waiting.values()), jobs, environment, started)) as outcomes:
                for outcome in outcomes:
                    del started[outcome.number], waiting[outcome.number]
                    yield outcome
        except BrokenProcessPool:
            for task in list(started.values()):
                del waiting[task.number]
                yield _run_alone(function, task, environment)


def _run_pool(
    function: Function[Any, Any],
    tasks: Sequence[StudyTask[Any]],
    jobs: int,
    environment: StudyEnvironment,
    started: dict[int, StudyTask[Any]],
) -> Generator[RunOutcome[Any], None, None]:
    """Run the tasks in processes, and note in `started` those that are given to one. Raises BrokenProcessPool."""
    from joblib import Parallel, delayed, parallel_config

    def note_start() -> Iterator[Any]:
        for task in tasks:
            started[task.number] = task
            yield delayed(run_elsewhere)(function, task, environment)

    # joblib gives each process an equal share of the cores, unless OMP_NUM_THREADS says how many threads it has. With
    # one process only, it would start none.
    with parallel_config("loky", initializer=prepare_process), warnings.catch_warnings():
        for harmless in JOBLIB_WARNINGS:
            warnings.filterwarnings("ignore", harmless, UserWarning)
        parallel = Parallel(
            n_jobs=max(jobs, 2), return_as="generator_unordered", batch_size=1, pre_dispatch=jobs, max_nbytes=None
        )
        with closing(parallel(note_start())) as results:
            yield from map(take_outcome, results)


def _run_alone(function: Function[Any, Any], task: StudyTask[Any], environment: StudyEnvironment) -> RunOutcome[Any]:
    try:
        with closing(_run_pool(function, [task], 1, environment, {})) as outcomes:
            return next(outcomes)
    except BrokenProcessPool:
        failure = StudyError(
            f"{task.name}: its process was killed, perhaps because memory ran out; use fewer processes, or a machine "
            "with more memory"
        )
        return RunOutcome(task.number, task.name, failure=failure)


def prepare_process() -> None:
    """Make a new process silent, let it end with the one that started it, and leave Ctrl-C to that."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")


def _end_with_parent(parent: int) -> None:
    """End this process if the one that started it was killed: nobody takes its result. Training saves a checkpoint."""
    while os.getppid() == parent:
        time.sleep(POLL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)
