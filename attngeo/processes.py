"""The processes that `accelerate launch` starts for one run."""

from __future__ import annotations

import os


def is_first_process() -> bool:
    """Whether this process is the first one of its run, which alone prints and writes; true for a run of one."""
    return os.environ.get("RANK", "0") == "0"
