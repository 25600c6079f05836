"""The paths that a user gives to an estimator: of tables, and of saved models. Imports nothing heavy.

A missing or empty file is refused here, before the libraries are loaded that read it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from attngeo.bounds.names import explain_pattern
from attngeo.bounds.small_files import open_regular
from attngeo.choices import advise
from attngeo.errors import (
    CorruptCheckpointError,
    DataUnavailableError,
    ModelNotFoundError,
    TableError,
    UnknownColumnError,
)
from attngeo.estimators.shared.forms import AS_FOUND, SEPARATORS, FileForm, FormOptions, find_form
from attngeo.tables.read import HEAD_BYTES

CONFIG = "config.json"
SUFFIXES = (*SEPARATORS, ".parquet")


def require_table(path: str | Path) -> Path:
    """The path of a table.

    Raises DataUnavailableError if the file does not exist, TableError if it has another format or no rows.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataUnavailableError(
            f"{path} does not exist; give a .csv, .tsv or .parquet file{explain_pattern(str(path))}"
        )
    if path.suffix.lower() not in SUFFIXES:
        raise TableError(f"unknown format, expected a name that ends in one of: {' '.join(SUFFIXES)}", subject=path)
    if path.is_file() and path.suffix.lower() in SEPARATORS:
        _require_rows(path)
    return path


def _require_rows(path: Path) -> None:
    """Raise TableError if a .csv or .tsv file is empty, or ends after its first line."""
    try:
        with open_regular(path) as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return  # whoever reads the table says why it cannot be read
    if not head.strip():
        raise TableError(f"{path} is empty, expected column names in the first line, and rows")
    if len(head) < HEAD_BYTES and len(head.strip().splitlines()) == 1:
        raise TableError(f"{path} has 0 rows, expected at least one below the column names")


def require_saved(folder: str | Path, made_by: str, parts: Iterable[str] = ("",)) -> None:
    """Raise ModelNotFoundError if the folder of a saved model is missing, CorruptCheckpointError if it has no config.

    Args:
        folder: the folder.
        made_by: command that writes such a folder.
        parts: subfolders that may have the configuration, "" for the folder itself.
    """
    folder = Path(folder)
    if not any((folder / part / CONFIG).exists() for part in parts):
        expected = f"expected a folder that {made_by} wrote"
        if folder.is_dir():
            raise CorruptCheckpointError(f"{folder} has no {CONFIG}, {expected}")
        problem = "is a file" if folder.exists() else "does not exist"
        raise ModelNotFoundError(f"{folder} {problem}, {expected}")


def require_column(paths: Iterable[str | Path], column: str, options: FormOptions = AS_FOUND) -> None:
    """Raise UnknownColumnError if no table has the column in its first line. Parquet files are left to pandas.

    options: how text files are written.
    """
    known: list[str] = []
    for path in map(Path, paths):
        if path.suffix.lower() not in SEPARATORS:
            return
        path = path.expanduser()
        with suppress(OSError, ValueError, csv.Error):
            header = read_header(path, find_form(path, options))
            known += [name or f"Unnamed: {place}" for place, name in enumerate(header)]  # as pandas names it
    if known and column not in known:
        raise refuse_column(column, known, next(iter(paths)))


def refuse_column(column: str, known: Iterable[object], path: str | Path) -> UnknownColumnError:
    """The error for a column that an option names, and that a table lacks."""
    return UnknownColumnError(f"no column {column!r}; {advise(column, known)}", subject=path)


def read_header(path: Path, form: FileForm) -> list[str]:
    """The names of the columns of a .csv or .tsv file. Raises OSError, ValueError or csv.Error."""
    with io.TextIOWrapper(open_regular(path), form.encoding, newline="") as file:
        for _ in range(form.skipped):
            file.readline()
        return next(csv.reader(file, delimiter=form.separator, quoting=form.quoting, skipinitialspace=True), [])
