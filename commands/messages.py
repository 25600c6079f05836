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

# Set this variable to see the traceback of an unexpected error.
TRACEBACK = "ATTNGEO_TRACEBACK"
# Seconds until an interrupt that Python dropped is sent again, so that what dropped it has ended.
AGAIN = 0.1

# Option of the command that runs → its flag, for messages; --no-… if the user turned it off.
FLAGS: dict[str, str] = {}
_requests: list[int] = []


def say(text: str) -> None:
    """Print one line on stderr, without control characters that a terminal would execute."""
    sys.stderr.write(f"attngeo: {shorten(printable(text))}\n")


def describe_error(error: BaseException) -> str:
    """The line for an error, with the flags of options; for one that is a bug, with what to do."""
    if isinstance(error, AttnGeoError):
        error.spelling = FLAGS
    if isinstance(error, AttnGeoError) and not isinstance(error, UnexpectedError):
        return str(error)
    what = str(error) if isinstance(error, UnexpectedError) else f"unexpected {type(error).__name__}: {error}"
    see = f"set {TRACEBACK}=1 to see the traceback"
    return f"{what}; {see}, and please report it with the model's config.json and the output of attngeo --version -v"


@contextmanager
def remember_interrupts() -> Iterator[None]:
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


def was_interrupted() -> bool:
    """Whether the user asked for an interrupt."""
    return bool(_requests)


def _record(number: int, _: Any) -> None:
    _requests.append(number)
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
    if signal.getsignal(signal.SIGINT) is not _record:  # the command has ended
        return
    if hasattr(signal, "pthread_kill") and (main := threading.main_thread().ident) is not None:
        signal.pthread_kill(main, signal.SIGINT)  # also wakes it
    else:
        _thread.interrupt_main()
