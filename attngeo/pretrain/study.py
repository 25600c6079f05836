"""The runs of a comparison, one after the other or several at the same time. Each keeps its results in its folder."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from attngeo.errors import AttnGeoError, InterruptedTrainingError, UsageError
from attngeo.pretrain.options import ImagePretrainOptions, TextPretrainOptions
from attngeo.pretrain.runs import STOPPING, Run, load_run, run_locked
from attngeo.pretrain.settings_file import FILE as SETTINGS
from attngeo.pretrain.settings_file import resume_options
from attngeo.progress import Progress, ProgressCallback
from attngeo.studies.engine import run_study
from attngeo.studies.options import StudyOptions
from attngeo.studies.tasks import RunOutcome
from attngeo.tables.atomic import SIGNALS
from attngeo.tables.lock import lock_folder

# A file in the folder of a comparison that asks its runs in other processes to save a checkpoint and stop.
STOP = ".stop"
ADVICE = "resume with the same command and --resume"


def train_all(
    plan: Mapping[str, TextPretrainOptions | ImagePretrainOptions],
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
        raise UsageError("jobs and cluster are for runs of one process; start them without accelerate launch")
    stop = folder / STOP
    stop.unlink(missing_ok=True)

    def note(outcome: RunOutcome[Run]) -> None:
        if study.elsewhere:
            how = "failed" if outcome.failure is not None else "finished"
            report(Progress("train", f"{outcome.name}  {how}"))
            if outcome.failure is not None and (study.fail_fast or _is_interrupted(outcome)):
                stop.touch()  # so that the other runs save a checkpoint before they end
        elif _is_interrupted(outcome) or (outcome.result and outcome.result.stopped and outcome.number + 1 < len(plan)):
            raise _explain_interrupt([outcome])

    # The first process of several would go on to the next run without the others.
    options = study.replace(fail_fast=(study.fail_fast and not study.elsewhere) or several)
    train = partial(train_one, folder=folder, resume=resume, locked=not study.elsewhere)
    try:
        with _passing_on_signals(stop, report) if study.elsewhere else nullcontext():
            outcomes = run_study(
                train, list(plan.items()), names=list(plan), options=options, progress=report, on_outcome=note
            )
    finally:
        stop.unlink(missing_ok=True)
    if failed := [each for each in outcomes if each.failure is not None]:
        raise _explain_failures(failed, len(plan))
    return [each.result for each in outcomes if each.result is not None]


def train_one(
    setting: tuple[str, TextPretrainOptions | ImagePretrainOptions],
    progress: ProgressCallback,
    *,
    folder: Path,
    resume: bool,
    locked: bool,
) -> Run:
    """One run of the study, in the folder of its name. A finished one is read."""
    name, options = setting
    place, stop = folder / name, folder / STOP
    if stop.exists():
        raise InterruptedTrainingError("interrupted before this run was started")
    with nullcontext() if locked else lock_folder(place):
        # A cluster may repeat a run whose worker was lost, and which has saved a checkpoint or is finished.
        resume = resume or not locked
        if resume and (done := load_run(place)) is not None:
            resume_options(done.options, dict(options), place)  # raises if they differ
            return done
        started = (place / SETTINGS).is_file()
        try:
            return run_locked(options, place, resume=resume and started, report=progress, asked_to_stop=stop.exists)
        except KeyboardInterrupt:
            if locked:  # this is the process of the command
                raise
            raise InterruptedTrainingError("interrupted while no checkpoint could be saved") from None


def _is_interrupted(outcome: RunOutcome[Run]) -> bool:
    return isinstance(outcome.failure, InterruptedTrainingError)


def _explain_interrupt(outcomes: Sequence[RunOutcome[Run]]) -> InterruptedTrainingError:
    """The error for runs that a signal stopped. It names the first."""
    first = outcomes[0]
    what = (
        first.failure.what
        if isinstance(first.failure, InterruptedTrainingError)
        else "interrupted after this run was finished"
    )
    return InterruptedTrainingError(f"{first.name}: {what}", ADVICE)


def _explain_failures(failed: Sequence[RunOutcome[Run]], total: int) -> AttnGeoError:
    """The error for runs that did not finish: that of the first which failed by itself."""
    own = [each for each in failed if not _is_interrupted(each)]
    if not own:
        return _explain_interrupt(failed)
    error = own[0].failure
    assert error is not None
    if len(own) == 1:
        return error
    others = ", ".join(each.name for each in own[1:])
    return type(error)(f"{own[0].name}: {error}; {len(own)} of {total} runs failed, also {others}")


@contextmanager
def _passing_on_signals(stop: Path, report: ProgressCallback) -> Iterator[None]:
    """At the first Ctrl-C or SIGTERM, ask the runs in other processes to stop; at the second one, end the study."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def pass_on(number: int, frame: FrameType | None) -> None:
        if stop.exists():
            handler: Any = before[signal.Signals(number)]
            if callable(handler):
                handler(number, frame)
            raise KeyboardInterrupt
        stop.touch()
        report(Progress("train", STOPPING))

    try:
        for number in SIGNALS:
            signal.signal(number, pass_on)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
