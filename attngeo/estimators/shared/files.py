"""A user's own table from a file, with the kinds of its columns as they are."""

from __future__ import annotations

import csv
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from pyarrow import parquet  # type: ignore[import-untyped]

from attngeo.bounds import check_small, require_memory
from attngeo.errors import TableError, first_line
from attngeo.estimators.shared.paths import SEPARATORS, read_header, require_table

# Cells of a text file that are missing. Not "None" or "n/a", which may be categories.
MISSING_TEXTS = ("", "NA", "NaN", "nan", "?")
# Whole numbers below these are exact in float64, and fit into int64.
LARGEST_EXACT, LARGEST_INT = 2**53, 2**63
# A whole number that begins with 0.
CODE = r"-?0\d+"


def read_own_table(
    path: str | Path, missing: Iterable[str] | None = None, texts: Iterable[str] = (), codes: Iterable[str] = ()
) -> pd.DataFrame:
    """The rows of a .csv, .tsv or .parquet file whose first line names the columns.

    missing: texts that are missing cells, beside empty ones, in place of MISSING_TEXTS. texts: columns of a text file
    that are texts, even if all look like numbers. codes: columns that are texts if a whole number in them begins with
    0. Raises DataUnavailableError if there is no such file, UsageError for another format, TableError if it cannot be
    read, has no rows, or names a column twice, NotEnoughMemoryError for one that does not fit.
    """
    path = require_table(path)
    try:
        require_memory(_count_bytes(path), f"the table {path}")
        if path.suffix.lower() == ".parquet":
            frame: pd.DataFrame = pd.read_parquet(path)
            # An index without a name says nothing, and may repeat a label.
            frame = frame.reset_index(drop=all(name is None for name in frame.index.names))
        else:
            _check_header(path)
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # cells that it would drop
                frame = pd.read_csv(
                    path, sep=SEPARATORS[path.suffix.lower()], na_values=list_missing(missing), keep_default_na=False,
                    encoding="utf-8-sig", skipinitialspace=True, index_col=False,
                    dtype=dict.fromkeys([*texts, *codes], str),
                )  # fmt: skip
            frame = frame.assign(**{name: _read_codes(frame[name]) for name in {*codes} - {*texts} if name in frame})
    except TableError:
        raise
    except pd.errors.EmptyDataError:
        raise TableError(f"{path} is empty, expected the names of columns in its first line, and rows") from None
    except pd.errors.ParserWarning:
        raise TableError(
            "more cells than columns; put texts with commas in quotation marks", table=str(path), row=1
        ) from None
    except (OSError, ValueError, csv.Error) as error:
        raise TableError(f"{path} cannot be read as a table ({first_line(error)})") from None
    if not len(frame) or not frame.shape[1]:
        raise TableError(f"{path} has {len(frame)} rows and {frame.shape[1]} columns, expected some of each")
    frame.columns = frame.columns.map(str)
    return frame


def _count_bytes(path: Path) -> int:
    """The bytes of a table in memory, about: numbers of a text are as long as in the file."""
    size = check_small(path, sys.maxsize)
    if path.suffix.lower() != ".parquet":
        return size
    metadata = parquet.read_metadata(path)
    return sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))


def list_missing(texts: Iterable[str] | None) -> list[str]:
    """The texts of missing cells: these and the empty one; without any, MISSING_TEXTS."""
    return list(dict.fromkeys(["", *(texts or MISSING_TEXTS)]))


def list_texts(frame: pd.DataFrame) -> list[str]:
    """The columns that have texts."""
    return [name for name in frame.columns if pd.api.types.is_string_dtype(frame[name].dtype)]


def sort_values(values: Iterable[Any]) -> list[Any]:
    """The values sorted, those of different kinds by the name of the kind first. Raises TypeError if none is less."""
    values = list(values)
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=lambda value: (type(value).__name__, value))


def keep_whole(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column of whole numbers, of which some are missing, as such; others in the kind that their values have."""
    known = column.dropna()
    if pd.api.types.is_float_dtype(column.dtype):
        is_whole = bool(((known % 1 == 0) & (known.abs() < LARGEST_EXACT)).all())
    else:
        is_whole = column.dtype == object and all(type(item) is int and abs(item) < LARGEST_INT for item in known)
    return column.astype("Int64") if is_whole and len(known) < len(column) else column.infer_objects()


def _read_codes(texts: pd.Series[str]) -> pd.Series[Any]:
    """Texts as numbers, if all are, and no whole one begins with 0: 01 and 1 would be one item."""
    stripped = texts.str.strip()
    numbers = pd.to_numeric(stripped, errors="coerce")
    are_texts = stripped.str.fullmatch(CODE).any() or (numbers.isna() & stripped.notna()).any()
    return texts if are_texts else numbers


def _check_header(path: Path) -> None:
    """Raise TableError if two columns have one name: pandas would rename the second one."""
    twice = [name for name, count in Counter(read_header(path)).items() if count > 1]
    if twice:
        raise TableError("occurs more than once; rename one", table=str(path), column=twice[0])


@contextmanager
def naming(paths: Mapping[str, str | None]) -> Iterator[None]:
    """Let the errors of tables in the block name files. paths: what an error calls a table → its file."""
    try:
        yield
    except TableError as error:
        error.table = paths.get(error.table) or error.table
        raise
