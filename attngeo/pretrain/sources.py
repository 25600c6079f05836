"""Text to train on: the embedded novels, a file or folder, a Hub data set, or a data set by name.

A document is a line of a text file, or a row of a table. Each file format is an entry in the table `READERS`. Only data
sets of the Hub require the library `datasets`. Its file builders do not replace the readers (checked with version 5.2):
"json" turns strings that look like dates into dates, and fails if a field is new or has another type after the first
10 MB; "csv" accepts rows of a wrong length, as pandas does; "text" loses text, without an error, if a connection
breaks. All of them take file names as patterns, as fsspec does.
"""

from __future__ import annotations

import bz2
import csv
import dataclasses
import gzip
import io
import json
import logging
import lzma
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import islice
from pathlib import Path, PurePath
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import huggingface_hub

from attngeo.bounds.links import without_links
from attngeo.bounds.names import list_names
from attngeo.checkpoints.reference import is_path, local_path
from attngeo.choices import advise
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, ModelNotFoundError, UsageError, first_line
from attngeo.pretrain.options import IMAGE_DATA, TEXT_DATA
from attngeo.tables.read import HEAD_BYTES, find_text_problem

# What a row has in a column that it lacks.
MISSING = object()
# Characters of a path that a message shows; of a longer one, the end tells most.
LONGEST_PATH = 100
HUB_REFERENCE = re.compile(
    r"(?P<name>\w[\w.-]*/\w[\w.-]*)(?::(?P<config>[^@#]+))?(?:@(?P<revision>[^#]+))?(?:#(?P<split>.+))?", re.ASCII
)
# Characters in one batch of documents, about.
BATCH_CHARACTERS = 1_000_000
# A text of more bytes is streamed: it is read again in every epoch, and not held in memory.
LARGEST_IN_MEMORY = 2_000_000_000
# Rows of a table of `datasets` that are read at once, and rows of any table by which its columns are classified.
TABLE_ROWS = 100
EXPECTED = "a text file, a folder, org/name of the Hub, or one of austen, wikipedia, redpajama, jigsaw:PATH/train.csv"
# The tokeniser of the data sets of Saponati et al. 2025.
PAPER_TOKENISER = "google-bert/bert-base-uncased"
# Source: https://huggingface.co/datasets/togethercomputer/RedPajama-Data-V2, "To download the files". These are the
# English documents of snapshot 2023-14, without the third of lowest quality, as the data set's card says.
REDPAJAMA = "https://data.together.xyz/redpajama-data-v2/v1.0.0"
REDPAJAMA_FILES = "listings/en-2023-14-head_middle.txt"
# Seconds: how long a server may take for an answer, and the waits before the next attempts.
TIMEOUT, WAITS = 60, (1, 5, 30)
# What urllib and the decompressors raise if a connection fails.
CONNECTION_ERRORS = (OSError, EOFError, HTTPException)
FIRST_SERVER_ERROR = 500
# One row of a table: column name → value.
Row = Mapping[str, Any]
# Reads the rows of an open file. The text is the name of the only column that is needed, or empty if all are.
Reader = Callable[[IO[bytes], str], Iterator[Row]]
# Rows of a Parquet file that are decoded at once.
PARQUET_ROWS = 100
# The kinds of a value. A column has the highest of those that occur in it: no strings, numbers as strings, or text.
OTHER, NUMBERS, TEXT = range(3)
NUMBER = re.compile(r"\s*[-+]?[\d.,]+(?:[eE][-+]?\d+)?\s*")
# A file of this machine or of the package, or the address of one.
Place = Path | Traversable | str


