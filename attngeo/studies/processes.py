"""Runs in processes of this machine, by joblib, and what Ctrl-C and the end of a process do to them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import closing
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

import psutil

from attngeo.bounds.children import safe_variables, start_safely
from attngeo.errors import StudyError
from attngeo.progress import Progress
from attngeo.session import Session
from attngeo.studies.run import Function, Outcomes, RunOutcome, StudyEnvironment, StudyTask, run_elsewhere, take_outcome
from attngeo.tables.files import SIGNALS

# Seconds between two looks at the process that started this one, and to save a checkpoint after it was killed.
POLL, GRACE = 1, 60
# What joblib warns of: a process whose memory grew is replaced, and a study ended before all runs were finished.
JOBLIB_WARNINGS = "A worker stopped while some jobs were given|.*(have been cancelled|successfully executed)"
STOPPING = "stopping after this step; press Ctrl-C again to stop now"


@contextlib.contextmanager
def catch_signals(handle: Callable[[], bool]) -> Iterator[None]:
    """Call `handle` at the first of `SIGNALS` inside the block.

    Only the main thread can; in other threads, nothing changes. A second signal, or one for which `handle` returns
    False, goes to the previous handler, or raises KeyboardInterrupt if there was none. A process of a study ignores a
    second Ctrl-C: the process that started it passes the signal on, and ends it if there is another. Other signals that
    are ignored stay so, as SIGHUP by nohup.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        again = bool(arrived)
        handler = before[number]
        arrived.append(number)
        if (again and handler is signal.SIG_IGN) or (not again and handle()):
            return
        if callable(handler):
            handler(number, frame)
        raise KeyboardInterrupt

    before: dict[int, Any] = {
        number: signal.getsignal(number)
        for number in SIGNALS
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        for number in before:
            signal.signal(number, on_signal)
        yield
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)


def run_in_processes(
    function: Function[Any, Any],
    tasks: Sequence[StudyTask],
    session: Session,
    jobs: int,
    *,
    saves: bool,
) -> Outcomes:
    """The outcome of each run as it arrives. Closing the iterator ends all processes at once.

    If a process is killed, for example because memory ran out, joblib ends the others, too. The runs that were lost
    fail; those that had not begun are done by new processes. saves: see `run_study`.
    """
    environment = StudyEnvironment(session)
    left = {task.number: task for task in tasks}
    started: dict[int, StudyTask] = {}
    is_stopped = False

    def stop() -> bool:
        nonlocal is_stopped
        is_stopped = True
        interrupt_processes()
        session.progress(Progress("train", STOPPING))
        return True

    def start() -> Iterator[tuple[Any, ...]]:
        for task in list(left.values()):
            if is_stopped:
                return
            started[task.number] = task
            yield function, task, environment

    with catch_signals(stop) if saves else contextlib.nullcontext():
        while left and not is_stopped:
            started.clear()
            try:
                with closing(_run_pool(start(), jobs)) as outcomes:
                    for outcome in outcomes:
                        del started[outcome.number], left[outcome.number]
                        yield outcome
            except BrokenExecutor:
                for task in list(started.values() or left.values()):
                    del left[task.number]
                    failure = StudyError(
                        "its process was killed, or ended because another process was killed, perhaps because "
                        "memory ran out; repeat the command with fewer processes",
                        subject=task.name,
                    )
                    yield RunOutcome(task.number, task.name, failure=failure)


def _run_pool(calls: Iterator[tuple[Any, ...]], jobs: int) -> Outcomes:
    """Call `run_elsewhere` in processes. Raises BrokenExecutor."""
    from joblib.externals.loky.backend import resource_tracker as loky_tracker
    from joblib.parallel import LokyBackend, Parallel, delayed, parallel_config

    def start_trackers() -> None:
        """Start the cleaning processes before closing the terminal could end them."""
        with _block_signal("SIGHUP"):
            loky_tracker.ensure_running()
            resource_tracker.ensure_running()

    class SafeBackend(LokyBackend):  # type: ignore[misc]
        """Starts processes that look for no modules in the working folder."""

        def _prepare_worker_env(self, n_jobs: int) -> dict[str, str]:
            # All variables: joblib takes the processes of an earlier study if theirs are the same, and no others.
            return {**os.environ, **super()._prepare_worker_env(n_jobs), **safe_variables()}

        def submit(self, *arguments: Any, **more: Any) -> Any:
            """Start processes that Ctrl-C does not reach before `prepare_process`, which would break all of them."""
            start_trackers()  # their start would end the block
            with _block_signal("SIGINT"):
                return super().submit(*arguments, **more)

    # joblib gives each process an equal share of the cores, unless OMP_NUM_THREADS says how many threads it has. With
    # one process only, it would start none.
    backend = SafeBackend(initializer=prepare_process, initargs=(os.getpid(),))
    with start_safely(), parallel_config(backend), warnings.catch_warnings():
        warnings.filterwarnings("ignore", JOBLIB_WARNINGS, UserWarning)
        start_trackers()
        parallel = Parallel(
            n_jobs=max(jobs, 2), return_as="generator_unordered", batch_size=1, pre_dispatch=jobs, max_nbytes=None
        )
        with closing(parallel(delayed(run_elsewhere)(*call) for call in calls)) as results:
            yield from map(take_outcome, results)


@contextlib.contextmanager
def _block_signal(name: str) -> Iterator[None]:
    """A signal waits until the end of the block; a process that is started in it goes on to block it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.Signals[name]})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def prepare_process(parent: int) -> None:
    """Make a new process silent, end it with its parent, and leave Ctrl-C to the parent.

    parent: the number of that process, which may have ended before this one asks who its parent is.
    """
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")


def interrupt_processes() -> None:
    """Send Ctrl-C to the processes that this one started for a study.

    Processes between two runs ignore it. On Windows, no process can send it to another one, but a terminal sends it to
    all its processes.
    """
    if psutil.WINDOWS:
        return
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "loky" in " ".join(process.cmdline()):
                process.send_signal(signal.SIGINT)


def _end_with_parent(parent: int) -> None:
    """End this process if the one that started it was killed: nobody takes its result. Training saves a checkpoint."""
    with contextlib.suppress(psutil.NoSuchProcess):
        started_by = psutil.Process(parent)
        # On Windows a process keeps the number of a parent that has ended. Elsewhere that parent may still be listed.
        while os.getppid() == parent and started_by.is_running():
            time.sleep(POLL)
    if hasattr(signal, "pthread_kill"):
        os.kill(os.getpid(), signal.SIGTERM)  # also wakes the main thread
    else:  # Windows, where os.kill would end this process at once
        signal.raise_signal(signal.SIGTERM)
    time.sleep(GRACE)
    psutil.Process().kill()
