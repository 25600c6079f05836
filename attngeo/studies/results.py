"""Kept results: results on this machine's disk, so that nothing is computed twice.

A result is a Parquet file under a key, the hash of all that it depends on. While it is computed, its finished parts
are kept in a folder beside it. Each file is written whole or not at all, and equal keys have equal contents, so that
any number of processes may work on one result.

    KEY.parquet              a result
    KEY.parts/00000.parquet  the finished parts of one that is not
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from platformdirs import user_cache_path

from attngeo.bounds.names import list_names
from attngeo.bounds.small_files import read_small_bytes
from attngeo.errors import OutputError, UsageError, first_line
from attngeo.tables.files import atomic_write

log = logging.getLogger(__name__)

RESULT, PARTS = ".parquet", ".parts"
# The entry of a file's metadata that says, as JSON, what was computed and how.
ABOUT, CHECKSUM = b"attngeo", b"attngeo.sha256"
# Ten times those of the largest models, with a row for each of their heads.
MOST_RESULT_ROWS, MOST_RESULT_BYTES = 1_000_000, 100_000_000
# Bytes of the table that a file stands for.
MOST_UNFOLDED_BYTES = 500_000_000
# Entries of what is said about a result, if it has them, and their types. "made" is always there.
ABOUT_TYPES: Mapping[str, type] = {
    "made": str, "model": str, "other": str, "device": str, "layers": int, "layers_read": int, "readings": int,
    "skipped": dict, "other_skipped": dict, "notes_by_text": dict, "options": dict, "content": dict,
    "other_content": dict, "version": dict,
}  # fmt: skip
# The variable that names another folder than the platform's; it is empty to keep nothing.
VARIABLE = "ATTNGEO_CACHE"
# Nothing else is removed from the folder, which is one that the user names.
KEPT = re.compile(r"[0-9a-f]{64}\.(parquet|parts)")
UNFINISHED = re.compile(r"\.[0-9a-f]{64}\.parquet\.[0-9a-f]+\.partial")
Row = Mapping[str, Any]


class Kept(NamedTuple):
    """A result, or a part of one. rows: of its table. about: what was computed, and how."""

    rows: list[dict[str, Any]]
    about: dict[str, Any]


class ResultForm(NamedTuple):
    """The form of the rows of one kind of results, and of their description. A file of another form is damaged.

    Columns that are not listed hold numbers, or yes and no.

    Attributes:
        texts: columns of texts, which may be missing.
        whole: columns of whole numbers, which may be missing.
        lists: columns of lists of numbers, which may be missing.
        about: required entries that are texts.
        columns: required columns.
        is_sound: picklable function that checks one row; None accepts each row.
    """

    texts: Collection[str] = ()
    whole: Collection[str] = ()
    lists: Collection[str] = ()
    about: Collection[str] = ("made",)
    columns: Collection[str] = ()
    is_sound: Callable[[Row], bool] | None = None


ANY_FORM = ResultForm()


def cache_folder() -> Path | None:
    """ATTNGEO_CACHE, or the platform's folder for caches of attngeo; None if nothing is to be kept.

    Raises UsageError if ATTNGEO_CACHE is the home folder of a user who does not exist.
    """
    chosen = os.environ.get(VARIABLE)
    try:
        if chosen is not None:
            return Path(chosen).expanduser().absolute() if chosen else None
        return user_cache_path("attngeo", appauthor=False)
    except RuntimeError as error:
        if chosen is not None:
            raise UsageError(f"{VARIABLE} is {chosen!r:.200}, expected a folder ({first_line(error)})") from None
        log.info("nothing is kept: %s", first_line(error))  # as in a container whose user has no home
        return None


def locate_record(
    kind: str,
    depends_on: Mapping[str, Any],
    *,
    is_current: Callable[[], bool] = lambda: True,
    about: Mapping[str, Any] = MappingProxyType({}),
    form: ResultForm = ANY_FORM,
) -> ResultRecord | None:
    """The record of the result of a kind that depends on these names, texts and numbers; the result may be missing.

    Args:
        kind: kind of the result, a folder in the cache folder.
        depends_on: names, texts and numbers that the result depends on.
        is_current: whether they still hold when a part is finished; if not, nothing is kept.
        about: kept with each part and with the result, beside what is said about them.
        form: form of the rows.

    Returns:
        The record; None if nothing is to be kept.
    """
    folder = cache_folder()
    if folder is None:
        return None
    key = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()
    path = folder / kind / key
    return ResultRecord(path.with_suffix(RESULT), path.with_suffix(PARTS), is_current, about, form)


@dataclass(eq=False)
class ResultRecord:
    """The place of one kept result. A file that cannot be read, or that has changed, counts as missing.

    If its folder cannot be written, a warning is logged and nothing is kept.

    Attributes:
        file: file of the result.
        folder: folder of the finished parts, which is removed when the result is kept.
        is_current: whether the inputs of the result are unchanged.
        about: what is computed, and how.
        form: form of the rows.
        is_broken: whether writing has failed, so that nothing more is kept.
    """

    file: Path
    folder: Path
    is_current: Callable[[], bool]
    about: Mapping[str, Any]
    form: ResultForm = ANY_FORM
    is_broken: bool = False

    def load(self) -> Kept | None:
        """The result; None if it is missing."""
        return _read(self.file, self.form)

    def load_parts(self, count: int) -> dict[int, Kept]:
        """The finished parts with numbers below `count`."""
        of_part = self.form._replace(about=[name for name in self.form.about if name != "made"])
        parts = {number: _read(self._part(number), of_part) for number in range(count)}
        return {number: kept for number, kept in parts.items() if kept is not None}

    def keep(self, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
        """Keep the result, replacing an earlier one, and forget its parts."""
        self._write(self.file, rows, about)
        if not self.is_broken:
            self.forget_parts()

    def keep_part(self, number: int, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
        """Keep a finished part, unless the result is there, from another process or from before."""
        with suppress(OSError):  # of a folder that cannot be read, which `keep` reports
            if not self.file.exists():
                self._write(self._part(number), rows, about)

    def forget_parts(self) -> None:
        """Remove the parts."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _part(self, number: int) -> Path:
        return self.folder / f"{number:05d}{RESULT}"

    def _write(self, path: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
        if self.is_broken or not self.is_current():
            return
        about = {**about, **self.about}
        try:
            try:
                _write_file(path, rows, about)
            except (OutputError, OSError):  # another process may just have removed the folder of parts
                _write_file(path, rows, about)
        except Exception as error:
            self.is_broken = True
            with suppress(OSError):  # it is not there, or holds parts
                self.folder.rmdir()
            log.warning("results are not kept: %s; set ATTNGEO_CACHE to another folder", first_line(error))


def _write_file(path: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    import pyarrow.parquet  # type: ignore[import-untyped]

    names = dict.fromkeys(chain.from_iterable(rows))
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    text = json.dumps(about)
    table = table.replace_schema_metadata({ABOUT: text, CHECKSUM: _hash(table.to_pylist(), text, path)})
    with atomic_write(path) as partial:
        pyarrow.parquet.write_table(table, partial)


def _read(path: Path, form: ResultForm) -> Kept | None:
    from pyarrow import parquet

    from attngeo.tables.parquet import count_unfolded, read_table

    try:
        source = io.BytesIO(read_small_bytes(path, MOST_RESULT_BYTES))
        file = parquet.ParquetFile(source, pre_buffer=False)
        if file.metadata.num_rows > MOST_RESULT_ROWS:
            raise ValueError("it has too many rows")
        text = file.schema_arrow.metadata[ABOUT].decode()
        about = json.loads(text)
        _require_form(file.schema_arrow, about, form)
        if count_unfolded(source, MOST_UNFOLDED_BYTES, with_nested=True) > MOST_UNFOLDED_BYTES:
            raise ValueError("it unpacks to too many bytes")
        table = read_table(source, with_nested=True)
        rows = table.to_pylist()
        if table.schema.metadata[CHECKSUM].decode() != _hash(rows, text, path):
            raise ValueError("it has changed since it was written")
        if form.is_sound is not None and not all(map(form.is_sound, rows)):
            raise ValueError("a row has an invalid value")
        return Kept(rows, about)
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file makes Arrow raise errors of many kinds
        log.info("%s cannot be read (%s); it is computed again", path, first_line(error))
        return None


def _require_form(schema: Any, about: Any, form: ResultForm) -> None:
    """Raise ValueError if the columns of a table, or what is said about it, have other types than such a result has."""
    from pyarrow import types

    for field in schema:
        if field.name in form.lists and types.is_list(field.type):
            is_right = types.is_floating(field.type.value_type) or types.is_integer(field.type.value_type)
        elif field.name in form.texts:
            is_right = types.is_string(field.type)
        elif field.name in form.whole:
            is_right = types.is_integer(field.type)
        else:
            is_right = types.is_integer(field.type) or types.is_floating(field.type) or types.is_boolean(field.type)
        if not is_right and not types.is_null(field.type):
            raise ValueError(f"its column {field.name!r:.60} holds {field.type}")
    missing = [name for name in form.columns if name not in schema.names]
    if missing or len({*schema.names}) < len(schema.names):
        raise ValueError(f"it has the columns {list_names(schema.names)}")
    if not isinstance(about, dict):
        raise ValueError(f"its description is {about!r:.60}")
    for name in (*form.about, *ABOUT_TYPES):
        value = about.get(name)
        if not isinstance(value, ABOUT_TYPES.get(name, str)) and (name in form.about or name in about):
            raise ValueError(f"its {name} is {value!r:.60}")


def _hash(rows: list[dict[str, Any]], about: str, path: Path) -> str:
    """The checksum of a file: of its content, and of its key, so that no file stands in the place of another."""
    key = path.stem if path.suffix == RESULT and path.parent.suffix != PARTS else f"{path.parent.stem}/{path.stem}"
    return hashlib.sha256((json.dumps(rows) + about + key).encode()).hexdigest()


@dataclass(frozen=True)
class Entry:
    """A kept result, or the finished parts of one.

    Attributes:
        path: its file, or the folder of its parts.
        about: what was computed, and how; empty if no file can be read.
        rows: number of rows of all its tables.
        nbytes: size of its files in bytes.
        modified: time of the last change, in UTC.
        parts: number of finished parts; None for a whole result.
    """

    path: Path
    about: dict[str, Any]
    rows: int
    nbytes: int
    modified: datetime
    parts: int | None


def list_entries() -> list[Entry]:
    """All kept results, the latest first."""
    entries = [entry for path in _paths() if KEPT.fullmatch(path.name) and (entry := _describe(path)) is not None]
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
        more = f" and {len(left) - 1:,} more" if len(left) > 1 else ""
        raise OutputError(f"{left[0]}{more} cannot be removed; check the permissions of the folder")


def _paths() -> Iterator[Path]:
    """Everything in the folders of all kinds of results."""
    folder = cache_folder()
    if folder is not None:
        yield from folder.glob("*/*")


def _describe(path: Path) -> Entry | None:
    """What is known about a result or its parts; None if they have just been removed."""
    is_whole = path.suffix == RESULT
    try:
        modified = path.stat().st_mtime
        sizes = {file: file.stat().st_size for file in ([path] if is_whole else path.iterdir())}
    except OSError:
        return None
    described = [_read_metadata(file) for file in sizes if file.suffix == RESULT]
    readable = [metadata for metadata in described if metadata is not None]
    return Entry(
        path,
        about=readable[0][1] if readable else {},
        rows=sum(rows for rows, _ in readable),
        nbytes=sum(sizes.values()),
        modified=datetime.fromtimestamp(modified, UTC),
        parts=None if is_whole else len(readable),
    )


def _read_metadata(file: Path) -> tuple[int, dict[str, Any]] | None:
    """The number of rows of a file, and what it says about them; None if it cannot be read."""
    from pyarrow import parquet

    try:
        metadata = parquet.read_metadata(file)
        about = json.loads(metadata.metadata[ABOUT])
        return (metadata.num_rows, about) if isinstance(about, dict) else None
    except Exception:  # a damaged file makes Arrow raise errors of many kinds
        return None
