"""The progress of long work: the reports to a caller's callback, and which of several processes sends them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Progress:
    """One report of the work.

    The phases "kept" and "note" are no steps, but what the user should know.

    Attributes:
        phase: kind of the work, or of the message.
        what: the current step, or the message.
        done: how much of `total` is done.
        total: size of the whole; 0 if it is unknown.
        unit: unit of both: bytes, or training steps.
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
    """The default callback, which does nothing."""


def is_first_process() -> bool:
    """Whether this is the first of the processes that `accelerate launch` starts; only that one prints and writes."""
    return os.environ.get("RANK", "0") == "0"
