"""One engine for many independent runs: a list of settings and a function of one of them.

    outcomes = run_study(function, settings, Session(study=StudyOptions(jobs=4)))

Runs are done in this process, in processes of this machine by joblib, or on a Dask cluster (see `cluster`). The engine
keeps no results. The function of a run does, each in its own way, and may be called twice for one setting, because a
cluster may do so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

from attngeo.errors import AttnGeoError, InterruptedTrainingError, StudyError, UnexpectedError
from attngeo.progress import Progress
from attngeo.session import Session
from attngeo.tables.files import SIGNALS
from attngeo.version import __version__

Setting = TypeVar("Setting")
Result = TypeVar("Result")
Function = Callable[[Setting, Session], Result]

LOGGER = logging.getLogger("attngeo")
# Names of runs that the progress shows at most.
MOST_NAMES = 3
# Seconds between two looks at the process that started this one, and to save a checkpoint after it was killed.
POLL, GRACE = 1, 60
# What joblib warns of: a process whose memory grew is replaced, and a study ended before all runs were finished.
JOBLIB_WARNINGS = ("A worker stopped while some jobs were given", ".*(have been cancelled|successfully executed)")
STOPPING = "stopping after this step; press Ctrl-C again to stop now"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# Runs in threads of one process would share its folder, its GPU and its random numbers.
_alone = threading.Lock()


@dataclass(frozen=True)
class StudyTask(Generic[Setting]):
    """A setting of a study, its position in the list of settings, and the name that a person knows it by."""

    number: int
    name: str
    setting: Setting


@dataclass(frozen=True)
class RunOutcome(Generic[Result]):
    """The end of one run. number, name: of its setting. result: of the function, if `failure` is None.

    is_raised: whether the function raised the failure itself; its message need not name the run, as that of other
    failures does. notes: what its progress said about results that were kept.
    """

    number: int
    name: str
    result: Result | None = None
    failure: AttnGeoError | None = None
    is_raised: bool = False
    notes: tuple[str, ...] = ()

    @property
    def cause(self) -> BaseException | None:
        """The exception that ended the run, if it failed: as it was raised, if that was in this process."""
        if isinstance(self.failure, UnexpectedError) and self.failure.__cause__ is not None:
            return self.failure.__cause__
        return self.failure


def require_all(outcomes: list[RunOutcome[Result]]) -> list[RunOutcome[Result]]:
    """The outcomes, if no run failed. Raises the error of the first one that did."""
    for outcome in outcomes:
        if outcome.failure is not None:
            raise outcome.failure
    return outcomes


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

    session: its `study` says in how many processes, or on which cluster, runs are done; its `progress` is called as a
    run proceeds, and for runs in other processes when one ends. names: of each setting, for people; by default the
    settings are names. on_outcome: called in this process with each outcome as it arrives, in any order. saves: whether
    a run saves its state and ends at Ctrl-C: then Ctrl-C and SIGTERM reach the runs in other processes of this machine,
    no further run begins, and the outcomes are waited for. A second one ends all processes.

    A run that fails does not stop the others, unless `fail_fast`: then the runs that are not finished end at once, and
    are missing from the list. The same happens if `on_outcome` or `progress` raises, or on Ctrl-C, also if a training
    saved its state and ended; the exception goes to the caller. With several processes or a cluster, function,
    settings, session and results are pickled.
    Raises UsageError or ClusterError if the cluster cannot be used.
    """
    if names is None:
        names = [str(setting) for setting in settings]
    tasks = [StudyTask(i, name, setting) for i, (name, setting) in enumerate(zip(names, settings, strict=True))]
    options, progress = session.study, session.progress
    jobs = min(options.jobs, len(tasks))
    is_elsewhere = jobs > 1 or options.cluster is not None
    arrived: dict[int, RunOutcome[Result]] = {}

    def report_several() -> None:
        """How many runs are finished, and which are in work: in their order, as many as there are processes."""
        left = [task.name for task in tasks if task.number not in arrived]
        working = left[: max(jobs, 1)]
        more = f" and {len(working) - MOST_NAMES} more" if len(working) > MOST_NAMES else ""
        what = f"on {options.cluster}" if options.cluster is not None else ", ".join(working[:MOST_NAMES]) + more
        progress(Progress("study", what, len(arrived), len(tasks), "steps"))

    if is_elsewhere:
        report_several()
    if options.cluster is not None:
        from attngeo.studies.cluster import run_on_cluster

        running = run_on_cluster(function, tasks, session, options.cluster)
    elif is_elsewhere:
        running = run_in_processes(function, tasks, session, jobs, saves=saves)
    else:
        running = _run_here(function, tasks, session)
    with closing(running) as outcomes:
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


