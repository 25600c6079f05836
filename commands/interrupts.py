"""Ctrl-C, also where it falls into an import that swallows it or makes another error of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_asked: list[int] = []


@contextmanager
def remembered() -> Iterator[None]:
    """Keep in mind that an interrupt was asked for. Where SIGINT is ignored, or handled by others, it stays so."""
    _asked.clear()
    ours = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    )
    if ours:
        signal.signal(signal.SIGINT, _remember)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def asked() -> bool:
    """Whether an interrupt was asked for."""
    return bool(_asked)


def _remember(number: int, _: Any) -> None:
    _asked.append(number)
    raise KeyboardInterrupt
