"""One run of a study, in whichever process it is done: its result or its error, and what the library logged."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import attngeo
from attngeo.errors import AttnGeoError, StudyError, UnexpectedError
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.studies.gpus import take_gpu

Setting = TypeVar("Setting")
Result = TypeVar("Result")
Function = Callable[[Setting, ProgressCallback], Result]

LOGGER = logging.getLogger("attngeo")
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

    notes: what its progress said about results that were kept.
    """

    number: int
    name: str
    result: Result | None = None
    failure: AttnGeoError | None = None
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


@dataclass(frozen=True)
class StudyEnvironment:
    """What a run in another process has to have in common with this one."""

    version: str = attngeo.__version__
    folder: str = field(default_factory=lambda: str(Path.cwd()))
    log_level: int = field(default_factory=LOGGER.getEffectiveLevel)


def run_task(function: Function[Any, Any], task: StudyTask[Any], progress: ProgressCallback) -> RunOutcome[Any]:
    """The outcome of one run in this process. Only Ctrl-C and the end of the process are not outcomes."""
    notes: list[str] = []

    def report(step: Progress) -> None:
        if step.phase == "kept":
            notes.append(step.what)
        else:
            progress(step)

    try:
        return RunOutcome(task.number, task.name, function(task.setting, report), notes=tuple(notes))
    except AttnGeoError as error:
        failure = error
    except Exception as error:
        failure = UnexpectedError.of(task.name, error)
        failure.__cause__ = error
    return RunOutcome(task.number, task.name, failure=failure, notes=tuple(notes))


def run_elsewhere(
    function: Function[Any, Any], task: StudyTask[Any], environment: StudyEnvironment
) -> tuple[RunOutcome[Any], list[tuple[int, str]]]:
    """The outcome of one run in a process that was started for a study, and the records that it logged.

    Raises StudyError if this process has another version of attngeo.
    """
    if attngeo.__version__ != environment.version:
        raise StudyError(
            f"a worker has attngeo {attngeo.__version__}, expected {environment.version}; install the same version on "
            "all workers"
        )
    with _alone, _in_folder(environment.folder), _collect_log(environment.log_level) as records, take_gpu():
        try:
            outcome = run_task(function, task, ignore_progress)
        except KeyboardInterrupt:  # a signal to this process alone
            outcome = RunOutcome(
                task.number, task.name, failure=StudyError(f"{task.name}: its process was interrupted")
            )
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
