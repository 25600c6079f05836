"""Files of others, read whole within limits of bytes; and the training, validation and test rows of a tidy table."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pandas as pd

from attngeo.bounds.small_files import check_small
from attngeo.errors import DataError, DataUnavailableError, first_line
from attngeo.papers.wibisono2025.options import README, require_data

# Ten times the largest of them, unpacked.
MOST_BYTES = 50_000_000
PACKED = ".gz"
# The seed of the published runs.
PUBLISHED_SEED = 42


def look_for(folder: Path, *names: str) -> Path | None:
    """The first of these files, also packed by gzip, in a folder; None if it has none of them."""
    places = (folder / (name + suffix) for name in names for suffix in ("", PACKED))
    return next((place for place in places if place.exists()), None)


def find_file(place: str | Path, *names: str) -> Path:
    """The first of these files in a folder; `place` itself, if it is no folder. Raises DataUnavailableError."""
    place = Path(place).expanduser()
    file = look_for(place, *names) if place.is_dir() else place
    if file is None or not file.exists():
        raise DataUnavailableError(f"{place}: no such file, expected {' or '.join(names)}; {README} describes them")
    return file


def folder_of(place: str | Path) -> Path:
    """The folder of a data set of several files: `place`, or the one in which this file is."""
    require_data(place)
    place = Path(place).expanduser()
    return place if place.is_dir() else place.parent


def read_content(path: Path, most: int = MOST_BYTES, *, member: str = "") -> bytes:
    """The bytes of a file; unpacked, if its name ends in .gz. member: the file to read, if it is a zip archive.

    Raises DataUnavailableError if it is missing, DataError if it cannot be read or has more than `most` bytes.
    """
    try:
        size = check_small(path, most)
        with path.open("rb") as file:
            content = _unpack(file, path, member).read(most + 1)
        if len(content) > most:
            raise ValueError(f"it has more than {most:,} bytes" + (", unpacked" if size <= most else ""))
    except FileNotFoundError:
        raise DataUnavailableError(f"{path}: no such file") from None
    except KeyError:
        raise DataError(f"{path} has no file {member}") from None
    except (OSError, ValueError, EOFError, RuntimeError, NotImplementedError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read ({first_line(error)})") from None
    return content


def _unpack(file: IO[bytes], path: Path, member: str) -> IO[bytes]:
    if path.suffix.lower() == PACKED:
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if member and zipfile.is_zipfile(file):
        return zipfile.ZipFile(file).open(member)
    file.seek(0)
    return file


@contextmanager
def explaining(path: Path, what: str) -> Iterator[None]:
    """Raise DataError for a file in the block that is not what it should be."""
    try:
        yield
    except (ValueError, LookupError, TypeError, OverflowError, zlib.error) as error:
        raise DataError(f"{path} is not {what} ({first_line(error)})") from None


def read_table(
    path: Path, columns: Sequence[str], *, every: bool = False, most: int = MOST_BYTES, member: str = "", **options: Any
) -> pd.DataFrame:
    """Some columns of a CSV file. every: all of them. most, member: as in `read_content`. options: of `read_csv`.

    Raises as `read_content`, and DataError if it is no table, lacks a column, has no rows, or a cell of another type.
    """
    content = read_content(path, most, member=member)
    with explaining(path, f"a table with {','.join(columns)}"):
        frame = pd.read_csv(io.BytesIO(content), encoding="utf-8-sig", **options)
        if not isinstance(frame.index, pd.RangeIndex):
            raise ValueError("a row has more cells than there are names of columns")
        missing = [name for name in columns if name not in frame]
        if missing or frame.empty:
            raise ValueError(f"it lacks the column {missing[0]!r}" if missing else "it has no rows")
    chosen: pd.DataFrame = frame if every else frame[list(columns)]
    return chosen


def require_once(path: Path, frame: pd.DataFrame, columns: list[str]) -> None:
    """Raise DataError that states the first row whose cells of these columns another row has, too."""
    again = frame.duplicated(columns).to_numpy()
    if again.any():
        row = int(again.argmax())
        what = ", ".join(f"{name} {frame[name].iloc[row]}" for name in columns)
        raise DataError(f"{path}: row {row + 1} repeats {what}, expected each once")


class Split(NamedTuple):
    """The rows of each part, in the order of the table."""

    train: pd.DataFrame
    validation: pd.DataFrame
    test: pd.DataFrame


def take_sequences(
    frame: pd.DataFrame, train: Collection[Any], validation: Collection[Any], test: Collection[Any]
) -> Split:
    """The rows of these sequences. Raises DataError if a part has none."""
    split = Split(*(frame[frame["sequence"].isin(list(part))].reset_index(drop=True)
                    for part in (train, validation, test)))  # fmt: skip
    for name, rows in split._asdict().items():
        if rows.empty:
            count = frame["sequence"].nunique()
            raise DataError(f"the {name} part of the data has no row: there are {count} sequences; give all the data")
    return split


def start_draws(seed: int, *, published: bool) -> np.random.Generator | np.random.RandomState:
    """Random numbers of the seed; or those of the published runs, which have their own seed."""
    return np.random.RandomState(PUBLISHED_SEED) if published else np.random.default_rng(seed)


def hold_out(
    values: np.ndarray[Any, Any], draw: np.random.Generator | np.random.RandomState
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Three quarters of the values, and a random quarter of them, rounded up.

    With the random numbers of the published runs, this is train_test_split(test_size=0.25, random_state=42) of
    scikit-learn.
    """
    order = draw.permutation(len(values))
    held = -(-len(values) // 4)
    return values[order[held:]], values[order[:held]]
