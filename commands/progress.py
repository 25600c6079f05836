"""What a command prints on stderr while it works."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress as RichProgress,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from attngeo.bounds.names import printable
from attngeo.progress import Progress

from .messages import say, was_interrupted
from .outputs import Verbosity

LOGGER = logging.getLogger("attngeo")
# Seconds after which a command whose stderr is no terminal says what it does.
LONGEST_SILENCE = 30.0


class _Done(DownloadColumn):
    """The amount done: bytes, or steps; empty while nothing is counted."""

    def render(self, task: Task) -> Text:
        if not task.total:
            return Text()
        if task.fields["unit"] == "bytes":
            return super().render(task)
        return Text(f"{int(task.completed):,}/{int(task.total):,}", style="progress.download")


class _Log(logging.Handler):
    """Prints each log record of the library as a line on stderr, by a function that prints a line."""

    def __init__(self, level: int, print_line: Callable[[str], None]) -> None:
        super().__init__(level)
        self._print_line = print_line

    def emit(self, record: logging.LogRecord) -> None:
        self._print_line(record.getMessage())
        if record.exc_info:
            sys.stderr.write(logging.Formatter().formatException(record.exc_info) + "\n")


class _Reminder(threading.Thread):
    """Prints the last report as a line on stderr whenever nothing was printed for LONGEST_SILENCE seconds."""

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True)
        self._name = name
        self._report: Progress | None = None
        self._start = self._spoken = time.monotonic()
        self._ended = threading.Event()

    def notice(self, progress: Progress) -> None:
        """Store a report without printing it."""
        self._report = progress

    def postpone(self) -> None:
        """Restart the waiting time, because something was printed."""
        self._spoken = time.monotonic()

    def end(self) -> None:
        """Stop printing."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Print lines until `end` is called."""
        while not self._ended.wait(max(self._spoken + LONGEST_SILENCE - time.monotonic(), 0)):
            if time.monotonic() - self._spoken >= LONGEST_SILENCE:
                say(f"{self._name}: {self._describe()}, {time.monotonic() - self._start:,.0f} s so far")
                self.postpone()

    def _describe(self) -> str:
        report = self._report
        if report is None:
            return "at work"
        if not report.total:
            return report.what
        amount = f"{report.done:,}/{report.total:,}"
        if report.unit == "bytes":
            amount = f"{report.done / report.total:.0%}"
        return f"{report.what}, {amount}"


@contextmanager
def _silence_hub() -> Iterator[None]:
    """Let huggingface_hub draw no bars and log errors only inside the block; restore its settings after it."""
    from huggingface_hub import logging as hub_logging
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    with ExitStack() as settings:
        if not are_progress_bars_disabled():
            disable_progress_bars()
            settings.callback(enable_progress_bars)
        settings.callback(hub_logging.set_verbosity, hub_logging.get_verbosity())
        hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        yield


class Bar:
    """A progress bar: the current step, the amount done, the time left. Silent if quiet or not on a terminal.

    Without a terminal, long work prints a line now and then: training at each log, all else every LONGEST_SILENCE
    seconds, even if the step takes longer. Warnings of the library are printed unless it is quiet, and all its log
    records if it is verbose.
    """

    def __init__(self, name: str, verbosity: Verbosity) -> None:
        level = logging.WARNING
        if verbosity.verbose:
            level = logging.INFO
        elif verbosity.quiet:
            level = logging.CRITICAL
        self._log = _Log(level, self._say)
        console = Console(stderr=True)
        self._quiet = verbosity.quiet
        self._silent = verbosity.quiet or not console.is_terminal
        self._name = name
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=20),
            _Done(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=self._silent,
        )
        self._task: TaskID | None = None
        self._reminder = _Reminder(name) if self._silent and not self._quiet else None
        self._settings = ExitStack()  # what the end restores

    def __enter__(self) -> Bar:
        if self._silent:
            self._settings.enter_context(_silence_hub())
        LOGGER.addHandler(self._log)
        LOGGER.setLevel(self._log.level)
        if self._reminder is not None:
            self._reminder.start()
        return self

    def __call__(self, progress: Progress) -> None:
        """Show the progress, and stop if the user asked for it. Downloads show huggingface_hub's own bars."""
        if was_interrupted() and progress.phase != "train":  # training saves a checkpoint, and stops by itself
            raise KeyboardInterrupt
        if self._reminder is not None:
            self._reminder.notice(progress)
        if progress.phase == "download":
            return
        if progress.phase in ("kept", "note"):
            if not self._quiet:
                self._say(f"{self._name}: {progress.what}")
            return
        if self._silent:
            if progress.phase == "train" and not self._quiet:
                at = f"step {progress.done:,}/{progress.total:,}  " if progress.total else ""
                self._say(at + progress.what)
            return
        shown: dict[str, Any] = {
            "description": printable(f"{self._name}  {progress.what}"),
            "completed": progress.done,
            "total": progress.total or None,
            "unit": progress.unit,
        }
        if self._task is None:
            self._task = self._bar.add_task(**shown)
            self._bar.start()
        self._bar.update(self._task, **shown)

    def _say(self, text: str) -> None:
        say(text)
        if self._reminder is not None:
            self._reminder.postpone()

    def __exit__(self, *_: object) -> None:
        if self._reminder is not None:
            self._reminder.end()
        if self._task is not None:  # some versions of rich print an empty line when a bar stops
            self._bar.stop()
        self._settings.close()
        LOGGER.removeHandler(self._log)
        LOGGER.setLevel(logging.NOTSET)
