"""Ctrl-C and SIGTERM during training: the work in hand is finished and saved first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from attngeo.tables.files import SIGNALS


class SignalListener:
    """Notes the first signal, and calls `tell`. `saves` says whether there is something that can be saved.

    A second signal, and one while there is nothing to save, goes to the handler that was there before, or raises
    KeyboardInterrupt if there was none.
    """

    def __init__(self, tell: Callable[[], None] = lambda: None) -> None:
        self.requested, self.saves = False, False
        self._tell = tell
        self._before: dict[int, Any] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals inside the block. Only the main thread can; in another, nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            for number in SIGNALS:
                signal.signal(number, self._on_signal)
            yield
        finally:
            for own, handler in self._before.items():
                signal.signal(own, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self.saves:
            if callable(self._before[number]):
                self._before[number](number, frame)
            raise KeyboardInterrupt
        self.requested = True
        self._tell()
