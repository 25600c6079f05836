"""GPUs of a machine on which several processes work: each run has one of them for itself."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Seconds between two looks for a free GPU.
POLL = 0.1
# What a name of a GPU may have that a name of a file should not.
UNSAFE = re.compile(r"[^\w-]")


@contextmanager
def take_gpu() -> Iterator[None]:
    """Take a GPU that no other run has; the others are invisible to this process. Waits until one is free.

    Does nothing if the machine has fewer than two. A process keeps the GPU of its first run, because CUDA reads the
    variable only once; between two runs, other processes may take it. The system releases the lock of a process that
    is killed.
    """
    from filelock import FileLock, Timeout

    gpus = _list_gpus()
    if len(gpus) < 2:
        yield
        return
    own, folder = os.environ.get(VISIBLE, ""), _lock_folder()
    while True:
        for gpu in [own] if own in gpus else gpus:
            lock = FileLock(folder / f"{UNSAFE.sub('_', gpu)}.lock", timeout=0)
            try:
                lock.acquire()
            except Timeout:
                continue
            try:
                os.environ[VISIBLE] = gpu
                yield
            finally:
                lock.release()
            return
        time.sleep(POLL)


@cache
def _list_gpus() -> tuple[str, ...]:
    """The GPUs that this process saw at first, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    named = tuple(filter(None, map(str.strip, os.environ.get(VISIBLE, "").split(","))))
    return named[:count] or tuple(map(str, range(count)))


def _lock_folder() -> Path:
    """A folder of this user's locks."""
    folder = Path(tempfile.gettempdir()) / f"attngeo-gpus-{os.getuid() if hasattr(os, 'getuid') else 'all'}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
