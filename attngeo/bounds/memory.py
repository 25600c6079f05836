"""How much memory this process may still take: what is too large is refused before it is allocated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil

from attngeo.errors import NotEnoughMemoryError

# Linux: where control groups are, and which group of each hierarchy a process belongs to.
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


# Fewer bytes are not checked, because a check takes longer than to allocate them.
UNCHECKED = 1 << 28


class GroupFiles(NamedTuple):
    """Where a version of control groups keeps its numbers. cache: the line of memory.stat that counts cached files."""

    hierarchy: str
    limit: str
    usage: str
    cache: str


VERSIONS = {
    "": GroupFiles("", "memory.max", "memory.current", "inactive_file"),
    "memory": GroupFiles("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def require_memory(nbytes: int, what: str) -> None:
    """Raise NotEnoughMemoryError if so many bytes do not fit in memory. what: what needs them."""
    if nbytes > UNCHECKED and nbytes > (have := available_memory()):
        raise NotEnoughMemoryError(
            f"{what} needs {nbytes / 1e9:,.1f} GB of memory, and {max(have, 0) / 1e9:,.1f} GB are available; use a "
            "machine with more memory"
        )


def available_memory() -> int:
    """Bytes that this process may still take: what the machine has, or what its control groups or its limit of address
    space allow if that is less.

    A container is such a group. Cached files count as available.
    """
    return min([int(psutil.virtual_memory().available), *_left_in_address_space(), *_left_in_groups()])


def _left_in_address_space() -> Iterator[int]:
    """What `ulimit -v` leaves this process."""
    if hasattr(psutil, "RLIMIT_AS"):  # Linux
        process = psutil.Process()
        limit, _ = process.rlimit(psutil.RLIMIT_AS)
        if limit != psutil.RLIM_INFINITY:
            yield limit - process.memory_info().vms


def _left_in_groups() -> Iterator[int]:
    """The bytes left in each control group of this process that has a limit, and in the groups around them."""
    try:
        lines = OWN_GROUPS.read_text("utf-8").splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, group_path = line.split(":", 2)
        for name, files in VERSIONS.items():
            if name == controllers:
                path = PurePosixPath(group_path.lstrip("/"))
                for group in (path, *path.parents):
                    yield from _left_in(GROUPS / files.hierarchy / group, files)


def _left_in(group: Path, files: GroupFiles) -> Iterator[int]:
    try:
        limit, usage = ((group / name).read_text("utf-8").strip() for name in (files.limit, files.usage))
        stat = dict(line.split() for line in (group / "memory.stat").read_text("utf-8").splitlines())
        if limit != "max":
            yield int(limit) - int(usage) + int(stat.get(files.cache, 0))
    except (OSError, ValueError):
        return  # no limit is stated here, or none that can be read
