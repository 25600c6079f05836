"""A folder of results that one process writes at a time."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from platform import node

from attngeo.bounds import read_small_text
from attngeo.errors import FolderInUseError, OutputError
from attngeo.progress import is_first_process
from attngeo.tables.atomic import atomic_write

# The system releases the lock of LOCK when its process ends, however it ends. HOLDER says who has it: a file of its
# own, because a file that is renamed into place is never read half-written.
LOCK, HOLDER = ".lock", ".lock.json"
# Seconds to wait for a process that has just locked a folder to say who it is.
PATIENCE, POLL = 1.0, 0.01


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Inside the block, no other process locks `folder`, which is created if it is missing.

    Of the processes that accelerate starts for one run, the first one locks. At the end, what the lock has created is
    removed: its files, and the folder and those around it if they are empty. Raises FolderInUseError at once if another
    process, or another thread of this one, has the lock; OutputError if the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    if not is_first_process():
        yield
        return
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        try:
            created = _create(folder)
            lock.acquire()
        except FileNotFoundError:  # the holder before has just removed the folder that it had created
            created = _create(folder)
            lock.acquire()
    except Timeout:
        raise FolderInUseError(
            f"{folder} is in use by {_describe_holder(folder)}; wait until it ends, or choose another folder"
        ) from None
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror or error})") from None
    try:
        with atomic_write(folder / HOLDER) as partial:
            started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            partial.write_text(json.dumps({"pid": os.getpid(), "host": node(), "started": started}), "utf-8")
        yield
    finally:
        # In this order: the lock is released last, and nobody can take that of a file that is gone.
        for name in (HOLDER, LOCK):
            with contextlib.suppress(OSError):
                (folder / name).unlink()
        lock.release()
        for each in created:
            with contextlib.suppress(OSError):
                each.rmdir()  # succeeds only if it is empty


def _create(folder: Path) -> list[Path]:
    """Create the folder. Returns the missing ones, it first. Raises OutputError for a file, else OSError."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file, expected a folder")
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _describe_holder(folder: Path) -> str:
    """The process that has the lock: its id, its machine if that is another one, and when it started.

    The file may still name a process that was killed before: the present holder is about to replace it.
    """
    import psutil

    end = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            holder = json.loads(read_small_text(folder / HOLDER))
            pid, host, started = int(holder["pid"]), str(holder["host"]), str(holder["started"])
            if host != node():
                return f"process {pid} on {host} since {started}"
            if psutil.pid_exists(pid):
                return f"process {pid} since {started}"
        if time.monotonic() > end:
            return "another process"
        time.sleep(POLL)
