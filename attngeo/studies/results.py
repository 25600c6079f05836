"""Results that are kept on this machine as Parquet files, so that nothing is computed twice.

A result is kept under a key, the hash of all that it depends on. While it is computed, its finished parts are kept in a
folder beside it. Each file is written whole or not at all, and equal keys have equal contents, so that any number of
processes may work on one result.

    KEY.parquet              a result
    KEY.parts/00000.parquet  the finished parts of one that is not
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from attngeo.errors import OutputError, first_line
from attngeo.tables.atomic import atomic_write

log = logging.getLogger(__name__)

RESULT, PARTS = ".parquet", ".parts"
# The entry of a file's metadata that says, as JSON, what was computed and how.
ABOUT = b"attngeo"
# The variable that names another folder than the platform's; it is empty to keep nothing.
VARIABLE = "ATTNGEO_CACHE"
Row = Mapping[str, Any]


class Kept(NamedTuple):
    """A result, or a part of one. rows: of its table. about: what was computed, and how."""

    rows: list[dict[str, Any]]
    about: dict[str, Any]


def cache_folder() -> Path | None:
    """ATTNGEO_CACHE, or the platform's folder for caches of attngeo; None if nothing is to be kept."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return Path(chosen).expanduser().absolute() if chosen else None
    from platformdirs import user_cache_path

    return user_cache_path("attngeo", appauthor=False)


class ResultStore:
    """The results of one kind, in a folder of their own.

    types: of each column, one of int, float and str.
    """

    def __init__(self, folder: Path, types: Mapping[str, type]) -> None:
        self.folder, self._types = folder, types

    @classmethod
    def open(cls, kind: str, types: Mapping[str, type]) -> ResultStore | None:
        """The store in a folder of the cache; None if nothing is to be kept."""
        folder = cache_folder()
        return None if folder is None else cls(folder / kind, types)

    def record(self, depends_on: Mapping[str, Any], is_current: Callable[[], bool] = lambda: True) -> KeptResult:
        """The result that depends on these names, texts and numbers; it need not be there yet.

        is_current: whether they are still so. If not, nothing more is kept.
        """
        text = json.dumps(depends_on, sort_keys=True, default=str)
        return KeptResult(self.folder / hashlib.sha256(text.encode()).hexdigest(), self._types, is_current)


class KeptResult:
    """One result. A file of it that cannot be read counts as missing.

    If its folder cannot be written, that is a warning in the log, and nothing is kept.
    """

    def __init__(self, path: Path, types: Mapping[str, type], is_current: Callable[[], bool]) -> None:
        self._file, self._parts = path.with_suffix(RESULT), path.with_suffix(PARTS)
        self._types, self._is_current, self._is_broken = types, is_current, False

    def load(self) -> Kept | None:
        """The result; None if it is missing."""
        return _read(self._file, self._types)

    def load_parts(self, count: int) -> dict[int, Kept]:
        """Those of the parts with numbers below `count` that are finished."""
        found = {number: _read(self._part(number), self._types) for number in range(count)}
        return {number: kept for number, kept in found.items() if kept is not None}

    def keep(self, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
        """Keep the result, and forget its parts."""
        self._write(self._file, rows, about)
        if not self._is_broken:
            shutil.rmtree(self._parts, ignore_errors=True)

    def keep_part(self, number: int, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
        """Keep a finished part."""
        self._write(self._part(number), rows, about)

    def forget(self) -> None:
        """Remove the result and its parts."""
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
        shutil.rmtree(self._parts, ignore_errors=True)

    def _part(self, number: int) -> Path:
        return self._parts / f"{number:05d}{RESULT}"

    def _write(self, path: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
        if self._is_broken or not self._is_current():
            return
        try:
            _write_file(path, rows, about, self._types)
        except (OutputError, OSError):
            try:  # another process may just have finished the result, and removed the folder of parts
                _write_file(path, rows, about, self._types)
            except (OutputError, OSError) as error:
                self._is_broken = True
                log.warning("results are not kept: %s; set ATTNGEO_CACHE to another folder", first_line(error))


def _write_file(path: Path, rows: Sequence[Row], about: Mapping[str, Any], types: Mapping[str, type]) -> None:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    arrow = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    schema = pyarrow.schema([(name, arrow[kind]) for name, kind in types.items()], {ABOUT: json.dumps(about)})
    table = pyarrow.Table.from_pylist([dict(row) for row in rows], schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial:
        parquet.write_table(table, partial)


def _read(path: Path, types: Mapping[str, type]) -> Kept | None:
    if not path.is_file():
        return None
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
        about = json.loads(table.schema.metadata[ABOUT])
        if table.column_names != list(types):
            raise ValueError("it has other columns")
        return Kept(table.to_pylist(), about)
    except Exception as error:  # a damaged file makes Arrow raise errors of many kinds
        log.info("%s cannot be read (%s); it is computed again", path, first_line(error))
        return None
