"""Single lines on stderr, and interrupts of the user."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attngeo.bounds.names import printable
from attngeo.errors import AttnGeoError, UnexpectedError, shorten
from attngeo.tables.files import SIGNALS

# Set this variable to see the traceback of an unexpected error.
TRACEBACK = "ATTNGEO_TRACEBACK"
# The exit code of Ctrl-C. That of another signal is as much above it as its number.
INTERRUPTED = 130
# Handlers that Python sets when it starts.
DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)
# Seconds until an interrupt that Python dropped is sent again, so that what dropped it has ended.
AGAIN = 0.1

# Option of the command that runs → its flag, for messages; --no-… if the user turned it off.
FLAGS: dict[str, str] = {}
_requests: list[signal.Signals] = []


def say(text: str) -> None:
    """Print one line on stderr, without control characters that a terminal would execute."""
    sys.stderr.write(f"attngeo: {shorten(printable(text))}\n")


def describe_error(error: BaseException) -> str:
    """The line for an error, with the flags of options; for a bug, also how to report it."""
    if isinstance(error, AttnGeoError):
        error.spelling = FLAGS
    if isinstance(error, AttnGeoError) and not isinstance(error, UnexpectedError):
        return str(error)
    what = str(error) if isinstance(error, UnexpectedError) else f"unexpected {type(error).__name__}: {error}"
    see = f"set {TRACEBACK}=1 to see the traceback"
    return f"{what}; {see}, and please report it with the model's config.json and the output of attngeo --version -v"


@contextmanager
def remember_interrupts() -> Iterator[None]:
    """Remember interrupts inside the block; after it, an interrupt ends the process at once, without a traceback.

    Signals that are ignored or have another handler are left alone.
    """
    _requests.clear()
    ours = []
    if threading.current_thread() is threading.main_thread():
        ours = [number for number in SIGNALS if signal.getsignal(number) in DEFAULTS]
    for number in ours:
        signal.signal(number, _record)
    if ours:
        sys.unraisablehook = _repeat_interrupt
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def was_interrupted() -> bool:
    """Whether the user or the system interrupted the command."""
    return bool(_requests)


def describe_interrupt() -> tuple[str, int]:
    """The line for an interrupt, and its exit code: 128 and the number of the first signal."""
    number = _requests[0] if _requests else signal.SIGINT
    if number == signal.SIGINT:
        return "interrupted", INTERRUPTED
    return f"interrupted by {number.name}", INTERRUPTED - signal.SIGINT + number


def _record(number: int, _: Any) -> None:
    _requests.append(signal.Signals(number))
    raise KeyboardInterrupt


def _repeat_interrupt(event: sys.UnraisableHookArgs) -> None:
    """Send an interrupt again that arrived while Python removed an object: it ends nothing there.

    Imports remove their locks, for instance. The main thread may then wait for a server, where nothing asks whether
    there was an interrupt.
    """
    if event.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(event)
        return
    timer = threading.Timer(AGAIN, _interrupt_main)
    timer.daemon = True
    timer.start()


def _interrupt_main() -> None:
    if not _requests or signal.getsignal(_requests[-1]) is not _record:  # the command has ended
        return
    if hasattr(signal, "pthread_kill") and (main := threading.main_thread().ident) is not None:
        signal.pthread_kill(main, _requests[-1])  # also wakes it
    else:
        _thread.interrupt_main(_requests[-1])