@dataclass(frozen=True)
class TextSource:
    """The documents of a data set, read on demand.

    name: how the user wrote it, for messages. read_documents: starts from the first document at each call. streaming:
    the text may be too large for the memory. tokenizer: a reference to the tokeniser that was published with the data
    set, or "train" if there is none. space_characters: join the characters of each document with spaces.
    """

    name: str
    read_documents: Callable[[], Iterator[str]]
    streaming: bool = False
    tokenizer: str = "train"
    space_characters: bool = False

    def read_batches(self) -> Iterator[list[str]]:
        """Read the documents in their order, in lists of about a million characters. Empty documents are left out.

        Raises DataUnavailableError or DataError if a document cannot be read.
        """
        batch, size = [], 0
        for document in self.read_documents():
            if not document.strip():
                continue
            # JSON may hold halves of surrogate pairs, which the tokenisers do not accept: each becomes a "?".
            valid = document.encode("utf-8", "replace").decode("utf-8")
            # Like the published code, which called " ".join on a string.
            batch.append(" ".join(valid) if self.space_characters else valid)
            size += len(batch[-1])
            if size >= BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def open_text(reference: str, *, column: str = "", space_characters: bool = False) -> TextSource:
    """Open the text that `reference` names. A document is a line of a text file, or a row of a table.

    reference: "austen" (embedded), a file, a folder, a Hub data set as `org/name[:config][@revision][#split]`, or
    "wikipedia", "redpajama" or "jigsaw:PATH/train.csv", the data sets of Saponati et al. 2025. column: the column that
    holds the text of a table; by default "text", or the only column of text. space_characters: join the characters of
    each document with spaces, as the published code did.
    Raises DataUnavailableError, DataError or UsageError.
    """
    require_text_data(reference)
    name, _, path = reference.partition(":")
    match name:
        case "austen":
            corpus = files("attngeo.pretrain").joinpath("corpora", "austen.txt.xz")
            source = TextSource(name, partial(read_files, [corpus], column or "text"))
        case "wikipedia":
            from attngeo.pretrain.hub_data import open_wikipedia

            source = open_wikipedia(name, column)
        case "redpajama":
            listing = f"{REDPAJAMA}/{REDPAJAMA_FILES}"
            with _explain_unreadable(listing), _open_address(listing) as file:
                shards = file.read().decode("utf-8").split()
            addresses = [f"{REDPAJAMA}/documents/{shard}.json.gz" for shard in shards]
            documents = partial(read_files, addresses, column or "raw_content")
            source = TextSource(name, documents, streaming=True, tokenizer=PAPER_TOKENISER)
        case "jigsaw":
            source = dataclasses.replace(open_path(path, column or "comment_text"), tokenizer=PAPER_TOKENISER)
        case _:
            if _is_local(reference):
                source = open_path(reference, column)
            else:
                from attngeo.pretrain.hub_data import open_hub

                source = open_hub(reference, column)
    return dataclasses.replace(source, name=reference, space_characters=space_characters)


def require_text_data(reference: str) -> None:
    """Raise DataUnavailableError if a text is a path that is missing, UsageError for a mistake after a name's colon.

    Asks no server, and loads nothing heavy.
    """
    name, _, path = reference.partition(":")
    if (name in TEXT_DATA and path) or (name == "jigsaw" and not path):
        expected = "jigsaw:PATH/train.csv" if name == "jigsaw" else name
        raise UsageError(f"{reference!r} names no data set, expected {expected}")
    if name == "jigsaw":
        find_path(path)
    elif name not in TEXT_DATA and _is_local(reference):
        find_path(reference)


def _is_local(reference: str) -> bool:
    """Whether a reference is no data set of the Hub."""
    hub = HUB_REFERENCE.fullmatch(reference)
    is_local = hub is None or is_path(hub["name"]) or get_ending(reference) in READERS
    return is_local or resolve_path(reference, EXPECTED).exists()


def find_path(reference: str) -> Path:
    """The file or folder that a reference names. Raises DataUnavailableError if it is missing."""
    path = resolve_path(reference, EXPECTED)
    if not reference or not path.exists():
        raise explain_no_path(reference, EXPECTED)
    return path


def open_path(reference: str, column: str = "") -> TextSource:
    """The text of a file, or of all files of a folder, which must have one format.

    column: the column that holds the text of a table; see `choose_text_column`. Raises DataUnavailableError if there is
    no such path, DataError if it holds no text or files of several formats.
    """
    path = find_path(reference)
    places = [path]
    if path.is_dir():
        places = [file for file in _list_files(path) if get_ending(file.name) in READERS]
    endings = {READERS.get(get_ending(place.name)): get_ending(place.name) for place in places}
    if len(endings) != 1 or None in endings:
        got = " ".join(sorted(endings.values())) or "none"
        raise DataError(f"{reference}: expected files of one format, ending in one of {' '.join(READERS)}; got {got}")
    sample: list[Row] = []
    for place in places:
        with _explain_unreadable(place):
            sample = sample or list(islice(_read_rows(place), TABLE_ROWS))
    if not sample:
        raise DataError(f"{reference} is empty, expected text; give another one")
    chosen = choose_text_column(reference, sample, column)
    size = sum(place.stat().st_size for place in places)
    return TextSource(reference, partial(read_files, places, chosen), streaming=size > LARGEST_IN_MEMORY)