@contextlib.contextmanager
def catch_signals(handle: Callable[[], bool]) -> Iterator[None]:
    """Call `handle` at the first Ctrl-C or SIGTERM inside the block. Only the main thread can; another changes nothing.

    A second signal, and one for which `handle` returns False, goes to the handler that was there before, or raises
    KeyboardInterrupt if there was none. A process of a study ignores a second Ctrl-C: the process that started it
    passes the signal on, and ends it if there is another.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        again, handler = bool(arrived), before[number]
        arrived.append(number)
        if (again and handler is signal.SIG_IGN) or (not again and handle()):
            return
        if callable(handler):
            handler(number, frame)
        raise KeyboardInterrupt

    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number in SIGNALS:
            signal.signal(number, on_signal)
        yield
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)


def _run_here(
    function: Function[Any, Any], tasks: Sequence[StudyTask[Any]], session: Session
) -> Generator[RunOutcome[Any], None, None]:
    """One run after the other in this process. Its progress is that of the run, named by the run's position."""
    for task in tasks:
        label = f"{task.number + 1}/{len(tasks)} {task.name}  " if len(tasks) > 1 else ""

        def report(step: Progress, label: str = label) -> None:
            session.progress(dataclasses.replace(step, what=f"{label}{step.what}"))

        yield run_task(function, task, dataclasses.replace(session, progress=report))


def run_task(function: Function[Any, Any], task: StudyTask[Any], session: Session) -> RunOutcome[Any]:
    """The outcome of one run in this process. Only Ctrl-C and the end of the process are not outcomes."""
    notes: list[str] = []

    def report(step: Progress) -> None:
        if step.phase == "kept":
            notes.append(step.what)
        else:
            session.progress(step)

    try:
        result = function(task.setting, dataclasses.replace(session, progress=report))
        return RunOutcome(task.number, task.name, result, notes=tuple(notes))
    except AttnGeoError as error:
        return RunOutcome(task.number, task.name, failure=error, is_raised=True, notes=tuple(notes))
    except Exception as error:
        failure = UnexpectedError.describe(task.name, error)
        failure.__cause__ = error
    return RunOutcome(task.number, task.name, failure=failure, notes=tuple(notes))


def run_in_processes(
    function: Function[Any, Any],
    tasks: Sequence[StudyTask[Any]],
    session: Session,
    jobs: int,
    *,
    saves: bool,
) -> Generator[RunOutcome[Any], None, None]:
    """The outcome of each run as it arrives. Closing the iterator ends all processes at once.

    If a process is killed, for example because memory ran out, joblib ends the others, too. The runs that were lost
    fail; those that had not begun are done by new processes. saves: see `run_study`.
    """
    from concurrent.futures.process import BrokenProcessPool

    environment = StudyEnvironment(session)
    left = {task.number: task for task in tasks}
    started: dict[int, StudyTask[Any]] = {}
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
            except BrokenProcessPool:
                for task in list(started.values() or left.values()):
                    del left[task.number]
                    failure = StudyError(
                        f"{task.name}: its process was killed, or ended with one that was, perhaps because memory ran "
                        "out; repeat the command with fewer processes"
                    )
                    yield RunOutcome(task.number, task.name, failure=failure)


def _run_pool(calls: Iterator[tuple[Any, ...]], jobs: int) -> Generator[RunOutcome[Any], None, None]:
    """Call `run_elsewhere` in processes. Raises BrokenProcessPool."""
    from joblib import Parallel, delayed, parallel_config

    # joblib gives each process an equal share of the cores, unless OMP_NUM_THREADS says how many threads it has. With
    # one process only, it would start none.
    with parallel_config("loky", initializer=prepare_process), warnings.catch_warnings():
        for harmless in JOBLIB_WARNINGS:
            warnings.filterwarnings("ignore", harmless, UserWarning)
        parallel = Parallel(
            n_jobs=max(jobs, 2), return_as="generator_unordered", batch_size=1, pre_dispatch=jobs, max_nbytes=None
        )
        with closing(parallel(delayed(run_elsewhere)(*call) for call in calls)) as results:
            yield from map(take_outcome, results)


