"""Text in local files and folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources.abc import Traversable
from itertools import islice
from pathlib import Path

from attngeo.checkpoints.reference import local_path
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, ModelNotFoundError, first_line
from attngeo.pretrain.hub_data import list_names
from attngeo.pretrain.text.columns import Row, choose_text_column, classify_columns
from attngeo.pretrain.text.documents import LARGEST_IN_MEMORY, TextSource
from attngeo.pretrain.text.formats import READERS, find_reader, get_ending, read_rows

# The columns of a file are classified by its first rows.
SAMPLE_ROWS = 100
EXPECTED = "a text file, a folder, org/name of the Hub, or one of austen, wikipedia, redpajama, jigsaw:PATH/train.csv"


def resolve_path(text: str) -> Path:
    """The path that a reference names; it may be missing. Raises DataUnavailableError if the text can be no path."""
    try:
        return local_path(text)
    except ModelNotFoundError:
        raise DataUnavailableError(f"{text[:80]}: no such file or folder; expected {EXPECTED}") from None


def open_path(reference: str, column: str = "") -> TextSource:
    """The text of a file, or of all files of a folder, which must have one format.

    column: the column that holds the text of a table; see `choose_text_column`. Raises DataUnavailableError if there is
    no such path, DataError if it holds no text or files of several formats.
    """
    path = resolve_path(reference)
    if not reference or not path.exists():
        raise DataUnavailableError(f"{reference or repr(reference)}: no such file or folder; expected {EXPECTED}")
    places = sorted(each for each in _list_files(path) if find_reader(each.name)) if path.is_dir() else [path]
    endings = {find_reader(place.name): get_ending(place.name) for place in places}
    if len(endings) != 1 or None in endings:
        got = " ".join(sorted(endings.values())) or "none"
        raise DataError(f"{reference}: expected files of one format, ending in one of {' '.join(READERS)}; got {got}")
    sample = next(filter(None, map(_read_sample, places)), None)
    if sample is None:
        raise DataError(f"{reference} is empty, expected text; give another with --data")
    chosen = choose_text_column(reference, classify_columns(sample), column)
    size = sum(place.stat().st_size for place in places)
    return TextSource(reference, partial(read_files, places, chosen), streaming=size > LARGEST_IN_MEMORY)


def _list_files(folder: Path) -> Iterator[Path]:
    """All files of a folder and its sub-folders, without hidden ones and READMEs."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
        if not hidden and path.name.lower() != "readme.md" and path.is_file():
            yield path


def _read_sample(place: Path) -> list[Row]:
    with _explain_errors(place), place.open("rb") as file:
        return list(islice(read_rows(file, place.name), SAMPLE_ROWS))


def read_files(places: Sequence[Path | Traversable], column: str) -> Iterator[str]:
    """The documents in a column of one file after the other. Each file is opened in its turn.

    Raises DataUnavailableError if a file cannot be opened, DataError if it cannot be read or lacks the column.
    """
    for place in places:
        with _explain_errors(place), place.open("rb") as file:
            yield from select_texts(str(place), read_rows(file, place.name, column), column)


def select_texts(name: str, rows: Iterable[Row], column: str) -> Iterator[str]:
    """The strings in a column of the rows; other values are left out.

    name: the file, for messages. Raises DataError at the end if no row had the column.
    """
    first: Row | None = None
    found = False
    for row in rows:
        if first is None:
            first = row
        found = found or column in row
        if isinstance(text := row.get(column), str):
            yield text
    if first is not None and not found:
        raise DataError(f"{name} has no column {column!r}; its columns are {list_names(first)}")


@contextmanager
def _explain_errors(place: Path | Traversable) -> Iterator[None]:
    """Turn an error of opening or reading a file into a DataUnavailableError or DataError that names the file."""
    try:
        yield
    except AttnGeoError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise DataUnavailableError(f"{place} cannot be read ({error.strerror})") from error
        raise describe_unreadable(str(place), error) from error


def describe_unreadable(name: str, error: Exception) -> DataError:
    """The DataError for a file with content that cannot be read."""
    if isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        return DataError(f"{name} is not UTF-8 text (byte 0x{byte:02x}); convert it, for example with iconv")
    return DataError(f"{name} cannot be read ({first_line(error)})")
