"""GPUs: each run has one for itself. The devices are invented; the locks are real."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from attngeo.studies import gpus
from attngeo.studies.gpus import VISIBLE, take_gpu


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """A machine with three GPUs."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(VISIBLE, "")  # so that it is restored, also if it is not set
    monkeypatch.delenv(VISIBLE)
    gpus._list_gpus.cache_clear()
    yield monkeypatch
    gpus._list_gpus.cache_clear()


def take_as_another_process() -> str:
    """The GPU of a run in a process that has not had one before."""
    os.environ.pop(VISIBLE, None)
    with take_gpu():
        return os.environ[VISIBLE]


def test_each_run_takes_a_free_one(machine: pytest.MonkeyPatch) -> None:
    with take_gpu():
        assert os.environ[VISIBLE] == "0"
        assert take_as_another_process() == "1"
        assert take_as_another_process() == "1"
    machine.setenv(VISIBLE, "2")
    with take_gpu():  # the same process again
        assert os.environ[VISIBLE] == "2"


def test_a_run_waits_until_one_is_free(machine: pytest.MonkeyPatch) -> None:
    machine.setattr("torch.cuda.device_count", lambda: 2)
    taken, free = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        from filelock import FileLock

        with FileLock(gpus._lock_folder() / f"{number}.lock"):
            held[number].set()
            free.wait()

    held = [threading.Event(), threading.Event()]
    holders = [threading.Thread(target=hold, args=(number,)) for number in range(2)]
    for holder in holders:
        holder.start()
    for each in held:
        each.wait()

    def take() -> None:
        with take_gpu():
            taken.set()

    waiting = threading.Thread(target=take)
    waiting.start()
    assert not taken.wait(0.5)
    free.set()
    assert taken.wait(10)
    for thread in (*holders, waiting):
        thread.join()


def test_only_those_that_are_visible_are_taken(machine: pytest.MonkeyPatch) -> None:
    machine.setattr("torch.cuda.device_count", lambda: 2)
    machine.setenv(VISIBLE, "5, GPU-8932f937")
    with take_gpu():
        assert os.environ[VISIBLE] == "5"
        os.environ[VISIBLE] = "5, GPU-8932f937"
        with take_gpu():
            assert os.environ[VISIBLE] == "GPU-8932f937"


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_happens_with_fewer_than_two(machine: pytest.MonkeyPatch, count: int) -> None:
    machine.setattr("torch.cuda.device_count", lambda: count)
    machine.setattr("filelock.FileLock", None)
    with take_gpu(), take_gpu():
        assert VISIBLE not in os.environ