def prepare_process() -> None:
    """Make a new process silent, let it end with the one that started it, and leave Ctrl-C to that."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")


def interrupt_processes() -> None:
    """Send Ctrl-C to the processes that this one started for a study. Those between two runs ignore it."""
    import psutil

    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "loky" in " ".join(process.cmdline()):
                process.send_signal(signal.SIGINT)


def _end_with_parent(parent: int) -> None:
    """End this process if the one that started it was killed: nobody takes its result. Training saves a checkpoint."""
    while os.getppid() == parent:
        time.sleep(POLL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class StudyEnvironment:
    """The surroundings of a run, which another process takes over from this one."""

    session: Session
    version: str = __version__
    folder: str = field(default_factory=lambda: str(Path.cwd()))
    log_level: int = field(default_factory=LOGGER.getEffectiveLevel)


def run_elsewhere(
    function: Function[Any, Any], task: StudyTask[Any], environment: StudyEnvironment
) -> tuple[RunOutcome[Any], list[tuple[int, str]]]:
    """The outcome of one run in a process that was started for a study, and the records that it logged.

    Raises StudyError if this process has another version of attngeo.
    """
    if __version__ != environment.version:
        raise StudyError(
            f"a worker has attngeo {__version__}, expected {environment.version}; install the same version on "
            "all workers"
        )
    with _alone, _in_folder(environment.folder), _collect_log(environment.log_level) as records:
        take_gpu(task.number)
        try:
            outcome = run_task(function, task, environment.session)
        except KeyboardInterrupt:  # a signal to this process alone
            failure = InterruptedTrainingError(f"{task.name}: its process was interrupted", "repeat the command")
            outcome = RunOutcome(task.number, task.name, failure=failure)
    if isinstance(outcome.failure, UnexpectedError) and outcome.failure.__cause__ is not None:
        # The error itself may not survive the way to the other process.
        trace = "".join(traceback.format_exception(outcome.failure.__cause__))
        outcome.failure.__cause__ = None
        outcome.failure.add_note(f"In the process of the run:\n{trace}")
    return outcome, records


def take_outcome(returned: tuple[RunOutcome[Any], list[tuple[int, str]]]) -> RunOutcome[Any]:
    """The outcome that `run_elsewhere` returned. Logs in this process what the run has logged in the other one."""
    outcome, records = returned
    for level, text in records:
        LOGGER.log(level, "%s", text)
    return outcome


def take_gpu(number: int) -> None:
    """Let this process see one GPU only, if there are several: that of a run's number, counted round.

    A process keeps the GPU of its first run, because CUDA reads the variable only once.
    """
    visible = os.environ.get(VISIBLE_GPUS)
    if visible is not None and "," not in visible:
        return  # nothing to choose from, and torch takes a second to load
    import torch

    count = torch.cuda.device_count()
    names = [name.strip() for name in (visible or "").split(",") if name.strip()]
    gpus = names[:count] or list(map(str, range(count)))
    if len(gpus) > 1:
        os.environ[VISIBLE_GPUS] = gpus[number % len(gpus)]


@contextlib.contextmanager
def _in_folder(folder: str) -> Iterator[None]:
    """Work in a folder, so that relative paths mean the same everywhere. A machine that lacks it stays where it is."""
    before = Path.cwd()
    try:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _collect_log(level: int) -> Iterator[list[tuple[int, str]]]:
    """Collect what the library logs: the level and the text of each record."""
    records: list[tuple[int, str]] = []
    handler = logging.Handler(level)
    handler.emit = lambda record: records.append((record.levelno, record.getMessage()))  # type: ignore[method-assign]
    before = LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(level)
    try:
        yield records
    finally:
        LOGGER.setLevel(before)
        LOGGER.removeHandler(handler)
