"""A folder on a disk as macOS and Windows have them: it ignores case and how accents are composed, and has devices.

Only Python's own functions are changed, in this process: what C opens by itself, such as pyarrow, has to name a file as
it is written.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from attngeo.bounds.disks import fold_name, portable_name

# Functions of `os` whose first argument is a path, and those with two paths.
ONE_PATH = ("access", "chmod", "listdir", "lstat", "open", "remove", "rmdir", "scandir", "stat", "unlink", "utime")
TWO_PATHS = ("rename", "replace")
_list_folder = os.listdir


@contextmanager
def ignore_case(folder: Path) -> Iterator[None]:
    """Inside the block, `folder` is on such a disk. A name that Windows refuses or shortens is an AssertionError."""
    base = folder.resolve()
    with ExitStack() as stack:
        for name in ONE_PATH:
            stack.enter_context(mock.patch.object(os, name, _fold_first(getattr(os, name), base)))
        for name in TWO_PATHS:
            stack.enter_context(mock.patch.object(os, name, _fold_both(getattr(os, name), base)))
        stack.enter_context(mock.patch.object(os, "mkdir", _fold_new(os.mkdir, base)))
        for module in (builtins, io):
            stack.enter_context(mock.patch.object(module, "open", _fold_first(builtins.open, base)))
        yield


def _find(path: Any, base: Path) -> Any:
    """The path, in `base` under the names that are on the disk."""
    if isinstance(path, int):
        return path
    whole = Path(os.path.normpath(Path(os.fsdecode(path)).absolute()))
    if base not in whole.parents:
        return path
    found = base
    for name in whole.relative_to(base).parts:
        try:
            listed = _list_folder(found)
        except OSError:  # it is a file, or missing
            listed = []
        same = [entry for entry in listed if fold_name(entry) == fold_name(name)]
        found /= same[0] if same else name
    return str(found)


def _require_portable(path: Any) -> Any:
    name = Path(os.fsdecode(path)).name
    assert portable_name(name) == name, f"{name} is no name for a file on Windows"
    return path


def _fold_first(function: Callable[..., Any], base: Path) -> Callable[..., Any]:
    def call(path: Any = ".", *rest: Any, **more: Any) -> Any:
        is_relative = more.get("dir_fd") is not None
        return function(path if is_relative else _find(path, base), *rest, **more)

    return call


def _fold_both(function: Callable[..., Any], base: Path) -> Callable[..., Any]:
    return lambda path, other, **more: function(_find(path, base), _find(_require_portable(other), base), **more)


def _fold_new(function: Callable[..., Any], base: Path) -> Callable[..., Any]:
    return lambda path, *rest, **more: function(_find(_require_portable(path), base), *rest, **more)
