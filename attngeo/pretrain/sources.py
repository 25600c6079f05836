"""Text to train on: the embedded novels, a file or folder, a Hub data set, or a data set by name.

Only data sets of the Hub require the library `datasets`.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import islice
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import huggingface_hub

from attngeo.checkpoints.reference import is_path, local_path
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, ModelNotFoundError, UsageError, first_line
from attngeo.pretrain.formats import READERS, Row, choose_text_column, get_ending, list_names, read_rows
from attngeo.pretrain.presets import TEXT_DATA

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
# Source: https://huggingface.co/datasets/legacy-datasets/wikipedia. The files are named one by one, because `datasets`
# refuses a repository that also has a loading script.
WIKIPEDIA = "hf://datasets/legacy-datasets/wikipedia/data/20220301.en/*.parquet"
# Source: https://huggingface.co/datasets/togethercomputer/RedPajama-Data-V2, "To download the files". These are the
# English documents of snapshot 2023-14, without the third of lowest quality, as the data set's card says.
REDPAJAMA = "https://data.together.xyz/redpajama-data-v2/v1.0.0"
REDPAJAMA_FILES = "listings/en-2023-14-head_middle.txt"
# Seconds: how long a server may take for an answer, and the waits before the next attempts.
TIMEOUT, WAITS = 60, (1, 5, 30)
# What urllib and the decompressors raise if a connection fails.
CONNECTION_ERRORS = (OSError, EOFError, HTTPException)
FIRST_SERVER_ERROR = 500
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
    name, _, path = reference.partition(":")
    if (name in TEXT_DATA and path) or (name == "jigsaw" and not path):
        expected = "jigsaw:PATH/train.csv" if name == "jigsaw" else name
        raise UsageError(f"{reference!r} names no data set, expected {expected}")
    match name:
        case "austen":
            corpus = files("attngeo.pretrain").joinpath("corpora", "austen.txt.xz")
            source = TextSource(name, partial(read_files, [corpus], column or "text"))
        case "wikipedia":
            import datasets

            from attngeo.pretrain.hub_data import explain_errors

            with explain_errors(name):
                table = datasets.load_dataset_builder("parquet", data_files=WIKIPEDIA).as_streaming_dataset("train")
            documents = partial(read_table, name, table, column or "text")
            source = TextSource(name, documents, streaming=True, tokenizer=PAPER_TOKENISER)
        case "redpajama":
            addresses = [f"{REDPAJAMA}/documents/{shard}.json.gz" for shard in _list_redpajama()]
            documents = partial(read_files, addresses, column or "raw_content")
            source = TextSource(name, documents, streaming=True, tokenizer=PAPER_TOKENISER)
        case "jigsaw":
            source = dataclasses.replace(open_path(path, column or "comment_text"), tokenizer=PAPER_TOKENISER)
        case _:
            hub = HUB_REFERENCE.fullmatch(reference)
            is_local = hub is None or is_path(hub["name"]) or get_ending(reference) in READERS
            is_local = is_local or _resolve_path(reference).exists()
            source = open_path(reference, column) if is_local else open_hub(reference, column)
    return dataclasses.replace(source, name=reference, space_characters=space_characters)


def open_path(reference: str, column: str = "") -> TextSource:
    """The text of a file, or of all files of a folder, which must have one format.

    column: the column that holds the text of a table; see `choose_text_column`. Raises DataUnavailableError if there is
    no such path, DataError if it holds no text or files of several formats.
    """
    path = _resolve_path(reference)
    if not reference or not path.exists():
        raise DataUnavailableError(f"{reference or repr(reference)}: no such file or folder; expected {EXPECTED}")
    places = sorted(file for file in _list_files(path) if get_ending(file.name) in READERS) if path.is_dir() else [path]
    endings = {READERS.get(get_ending(place.name)): get_ending(place.name) for place in places}
    if len(endings) != 1 or None in endings:
        got = " ".join(sorted(endings.values())) or "none"
        raise DataError(f"{reference}: expected files of one format, ending in one of {' '.join(READERS)}; got {got}")
    sample = next(filter(None, map(_read_sample, places)), None)
    if sample is None:
        raise DataError(f"{reference} is empty, expected text; give another as $data", "data")
    chosen = choose_text_column(reference, sample, column)
    size = sum(place.stat().st_size for place in places)
    return TextSource(reference, partial(read_files, places, chosen), streaming=size > LARGEST_IN_MEMORY)


def _resolve_path(text: str) -> Path:
    """The path that a reference names; it may be missing. Raises DataUnavailableError if the text can be no path."""
    try:
        return local_path(text)
    except ModelNotFoundError:
        raise DataUnavailableError(f"{text[:80]}: no such file or folder; expected {EXPECTED}") from None


def _list_files(folder: Path) -> Iterator[Path]:
    """All files of a folder and its sub-folders, without hidden ones and READMEs."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
        if not hidden and path.name.lower() != "readme.md" and path.is_file():
            yield path


def _read_sample(place: Path) -> list[Row]:
    with _explain_unreadable(place):
        return list(islice(_read_rows(place), TABLE_ROWS))


def open_hub(reference: str, column: str = "") -> TextSource:
    """The text of a Hub data set: downloaded if it is small, else streamed.

    reference: `org/name[:config][@revision][#split]`. column: see `choose_text_column`. Raises DataUnavailableError if
    the data set cannot be reached, DataError if it cannot be read or holds no text.
    """
    from attngeo.pretrain.hub_data import explain_errors, open_builder

    with explain_errors(reference):
        builder, split = open_builder(reference)
        size = builder.info.dataset_size
        streaming = size is None or size > LARGEST_IN_MEMORY
        if streaming:
            table: Any = builder.as_streaming_dataset(split=split or "train")
        else:
            builder.download_and_prepare(verification_mode="no_checks")  # many cards give the sizes of an older version
            table = builder.as_dataset(split=split or "train")
        sample = list(islice(table, TABLE_ROWS))
    chosen = choose_text_column(reference, sample, column)
    return TextSource(reference, partial(read_table, reference, table, chosen), streaming)


def read_table(reference: str, table: Any, column: str) -> Iterator[str]:
    """The documents in a column of a table of `datasets`. Raises DataUnavailableError or DataError."""
    from attngeo.pretrain.hub_data import explain_errors

    with explain_errors(reference):
        batches = table.select_columns([column]).iter(batch_size=TABLE_ROWS)
    while True:
        with explain_errors(reference):
            batch = next(batches, None)
        if batch is None:
            return
        yield from (text for text in batch[column] if isinstance(text, str))


def read_files(places: Sequence[Place], column: str) -> Iterator[str]:
    """The documents in a column of one file after the other. Each file is opened or requested in its turn.

    Raises DataUnavailableError if a file cannot be opened or reached, DataError if it cannot be read or lacks the
    column.
    """
    for place in places:
        with _explain_unreadable(place):
            yield from _select_texts(str(place), _read_rows(place, column), column)


def _select_texts(name: str, rows: Iterable[Row], column: str) -> Iterator[str]:
    """The strings in a column of the rows; other values are left out. Raises DataError if no row had the column."""
    first: Row | None = None
    has_column = False
    for row in rows:
        first = first or row
        has_column = has_column or column in row
        if isinstance(text := row.get(column), str):
            yield text
    if first is not None and not has_column:
        raise DataError(f"{name} has no column {column!r}; its columns are {list_names(first)}")


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


def _list_redpajama() -> list[str]:
    address = f"{REDPAJAMA}/{REDPAJAMA_FILES}"
    with _explain_unreadable(address), _open_address(address) as file:
        return file.read().decode("utf-8").split()


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
