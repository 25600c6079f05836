"""Ctrl-C, also during an import that swallows it or turns it into another error."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Seconds until an interrupt that Python dropped is sent again, so that what dropped it has ended.
AGAIN = 0.1

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
        sys.unraisablehook = _repeat_interrupt
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


def _repeat_interrupt(found: sys.UnraisableHookArgs) -> None:
    """Send an interrupt again that arrived while Python removed an object: it ends nothing there.

    Imports remove their locks, for instance. The main thread may then wait for a server, where nothing asks whether
    there was an interrupt.
    """
    if found.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(found)
        return
    timer = threading.Timer(AGAIN, _interrupt_main)
    timer.daemon = True
    timer.start()


def _interrupt_main() -> None:
    if signal.getsignal(signal.SIGINT) is not _record:  # the command has ended
        return
    if hasattr(signal, "pthread_kill") and (main := threading.main_thread().ident) is not None:
        signal.pthread_kill(main, signal.SIGINT)  # also wakes it
    else:
        _thread.interrupt_main()
