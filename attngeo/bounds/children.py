"""Processes that this one starts: none looks for modules in the working folder, where files of a stranger may lie.

A Python that is started by `-m` or `-c` looks there first, and processes of multiprocessing and of joblib are started
so. They take over `sys.path` from the process that started them, but only after they have imported some modules. With
`-P`, or the variable PYTHONSAFEPATH, they find these where the caller's Python finds them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import util
from typing import Any

# Its type stubs lack the function that lists the flags of children, which all start methods call.
_util: Any = util
_lock = threading.Lock()
# Blocks of `start_safely` that have not ended, and the function that the first of them replaced.
_blocks = 0
_list_flags: Callable[[], list[str]]


@contextmanager
def start_safely() -> Iterator[None]:
    """Inside the block, all processes that multiprocessing starts get -P, including trackers of semaphores.

    Blocks may overlap, in several threads. The environment and `sys.path` stay as they are.
    """
    global _blocks, _list_flags
    with _lock:
        if not _blocks:
            _list_flags = _util._args_from_interpreter_flags
            _util._args_from_interpreter_flags = _list_safe_flags
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks:
                _util._args_from_interpreter_flags = _list_flags


def _list_safe_flags() -> list[str]:
    return [*_list_flags(), "-P"]


def safe_variables() -> dict[str, str]:
    """Variables for a child without flags: it looks for modules in the same places as this Python, or in fewer."""
    variables = {"PYTHONSAFEPATH": "1"}
    if sys.flags.ignore_environment:
        # Python takes an empty variable for none.
        variables |= {"PYTHONPATH": "", "PYTHONHOME": ""}
    if sys.flags.no_user_site:
        variables["PYTHONNOUSERSITE"] = "1"
    return variables
