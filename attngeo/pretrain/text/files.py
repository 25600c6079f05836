"""Text in files, here or at an address: lines, JSON, CSV, Parquet, and these compressed."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException
from importlib.resources.abc import Traversable
from itertools import islice
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

import huggingface_hub
import pyarrow  # type: ignore[import-untyped]

from attngeo.checkpoints.reference import local_path
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, ModelNotFoundError, first_line
from attngeo.pretrain.hub_data import list_names
from attngeo.pretrain.text.columns import Row, kinds_of_rows, text_column

# More bytes than these are not held in memory: they are read as they come.
LARGEST = 2_000_000_000
# Rows from which the columns of a file are known.
SAMPLE = 100
# Seconds without an answer after which an address is given up, and between attempts.
TIMEOUT, WAITS = 60, (1, 5, 30)

FORMS = "a text file, a folder, org/name of the Hub, or one of austen, wikipedia, redpajama, jigsaw:PATH/train.csv"

Place = Path | Traversable | str  # a string is an address
# What reads documents from the first on, and whether they are too many to be held.
Source = tuple[Callable[[], Iterator[str]], bool]


def path_of(text: str) -> Path:
    """The path that is meant; it need not exist. Raises DataUnavailableError for what can be none."""
    try:
        return local_path(text)
    except ModelNotFoundError:
        raise DataUnavailableError(f"{text[:80]}: no such file or folder; give {FORMS}") from None


def open_path(reference: str, column: str) -> Source:
    """A file, or all files of a folder, which have to be of one kind."""
    path = path_of(reference)
    if not reference or not path.exists():
        raise DataUnavailableError(f"{reference or repr(reference)}: no such file or folder; give {FORMS}")
    places = sorted(filter(reader_of, _inside(path))) if path.is_dir() else [path]
    kinds = {reader_of(place): _ending(place) for place in places}
    if len(kinds) != 1 or None in kinds:
        got = " ".join(sorted(kinds.values())) or "none"
        raise DataError(f"{reference}: expected files of one kind, ending in one of {' '.join(READERS)}; got {got}")
    sample = next(filter(None, map(_first_rows, places)), None)
    if sample is None:
        raise DataError(f"{reference} is empty, expected text; give another with --data")
    size = sum(place.stat().st_size for place in places)
    return partial(read_files, places, text_column(reference, kinds_of_rows(sample), column)), size > LARGEST


def _inside(folder: Path) -> Iterator[Path]:
    """The files of a folder and those below it, but for hidden ones and what describes the others."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
        if not hidden and path.name.lower() != "readme.md" and path.is_file():
            yield path


def _first_rows(place: Path) -> list[Row]:
    with reading_file(place):
        return list(islice(_rows(place, ""), SAMPLE))


def read_files(places: Sequence[Place], column: str) -> Iterator[str]:
    """The documents in a column of one file after the other; none is opened before its turn."""
    for place in places:
        with reading_file(place):
            rows = _rows_from(place, column) if isinstance(place, str) else _rows(place, column)
            columns = None
            for row in rows:
                columns = row.keys() if columns is None or column in row else columns
                if isinstance(text := row.get(column), str):
                    yield text
            if columns is not None and column not in columns:
                raise DataError(f"{place} has no column {column!r}; its columns are {list_names(columns)}")


def _rows_from(address: str, column: str) -> Iterator[Row]:
    """The rows of a file that is read over the network; where the connection breaks, it is read on after a while."""
    done = 0
    for wait in (*WAITS, None):
        try:
            for row in islice(_rows(address, column), done, None):
                yield row
                done += 1
            return
        except (OSError, EOFError, HTTPException) as error:
            if wait is None or getattr(error, "code", 500) < 500:
                raise
            time.sleep(wait)


def _rows(place: Place, column: str) -> Iterator[Row]:
    """The rows of one file; of a Parquet file with `column` only, if it is given."""
    reader = reader_of(place)
    assert reader is not None
    with opened(place) as file:
        yield from reader(file, column)


