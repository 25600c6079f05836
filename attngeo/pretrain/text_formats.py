"""Formats of the text to train on: lines, JSON, CSV and Parquet, compressed or not.

A row is a line of a text file, or of a table. Each format is an entry in the table `READERS`. The file builders of the
library `datasets` do not replace the readers (checked with version 5.2): "json" turns strings that look like dates into
dates, and fails if a field is new or has another type after the first 10 MB; "csv" accepts rows of a wrong length, as
pandas does; "text" loses text, without an error, if a connection breaks. All of them take file names as patterns, as
fsspec does.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import IO, Any

from attngeo.bounds.encodings import UTF8, find_utf16
from attngeo.bounds.machine import require_memory
from attngeo.bounds.names import list_names, name_type
from attngeo.errors import DataError
from attngeo.tables.read import HEAD_BYTES, JSON_FACTOR, find_text_problem

# One row of a table: column name → value.
Row = Mapping[str, Any]
# Reads the rows of an open file. The first text is the name of the only column that is needed, or empty if all are, and
# the second one the encoding of text, or empty if the file shows it.
Reader = Callable[[IO[bytes], str, str], Iterator[Row]]
# Rows of a Parquet file that are decoded at once.
PARQUET_ROWS = 100
# Characters of one line, or of one document in a table: a thousand times a long one. Those of a list in one file. Bytes
# of so many rows of a Parquet file.
MOST_DOCUMENT_CHARACTERS = 100_000_000
MOST_LIST_CHARACTERS = 250_000_000
MOST_ROWS_BYTES = 500_000_000
# Rows of a table by which its columns are classified, and rows of a table of `datasets` that are read at once.
TABLE_ROWS = 100
NUMBER = re.compile(r"\s*[-+]?[\d.,]+(?:[eE][-+]?\d+)?\s*")


def _open_text(file: Any, encoding: str, newline: str | None = None) -> io.TextIOWrapper:
    """The text of an open file: of this encoding, or UTF-16 if it begins as such, or else UTF-8."""
    return io.TextIOWrapper(file, encoding or find_utf16(file.peek(HEAD_BYTES)) or UTF8, newline=newline)


def _peek_text(file: Any, encoding: str) -> str:
    """The beginning of the text of an open file."""
    head = file.peek(HEAD_BYTES)
    decoder = codecs.getincrementaldecoder(encoding or find_utf16(head) or UTF8)
    return decoder("replace").decode(head)


def _read_lines(file: IO[bytes], _column: str, encoding: str) -> Iterator[Row]:
    with _open_text(file, encoding) as text:
        for number, line in enumerate(_limit_lines(text), 1):
            if "\0" in line:
                raise ValueError(f"line {number} has a NUL character, expected text")
            yield {"text": line.rstrip("\n")}


def _read_json(file: Any, _column: str, encoding: str) -> Iterator[Row]:
    """One object or string on each line, or one list of them in the whole file."""
    is_list = _peek_text(file, encoding).lstrip().startswith("[")
    with _open_text(file, encoding) as text:
        values = _parse_list(text) if is_list else _parse_lines(_limit_lines(text))
        for number, value in enumerate(values, 1):
            if isinstance(value, str):
                yield {"text": value}
            elif isinstance(value, dict):
                yield value
            else:
                unit = "item" if is_list else "line"
                raise ValueError(f"{unit} {number}: expected an object or a string, got {name_type(value)}")


def _limit_lines(text: IO[str]) -> Iterator[str]:
    """The lines of a text. Raises ValueError for one longer than MOST_DOCUMENT_CHARACTERS, as in a packed file."""
    number = 0
    while line := text.readline(MOST_DOCUMENT_CHARACTERS + 1):
        number += 1
        if len(line) > MOST_DOCUMENT_CHARACTERS:
            raise ValueError(f"line {number} has more than {MOST_DOCUMENT_CHARACTERS:,} characters")
        yield line


def _parse_list(text: IO[str]) -> Any:
    """The values of one list of JSON. Raises ValueError if it has more than MOST_LIST_CHARACTERS."""
    content = text.read(MOST_LIST_CHARACTERS + 1)
    if len(content) > MOST_LIST_CHARACTERS:
        raise ValueError(
            f"the list has more than {MOST_LIST_CHARACTERS:,} characters; write one object per line instead"
        )
    require_memory(JSON_FACTOR * len(content), "the list in the file")
    return json.loads(content)


def _parse_lines(lines: Iterable[str]) -> Iterator[Any]:
    """The value of each line of JSON; an empty object for an empty line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            yield {}
            continue
        try:
            yield json.loads(line)
        except ValueError as error:
            problem = str(error).rpartition(": line ")[0] or error
            raise ValueError(f"line {number}: {problem}; expected one object per line") from None


