"""Memory and cores that this process may use, in a container as well.

What is too large is refused before it is allocated, and no more threads are started than a container allows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from attngeo.errors import NotEnoughMemoryError

# Linux: where control groups are, and which group of each hierarchy a process belongs to.
GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")

# How the names of threads that open files begin. One that waits for a server keeps the process until that has answered.
THREADS = "attngeo-open"

# Fewer bytes are not checked, because a check takes longer than to allocate them.
UNCHECKED = 1 << 28


class GroupFiles(NamedTuple):
    """The files of a control group about its memory.

    Attributes:
        limit: file of the limit.
        usage: file of the memory in use.
        cache: line of memory.stat that counts cached files.
    """

    limit: str
    usage: str
    cache: str


# The hierarchy of a controller in version 1 of control groups, or of all of them in version 2 → the files of a group.
MEMORY_FILES = {
    "": GroupFiles("memory.max", "memory.current", "inactive_file"),
    "memory": GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def require_memory(nbytes: int, what: str) -> None:
    """Raise NotEnoughMemoryError if this number of bytes does not fit in memory. what: the thing that needs them."""
    if nbytes <= UNCHECKED:
        return
    available = available_memory()
    if nbytes > available:
        raise NotEnoughMemoryError(
            f"{what} needs {nbytes / 1e9:,.1f} GB of memory, but only {max(available, 0) / 1e9:,.1f} GB are available; "
            "use a machine with more memory"
        )


def available_memory() -> int:
    """Number of bytes that this process may still allocate.

    What the machine has, or what its control groups or its limit of address space (`ulimit -v`) allow if that is less.
    A container is such a group. Cached files count as available.
    """
    import psutil  # most callers of this module need names only

    room = [int(psutil.virtual_memory().available), *_left_in_groups()]
    if hasattr(psutil, "RLIMIT_AS"):  # Linux
        process = psutil.Process()
        limit, _ = process.rlimit(psutil.RLIMIT_AS)
        if limit != psutil.RLIM_INFINITY:
            room.append(limit - process.memory_info().vms)
    return min(room)


def visible_cores() -> int:
    """Number of cores that this process may run on: all cores, or fewer if its affinity says so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_cores() -> int:
    """Cores that this process may use at once: those it may run on, or what its control groups allow if that is less.

    A share with a fraction is rounded up: `docker run --cpus 1.5` allows two.
    """
    shares = [math.ceil(share) for share in _shares_of_cores()]
    return max(1, min([visible_cores(), *shares]))


def _list_groups(controller: str) -> Iterator[tuple[str, Path]]:
    """The hierarchy and the folder of each control group of this process, and of the groups around them."""
    try:
        lines = OWN_GROUPS.read_text("utf-8").splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, group_path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        hierarchy = controller if controllers else ""
        path = PurePosixPath(group_path.lstrip("/"))
        for group in (path, *path.parents):
            yield hierarchy, GROUPS / hierarchy / group


def _left_in_groups() -> Iterator[int]:
    """The bytes left in each control group that has a limit."""
    for hierarchy, group in _list_groups("memory"):
        files = MEMORY_FILES[hierarchy]
        try:
            limit = (group / files.limit).read_text("utf-8").strip()
            usage = (group / files.usage).read_text("utf-8").strip()
            stat = dict(line.split() for line in (group / "memory.stat").read_text("utf-8").splitlines())
            if limit != "max":
                yield int(limit) - int(usage) + int(stat.get(files.cache, 0))
        except (OSError, ValueError):
            continue  # no limit is stated here, or none that can be read


def _shares_of_cores() -> Iterator[float]:
    """The cores that each control group may use at once, if it has a limit: its time in a period / the period."""
    for hierarchy, group in _list_groups("cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if hierarchy else ("cpu.max",)
        try:
            quota, period = " ".join((group / name).read_text("utf-8") for name in names).split()
            if quota not in ("max", "-1"):
                yield int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue
