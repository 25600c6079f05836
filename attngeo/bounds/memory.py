"""How much memory there is: what is too large is refused before it is allocated."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

from attngeo.errors import CheckpointError

# Where Linux states the limit of the container that the process runs in.
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
UNLIMITED = 1 << 62


def require_memory(nbytes: int, what: str) -> None:
    """Raise CheckpointError if `nbytes` are more than all memory of this machine. what: what needs them."""
    limit = min(_machine_bytes(), _process_bytes())
    if nbytes > limit:
        raise CheckpointError(
            f"{what} needs {nbytes / 1e9:,.1f} GB, but there are {limit / 1e9:,.1f} GB of memory; "
            "use a machine with more memory"
        )


@cache
def _machine_bytes() -> int:
    """The memory of the machine, or of the container that the process runs in."""
    limits = [UNLIMITED]
    with contextlib.suppress(ValueError, OSError, AttributeError):  # Windows has no sysconf
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in CONTAINER_LIMITS:
        with contextlib.suppress(ValueError, OSError):  # it is "max" if there is no limit
            limits.append(int(Path(path).read_text("ascii")))
    return min(limit for limit in limits if limit > 0)


def _process_bytes() -> int:
    """The address space that `ulimit -v` allows this process."""
    try:
        import resource
    except ImportError:  # Windows
        return UNLIMITED
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft
