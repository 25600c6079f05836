"""Text to train on, by name: of the package itself, a file or folder, a Hub data set, or a data set of the paper.

A document is a line of a text file, or a row of a table. Only data sets of the Hub require the library `datasets`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from http.client import HTTPException
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain, islice
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.request import urlopen

import huggingface_hub

from attngeo.bounds.encodings import CP1252, find_encoding
from attngeo.bounds.links import without_links
from attngeo.bounds.names import list_names, name_type
from attngeo.bounds.paths import local_path
from attngeo.bounds.small_files import open_regular
from attngeo.checkpoints.reference import is_path
from attngeo.choices import advise
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, ModelNotFoundError, UsageError, first_line
from attngeo.pretrain.presets import IMAGE_DATA, TEXT_DATA
from attngeo.pretrain.text_formats import (
    DECOMPRESSORS,
    READERS,
    TABLE_ROWS,
    Row,
    choose_text_column,
    get_ending,
    read_rows,
)
from attngeo.pretrain.text_source import HUB_REFERENCE, LARGEST_IN_MEMORY, PAPER_TOKENIZER, TextSource

log = logging.getLogger(__name__)

# Characters of a path that a message shows; of a longer one, the end tells most.
LONGEST_PATH = 100
EXPECTED = (
    "a text file, a folder, org/name on the Hub, or one of austen, repeats, wikipedia, redpajama, jigsaw:PATH/train.csv"
)
# Source: https://huggingface.co/datasets/togethercomputer/RedPajama-Data-V2, "To download the files". These are the
# English documents of snapshot 2023-14, without the third of lowest quality, as the data set's card says.
REDPAJAMA = "https://data.together.xyz/redpajama-data-v2/v1.0.0"
REDPAJAMA_FILES = "listings/en-2023-14-head_middle.txt"
# Seconds that a server may take for an answer.
TIMEOUT = 60
# Seconds to wait before the next attempts.
WAITS = (1, 5, 30)
# What urllib and the decompressors raise if a connection fails.
CONNECTION_ERRORS = (OSError, EOFError, HTTPException)
FIRST_SERVER_ERROR = 500
# A file of this machine or of the package, or the address of one.
Location = Path | Traversable | str


def open_text(reference: str, *, column: str = "", space_characters: bool = False) -> TextSource:
    """Open the text that `reference` names. A document is a line of a text file, or a row of a table.

    Args:
        reference: "austen" (bundled), "repeats" (see `write_repeats`), a file, a folder, a Hub data set as
            `org/name[:config][@revision][#split]`, or "wikipedia", "redpajama" or "jigsaw:PATH/train.csv", the data
            sets of Saponati et al. 2025.
        column: column of a table with the text; by default "text", or the only column of text.
        space_characters: whether to join the characters of each document with spaces, like the published code.

    Raises:
        DataUnavailableError: the data cannot be reached.
        DataError: the data cannot be read.
        UsageError: `reference` is not the name of a data set.
    """
    require_text_data(reference)
    name, _, path = reference.partition(":")
    match name:
        case "austen":
            corpus = files("attngeo.pretrain").joinpath("corpora", "austen.txt.xz")
            source = TextSource(name, partial(read_files, [corpus], column or "text"))
        case "repeats":
            from attngeo.pretrain.repeats import write_repeats

            source = TextSource(name, write_repeats)
        case "wikipedia":
            from attngeo.pretrain.hub_data import open_wikipedia

            source = open_wikipedia(name, column)
        case "redpajama":
            listing = f"{REDPAJAMA}/{REDPAJAMA_FILES}"
            with _explain_unreadable(listing), _open_address(listing) as file:
                shards = file.read().decode("utf-8").split()
            addresses = [f"{REDPAJAMA}/documents/{shard}.json.gz" for shard in shards]
            documents = partial(read_files, addresses, column or "raw_content")
            source = TextSource(name, documents, streaming=True, tokenizer=PAPER_TOKENIZER)
        case "jigsaw":
            source = dataclasses.replace(open_path(path, column or "comment_text"), tokenizer=PAPER_TOKENIZER)
        case _:
            if is_on_hub(reference):
                from attngeo.pretrain.hub_data import open_hub

                source = open_hub(reference, column)
            else:
                source = open_path(reference, column)
    return dataclasses.replace(source, name=reference, space_characters=space_characters)


def require_text_data(reference: str) -> None:
    """Raise DataUnavailableError for a missing path, DataError for an empty file.

    Raises UsageError for a mistake after the colon of a name. Contacts no server, and loads nothing heavy.
    """
    name, _, path = reference.partition(":")
    if (name in TEXT_DATA and path) or (name == "jigsaw" and not path):
        expected = "jigsaw:PATH/train.csv" if name == "jigsaw" else name
        raise UsageError(f"{reference!r} is not a data set, expected {expected}")
    if name == "jigsaw":
        find_path(path)
    elif name not in TEXT_DATA and not is_on_hub(reference):
        path_of_text = find_path(reference)
        if path_of_text.is_file() and not path_of_text.stat().st_size:
            raise DataError(f"{reference} is empty, expected text; give another file")


def is_on_hub(reference: str) -> bool:
    """Whether a reference names a data set on the Hub, that is, no local file or folder."""
    hub = HUB_REFERENCE.fullmatch(reference)
    is_local = hub is None or is_path(hub["name"]) or get_ending(reference) in READERS
    return not is_local and not os.path.exists(reference)  # noqa: PTH110 - a Path refuses names that are too long


def find_path(reference: str, expected: str = EXPECTED) -> Path:
    """The file or folder that a reference names. Raises DataUnavailableError if it is missing."""
    with suppress(ModelNotFoundError):
        path = local_path(reference)
        if reference and path.exists():
            return path
    shown = reference if len(reference) <= LONGEST_PATH else f"…{reference[1 - LONGEST_PATH :]}"
    advice = advise(reference, (*TEXT_DATA, *IMAGE_DATA), f"expected {expected}")
    raise DataUnavailableError(f"no such file or folder; {advice}", subject=shown or repr(reference))


def open_path(reference: str, column: str = "") -> TextSource:
    """The text of a file, or of all files of a folder, which must have one format.

    column: the column of a table with the text; see `choose_text_column`. Raises DataUnavailableError if the path is
    missing, DataError if it holds no text or files of several formats.
    """
    path = find_path(reference)
    paths = [path]
    if path.is_dir():
        paths = [file for file in _list_files(path) if get_ending(file.name) in READERS]
    endings = {READERS.get(get_ending(path.name)): get_ending(path.name) for path in paths}
    if len(endings) != 1 or None in endings:
        got = " ".join(sorted(endings.values())) or "none"
        raise DataError(
            f"expected files of one format, ending in one of {' '.join(READERS)}; got {got}", subject=reference
        )
    sample = list(islice(chain.from_iterable(map(_request_rows, paths)), TABLE_ROWS))
    if not sample:
        raise DataError(f"{reference} is empty, expected text; give another file or folder")
    chosen = choose_text_column(reference, sample, column)
    size = sum(path.stat().st_size for path in paths)
    return TextSource(reference, partial(read_files, paths, chosen), streaming=size > LARGEST_IN_MEMORY)


def _list_files(folder: Path) -> list[Path]:
    """All files of a folder and its sub-folders, each once, without hidden ones and READMEs; sorted."""
    files: list[Path] = []
    for path in sorted(folder.rglob("*")):
        is_hidden = any(name.startswith((".", "__")) for name in path.relative_to(folder).parts)
        if not is_hidden and path.name.lower() != "readme.md" and path.is_file():
            files.append(path)
    return without_links(files)


def read_files(locations: Sequence[Location], column: str) -> Iterator[str]:
    """The strings in a column of several files. Each file is opened or requested only when it is needed.

    A null cell is an empty document. Raises DataUnavailableError if a file cannot be opened or reached, DataError if it
    cannot be read, or if a row lacks the column or has no string there.
    """
    for location in locations:
        for number, row in enumerate(_request_rows(location, column), 1):
            if not row:  # an empty line
                continue
            if column not in row:
                raise DataError(
                    f"row {number} has no {column!r}, only {list_names([*row])}; expected {column!r} in each row (null "
                    "for no text)",
                    subject=location,
                )
            text = row[column]
            if isinstance(text, str):
                yield text
            elif text is not None:
                raise DataError(
                    f"row {number} has {name_type(text)} in {column!r}, expected a string, or null for no text",
                    subject=location,
                )


def _request_rows(location: Location, column: str = "") -> Iterator[Row]:
    """The rows of a file. Raises DataUnavailableError or DataError if it cannot be read."""
    with _explain_unreadable(location):
        if isinstance(location, str):
            yield from _download_rows(location, column)
        elif isinstance(location, Path):
            yield from _read_own_rows(location, column)
        else:
            with location.open("rb") as file:
                yield from read_rows(file, location.name, column)


def _read_own_rows(path: Path, column: str) -> Iterator[Row]:
    """The rows of a file of the user: if no character of it is UTF-8, read as cp1252. Raises as `read_rows`."""
    done = 0
    try:
        with open_regular(path) as file:
            for row in read_rows(file, path.name, column):
                yield row
                done += 1
    except UnicodeDecodeError:
        is_packed = path.suffix.lower() in DECOMPRESSORS
        if is_packed or find_encoding(path) != CP1252:
            raise
        _report_encoding(path)
        with open_regular(path) as file:
            # Those before it are of characters that both encodings share.
            yield from islice(read_rows(file, path.name, column, CP1252), done, None)


@cache
def _report_encoding(path: Path) -> None:
    """Warn once of a file: it is read again for each epoch, and before for its columns."""
    log.warning("%s: not UTF-8, read as %s; convert the file to UTF-8 if that is wrong", path, CP1252)


def _download_rows(address: str, column: str) -> Iterator[Row]:
    """The rows of a file at an address.

    If a connection breaks, the file is requested again, and the rows that were already read are skipped.
    """
    done = 0
    for wait in (*WAITS, None):
        try:
            with _open_address(address) as file:
                for row in islice(read_rows(file, address, column), done, None):
                    yield row
                    done += 1
            return
        except CONNECTION_ERRORS as error:
            is_refused = getattr(error, "code", FIRST_SERVER_ERROR) < FIRST_SERVER_ERROR  # such as 404 Not Found
            if wait is None or is_refused:
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
def _explain_unreadable(location: Location) -> Iterator[None]:
    """Turn an error of opening or reading a file into a DataUnavailableError or DataError that names it."""
    try:
        yield
    except AttnGeoError:
        raise
    except Exception as error:
        if isinstance(location, str) and isinstance(error, CONNECTION_ERRORS):
            raise DataUnavailableError(
                f"{location} cannot be read ({first_line(error)}); check the connection"
            ) from error
        if isinstance(error, OSError) and error.errno:
            raise DataUnavailableError(f"{location} cannot be read ({error.strerror})") from error
        advice = "; convert it, for example with iconv" if isinstance(error, UnicodeDecodeError) else ""
        raise DataError(
            f"{location} cannot be read ({first_line(error)}); expected UTF-8 text or a table{advice}"
        ) from error
