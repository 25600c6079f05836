"""Tables that are read from results files, as `-o` writes them, and from Parquet files of others."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Collection, Mapping
from functools import reduce
from numbers import Real
from operator import or_
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from attngeo.bounds.machine import require_memory
from attngeo.bounds.names import explain_pattern, list_names
from attngeo.bounds.small_files import (
    MOST_RESULTS_BYTES,
    read_small_bytes,
    read_small_text,
    require_regular_file,
)
from attngeo.choices import advise, find_new_name
from attngeo.errors import DataError, DataUnavailableError, NotEnoughMemoryError, UsageError, first_line

if TYPE_CHECKING:
    import pandas as pd

# The types of columns, as errors call them.
WHOLE, NUMBERS, TEXTS = "whole numbers", "numbers", "texts"
# The columns that figures and summaries compute with.
WHOLE_NUMBERS = ("layer", "head", "key_head", "d_model", "head_dim", "parameters", "step", "seed", "asked", "known")
REAL_NUMBERS = ("frobenius_norm", "loss", "accuracy", "accuracy_low", "accuracy_high")
NAMES = ("model", "stack")
# Further columns of texts: one such as 1e3 or 007 is not the number that it looks like.
OTHER_TEXTS = ("other", "revision", "model_type", "level", "name", "questions", "objective", "init", "note")
# From here on, a float cannot represent every whole number; pandas makes floats of a column with a missing number.
LARGEST_EXACT = 2**53
SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")
# Formats for people, which are not read.
NOT_READ = (".md", ".tex", ".html", ".tsv", ".xlsx")
MOST_TABLE_VALUES = MOST_RESULTS_BYTES // 8
# Bytes that pandas takes for each cell of a CSV file, beside its text; and that are read at once to count its lines.
CELL_BYTES = 24
CHUNK_BYTES = 1 << 20
# Bytes of memory for each byte of JSON, at most: of an empty list, and its place in a list.
JSON_FACTOR = 24
# Bytes at the beginning of a text file that show how it is written.
HEAD_BYTES = 1 << 16
# Characters that may part columns.
PARTED_BY = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}


def is_results(text: str) -> bool:
    """Whether a text names a results file, not a model.

    >>> is_results("scores.csv"), is_results("demo:minilm"), is_results("org/name")
    (True, False, False)
    """
    return text.lower().endswith((*SUFFIXES, *NOT_READ))


def read_results(
    path: str | Path, columns: Collection[str], made_by: str, *, numbers: Collection[str] = ()
) -> pd.DataFrame:
    """The rows of a .csv, .json, .jsonl or .parquet file.

    Args:
        path: the file.
        columns: required columns.
        made_by: the command that writes such a file, for the advice in errors.
        numbers: further columns of numbers, for example scores; all other unknown columns are text.

    Returns:
        The rows, with the same types of columns from every format.

    Raises:
        DataUnavailableError: the file does not exist.
        DataError: it cannot be read or lacks a column.
    """
    path = require_results(path, made_by)
    try:
        frame = _read_rows(path, path.suffix.lower())
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
        reason = first_line(error)
        raise DataError(f"{path} cannot be read ({reason}); write it again with {made_by}") from error
    return _set_types(require_columns(frame, columns, str(path), made_by), str(path), numbers)


def require_results(path: str | Path, made_by: str) -> Path:
    """The path of a results file. Raises DataUnavailableError if it does not exist, DataError for another format."""
    path = Path(path).expanduser()
    if not path.exists():
        raise DataUnavailableError(f"no such file; write one with {made_by}{explain_pattern(str(path))}", subject=path)
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"expected a results file written by {made_by}, with a name that ends in one of: {' '.join(SUFFIXES)}",
            subject=path,
        )
    return path


def _read_rows(path: Path, suffix: str) -> pd.DataFrame:
    """The rows of a file. Names that look like numbers stay as they are written, and no number of JSON is rounded."""
    import pandas as pd

    if suffix == ".parquet":
        return read_parquet(path)
    if suffix == ".csv":
        content = read_small_bytes(path, MOST_RESULTS_BYTES)
        problem = find_text_problem(content[:HEAD_BYTES])
        if problem:
            raise ValueError(problem)
        _require_values(*count_cells(io.BytesIO(content)))
        require_csv_memory(io.BytesIO(content), path)
        types: Any = dict.fromkeys((*NAMES, *OTHER_TEXTS), "str")
        # In pieces, as pandas reads by default, one text would make texts of the numbers in its piece only.
        frame = pd.read_csv(io.BytesIO(content), keep_default_na=False, na_values=[""], dtype=types, low_memory=False)
        # If rows have more cells than the header, pandas takes their first cells as the index.
        if not isinstance(frame.index, pd.RangeIndex):
            raise ValueError("a row has more cells than the header has names")
        return frame
    size = require_regular_file(path, MOST_RESULTS_BYTES)
    require_memory(JSON_FACTOR * size, f"the table {path}")
    text = read_small_text(path, MOST_RESULTS_BYTES)
    if suffix == ".jsonl":
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    else:
        rows = json.loads(text)
        if not isinstance(rows, list):
            raise TypeError(f"expected a list of objects, got {type(rows).__name__}")
    # Each row has a cell in each column that any row has. One that is a list is refused later, for want of names.
    names: set[str] = set()
    longest = 0
    for row in rows:
        if isinstance(row, dict):
            names.update(row)
        elif isinstance(row, list):
            longest = max(longest, len(row))
    _require_values(len(rows), len(names) + longest)
    return pd.DataFrame(rows, dtype=object)


def find_text_problem(head: bytes, separator: str = ",") -> str:
    """Why a text file is not a table with this separator, and what to do; empty if its beginning shows no reason."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in head:
        return "it is UTF-16 or not text; save it as UTF-8, for example with iconv -f UTF-16 -t UTF-8"
    text = io.StringIO(head.decode("utf-8-sig", "replace"), newline="")
    try:
        names = next(csv.reader(text, delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        return ""  # the reader of the whole file says more
    if len(names) != 1:
        return ""
    for other, name in PARTED_BY.items():
        if other != separator and other in names[0]:
            return (
                f"its columns are separated by {name}, expected {PARTED_BY[separator]}; write it again with that "
                f"separator, for example with pandas.read_csv(…, sep={other!r}).to_csv(…, index=False)"
            )
    return ""


def _set_types(frame: pd.DataFrame, path: str, numbers: Collection[str]) -> pd.DataFrame:
    """The frame with typed columns, the same from every format; columns of unknown name are text."""
    columns = {}
    for name in frame.columns:
        values = frame[name]
        expected = TEXTS
        if name in WHOLE_NUMBERS:
            expected = WHOLE
        elif name in REAL_NUMBERS or name in numbers:
            expected = NUMBERS
        if name in NAMES and values.isna().any():
            raise DataError(f"a row has no {name}, expected a {name} in every row", subject=path)
        try:
            if expected is TEXTS:
                columns[name] = _to_texts(values, str(name))
            else:
                columns[name] = _to_numbers(values, expected)
        except (ValueError, TypeError, OverflowError, NotImplementedError) as error:  # dates after the year 9999
            raise DataError(f"column {name}: {first_line(error)}; expected {expected}", subject=path) from None
    return type(frame)(columns)


def _to_texts(values: pd.Series, name: str) -> pd.Series:
    """The texts of a column; if its name is unknown, its numbers stay numbers."""
    if name not in (*NAMES, *OTHER_TEXTS):
        numbers = values.infer_objects()
        if numbers.dtype.kind in "iufb":
            return numbers
    return values.where(values.isna(), values.map(str)).astype("str")


def _to_numbers(values: pd.Series, expected: str) -> pd.Series:
    """The numbers of a column, none of them rounded. Raises ValueError, also for true and false.

    expected: WHOLE or NUMBERS.
    """
    import pandas as pd

    if values.dtype.kind in "bO":
        parsed = pd.to_numeric(values, errors="coerce")
        for row, (value, number) in enumerate(zip(values, parsed, strict=True), 1):
            is_wrong = isinstance(value, bool) or not isinstance(value, Real | str) or pd.isna(number)
            if is_wrong and pd.notna([value]).all():
                raise ValueError(f"{value!r:.60} in row {row} is not a number")
    numbers = pd.to_numeric(values)
    if expected is not WHOLE:
        return numbers.astype("float64")
    if numbers.dtype.kind == "f" and (numbers.abs() >= LARGEST_EXACT).any():
        raise ValueError(f"{numbers.abs().max():.4g} is too large")
    return numbers.astype("Int64")


def filter_rows(rows: pd.DataFrame, where: Mapping[str, object], name: str) -> pd.DataFrame:
    """The rows with these values in these columns; a list matches any of its values. Raises UsageError for no row."""
    for column, wanted in where.items():
        if column not in rows:
            raise UsageError(explain_unknown_column(column, list(rows.columns)), subject=name)
        matches = {value: _match_values(rows[column], value) for value in list_values(wanted)}
        missing = [value for value, match in matches.items() if not match.any()]
        if missing or not matches:
            first = missing[0] if missing else wanted
            texts = [text or repr(text) for text in rows[column].dropna().map(str).unique()]
            expected = f"expected one of: {list_names(texts)}" if texts else "and all cells of this column are empty"
            raise UsageError(f"{name} has no row with {column!s:.60} = {first!r:.60}, {expected}")
        rows = rows[reduce(or_, matches.values())]
    return rows


def _match_values(values: pd.Series, wanted: str) -> pd.Series:
    """Which values of a column are meant by a text: those that print as it, or are the same number, as 0 is 0.0."""
    matches = values.map(str) == wanted
    if matches.any() or values.dtype.kind not in "iuf" or "_" in wanted:  # which Python reads as a digit separator
        return matches
    try:
        number = float(wanted)
    except ValueError:
        return matches
    return (values == number).fillna(False).astype(bool)


def list_values(wanted: object) -> list[str]:
    """The values that an entry of `where` names, as texts: one, or those of a list.

    >>> list_values(1), list_values(["a", 2])
    (['1'], ['a', '2'])
    """
    return [str(value) for value in wanted] if isinstance(wanted, list | tuple) else [str(wanted)]


def explain_unknown_column(column: str, known: Collection[str]) -> str:
    """The part of an error that names an unknown column, and the nearest known ones.

    >>> explain_unknown_column("layr", ["layer", "head"])
    "unknown column 'layr'; did you mean layer?"
    >>> explain_unknown_column("symmetry", ["layers", "symmetry_lower", "symmetry_median"])
    "unknown column 'symmetry'; expected one of: symmetry_lower, symmetry_median"
    """
    names = list(map(str, known))
    statistics = [name for name in names if name.startswith(f"{column}_")]
    if len(statistics) > 1:
        return f"unknown column {column!r:.60}; expected one of: {list_names(statistics)}"
    return f"unknown column {column!r:.60}; {advise(column, names, f'expected one of: {list_names(names)}')}"


def require_frame(frame: object, what: str, made_by: str) -> None:
    """Raise UsageError if a table is not a DataFrame.

    Args:
        frame: the table.
        what: its name in messages.
        made_by: function that gives such a table.
    """
    if not hasattr(frame, "columns"):
        raise UsageError(f"{what} is {frame!r:.60}, expected a DataFrame with the output of {made_by}")


def require_columns(frame: pd.DataFrame, columns: Collection[str], what: str, made_by: str) -> pd.DataFrame:
    """The frame itself. Raises DataError if it has no rows, or lacks one of the columns. what: its name in messages.

    Raises UsageError if it is not a DataFrame.
    """
    require_frame(frame, what, made_by)
    missing = [column for column in columns if column not in frame]
    if missing:
        former = next((column for column in frame.columns if find_new_name(str(column), missing[:1])), None)
        raise DataError(
            f"{what} has no column {missing[0]!r:.60}; its columns are {list_names(list(frame.columns))}; "
            f"expected the output of {made_by}"
            + (f", which called this column {former} before version 0.4" if former is not None else "")
        )
    if frame.empty:
        raise DataError(f"{what} has no rows, expected the output of {made_by}")
    return frame


def read_parquet(path: Path) -> pd.DataFrame:
    """The table of a Parquet file. Some kilobytes can stand for terabytes, so its size is checked unfolded.

    Raises OSError if the file cannot be read, or is not a regular file; ValueError if it is not a Parquet file, has
    columns of lists or records, or more than MOST_RESULTS_BYTES bytes or MOST_TABLE_VALUES values when it is unfolded;
    NotEnoughMemoryError if it does not fit.
    """
    from attngeo.tables import parquet

    source = io.BytesIO(read_small_bytes(path, MOST_RESULTS_BYTES))
    try:
        for name, kind in parquet.list_nested(source).items():
            raise ValueError(f"column {name!r:.60} holds {kind}, expected one value in each row")
        _require_values(*parquet.read_shape(source))
        nbytes = parquet.count_unfolded(source, MOST_RESULTS_BYTES)
        if nbytes > MOST_RESULTS_BYTES:
            raise ValueError(f"it unpacks to more than {MOST_RESULTS_BYTES:,} bytes")
        require_memory(parquet.COPIES * nbytes, f"the table {path}")
        table = parquet.read_table(source)
    except (OSError, NotEnoughMemoryError):
        raise
    except Exception as error:  # a damaged file makes Arrow raise errors of many kinds
        reason = first_line(error)
        raise ValueError(reason if type(error) is ValueError else f"{type(error).__name__}: {reason}") from None
    require_memory(parquet.count_objects(table), f"the table {path}")
    return parquet.make_frame(table)


def _require_values(rows: int, columns: int) -> None:
    """Raise ValueError for more than MOST_TABLE_VALUES cells."""
    if rows * columns > MOST_TABLE_VALUES:
        raise ValueError(f"it has {rows * columns:,} values, expected at most {MOST_TABLE_VALUES:,}")


def count_cells(source: IO[bytes], separator: str = ",") -> tuple[int, int]:
    """The most rows and columns of an open CSV file: short rows are filled to the length of the first one."""
    columns = source.readline().count(separator.encode()) + 1
    rows = 0
    last = b""
    while chunk := source.read(CHUNK_BYTES):
        # A line ends in \n, in \r, or in both.
        rows += chunk.count(b"\n") + chunk.count(b"\r") - chunk.count(b"\r\n")
        rows -= last == b"\r" and chunk.startswith(b"\n")
        last = chunk[-1:]
    return rows + 1, columns


def require_csv_memory(source: IO[bytes], path: str | Path, separator: str = ",") -> None:
    """Raise NotEnoughMemoryError if the table of an open CSV file does not fit in memory, all its cells included."""
    rows, columns = count_cells(source, separator)
    require_memory(source.tell() + rows * columns * CELL_BYTES, f"the table {path}")
    source.seek(0)
