"""What goes to stderr while a command works."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from attngeo.progress import Progress

from .messages import printable


class Bar:
    """A progress bar: what is worked on, bytes done, time left. Silent if quiet or not on a terminal."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self._silent = quiet or not console.is_terminal
        self._name = name
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=20),
            DownloadColumn(), TimeRemainingColumn(),
            console=console, transient=True, disable=self._silent,
        )  # fmt: skip
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        if self._silent:
            from huggingface_hub import logging
            from huggingface_hub.utils.tqdm import disable_progress_bars

            disable_progress_bars()
            logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        return self

    def __call__(self, progress: Progress) -> None:
        """Show how far the model has got. Downloads show huggingface_hub's own bars."""
        if progress.phase == "download":
            return
        shown: dict[str, Any] = {
            "description": printable(f"{self._name}  {progress.what}"),
            "completed": progress.bytes_read,
            "total": progress.bytes_total or None,
        }
        if self._task is None:
            self._task = self._bar.add_task(**shown)
            self._bar.start()
        self._bar.update(self._task, **shown)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
