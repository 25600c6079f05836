"""Ctrl-C, also during an import that swallows it or turns it into another error."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_requests: list[int] = []


@contextmanager
def remember() -> Iterator[None]:
    """Remember interrupts inside the block; after it, one ends the process at once, without a traceback.

    If SIGINT is ignored or has another handler, that stays so.
    """
    _requests.clear()
    ours = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    )
    if ours:
        signal.signal(signal.SIGINT, _record)
        sys.unraisablehook = _hide_interrupts
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def requested() -> bool:
    """Whether the user asked for an interrupt."""
    return bool(_requests)


def _record(number: int, _: Any) -> None:
    _requests.append(number)
    raise KeyboardInterrupt


def _hide_interrupts(found: sys.UnraisableHookArgs) -> None:
    """Print nothing about an interrupt that arrives while Python removes an object: it is remembered."""
    if found.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(found)
