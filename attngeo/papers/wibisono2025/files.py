"""Files of data sets, packed or not, read whole within limits of bytes."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pandas as pd

from attngeo.bounds.small_files import require_regular_file
from attngeo.errors import DataError, DataUnavailableError, first_line
from attngeo.papers.wibisono2025.options import README, require_data
from attngeo.tables.read import require_csv_memory

# Ten times the largest of them, unpacked.
MOST_UNPACKED_BYTES = 50_000_000
PACKED = ".gz"


def look_for(folder: Path, *names: str) -> Path | None:
    """The first of these files in a folder, also compressed with gzip; None if there is none."""
    for name in names:
        for path in (folder / name, folder / (name + PACKED)):
            if path.exists():
                return path
    return None


def find_file(path: str | Path, *names: str) -> Path:
    """The first of these files in a folder; `path` itself, if it is no folder. Raises DataUnavailableError."""
    path = Path(path).expanduser()
    file = look_for(path, *names) if path.is_dir() else path
    if file is None or not file.exists():
        raise DataUnavailableError(
            f"no such file, expected {' or '.join(names)}; {README} describes them", subject=path
        )
    return file


def folder_of(path: str | Path) -> Path:
    """The folder of a data set with several files: `path`, or the folder of this file."""
    require_data(path)
    path = Path(path).expanduser()
    return path if path.is_dir() else path.parent


def read_content(path: Path, most: int = MOST_UNPACKED_BYTES, *, member: str = "") -> bytes:
    """The bytes of a file; unpacked, if its name ends in .gz. member: the file to read, if it is a zip archive.

    Raises DataUnavailableError if it is missing, DataError if it cannot be read or has more than `most` bytes.
    """
    try:
        size = require_regular_file(path, most)
        with path.open("rb") as file:
            # One byte more than is allowed, so that a longer one is noticed.
            content = _unpack(file, path, member).read(most + 1)
        if len(content) > most:
            raise ValueError(f"it has more than {most:,} bytes" + (", unpacked" if size <= most else ""))
    except FileNotFoundError:
        raise DataUnavailableError("no such file", subject=path) from None
    except KeyError:
        raise DataError(f"{path} has no file {member}") from None
    except (OSError, ValueError, EOFError, RuntimeError, NotImplementedError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read ({first_line(error)})") from None
    return content


def _unpack(file: IO[bytes], path: Path, member: str) -> IO[bytes]:
    """The content of an open file, of gzip by its name, or of a zip archive by its first bytes."""
    if path.suffix.lower() == PACKED:
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if member and zipfile.is_zipfile(file):
        return zipfile.ZipFile(file).open(member)
    file.seek(0)
    return file


@contextmanager
def explaining(path: Path, what: str) -> Iterator[None]:
    """Raise DataError if a file in the block does not have the expected content."""
    try:
        yield
    except (ValueError, LookupError, TypeError, OverflowError, zlib.error) as error:
        raise DataError(f"{path} is not {what} ({first_line(error)})") from None


def read_table(
    path: Path,
    columns: Sequence[str],
    *,
    every: bool = False,
    most: int = MOST_UNPACKED_BYTES,
    member: str = "",
    **options: Any,
) -> pd.DataFrame:
    """Some columns of a CSV file.

    Args:
        path: the file.
        columns: the columns.
        every: whether all columns are read.
        most: as for `read_content`.
        member: as for `read_content`.
        **options: options of `read_csv`.

    Raises:
        DataError: as `read_content`, and if the file is no table, lacks a column, has no rows, or a cell of another
            type.
    """
    content = read_content(path, most, member=member)
    with explaining(path, f"a table with {','.join(columns)}"):
        require_csv_memory(io.BytesIO(content), path)
        frame = pd.read_csv(io.BytesIO(content), encoding="utf-8-sig", **options)
        if not isinstance(frame.index, pd.RangeIndex):
            raise ValueError("a row has more cells than there are column names")
        missing = [name for name in columns if name not in frame]
        if missing:
            raise ValueError(f"it lacks the column {missing[0]!r}")
        if frame.empty:
            raise ValueError("it has no rows")
    chosen: pd.DataFrame = frame if every else frame[list(columns)]
    return chosen


def require_once(path: Path, frame: pd.DataFrame, columns: list[str]) -> None:
    """Raise DataError with the first row that repeats another row in these columns."""
    repeats = frame.duplicated(columns).to_numpy()
    if repeats.any():
        row = int(repeats.argmax())
        cells = ", ".join(f"{name} {frame[name].iloc[row]}" for name in columns)
        raise DataError(f"row {row + 1} repeats {cells}, expected each once", subject=path)
