"""One run of a study: its setting and outcome, and how it is done in this process or in another one."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from attngeo.errors import (
    AttnGeoError,
    InterruptedTrainingError,
    StudyError,
    UnexpectedError,
    explain_exhaustion,
    is_panic,
)
from attngeo.progress import Progress
from attngeo.session import Session
from attngeo.version import __version__

Setting = TypeVar("Setting")
Result = TypeVar("Result")
Function = Callable[[Setting, Session], Result]
LOGGER = logging.getLogger("attngeo")
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# Runs in threads of one process would share its folder, its GPU and its random numbers.
_alone = threading.Lock()


@dataclass(frozen=True)
class StudyTask:
    """One run of a study.

    Attributes:
        number: position of the setting in the list of settings, from 0.
        name: name that a person knows it by.
        setting: argument of the function.
    """

    number: int
    name: str
    setting: Any


@dataclass(frozen=True)
class RunOutcome(Generic[Result]):
    """The end of one run.

    Attributes:
        number: position of its setting in the list of settings.
        name: name of its setting.
        result: result of the function, if `failure` is None.
        failure: error that ended the run; None if it succeeded.
        is_raised: whether the function raised the failure itself; its message need not name the run, unlike that of
            other failures.
        notes: messages of its progress about results that were kept.
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


# The outcomes of the runs of a study, as they arrive.
Outcomes = Generator[RunOutcome[Any], None, None]


def require_all(outcomes: list[RunOutcome[Result]]) -> list[RunOutcome[Result]]:
    """The outcomes, if no run failed. Raises the error of the first one that did."""
    for outcome in outcomes:
        if outcome.failure is not None:
            raise outcome.failure
    return outcomes


def run_task(function: Function[Any, Any], task: StudyTask, session: Session, total: int = 1) -> RunOutcome[Any]:
    """The outcome of one run in this process.

    Only Ctrl-C and the end of the process are not outcomes. total: number of runs that this process does one after the
    other; if there are several, progress begins with the run's position.
    """
    label = f"{task.number + 1}/{total} {task.name}  " if total > 1 else ""
    notes: list[str] = []

    def report(step: Progress) -> None:
        if step.phase == "kept":
            notes.append(f"{label}{step.what}")
        else:
            session.progress(dataclasses.replace(step, what=f"{label}{step.what}"))

    try:
        result = function(task.setting, dataclasses.replace(session, progress=report))
        return RunOutcome(task.number, task.name, result, notes=tuple(notes))
    except AttnGeoError as error:
        return RunOutcome(task.number, task.name, failure=error, is_raised=True, notes=tuple(notes))
    except BaseException as error:
        failure: AttnGeoError
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        lacking = explain_exhaustion(error)
        if lacking is not None:
            lacking.subject = task.name
        failure = lacking or UnexpectedError.describe(task.name, error)
        failure.__cause__ = error
    return RunOutcome(task.number, task.name, failure=failure, notes=tuple(notes))


@dataclass(frozen=True)
class StudyEnvironment:
    """The environment of a run, which another process takes over from this one.

    Attributes:
        session: access to the Hub, kept results and progress.
        version: version of attngeo.
        folder: working folder.
        log_level: level of the logger.
    """

    session: Session
    version: str = __version__
    folder: str = field(default_factory=lambda: str(Path.cwd()))
    log_level: int = field(default_factory=LOGGER.getEffectiveLevel)


def run_elsewhere(
    function: Function[Any, Any], task: StudyTask, environment: StudyEnvironment
) -> tuple[RunOutcome[Any], list[tuple[int, str]]]:
    """The outcome of one run in a process that was started for a study, and the records that it logged.

    Raises StudyError if this process has another version of attngeo.
    """
    if __version__ != environment.version:
        raise StudyError(
            f"a worker has attngeo {__version__}, expected {environment.version}; install the same version on "
            "all workers"
        )
    # Relative paths mean the same everywhere. A machine that lacks the folder stays where it is.
    folder = environment.folder if Path(environment.folder).is_dir() else Path.cwd()
    with _alone, contextlib.chdir(folder), _collect_log(environment.log_level) as records:
        take_gpu(task.number)
        try:
            outcome = run_task(function, task, environment.session)
        except KeyboardInterrupt:  # a signal to this process alone
            failure = InterruptedTrainingError("its process was interrupted", "repeat the command", subject=task.name)
            outcome = RunOutcome(task.number, task.name, failure=failure)
    if isinstance(outcome.failure, UnexpectedError) and outcome.failure.__cause__ is not None:
        # The error itself may not survive the way to the other process.
        trace = "".join(traceback.format_exception(outcome.failure.__cause__))
        outcome.failure.__cause__ = None
        outcome.failure.add_note(f"Traceback from the worker process:\n{trace}")
    return outcome, records


def take_outcome(returned: tuple[RunOutcome[Any], list[tuple[int, str]]]) -> RunOutcome[Any]:
    """The outcome that `run_elsewhere` returned. Logs in this process what the run has logged in the other one."""
    outcome, records = returned
    for level, text in records:
        LOGGER.log(level, "%s", text)
    return outcome


def take_gpu(number: int) -> None:
    """Let this process see only one GPU if there are several, chosen by the run's number modulo their count.

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
