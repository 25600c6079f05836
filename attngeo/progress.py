"""The progress of long work: what a caller's callback receives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Progress:
    """One report: the current step `what`, and how much of `total` is `done`, in bytes or in training steps.

    The phases "kept" and "note" are no steps, but what the user should know.
    """

    phase: Literal[
        "download", "read", "score", "ask", "prepare", "train", "load", "verify", "fit", "kept", "note", "study"
    ]
    what: str
    done: int = 0
    total: int = 0
    unit: Literal["bytes", "steps"] = "bytes"


ProgressCallback = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """The callback of a caller that gave none: does nothing."""
