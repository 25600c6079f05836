"""How far long work has got: what callers' progress callbacks receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Progress:
    """A step of long work: `what` it is at, and how much of it is `done`, in bytes or in training steps."""

    phase: Literal["download", "read", "score", "ask", "prepare", "train"]
    what: str
    done: int = 0
    total: int = 0
    unit: Literal["bytes", "steps"] = "bytes"
