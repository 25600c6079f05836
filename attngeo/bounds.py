"""Bounds of what comes from others, and of the machine: how a name is shown, how large a small file may be, how much
memory and how many cores there are.

Names: a model's author controls them, and a terminal or a page would act on some. Results keep names as they are, if
they are UTF-8; every output passes them through one of the functions here. Each shows all of a name, except that white
space is one space in Markdown.

Small files, such as a config.json or a recipe: a FIFO or a device may never end, and a file may be gigabytes long. So
every small file is read here: from regular files only, and up to a limit of bytes.

Memory and cores: what is too large for this process is refused before it is allocated, and no more threads are started
than its container allows.
"""

from __future__ import annotations

import errno
import html
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from attngeo.errors import NotEnoughMemoryError

# What Markdown gives a meaning inside a line, and what GitHub adds to it: mentions, formulas, addresses as links.
SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~])")
ACTIVE = re.compile(r"[@$]|:(?=//)|(?<=www)\.", re.IGNORECASE)

# Names that a message lists at most, and the characters of each.
MOST_LISTED, LONGEST_NAME = 10, 60
# Numbers of lines that a message has at most.
MOST_NUMBERS = 20

MEGABYTE = 1 << 20
# Several times the longest that are known: 2 MB for the configuration of a classifier with 21,000 labels, 9 MB for the
# index of 90,000 tensors, 35 MB for a tokenizer.json. Parsed, a file needs up to twenty times its bytes of memory.
MOST_BYTES = 16 * MEGABYTE
MOST_INDEX_BYTES = 64 * MEGABYTE
MOST_TOKENISER_BYTES = 256 * MEGABYTE
MOST_RESULTS_BYTES = 1024 * MEGABYTE

# Linux: where control groups are, and which group of each hierarchy a process belongs to.
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

# Fewer bytes are not checked, because a check takes longer than to allocate them.
UNCHECKED = 1 << 28


def printable(text: object) -> str:
    r"""The text with each character that does not print as itself written as an escape; line ends, too.

    These are control characters of a terminal, characters that reorder text, and bytes that are not UTF-8.

    >>> printable("a\x1b[31m\u202eb\n")
    'a\\x1b[31m\\u202eb\\n'
    """
    text = str(text)
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    )


def list_first(numbers: Sequence[int]) -> str:
    """The first of the numbers of lines, and a mark if there are more."""
    return ", ".join(map(str, numbers[:MOST_NUMBERS])) + (", …" if len(numbers) > MOST_NUMBERS else "")


def list_names(names: Sequence[object]) -> str:
    """Names for a message: the first ones, in bounded length.

    >>> list_names(["a", 1, "b" * 100])
    'a, 1, bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'
    >>> list_names(range(100))
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 others'
    """
    others = f" and {len(names) - MOST_LISTED:,} others" if len(names) > MOST_LISTED else ""
    return ", ".join(f"{printable(name):.{LONGEST_NAME}}" for name in names[:MOST_LISTED]) + others


def in_utf8(text: str) -> str:
    """The text, made printable if it has no UTF-8: a name with bytes that are not UTF-8, or with half of a character.

    A DataFrame cannot hold such a text.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return printable(text)
    return text


def escape_markdown(text: object) -> str:
    r"""A name that Markdown shows letter for letter, inside a line or a cell of a table; white space becomes one space.

    >>> escape_markdown("a_b|<img> $x$ https://c")
    'a\\_b\\|&lt;img&gt; &#36;x&#36; https&#58;//c'
    """
    one_line = printable(" ".join(str(text).split()))
    escaped = SPECIAL.sub(r"\\\1", html.escape(one_line, quote=False))
    return ACTIVE.sub(lambda match: f"&#{ord(match[0])};", escaped)


def dump_json(value: Any, **options: Any) -> str:
    r"""JSON in which each character prints as itself or is an escape of JSON, so that no name is changed.

    >>> dump_json("é\x9b")
    '"é\\u009b"'
    """
    text = json.dumps(value, ensure_ascii=False, **options)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def without_links(paths: Iterable[Path]) -> list[Path]:
    """Existing files in their order, each once, although links give it several paths: under one that is no link."""
    paths = list(paths)
    kept: dict[tuple[int, int], Path] = {}
    for path in sorted(paths, key=Path.is_symlink):
        status = path.stat()
        kept.setdefault((status.st_dev, status.st_ino), path)
    chosen = {*kept.values()}
    return [path for path in paths if path in chosen]


def check_small(path: Path, most: int = MOST_BYTES) -> int:
    """The bytes of a small file that another library reads. Raises OSError if it is no regular file, ValueError if it
    has more than `most` bytes.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if status.st_size > most:
        raise ValueError(f"it has {status.st_size:,} bytes, expected at most {most:,}")
    return status.st_size


def read_small_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a small file. Raises OSError if it cannot be read, or is no regular file; ValueError if it has
    more than `most` bytes.
    """
    size = check_small(path, most)
    with path.open("rb") as file:
        content = file.read(size + 1)
    if len(content) > size:  # it grows, or it is a file of the system without a size
        raise ValueError(f"it has more bytes than its size of {size:,}")
    return content


def read_small_text(path: Path, most: int = MOST_BYTES, encoding: str = "utf-8") -> str:
    """The text of a small file. Raises as `read_small_bytes`, and ValueError if it is not UTF-8.

    encoding: "utf-8", or "utf-8-sig" for a file that may start with a byte order mark.
    """
    content = read_small_bytes(path, most)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: byte {error.object[error.start]:#04x} at {error.start:,}") from None


class GroupFiles(NamedTuple):
    """The files of a control group about its memory. cache: the line of memory.stat that counts cached files."""

    limit: str
    usage: str
    cache: str


# The hierarchy of a controller in version 1 of control groups, or of all of them in version 2 → the files of a group.
MEMORY_FILES = {
    "": GroupFiles("memory.max", "memory.current", "inactive_file"),
    "memory": GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
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
    space (`ulimit -v`) allow if that is less.

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
    """Cores that this process may run on: those of the machine, or of its affinity."""
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
            limit, usage = ((group / name).read_text("utf-8").strip() for name in (files.limit, files.usage))
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