def _read_csv(file: Any, _column: str, encoding: str, delimiter: str = ",") -> Iterator[Row]:
    problem = find_text_problem(_peek_text(file, encoding).encode("utf-8", "replace"), delimiter)
    if problem:
        raise ValueError(problem)
    csv.field_size_limit(MOST_DOCUMENT_CHARACTERS)  # a document may be longer than the default limit of 128 kB
    with _open_text(file, encoding, newline="") as text:
        lines = csv.reader(_limit_lines(text), delimiter=delimiter, strict=True)
        try:
            header = next(lines, [])
            for values in filter(None, lines):
                if len(values) != len(header):
                    raise csv.Error(f"expected {len(header)} fields, as in the first line, got {len(values)}")
                yield dict(zip(header, values, strict=True))
        except csv.Error as error:
            raise ValueError(f"line {lines.line_num}: {error}") from None


def _read_parquet(file: IO[bytes], column: str, _encoding: str) -> Iterator[Row]:
    from pyarrow import parquet  # type: ignore[import-untyped]

    from attngeo.tables.parquet import count_batch

    names = parquet.read_schema(file).names
    if column and column not in names:
        raise ValueError(f"no column {column!r}, only {list_names(names)}")
    # Texts that are repeated stay folded until they are counted.
    table = parquet.ParquetFile(file, read_dictionary=names)
    for batch in table.iter_batches(PARQUET_ROWS, columns=[column] if column else None):
        if count_batch(batch) > MOST_ROWS_BYTES:
            raise ValueError(f"{PARQUET_ROWS} rows take more than {MOST_ROWS_BYTES:,} bytes when unpacked")
        yield from batch.to_pylist()


def _open_zstandard(file: IO[bytes]) -> Any:
    import pyarrow

    return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"))


# The end of a file's name → its reader. The name of a compressed file has one more ending.
READERS: Mapping[str, Reader] = {
    ".txt": _read_lines, ".text": _read_lines, ".md": _read_lines, ".json": _read_json, ".jsonl": _read_json,
    ".csv": _read_csv, ".tsv": partial(_read_csv, delimiter="\t"), ".parquet": _read_parquet,
}  # fmt: skip
DECOMPRESSORS: Mapping[str, Callable[[Any], Any]] = {
    ".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open,
    ".zst": _open_zstandard,
}  # fmt: skip


def get_ending(name: str) -> str:
    """The ending of a file name that shows the format, without the ending of a compression.

    >>> get_ending("a.TXT"), get_ending("a.json.gz")
    ('.txt', '.json')
    """
    path = PurePath(name.lower())
    return path.with_suffix("").suffix if path.suffix in DECOMPRESSORS else path.suffix


def read_rows(file: IO[bytes], name: str, column: str = "", encoding: str = "") -> Iterator[Row]:
    """The rows of an open file, decompressed according to its name.

    Args:
        file: the file.
        name: name of the file, which shows its format.
        column: the only column needed, which makes Parquet faster.
        encoding: encoding of a text; by default UTF-16 if the file begins like it, else UTF-8.

    Raises:
        KeyError: the format is unknown.
        Exception: ValueError, OSError or another error of the format's library, with the line number if known.
    """
    decompress = DECOMPRESSORS.get(PurePath(name.lower()).suffix)
    with file if decompress is None else decompress(file) as content:
        yield from READERS[get_ending(name)](content, column, encoding)


def choose_text_column(reference: str, rows: Sequence[Row], column: str = "") -> str:
    """The column to train on: `column` if given, else "text", else the only column with text other than numbers.

    Args:
        reference: name of the data set, for messages.
        rows: first rows of the table.
        column: the requested column; "" for none.

    Raises:
        DataError: the requested column is missing or holds no text; or no column was requested, and not exactly one
            holds text.
    """
    strings: dict[str, list[str]] = {}
    for row in rows:
        for name, value in row.items():
            strings.setdefault(name, [])
            if isinstance(value, str) and value.strip():
                strings[name].append(value)
    texts = [name for name, values in strings.items() if not all(map(NUMBER.fullmatch, values))]
    wanted = column or "text"
    if strings.get(wanted):
        return wanted
    if not column and len(texts) == 1:
        return texts[0]
    if not column:
        problem = "several columns hold text" if texts else "no column holds text"
    elif column in strings:
        problem = f"column {column!r} holds no text"
    else:
        problem = f"no column {column!r}"
    raise DataError(
        f"{problem}; the columns are {list_names([*strings])}; set $text_column", "text_column", subject=reference
    )