@contextmanager
def opened(place: Place) -> Iterator[IO[bytes]]:
    """A file, unpacked."""
    if isinstance(place, str) and huggingface_hub.constants.is_offline_mode():
        raise ConnectionError("offline mode is on")
    unpack = COMPRESSED.get(Path(str(place)).suffix.lower())
    with urlopen(place, timeout=TIMEOUT) if isinstance(place, str) else place.open("rb") as packed:
        if unpack is None:
            yield packed
        else:
            with unpack(packed) as file:
                yield file


def _lines(file: IO[bytes], _: str) -> Iterator[Row]:
    with io.TextIOWrapper(file, "utf-8-sig") as text:
        for line in text:
            if "\0" in line:
                raise ValueError("it has NUL characters, which no text has")
            yield {"text": line.rstrip("\n")}


def _json(file: Any, _: str) -> Iterator[Row]:
    """An object or a string on every line, or a list of them."""
    is_list = file.peek(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    with io.TextIOWrapper(file, "utf-8-sig") as text:
        found = json.load(text) if is_list else (_line_of_json(n, line) for n, line in enumerate(text, 1))
        for number, row in enumerate(found, 1):
            if not isinstance(row, dict | str):
                where = "item" if is_list else "line"
                raise ValueError(f"{where} {number} is a {type(row).__name__}, expected an object or a string")
            yield row if isinstance(row, dict) else {"text": row}


def _line_of_json(number: int, line: str) -> Any:
    try:
        return json.loads(line) if line.strip() else {}
    except ValueError as error:
        problem = str(error).rpartition(": line ")[0] or error
        raise ValueError(f"line {number}: {problem}; expected an object on every line") from None


def _csv(file: IO[bytes], _: str, delimiter: str = ",") -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # a document may be longer than the usual 128 kB
    with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        lines = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            header = next(lines, [])
            for values in filter(None, lines):
                if len(values) != len(header):
                    raise csv.Error(f"{len(values)} fields, expected {len(header)} as in the first line")
                yield dict(zip(header, values, strict=True))
        except csv.Error as error:
            raise ValueError(f"line {lines.line_num}: {error}") from None


def _parquet(file: IO[bytes], column: str) -> Iterator[Row]:
    from pyarrow import parquet

    for batch in parquet.ParquetFile(file).iter_batches(SAMPLE, columns=[column] if column else None):
        yield from batch.to_pylist()


# File name endings → what reads the rows of such a file; a compressed file has one more ending.
READERS: Mapping[str, Callable[[IO[bytes], str], Iterator[Row]]] = {
    ".txt": _lines, ".text": _lines, ".md": _lines, ".json": _json, ".jsonl": _json, ".csv": _csv,
    ".tsv": partial(_csv, delimiter="\t"), ".parquet": _parquet,
}  # fmt: skip
COMPRESSED: Mapping[str, Callable[[Any], Any]] = {
    ".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open,
    ".zst": lambda file: io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd")),
}  # fmt: skip


def reader_of(place: Place) -> Callable[[IO[bytes], str], Iterator[Row]] | None:
    """What reads the rows of a file of that name; None for a kind that is not known."""
    return READERS.get(_ending(place))


def _ending(place: Place) -> str:
    path = Path(str(place).lower())
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


@contextmanager
def reading_file(place: Place) -> Iterator[None]:
    """What goes wrong with a file, as one of attngeo's errors."""
    try:
        yield
    except AttnGeoError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place} is no UTF-8 text (byte 0x{error.object[error.start]:02x}); convert it, for example with iconv"
        ) from None
    except Exception as error:
        if isinstance(place, str) and isinstance(error, OSError | EOFError | HTTPException):
            raise DataUnavailableError(f"{place} cannot be read ({first_line(error)}); check the connection") from error
        if isinstance(error, OSError) and error.errno:
            raise DataUnavailableError(f"{place} cannot be read ({error.strerror})") from error
        raise DataError(f"{place} cannot be read ({first_line(error)})") from error
