"""Calls that are made ahead: their results come in order, and nobody waits for what is not needed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from support.hub_client import environment_of
from support.hub_server import Fault, serve
from support.kept import file_of, write_layers

from attngeo.checkpoints.files import THREADS, start_all


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_results_come_in_the_order_of_the_values(at_once: int) -> None:
    with closing(start_all(lambda number: number * number, range(20), at_once)) as calls:
        assert [wait() for wait in calls] == [number * number for number in range(20)]


@pytest.mark.parametrize("at_once", [1, 3])
def test_the_first_error_in_the_order_of_the_values_is_raised(at_once: int) -> None:
    def divide(number: int) -> float:
        return 1 / (number % 3)

    with closing(start_all(divide, [1, 2, 3, 6], at_once)) as calls:
        assert next(calls)() == 1
        assert next(calls)() == 0.5
        with pytest.raises(ZeroDivisionError):
            next(calls)()


def test_several_calls_are_made_at_a_time() -> None:
    barrier = threading.Barrier(3, timeout=60)
    with closing(start_all(lambda _: barrier.wait(), range(3), 3)) as calls:
        assert sorted(wait() for wait in calls) == [0, 1, 2]


def test_no_call_begins_after_the_end() -> None:
    go, called = threading.Event(), []

    def call(number: int) -> None:
        called.append(number)
        go.wait(60)

    with closing(start_all(call, range(10), 2)) as calls:
        next(calls)
    go.set()
    for thread in threading.enumerate():
        if thread.name.startswith(THREADS):
            thread.join(60)
    assert sorted(called) == [0, 1]


def test_ctrl_c_does_not_wait_for_a_server_that_is_silent(tmp_path: Path) -> None:
    with serve() as hub:
        hub.repositories["org/name"] = write_layers(tmp_path / "remote")
        hub.faults[file_of(1)] = Fault(silent=True)
        command = [
            sys.executable, "-c",
            f"import os; os.environ.update({environment_of(hub.url, tmp_path / 'home')!r})\n"
            "from attngeo.commands.app import main; main()", "score", "org/name",
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            while file_of(1) not in [request.file for request in hub.requests] and process.poll() is None:
                threading.Event().wait(0.01)
            process.send_signal(signal.SIGINT)
            # The time-out of one request is ten seconds, and several follow each other.
            assert process.wait(timeout=9) == 130
