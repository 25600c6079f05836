"""Results that are kept on this machine as Parquet files, so that nothing is computed twice.

A result is kept under a key, the hash of all that it depends on. While it is computed, its finished parts are kept in a
folder beside it. Each file is written whole or not at all, and equal keys have equal contents, so that any number of
processes may work on one result.

    KEY.parquet              a result
    KEY.parts/00000.parquet  the finished parts of one that is not
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from attngeo.bounds import read_small_bytes
from attngeo.errors import OutputError, UsageError, first_line
from attngeo.tables.atomic import atomic_write

log = logging.getLogger(__name__)

RESULT, PARTS = ".parquet", ".parts"
# The entry of a file's metadata that says, as JSON, what was computed and how.
ABOUT, CHECKSUM = b"attngeo", b"attngeo.sha256"
# Ten times those of the largest models, with a row for each of their heads.
MOST_ROWS, MOST_BYTES = 1_000_000, 100_000_000
# The variable that names another folder than the platform's; it is empty to keep nothing.
VARIABLE = "ATTNGEO_CACHE"
Row = Mapping[str, Any]


class Kept(NamedTuple):
    """A result, or a part of one. rows: of its table. about: what was computed, and how."""

    rows: list[dict[str, Any]]
    about: dict[str, Any]


def cache_folder() -> Path | None:
    """ATTNGEO_CACHE, or the platform's folder for caches of attngeo; None if nothing is to be kept.

    Raises UsageError if ATTNGEO_CACHE is the home folder of a user who does not exist.
    """
    chosen = os.environ.get(VARIABLE)
    try:
        if chosen is not None:
            return Path(chosen).expanduser().absolute() if chosen else None
        from platformdirs import user_cache_path

        return user_cache_path("attngeo", appauthor=False)
    except RuntimeError as error:
        if chosen is not None:
            raise UsageError(f"{VARIABLE} is {chosen!r:.200}, expected a folder ({first_line(error)})") from None
        log.info("nothing is kept: %s", first_line(error))  # as in a container whose user has no home
        return None


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

    def record(
        self,
        depends_on: Mapping[str, Any],
        *,
        is_current: Callable[[], bool] = lambda: True,
        about: Mapping[str, Any] = MappingProxyType({}),
    ) -> KeptResult:
        """The result that depends on these names, texts and numbers, whether it is there or not.

        is_current: whether they are true when a part is finished. If not, nothing is kept. about: is kept with each
        part and with the result, beside what is said about them.
        """
        text = json.dumps(depends_on, sort_keys=True)
        return KeptResult(self.folder / hashlib.sha256(text.encode()).hexdigest(), self._types, is_current, about)


class KeptResult:
    """One result. A file of it that cannot be read, or that has changed since it was written, counts as missing.

    If its folder cannot be written, that is a warning in the log, and nothing is kept.
    """

    def __init__(
        self, path: Path, types: Mapping[str, type], is_current: Callable[[], bool], about: Mapping[str, Any]
    ) -> None:
        self._file, self._parts = path.with_suffix(RESULT), path.with_suffix(PARTS)
        self._types, self._is_current, self._about = types, is_current, about
        self._is_broken = False

    @property
    def folder(self) -> Path:
        """The folder of the finished parts, which is removed when the result is kept."""
        return self._parts

    def load(self) -> Kept | None:
        """The result; None if it is missing."""
        return _read(self._file, self._types)

    def load_parts(self, count: int) -> dict[int, Kept]:
        """Those of the parts with numbers below `count` that are finished."""
        found = {number: _read(self._part(number), self._types) for number in range(count)}
        return {number: kept for number, kept in found.items() if kept is not None}

    def keep(self, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
        """Keep the result, in place of one that is there, and forget its parts."""
        self._write(self._file, rows, about)
        if not self._is_broken:
            self.forget_parts()

    def keep_part(self, number: int, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
        """Keep a finished part, unless the result is there, from another process or from before."""
        with suppress(OSError):  # of a folder that cannot be read, which `keep` reports
            if not self._file.exists():
                self._write(self._part(number), rows, about)

    def forget_parts(self) -> None:
        """Remove the parts."""
        shutil.rmtree(self._parts, ignore_errors=True)

    def _part(self, number: int) -> Path:
        return self._parts / f"{number:05d}{RESULT}"

    def _write(self, path: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
        if self._is_broken or not self._is_current():
            return
        try:
            about = {**about, **self._about}
            try:
                _write_file(path, rows, about, self._types)
            except (OutputError, OSError):  # another process may just have removed the folder of parts
                _write_file(path, rows, about, self._types)
        except Exception as error:
            self._is_broken = True
            log.warning("results are not kept: %s; set ATTNGEO_CACHE to another folder", first_line(error))


def _write_file(path: Path, rows: Sequence[Row], about: Mapping[str, Any], types: Mapping[str, type]) -> None:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist([dict(row) for row in rows], _schema_of(types))
    text = json.dumps(about)
    table = table.replace_schema_metadata({ABOUT: text, CHECKSUM: _hash(table.to_pylist(), text)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial:
        parquet.write_table(table, partial)


def _read(path: Path, types: Mapping[str, type]) -> Kept | None:
    try:
        content = read_small_bytes(path, MOST_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.info("%s cannot be read (%s); it is computed again", path, first_line(error))
        return None
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        if file.metadata.num_rows > MOST_ROWS or not file.schema_arrow.equals(_schema_of(types)):
            raise ValueError("it has other columns, or too many rows")
        table = file.read()
        rows, text = table.to_pylist(), table.schema.metadata[ABOUT].decode()
        if table.schema.metadata[CHECKSUM].decode() != _hash(rows, text):
            raise ValueError("it has changed since it was written")
        return Kept(rows, json.loads(text))
    except Exception as error:  # a damaged file makes Arrow raise errors of many kinds
        log.info("%s cannot be read (%s); it is computed again", path, first_line(error))
        return None


def _schema_of(types: Mapping[str, type]) -> Any:
    import pyarrow

    arrow = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    return pyarrow.schema([(name, arrow[kind]) for name, kind in types.items()])


def _hash(rows: list[dict[str, Any]], about: str) -> str:
    return hashlib.sha256((json.dumps(rows) + about).encode()).hexdigest()
