"""Files that are opened at once: nobody waits for a server that is silent."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

from support.hub_client import environment_of
from support.hub_server import Fault, serve
from support.kept import file_of, write_layers


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
            threading.Event().wait(0.3)  # until it waits: between a check for signals and a wait, Python notices none
            process.send_signal(signal.SIGINT)
            # The time-out of one request is ten seconds, and several follow each other.
            assert process.wait(timeout=9) == 130
