"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from attngeo.errors import OutputError


def check_writable(path: Path, suffixes: Collection[str]) -> None:
    """Raise OutputError unless a file of one of these formats could be written: done before the work that fills it."""
    if path.suffix.lower() not in suffixes:
        raise OutputError(f"{path}: no such format, expected a name ending in one of: {' '.join(suffixes)}")
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder, expected a file name")
        if not path.parent.is_dir():
            raise OutputError(f"{path}: there is no folder {path.parent}; create it first")
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror or error})") from None
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"{path}: no permission to write in {path.parent}")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to, which takes its place when the block ends well. Raises OutputError.

    What was there before stays until the new file is whole; what is left of a broken one is removed.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror or error})") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
