"""What a command prints on stderr while it works."""

from __future__ import annotations

import logging
import sys
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


class _Done(DownloadColumn):
    """The amount done: bytes, or steps."""

    def render(self, task: Task) -> Text:
        if task.fields["unit"] == "bytes":
            return super().render(task)
        return Text(f"{int(task.completed):,}/{int(task.total or 0):,}", style="progress.download")


class _Log(logging.Handler):
    """Prints each log record of the library as a line on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())
        if record.exc_info:
            sys.stderr.write(logging.Formatter().formatException(record.exc_info) + "\n")


class Bar:
    """A progress bar: the current step, the amount done, the time left. Silent if quiet or not on a terminal.

    Training takes long, so it prints a line at each log even without a terminal. Warnings of the library are printed
    unless it is quiet, and all its log records if it is verbose.
    """

    def __init__(self, name: str, verbosity: Verbosity) -> None:
        level = logging.WARNING
        if verbosity.verbose:
            level = logging.INFO
        elif verbosity.quiet:
            level = logging.CRITICAL
        self._log = _Log(level)
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

    def __enter__(self) -> Bar:
        if self._silent:
            from huggingface_hub import logging as hub_logging
            from huggingface_hub.utils.tqdm import disable_progress_bars

            disable_progress_bars()
            hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        LOGGER.addHandler(self._log)
        LOGGER.setLevel(self._log.level)
        return self

    def __call__(self, progress: Progress) -> None:
        """Show the progress, and stop if the user asked for it. Downloads show huggingface_hub's own bars."""
        if was_interrupted() and progress.phase != "train":  # training saves a checkpoint, and stops by itself
            raise KeyboardInterrupt
        if progress.phase == "download":
            return
        if progress.phase in ("kept", "note"):
            if not self._quiet:
                say(f"{self._name}: {progress.what}")
            return
        if self._silent:
            if progress.phase == "train" and not self._quiet:
                at = f"step {progress.done:,}/{progress.total:,}  " if progress.total else ""
                say(at + progress.what)
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

    def __exit__(self, *_: object) -> None:
        if self._task is not None:  # some versions of rich print an empty line when a bar stops
            self._bar.stop()
        LOGGER.removeHandler(self._log)
        LOGGER.setLevel(logging.NOTSET)
