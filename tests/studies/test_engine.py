"""The engine of studies: order, failures, interruption, in this process and in several."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.children import list_children
from support.messages import assert_states, refuses
from support.study_runs import end_its_process, square, square_or_fail, tell, wait_for_delivery

from attngeo import errors
from attngeo.errors import (
    AttnGeoError,
    CorruptCheckpointError,
    InterruptedTrainingError,
    StudyError,
    UnexpectedError,
    UsageError,
)
from attngeo.progress import Progress
from attngeo.session import Session, StudyOptions
from attngeo.studies.engine import run_study
from attngeo.studies.processes import interrupt_processes
from attngeo.studies.results import VARIABLE
from attngeo.studies.run import VISIBLE_GPUS, RunOutcome, take_gpu

ONE, TWO = StudyOptions(), StudyOptions(jobs=2)
NUMBERS = list(range(8))
NAMES = [f"n{number}" for number in NUMBERS]


@pytest.mark.parametrize("options", [ONE, TWO], ids=["one process", "two"])
def test_results_have_the_order_of_the_settings_and_failures_stop_nothing(options: StudyOptions) -> None:
    arrived: list[int] = []
    outcomes = run_study(
        square_or_fail,
        NUMBERS,
        Session(study=options),
        names=NAMES,
        on_outcome=lambda each: arrived.append(each.number),
    )
    assert [each.name for each in outcomes] == NAMES
    assert [each.result for each in outcomes] == [0, None, 4, None, 16, None, 36, None]
    assert sorted(arrived) == NUMBERS
    assert arrived == NUMBERS or options is TWO
    failures = {each.number: each.failure for each in outcomes if each.failure is not None}
    assert {number: type(error) for number, error in failures.items()} == {
        1: CorruptCheckpointError, 3: UnexpectedError, 5: CorruptCheckpointError, 7: UnexpectedError,
    }  # fmt: skip
    assert str(failures[1]) == "1 is corrupt"
    assert_states(str(failures[3]), "n3", "KeyError", 3)


def test_results_are_delivered_as_they_arrive(tmp_path: Path) -> None:
    """The first run ends when the second is delivered."""
    arrived: list[int] = []

    def note(outcome: RunOutcome[int]) -> None:
        arrived.append(outcome.number)
        (tmp_path / "delivered").touch()

    settings = [(0, tmp_path / "delivered"), (1, tmp_path / "delivered")]
    run_study(wait_for_delivery, settings, Session(study=TWO), names=["first", "second"], on_outcome=note)
    assert arrived == [1, 0]


# The processes of two are ended as in `test_an_exception_of_the_caller_ends_the_study`.
@pytest.mark.parametrize("options", [ONE, pytest.param(TWO, marks=pytest.mark.slow)], ids=["one process", "two"])
def test_the_first_failure_stops_the_others_if_that_is_asked_for(options: StudyOptions) -> None:
    fast = StudyOptions(jobs=options.jobs, fail_fast=True)
    outcomes = run_study(square_or_fail, [2, 1, *range(4, 40)], Session(study=fast), names=["x"] * 38)
    assert len(outcomes) < 38
    assert sum(each.failure is not None for each in outcomes) == 1
    assert [each.number for each in outcomes] == sorted(each.number for each in outcomes)


def test_the_progress_of_one_process_is_that_of_its_runs() -> None:
    steps: list[Progress] = []
    run_study(square, [1, 2], Session(progress=steps.append), names=["a", "b"])
    assert [step.what for step in steps] == ["1/2 a  squaring", "2/2 b  squaring"]
    steps.clear()
    run_study(square, [1], Session(progress=steps.append), names=["a"])
    assert [step.what for step in steps] == ["squaring"]


def test_the_progress_of_several_processes_counts_runs_and_names_those_in_work() -> None:
    steps: list[Progress] = []
    run_study(square, [4, 4, 4, 4], Session(study=TWO, progress=steps.append), names=list("abcd"))
    assert [(step.phase, step.done, step.total) for step in steps] == [("study", done, 4) for done in range(5)]
    assert steps[0].what == "a, b"
    assert steps[-1].what == ""


def test_a_training_that_the_user_stopped_ends_the_study() -> None:
    begun: list[int] = []

    def train(number: int, _: Session) -> None:
        begun.append(number)
        raise InterruptedTrainingError("interrupted in epoch 2 of 9", "run it again to resume")

    with pytest.raises(InterruptedTrainingError):
        run_study(train, [0, 1, 2], names=["a", "b", "c"])
    assert begun == [0]


def test_an_exception_of_the_caller_ends_the_study() -> None:
    for options in (ONE, TWO):
        seen: list[int] = []

        def refuse(outcome: Any, seen: list[int] = seen) -> None:
            seen.append(outcome.number)
            raise LookupError

        with pytest.raises(LookupError):
            run_study(square, NUMBERS, Session(study=options), names=NAMES, on_outcome=refuse)
        assert len(seen) == 1


def test_a_run_elsewhere_has_the_folder_and_logs_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_study(tell, ["x", "x"], Session(study=TWO), names=["x", "y"])  # starts processes, in another folder
    monkeypatch.chdir(tmp_path)
    for level, texts in ((logging.WARNING, ["warned about x"]), (logging.INFO, ["warned about x", "noted x"])):
        caplog.clear()
        with caplog.at_level(level, "attngeo"):
            outcomes = run_study(tell, ["x", "x"], Session(study=TWO), names=["x", "y"])
        assert sorted(caplog.messages) == sorted(texts * 2)
    for process, folder, environment in (each.result for each in outcomes if each.result is not None):
        assert process != os.getpid()
        assert folder == str(tmp_path)
        assert environment["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"


def test_a_run_elsewhere_has_the_variables_of_its_study_and_not_of_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for folder in ("first", "second"):
        monkeypatch.setenv(VARIABLE, folder)
        outcomes = run_study(tell, ["x", "x"], Session(study=TWO), names=["x", "y"])
        assert [each.result[2][VARIABLE] for each in outcomes if each.result is not None] == [folder] * 2


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in (("1", "1"), (None, str(max(1, (os.cpu_count() or 1) // 2)))):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if given is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", given)
        (outcome, _) = run_study(tell, ["x", "x"], Session(study=TWO), names=["x", "y"])
        assert outcome.result is not None
        assert outcome.result[2]["OMP_NUM_THREADS"] == expected


def test_a_process_that_is_killed_fails_the_runs_in_work_and_no_others() -> None:
    numbers = [1, 2, -3, 4, 5, 6]
    outcomes = run_study(end_its_process, numbers, Session(study=TWO), names=list("abcdef"))
    failed = {outcome.name: outcome.failure for outcome in outcomes if outcome.failure is not None}
    assert "c" in failed
    assert "f" not in failed  # it had not begun
    for name, failure in failed.items():
        assert isinstance(failure, StudyError)
        assert_states(str(failure), name, "killed", "repeat")
    results = {outcome.result for outcome in outcomes if outcome.failure is None}
    assert results == {number for number, name in zip(numbers, "abcdef", strict=True) if name not in failed}


def test_no_run_begins_after_a_study_is_stopped() -> None:
    """Those that have begun are waited for."""
    arrived: list[int] = []

    def stop(outcome: RunOutcome[int]) -> None:
        if not arrived:
            signal.raise_signal(signal.SIGINT)
        arrived.append(outcome.number)

    outcomes = run_study(square, NUMBERS, Session(study=TWO), names=NAMES, saves=True, on_outcome=stop)
    assert len(arrived) == len(outcomes) < len(NUMBERS)
    assert [outcome.result for outcome in outcomes] == [outcome.number**2 for outcome in outcomes], outcomes


@pytest.mark.parametrize(
    ("count", "visible", "taken"),
    [
        (0, None, [None] * 3),
        (1, None, [None] * 3),
        (2, None, ["0", "1", "0"]),
        (3, "5, GPU-89, 7", ["5", "GPU-89", "7"]),
        (3, "6", ["6"] * 3),
    ],
)
def test_each_process_has_the_gpu_of_its_first_run(
    count: int, visible: str | None, taken: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    for number in range(3):
        monkeypatch.setenv(VISIBLE_GPUS, visible or "")
        if visible is None:
            monkeypatch.delenv(VISIBLE_GPUS)
        for later in (0, 1):
            take_gpu(number + later)
            assert os.environ.get(VISIBLE_GPUS) == taken[number]


def test_errors_of_other_processes_keep_their_traceback() -> None:
    (here,), (elsewhere, _) = (
        run_study(square_or_fail, [3] * n, Session(study=StudyOptions(jobs=n)), names=["n"] * n) for n in (1, 2)
    )
    assert isinstance(here.cause, KeyError)
    assert "raise KeyError(number)" in elsewhere.cause.__notes__[0]  # type: ignore[union-attr]


def test_every_error_survives_the_way_from_another_process() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, AttnGeoError)]
    assert len(kinds) > 15
    for kind in kinds:
        again = pickle.loads(pickle.dumps(kind("what happened")))
        assert (type(again), str(again)) == (kind, "what happened")


def test_options_contradict_each_other() -> None:
    with refuses(UsageError, "jobs", "cluster"):
        StudyOptions(jobs=2, cluster="tcp://127.0.0.1:8786")
    for jobs in (0, 10_000):
        with refuses(UsageError, "jobs", f"{jobs:,}"):
            StudyOptions(jobs=jobs)


INTERRUPTED = """
import sys
from pathlib import Path
from attngeo.studies.engine import run_study
from attngeo.session import Session, StudyOptions
from support.study_runs import note_and_wait
folder = Path(sys.argv[1])
settings = [(folder / f"{number}.run", 0.0 if number == 0 else 60.0) for number in range(6)]
if __name__ == "__main__":
    try:
        run_study(note_and_wait, settings, Session(study=StudyOptions(jobs=int(sys.argv[2]))), names=list("abcdef"))
    except KeyboardInterrupt:
        print("interrupted")
