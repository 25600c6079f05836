"""Files of others, read whole within limits of bytes, and their cells as numbers; the first wrong one is an error."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from attngeo.bounds import check_small
from attngeo.errors import PROJECT_FILES, DataError, DataUnavailableError, first_line

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

# Ten times the largest of them, unpacked.
MOST_BYTES = 50_000_000
PACKED = ".gz"
# Numbers from here on are no number of an item or an order.
LARGEST = 10**12


def find_file(place: str | Path, *names: str) -> Path:
    """The first of these files, also packed by gzip, in a folder; `place` itself, if it is no folder.

    Raises DataUnavailableError.
    """
    place = Path(place).expanduser()
    if not place.is_dir():
        if not place.exists():
            raise DataUnavailableError(f"{place}: no such file or folder, expected {' or '.join(names)}")
        return place
    for name in (each + suffix for each in names for suffix in ("", PACKED)):
        if (place / name).exists():
            return place / name
    raise DataUnavailableError(
        f"{place} has no file {' or '.join(names)}; {PROJECT_FILES}/attngeo/efa/README.md describes them"
    )


def has_file(folder: Path, name: str) -> bool:
    """Whether `find_file` finds it in the folder."""
    return (folder / name).exists() or (folder / (name + PACKED)).exists()


def has_member(path: Path, member: str) -> bool:
    """Whether a path is a zip archive that has this file. Raises DataError for a damaged archive."""
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return member in archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read ({first_line(error)})") from None


def folder_of(place: str | Path) -> Path:
    """The folder of a data set of several files: `place`, or the one in which this file is."""
    place = Path(place).expanduser()
    if not place.exists():
        raise DataUnavailableError(
            f"{place}: no such file or folder; {PROJECT_FILES}/attngeo/efa/README.md describes the files"
        )
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


def read_cells(path: Path, columns: Sequence[str] = (), *, most: int = MOST_BYTES) -> pd.DataFrame:
    """The cells of a CSV file as texts; row 1 is the one after the header. columns: those that it must have.

    Raises as `read_content`, and DataError if it is no table, lacks a column or has no rows.
    """
    import pandas as pd

    content = read_content(path, most)
    try:
        frame = pd.read_csv(io.BytesIO(content), dtype=str, na_filter=False, encoding="utf-8-sig", on_bad_lines="error")
        if not isinstance(frame.index, pd.RangeIndex):
            raise ValueError("a row has more cells than the header has names")
    except ValueError as error:
        raise DataError(f"{path} is not a CSV table ({first_line(error)})") from None
    missing = [name for name in columns if name not in frame]
    if missing:
        raise DataError(f"{path} lacks the column {missing[0]!r}, expected a CSV file with {','.join(columns)}")
    if frame.empty:
        raise DataError(f"{path} has no rows")
    return frame


def whole_numbers(path: Path, cells: pd.Series, least: int = 0) -> npt.NDArray[np.int64]:
    """The cells of a column as whole numbers. Raises DataError that states the row of the first that is none."""
    is_right = cells.str.fullmatch(r"\d{1,12}").to_numpy(bool)
    require(path, cells, is_right, f"a whole number below {LARGEST:,}")
    numbers = cells.to_numpy(str).astype("int64")
    require(path, cells, numbers >= least, f"at least {least}")
    return numbers


def real_numbers(path: Path, cells: pd.Series, least: float, most: float) -> npt.NDArray[np.float64]:
    """The cells of a column as numbers. Raises DataError that states the row of the first that is none or outside."""
    import numpy as np

    numbers = np.array([_to_float(cell) for cell in cells])
    require(path, cells, (numbers >= least) & (numbers <= most), f"a number from {least:g} to {most:g}")
    return numbers


def _to_float(cell: str) -> float:
    try:
        return float("nan" if "_" in cell else cell)  # Python reads 1_000 as a number
    except ValueError:
        return float("nan")


def require(path: Path, cells: pd.Series, is_right: npt.NDArray[np.bool_], expected: str) -> None:
    """Raise DataError that states the row, the column and the cell of the first that is not right."""
    if not is_right.all():
        row = int(is_right.argmin())
        raise DataError(f"{path}: row {row + 1}: {cells.name} is {str(cells.iloc[row])!r:.60}, expected {expected}")


def require_once(path: Path, frame: pd.DataFrame, columns: list[str]) -> None:
    """Raise DataError that states the first row whose cells of these columns another row has, too."""
    again = frame.duplicated(columns).to_numpy()
    if again.any():
        row = int(again.argmax())
        what = ", ".join(f"{name} {frame[name].iloc[row]}" for name in columns)
        raise DataError(f"{path}: row {row + 1} repeats {what}, expected each once")
