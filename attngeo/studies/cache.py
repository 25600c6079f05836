"""What is kept in the cache folder: listed with its size, and removed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attngeo.errors import OutputError
from attngeo.studies.results import ABOUT, PARTS, RESULT, cache_folder

# Nothing else is removed: the folder is one that the user names.
OWN = re.compile(rf"[0-9a-f]{{64}}({re.escape(RESULT)}|{re.escape(PARTS)})")
UNFINISHED = re.compile(rf"\.[0-9a-f]{{64}}{re.escape(RESULT)}\.[0-9a-f]+\.partial")


@dataclass(frozen=True)
class Entry:
    """A result, or the finished parts of one. parts: how many these are, None for a whole result.

    about: what was computed, and how; empty if no file can be read. rows: of all its tables. nbytes: of its files.
    modified: when, in UTC.
    """

    path: Path
    about: dict[str, Any]
    rows: int
    nbytes: int
    modified: datetime
    parts: int | None


def list_entries() -> list[Entry]:
    """All results that are kept, the latest first."""
    entries = [entry for path in _paths() if OWN.fullmatch(path.name) and (entry := _describe(path)) is not None]
    return sorted(entries, key=lambda entry: entry.modified, reverse=True)


def remove(entries: Iterable[Entry]) -> None:
    """Remove these results, and the unfinished files of processes that were killed. Those in use are written again.

    Raises OutputError if some of it cannot be removed.
    """
    left = []
    for path in (*(entry.path for entry in entries), *(path for path in _paths() if UNFINISHED.fullmatch(path.name))):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
        if path.exists():
            left.append(path)
    if left:
        raise OutputError(f"{left[0]} cannot be removed, and {len(left) - 1} others; check the rights of its folder")


def _paths() -> Iterator[Path]:
    """Everything in the folders of all kinds of results."""
    folder = cache_folder()
    if folder is not None:
        yield from folder.glob("*/*")


def _describe(path: Path) -> Entry | None:
    """What is known about a result or its parts; None if they have just been removed."""
    is_whole = path.suffix == RESULT
    try:
        states = {file: file.stat() for file in ([path] if is_whole else path.iterdir())}
        modified = max([state.st_mtime for state in states.values()] or [path.stat().st_mtime])
    except OSError:
        return None
    found = [each for file in states if file.suffix == RESULT and (each := _read_metadata(file)) is not None]
    return Entry(
        path, about=found[0][1] if found else {}, rows=sum(rows for rows, _ in found),
        nbytes=sum(state.st_size for state in states.values()), modified=datetime.fromtimestamp(modified, UTC),
        parts=None if is_whole else len(found),
    )  # fmt: skip


def _read_metadata(file: Path) -> tuple[int, dict[str, Any]] | None:
    """The number of rows of a file, and what it says about them; None if it cannot be read."""
    from pyarrow import parquet  # type: ignore[import-untyped]

    try:
        metadata = parquet.read_metadata(file)
        about = json.loads(metadata.metadata[ABOUT])
        return (metadata.num_rows, about) if isinstance(about, dict) else None
    except Exception:  # a damaged file makes Arrow raise errors of many kinds
        return None