"""


def start_study(folder: Path, jobs: int) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A study that has finished its first run, and its processes."""
    script = folder / "study.py"
    script.write_text(INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, script, folder, str(jobs)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}, start_new_session=True,
    )  # fmt: skip
    while len(list(folder.glob("*.run"))) < jobs + 1:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    time.sleep(0.1)
    return process, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("group", [False, True], ids=["to the process", "to its group, as from a terminal"])
def test_ctrl_c_ends_every_process_at_once(jobs: int, group: bool, tmp_path: Path) -> None:
    process, workers = start_study(tmp_path, jobs)
    started = time.monotonic()
    (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert (stdout, stderr) == ("interrupted\n", "")
    assert time.monotonic() - started < 10
    assert psutil.wait_procs(workers, timeout=10)[1] == []
    assert [path.name for path in tmp_path.glob("*.done")] == ["0.done"]
    assert len(list(tmp_path.glob("*.run"))) == jobs + 1


@pytest.mark.slow
def test_no_process_outlives_a_study_that_is_killed(tmp_path: Path) -> None:
    process, workers = start_study(tmp_path, 2)
    assert len(workers) >= 2
    process.kill()
    assert psutil.wait_procs(workers, timeout=10)[1] == []
    process.communicate()


PREPARE = """
import sys
import time
from attngeo.studies.processes import prepare_process
prepare_process(int(sys.argv[1]))
time.sleep(60)
"""


def test_a_process_ends_if_the_one_that_started_it_has_ended_before_it_asks() -> None:
    """Its parent is another one then."""
    done = subprocess.run([sys.executable, "-c", PREPARE, "0"], timeout=50, check=False)
    assert done.returncode == -signal.SIGTERM


# As on Windows: the number of the parent stays when that has ended, os.kill ends a process at once, and there is no
# SIGKILL: psutil ends a process by a call of that system.
ON_WINDOWS = """
import os
import signal
import sys
import time
import psutil
from attngeo.studies import processes
parent = int(sys.argv[1])
os.getppid = lambda: parent
os.kill = lambda number, _: os._exit(9)
psutil.Process.kill = lambda _: os._exit(1)
del signal.pthread_kill, signal.pthread_sigmask, signal.SIGKILL, signal.SIGHUP
processes.POLL, processes.GRACE = 0.05, 0.5
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"saved\\n"))
processes.prepare_process(parent)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def test_a_process_ends_with_its_parent_on_windows_after_training_has_saved() -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child = subprocess.Popen([sys.executable, "-c", ON_WINDOWS, str(parent.pid)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    parent.kill()
    parent.communicate()
    assert child.communicate(timeout=60) == ("saved\n", None)
    assert child.returncode == 1


def test_processes_that_windows_cannot_interrupt_are_left_to_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    class Child:
        def cmdline(self) -> list[str]:
            return ["python", "-m", "loky"]

        def send_signal(self, number: int) -> None:
            if psutil.WINDOWS:
                raise ValueError("only SIGTERM, CTRL_C_EVENT and CTRL_BREAK_EVENT signals are supported on Windows")
            sent.append(number)

    monkeypatch.setattr(psutil.Process, "children", lambda _: [Child()])
    interrupt_processes()
    assert sent == [signal.SIGINT]
    monkeypatch.setattr(psutil, "WINDOWS", True)
    interrupt_processes()
    assert sent == [signal.SIGINT]


@pytest.mark.slow
def test_no_process_outlives_a_study_that_is_killed_when_it_starts_them(tmp_path: Path) -> None:
    script = tmp_path / "study.py"
    script.write_text(INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, script, tmp_path, "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}, start_new_session=True,
    )  # fmt: skip
    workers: list[psutil.Process] = []
    while len(workers) < 2:
        assert process.poll() is None, process.communicate()
        workers = list_children(process.pid, lambda child: "LokyProcess" in " ".join(child.cmdline()))
        time.sleep(0.001)
    process.kill()
    assert psutil.wait_procs(workers, timeout=30)[1] == []
    process.communicate()


def test_nothing_to_do() -> None:
    assert run_study(square, [], Session(study=TWO), names=[]) == []
