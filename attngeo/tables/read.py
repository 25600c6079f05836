"""Results files, as `-o` writes them, back into tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.errors import DataError, DataUnavailableError, first_line

if TYPE_CHECKING:
    import pandas as pd

# What columns hold, for those that figures and summaries compute with.
WHOLE, NUMBERS, TEXTS = "whole numbers", "numbers", "texts"
WHOLE_NUMBERS = ("layer", "head", "key_head", "d_model", "head_dim", "parameters", "step", "seed", "asked", "known")
REAL_NUMBERS = ("symmetry", "directionality", "frobenius_norm", "symmetry_z", "loss", "accuracy", "accuracy_low",
                "accuracy_high")  # fmt: skip
NAMES = ("model", "stack")
SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")
# Tables for people, which are written and not read back.
NOT_READ = (".md", ".tex", ".html", ".tsv", ".xlsx")


def is_results(text: str) -> bool:
    """Whether a text names a file of results rather than a model.

    >>> is_results("scores.csv"), is_results("demo:minilm"), is_results("org/name")
    (True, False, False)
    """
    return text.lower().endswith((*SUFFIXES, *NOT_READ))


def read_results(path: str | Path, columns: Collection[str], made_by: str) -> pd.DataFrame:
    """The rows of a .csv, .json, .jsonl or .parquet file.

    columns: those that it must have. made_by: the command that writes such a file, for the error's advice.
    Raises DataUnavailableError where there is none, DataError where it cannot be read or lacks a column.
    """
    import pandas as pd

    path = Path(path).expanduser()
    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".csv": lambda file: pd.read_csv(file, keep_default_na=False, na_values=[""]),
        ".json": lambda file: pd.DataFrame(json.loads(file.read_text("utf-8"))),
        ".jsonl": lambda file: pd.DataFrame(
            [json.loads(line) for line in file.read_text("utf-8").split("\n") if line.strip()]
        ),
        ".parquet": pd.read_parquet,
    }
    if path.suffix.lower() not in readers:
        raise DataError(f"{path}: expected a file of results, ending in one of: {' '.join(SUFFIXES)}")
    if not path.is_file():
        raise DataUnavailableError(f"{path}: no such file; write one with {made_by}")
    try:
        frame = readers[path.suffix.lower()](path)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = first_line(error)
        raise DataError(f"{path} cannot be read ({reason}); write it anew with {made_by}") from error
    return _typed(require_columns(frame, columns, str(path), made_by), str(path))


def _typed(frame: pd.DataFrame, path: str) -> pd.DataFrame:
    """The columns that are known by name as what they are, whichever format they came from; all others as text."""
    import pandas as pd

    columns = {}
    for name in frame.columns:
        values, kind = frame[name], WHOLE if name in WHOLE_NUMBERS else NUMBERS if name in REAL_NUMBERS else TEXTS
        if name in NAMES and values.isna().any():
            raise DataError(f"{path}: a row has no {name}, expected every row to name one")
        if kind is TEXTS and (isinstance(values.dtype, pd.StringDtype) or values.dtype.kind in "iufb"):
            columns[name] = values
        elif kind is TEXTS:
            columns[name] = values.where(values.isna(), values.map(str)).astype("str")
        else:
            try:
                columns[name] = pd.to_numeric(values).astype("Int64" if kind is WHOLE else "float64")
            except (ValueError, TypeError, OverflowError) as error:
                raise DataError(f"{path}: column {name}: {first_line(error)}; expected {kind}") from None
    return pd.DataFrame(columns)


def filter_rows(rows: pd.DataFrame, where: Mapping[str, object], name: str) -> pd.DataFrame:
    """The rows with these values, column by column. Raises DataError for a column that is not there, or no such row."""
    for column, value in where.items():
        if column not in rows:
            there = ", ".join(map(str, rows.columns[:20]))
            raise DataError(f"{name} has no column {column!r} to choose by, expected one of: {there}")
        kept = rows[rows[column].astype(str) == str(value)]
        if kept.empty:
            there = ", ".join(map(str, rows[column].unique()[:20]))
            raise DataError(f"{name} has no row where {column} is {value!r}, expected one of: {there}")
        rows = kept
    return rows


def require_columns(frame: pd.DataFrame, columns: Collection[str], what: str, made_by: str) -> pd.DataFrame:
    """The frame, where it has rows and these columns. Raises DataError; what: its name in the message."""
    missing = [column for column in columns if column not in frame]
    if missing:
        there = ", ".join(map(str, frame.columns[:20]))
        raise DataError(f"{what} has no column {missing[0]!r}, its columns are {there}; expected what {made_by} writes")
    if frame.empty:
        raise DataError(f"{what} has no rows, expected what {made_by} writes")
    return frame