def resolve_path(text: str, expected: str) -> Path:
    """The path that a reference names; it may be missing. Raises DataUnavailableError if the text can be no path."""
    try:
        return local_path(text)
    except ModelNotFoundError:
        raise explain_no_path(text, expected) from None


def explain_no_path(text: str, expected: str) -> DataUnavailableError:
    """The error for a reference that names nothing."""
    shown = text if len(text) <= LONGEST_PATH else f"…{text[1 - LONGEST_PATH :]}"
    advice = advise(text, (*TEXT_DATA, *IMAGE_DATA), f"expected {expected}")
    return DataUnavailableError(f"{shown or repr(text)}: no such file or folder; {advice}")


def _list_files(folder: Path) -> list[Path]:
    """All files of a folder and its sub-folders, each once, without hidden ones and READMEs; sorted."""
    files: list[Path] = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
        if not hidden and path.name.lower() != "readme.md" and path.is_file():
            files.append(path)
    return without_links(files)


def read_files(places: Sequence[Place], column: str) -> Iterator[str]:
    """The strings in a column of one file after the other. Each file is opened or requested in its turn.

    A cell that is null is an empty document. Raises DataUnavailableError if a file cannot be opened or reached,
    DataError if it cannot be read, or if a row lacks the column or has no string there.
    """
    for place in places:
        rows = texts = 0
        with _explain_unreadable(place):
            for number, row in enumerate(_read_rows(place, column), 1):
                rows = number
                if not row:  # an empty line, or one of a Parquet file without the column
                    continue
                text = row.get(column, MISSING)
                if text is MISSING:
                    raise DataError(
                        f"{place}: row {number} has no {column!r}, expected one in each row (null for no text); it has "
                        f"{list_names([*row])}"
                    )
                if text is not None and not isinstance(text, str):
                    raise DataError(
                        f"{place}: row {number} has a {type(text).__name__} as {column!r}, expected a string, or null "
                        "for no text"
                    )
                texts += 1
                if text is not None:
                    yield text
            if rows and not texts:
                raise DataError(f"{place} has no column {column!r}")


def _read_rows(place: Place, column: str = "") -> Iterator[Row]:
    """The rows of a file.

    If a connection breaks, the file is requested again, and the rows that were already read are skipped.
    """
    name, waits = (place, (*WAITS, None)) if isinstance(place, str) else (place.name, (None,))
    done = 0
    for wait in waits:
        try:
            with _open_address(place) if isinstance(place, str) else place.open("rb") as file:
                for row in islice(read_rows(file, name, column), done, None):
                    yield row
                    done += 1
            return
        except CONNECTION_ERRORS as error:
            refused = getattr(error, "code", FIRST_SERVER_ERROR) < FIRST_SERVER_ERROR  # such as 404 Not Found
            if wait is None or refused:
                raise
            time.sleep(wait)


def _open_address(address: str) -> IO[bytes]:
    if huggingface_hub.constants.is_offline_mode():
        raise ConnectionError("offline mode is on")
    try:
        return urlopen(address, timeout=TIMEOUT)  # type: ignore[no-any-return]
    except HTTPError as error:
        error.close()  # it holds the connection
        raise


