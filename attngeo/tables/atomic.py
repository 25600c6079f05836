"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

from attngeo.errors import OutputError

# The signals that interrupt a command.
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def check_writable(path: Path, suffixes: Collection[str]) -> None:
    """Raise OutputError if a file of one of these formats cannot be written. Call it before the work that fills it."""
    if path.suffix.lower() not in suffixes:
        raise OutputError(f"{path}: unknown format, expected a name that ends in one of: {' '.join(suffixes)}")
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder, expected a file name")
        if not path.parent.is_dir():
            raise OutputError(f"{path}: folder {path.parent} does not exist; create it first")
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror or error})") from None
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"{path}: no permission to write in {path.parent}")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder, which is renamed to `path` if the block succeeds. Raises OutputError.

    The old file stays until the new one is complete. If the block fails, the temporary file is removed.
    """
    # A random name, because processes in two containers, or threads of one process, have the same id.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    name = str(partial)
    try:
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
