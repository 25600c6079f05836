"""How far long work has got: what callers' progress callbacks receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Progress:
    """A step of long work: `what` it is at, and how many bytes of weights, of a file or of vectors it got through."""

    phase: Literal["download", "read", "score", "ask"]
    what: str
    bytes_read: int = 0
    bytes_total: int = 0
