"""Times and memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def timed(run: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def by_turns(rounds: int, *runs: Callable[[], object]) -> list[float]:
    """The median time of each, after one run that does not count; they take turns, so that noise hits all alike."""
    for run in runs:
        run()
    times = [[timed(run) for run in runs] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def peak_gigabytes(command: Sequence[object]) -> float:
    """Peak resident memory of a command, which must succeed."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    run = subprocess.run([sys.executable, "-c", code, *map(str, command)], check=True, capture_output=True, text=True)
    return int(run.stdout) * (1 if sys.platform == "darwin" else 1024) / 1e9


def forget(path: Path) -> None:
    """Drop a file from the operating system's cache, so that the next read is from the disk. Linux only."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class LargestTensor(TorchDispatchMode):
    """The most numbers of a tensor that is computed in the block."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        found = func(*args, **kwargs or {})
        self.numbers = max(self.numbers, found.numel()) if isinstance(found, torch.Tensor) else self.numbers
        return found