@contextmanager
def _explain_unreadable(place: Place) -> Iterator[None]:
    """Turn an error of opening or reading a file into a DataUnavailableError or DataError that names it."""
    try:
        yield
    except AttnGeoError:
        raise
    except Exception as error:
        if isinstance(place, str) and isinstance(error, CONNECTION_ERRORS):
            reason = f"{place} cannot be read ({first_line(error)}); check the connection"
            raise DataUnavailableError(reason) from error
        if isinstance(error, OSError) and error.errno:
            raise DataUnavailableError(f"{place} cannot be read ({error.strerror})") from error
        if isinstance(error, UnicodeDecodeError):
            byte = error.object[error.start]
            text = f"{place} is not UTF-8 text (byte 0x{byte:02x}); convert it, for example with iconv"
            raise DataError(text) from error
        raise DataError(f"{place} cannot be read ({first_line(error)})") from error


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Let `datasets` and huggingface_hub print nothing inside the block; restore their settings after it."""
    loaded = [huggingface_hub, *([sys.modules["datasets"]] if "datasets" in sys.modules else [])]
    libraries: list[Any] = [library.utils for library in loaded]
    with_bars = [library for library in libraries if not library.are_progress_bars_disabled()]
    levels = [(library.logging, library.logging.get_verbosity()) for library in libraries]
    for library in with_bars:
        library.disable_progress_bars()
    for log, _ in levels:
        log.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        for library in with_bars:
            library.enable_progress_bars()
        for log, level in levels:
            log.set_verbosity(level)


def _read_lines(file: IO[bytes], _column: str) -> Iterator[Row]:
    with io.TextIOWrapper(file, "utf-8-sig") as text:
        for number, line in enumerate(text, 1):
            if "\0" in line:
                raise ValueError(f"line {number} has a NUL character, expected text")
            yield {"text": line.rstrip("\n")}


def _read_json(file: Any, _column: str) -> Iterator[Row]:
    """One object or string on each line, or one list of them in the whole file."""
    is_list = file.peek(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    with io.TextIOWrapper(file, "utf-8-sig") as text:
        if is_list:
            values, where = json.load(text), "item"
        else:
            values, where = (_parse_line(number, line) for number, line in enumerate(text, 1)), "line"
        for number, value in enumerate(values, 1):
            if isinstance(value, str):
                yield {"text": value}
            elif isinstance(value, dict):
                yield value
            else:
                raise ValueError(f"{where} {number}: expected an object or a string, got a {type(value).__name__}")


def _parse_line(number: int, line: str) -> Any:
    if not line.strip():
        return {}
    try:
        return json.loads(line)
    except ValueError as error:
        problem = str(error).rpartition(": line ")[0] or error
        raise ValueError(f"line {number}: {problem}; expected an object on each line") from None


def _read_csv(file: Any, _column: str, delimiter: str = ",") -> Iterator[Row]:
    if problem := find_text_problem(file.peek(HEAD_BYTES), delimiter):
        raise ValueError(problem)
    csv.field_size_limit(2**31 - 1)  # a document may be longer than the default limit of 128 kB
    with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        lines = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            header = next(lines, [])
            for values in filter(None, lines):
                if len(values) != len(header):
                    raise csv.Error(f"expected {len(header)} fields as in the first line, got {len(values)}")
                yield dict(zip(header, values, strict=True))
        except csv.Error as error:
            raise ValueError(f"line {lines.line_num}: {error}") from None


def _read_parquet(file: IO[bytes], column: str) -> Iterator[Row]:
    from pyarrow import parquet  # type: ignore[import-untyped]

    for batch in parquet.ParquetFile(file).iter_batches(PARQUET_ROWS, columns=[column] if column else None):
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
    """The end of a file's name that tells its format.

    >>> get_ending("a.TXT"), get_ending("a.json.gz")
    ('.txt', '.json')
    """
    path = PurePath(name.lower())
    return path.with_suffix("").suffix if path.suffix in DECOMPRESSORS else path.suffix


def read_rows(file: IO[bytes], name: str, column: str = "") -> Iterator[Row]:
    """The rows of an open file, decompressed if its name says so.

    column: the only column that is needed, which makes Parquet faster. Raises ValueError, OSError or another error of
    the format's library, with the line if it is known; KeyError for a name of an unknown format.
    """
    decompress = DECOMPRESSORS.get(PurePath(name.lower()).suffix)
    with file if decompress is None else decompress(file) as content:
        yield from READERS[get_ending(name)](content, column)


def choose_text_column(reference: str, rows: Sequence[Row], column: str = "") -> str:
    """The column to train on: `column` if given, else "text", else the only column whose strings are not all numbers.

    reference: names the data set in messages. rows: the first rows of the table. Raises DataError if the column that
    was asked for does not exist or holds no strings, or if none was asked for and several or none could be meant.
    """
    kinds: dict[str, int] = {}
    for row in rows:
        for name, value in row.items():
            kinds[name] = max(_classify(value), kinds.get(name, OTHER))
    texts = [name for name, kind in kinds.items() if kind == TEXT]
    wanted = column or "text"
    if kinds.get(wanted, OTHER) != OTHER:
        return wanted
    if column:
        problem = f"column {column!r} holds no text" if column in kinds else f"there is no column {column!r}"
    elif len(texts) == 1:
        return texts[0]
    else:
        problem = "several columns hold text" if texts else "no column holds text"
    raise DataError(f"{reference}: {problem}, its columns are {list_names([*kinds])}; set $text_column", "text_column")


def _classify(value: Any) -> int:
    if not isinstance(value, str) or not value.strip():
        return OTHER
    return NUMBERS if NUMBER.fullmatch(value) else TEXT
