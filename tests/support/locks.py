"""Another process that holds the lock of a folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOLD = """
import os, sys
from pathlib import Path
from attngeo.tables.files import lock_folder
first = os.getpid()
with lock_folder(Path(sys.argv[1])):
    if "worker" not in sys.argv or not os.fork():  # a worker outlives a process that is killed
        print("locked", flush=True)
    sys.stdin.read()
    if os.getpid() != first:
        os._exit(0)
"""


@contextmanager
def locked_elsewhere(folder: Path, *, with_worker: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Inside the block, a process holds the lock; at the end it lets go."""
    command = [sys.executable, "-c", HOLD, str(folder), *(["worker"] if with_worker else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        yield holder
