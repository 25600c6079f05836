"""The processes that a process has started."""

from __future__ import annotations

from collections.abc import Callable

import psutil


def list_children(pid: int, wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Those of the processes that `pid` has started, and these in turn, that are `wanted`.

    One that ends between its listing and this question is none of them.
    """
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        try:
            if wanted(child):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found
