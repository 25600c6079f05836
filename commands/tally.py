"""What a study of a command has done so far, for its notes on stderr."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self

from attngeo.studies.engine import RunOutcome

from .messages import TRACEBACK, say


class StudyTally:
    """Counts the outcomes of a study's runs. As a context, it says at Ctrl-C how many of them are kept.

    total: the number of runs. unit: what they are, in the plural.
    """

    def __init__(self, total: int, unit: str) -> None:
        self._total, self._unit = total, unit
        self._finished = self._kept = 0

    def count(self, outcome: RunOutcome[Any], *, alone: bool = False) -> None:
        """Count an outcome. Raises the error of the only run, and of any if tracebacks are asked for."""
        self._finished += outcome.failure is None
        self._kept += bool(outcome.notes)
        raise_if_traced(outcome, alone=alone)

    def say_kept(self) -> None:
        """Say how many runs were answered from the result store, if some were."""
        if self._kept:
            what = f"{self._kept} of {self._total} {self._unit}"
            say(f"{what} with scores from the result store; --fresh computes them again")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from attngeo.studies.results import cache_folder

        if isinstance(error, KeyboardInterrupt) and self._finished and cache_folder() is not None:
            what = f"{self._finished} of {self._total} {self._unit}"
            say(f"{what} are finished; the same command resumes after them")


def raise_if_traced(outcome: RunOutcome[Any], *, alone: bool = False) -> None:
    """Raise the error of the only run, and of any if tracebacks are asked for."""
    if outcome.cause is not None and (alone or os.environ.get(TRACEBACK)):
        raise outcome.cause
