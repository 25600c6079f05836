"""Files that are opened at once: nobody waits for a server that is silent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from attngeo.commands.app import main
from support.hub_client import reach_hub
from support.hub_server import Fault, serve
from support.kept import file_of, write_layers


def score_remotely() -> None:
    """Be the process of the command."""
    sys.argv = ["attngeo", "score", "org/name"]
    os.environ["HF_HUB_VERBOSITY"] = "error"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()


def test_ctrl_c_does_not_wait_for_a_server_that_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as hub:
        hub.repositories["org/name"] = write_layers(tmp_path / "remote")
        hub.faults[file_of(1)] = Fault(silent=True)
        reach_hub(hub.url, tmp_path / "home", monkeypatch)
        process = multiprocessing.get_context("fork").Process(target=score_remotely)  # it has loaded the libraries
        process.start()
        assert process.pid is not None
        while file_of(1) not in [request.file for request in hub.requests] and process.is_alive():
            threading.Event().wait(0.01)
        threading.Event().wait(0.3)  # until it waits: between a check for signals and a wait, Python notices none
        os.kill(process.pid, signal.SIGINT)
        # The time-out of one request is ten seconds, and several follow each other.
        process.join(timeout=9)
        assert process.exitcode == 130
