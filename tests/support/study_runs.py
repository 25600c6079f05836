"""Functions of one run for the tests of studies: as those of attngeo, they can be imported by other processes."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

from attngeo.errors import CorruptCheckpointError
from attngeo.progress import Progress
from attngeo.session import Session


def square(number: int, session: Session) -> int:
    """The square; the first ones take longest, so that they arrive last."""
    session.progress(Progress("score", "squaring"))
    time.sleep(max(0, 4 - number) * 0.02)
    return number * number


def square_or_fail(number: int, session: Session) -> int:
    if number % 4 == 1:
        raise CorruptCheckpointError(f"{number} is corrupt")
    if number % 4 == 3:
        raise KeyError(number)
    return square(number, session)


def tell(text: str, session: Session) -> tuple[int, str, dict[str, str]]:  # noqa: ARG001
    """The process of a run, its folder and its environment; logs a warning and a note."""
    log = logging.getLogger("attngeo.study")
    log.warning("warned about %s", text)
    log.info("noted %s", text)
    return os.getpid(), str(Path.cwd()), dict(os.environ)


def note_and_wait(setting: tuple[Path, float], session: Session) -> str:  # noqa: ARG001
    """Write a file that names the process, and work for some seconds."""
    path, seconds = setting
    path.write_text(str(os.getpid()))
    time.sleep(seconds)
    path.with_suffix(".done").touch()
    return path.name


def end_its_process(number: int, session: Session) -> int:  # noqa: ARG001
    """End the process that runs it if the number is negative, as the system does if memory runs out."""
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
    return number


def do_nothing(number: int, session: Session) -> int:  # noqa: ARG001
    return number


def wait_for_delivery(setting: tuple[int, Path], session: Session) -> int:  # noqa: ARG001
    """Run 0 ends when a file exists, or after a minute."""
    number, file = setting
    limit = time.monotonic() + 60
    while number == 0 and not file.exists() and time.monotonic() < limit:
        time.sleep(0.01)
    return number
