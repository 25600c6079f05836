"""Files that are written whole or not at all, and folders that one process writes at a time."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

from attngeo.bounds.small_files import read_small_text
from attngeo.errors import FolderInUseError, OutputError
from attngeo.progress import is_first_process

# The signals that interrupt a command: Ctrl-C, a request of the system, and a terminal that was closed or, on Windows,
# Ctrl-Break.
SIGNALS = [
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if name in signal.Signals.__members__
]
# A file whose lock the system releases when its process ends, however it ends.
LOCK = ".lock"
# The number of that process: in a file of its own, because whoever tries to take a lock empties its file.
HOLDER = ".lock.pid"


def check_writable(path: Path, suffixes: Collection[str]) -> None:
    """Raise OutputError if a file of one of these formats cannot be written. Call it before the work that fills it."""
    if path.suffix.lower() not in suffixes:
        raise OutputError(f"unknown format, expected a name that ends in one of: {' '.join(suffixes)}", subject=path)
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder, expected a file name")
        if not path.parent.is_dir():
            raise OutputError(f"folder {path.parent} does not exist; create it first", subject=path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror or error})") from None
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"no permission to write in {path.parent}", subject=path)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder, which is renamed to `path` if the block succeeds. Raises OutputError.

    The folder is created if it is missing.
    The old file stays until the new one is complete. If the block fails, the temporary file is removed.
    """
    # A random name, because processes in two containers, or threads of one process, have the same id.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    name = str(partial)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(path)
    except BaseException as error:
        # Python acts on a second Ctrl-C when a Python function begins, or after one of C. With the name at hand,
        # neither happens before the file is gone.
        try:  # noqa: SIM105
            os.unlink(name)  # noqa: PTH108
        except OSError:
            pass
        if isinstance(error, OSError):
            raise OutputError(f"{path} cannot be written ({error.strerror or error})") from None
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove a folder that was not finished, after an error or Ctrl-C. Another Ctrl-C does not stop this."""
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS} if main else {}
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Inside the block, no other process locks `folder`, which is created if it is missing.

    If accelerate starts several processes for one run, the first one locks. At the end, everything the lock has created
    is removed: its files, and the folder and its parents if they are empty. Raises FolderInUseError at once if another
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
            f"{folder} is in use by {_name_holder(folder)}; wait until it ends, or choose another folder"
        ) from None
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror or error})") from None
    try:
        with atomic_write(folder / HOLDER) as partial:
            partial.write_text(str(os.getpid()), "utf-8", newline="\n")
        yield
    finally:
        # In this order: the lock is released last, and nobody can take that of a file that is gone.
        for name in (HOLDER, LOCK):
            with contextlib.suppress(OSError):
                (folder / name).unlink()
        lock.release()
        for created_folder in created:
            with contextlib.suppress(OSError):
                created_folder.rmdir()  # succeeds only if it is empty


def _create(folder: Path) -> list[Path]:
    """Create the folder and those around it. Returns the ones that were missing, the innermost first.

    Raises OutputError for a file, else OSError.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file, expected a folder")
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _name_holder(folder: Path) -> str:
    """The process that has the lock; "another process" if it has not written its number yet."""
    try:
        return f"process {int(read_small_text(folder / HOLDER))}"
    except (OSError, ValueError):
        return "another process"
