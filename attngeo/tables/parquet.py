"""Parquet files of others as DataFrames: some kilobytes of them can stand for terabytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.bounds import MOST_RESULTS_BYTES, read_small_bytes
from attngeo.errors import first_line

if TYPE_CHECKING:
    import pandas as pd

# A text that is repeated is stored once, so that a few rows can be long.
ROWS_AT_ONCE = 1000
MOST_VALUES = MOST_RESULTS_BYTES // 8


def read_parquet(path: Path) -> pd.DataFrame:
    """The table of a Parquet file, which as a whole fits the bound of other results files.

    Raises OSError if the file cannot be read, or is no regular file; ValueError if it is no Parquet file, has columns
    of lists or records, or more than MOST_RESULTS_BYTES bytes or MOST_VALUES values when it is unfolded.
    """
    import pandas as pd

    content = read_small_bytes(path, MOST_RESULTS_BYTES)
    try:
        _check_size(content)
        return pd.read_parquet(io.BytesIO(content))
    except OSError:
        raise
    except Exception as error:  # a damaged file makes Arrow and pandas raise errors of many kinds
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise ValueError(kind + first_line(error)) from None


def _check_size(content: bytes) -> None:
    """Raise ValueError if the table is too large when it is unfolded. Counts in parts, each forgotten at once."""
    from pyarrow import parquet  # type: ignore[import-untyped]

    schema = parquet.read_schema(io.BytesIO(content))
    file = parquet.ParquetFile(io.BytesIO(content), read_dictionary=schema.names)  # texts that are repeated stay folded
    nested = [name for place, name in enumerate(file.schema.names) if file.schema.column(place).max_repetition_level]
    if nested:
        raise ValueError(f"column {nested[0]!r} holds lists, expected one value in each row")
    values = file.metadata.num_rows * file.metadata.num_columns
    if values > MOST_VALUES:
        raise ValueError(f"it has {values:,} values, expected at most {MOST_VALUES:,}")
    nbytes = 0
    for batch in file.iter_batches(ROWS_AT_ONCE):
        nbytes += sum(_count_unfolded(column) for column in batch.columns)
        if nbytes > MOST_RESULTS_BYTES:
            raise ValueError(f"it unfolds to more than {MOST_RESULTS_BYTES:,} bytes")


def _count_unfolded(column: Any) -> int:
    """The bytes of a pyarrow array with each text in place of its number in a list of texts."""
    from pyarrow import compute, types

    if not types.is_dictionary(column.type) or not len(column):
        return int(column.nbytes)
    if types.is_primitive(column.type.value_type):
        return len(column) * int(column.type.value_type.bit_width // 8 + 1)
    lengths = compute.binary_length(column.dictionary)
    return int(compute.sum(compute.take(lengths, column.indices)).as_py() or 0)
