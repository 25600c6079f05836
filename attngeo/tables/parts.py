"""A table that comes in parts, and need not fit in memory, as files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.errors import TableError, first_line
from attngeo.tables.files import atomic_write, check_writable
from attngeo.tables.write import to_csv, to_jsonl

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".jsonl", ".parquet")


def check_part_output(path: Path) -> None:
    """Raise OutputError if parts of a table cannot be written to `path`."""
    check_writable(path, SUFFIXES)


def write_parts(parts: Iterable[pd.DataFrame], paths: Iterable[Path], kinds: Mapping[str, Any] | None = None) -> int:
    """Write the rows of all parts to each file, whole or not at all, and return how many they are.

    kinds: types of pyarrow, by the names of columns, for a Parquet file; others are as in the first part. Raises
    OutputError, and TableError for a part whose columns are of other kinds.
    """
    rows = 0
    with ExitStack() as stack:
        adds = [stack.enter_context(_open(path, kinds or {})) for path in paths]
        for part in parts:
            for add in adds:
                add(part)
            rows += len(part)
    return rows


@contextmanager
def _open(path: Path, kinds: Mapping[str, Any]) -> Iterator[Callable[[pd.DataFrame], None]]:
    """What adds a part to a file."""
    check_part_output(path)
    with atomic_write(path) as partial:
        if path.suffix.lower() == ".parquet":
            with _ParquetParts(partial, kinds) as file:
                yield file.add
        else:
            with partial.open("w", encoding="utf-8", newline="\n") as text:

                def add(part: pd.DataFrame) -> None:
                    part = _write_dates(part)
                    if path.suffix.lower() == ".jsonl":
                        text.write(to_jsonl(part))
                    else:
                        text.write(to_csv(part, header=not text.tell()))

                yield add


def _write_dates(part: pd.DataFrame) -> pd.DataFrame:
    """The part with its dates as texts: pandas leaves the time out if that of all of them is midnight."""
    dates = [name for name in part.columns if part[name].dtype.kind == "M"]
    return part.assign(**{name: part[name].map(lambda date: date.isoformat(), na_action="ignore") for name in dates})


class _ParquetParts:
    def __init__(self, path: Path, kinds: Mapping[str, Any]) -> None:
        self._path, self._kinds = path, kinds
        self._schema: Any = None
        self._writer: Any = None

    def __enter__(self) -> _ParquetParts:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, part: pd.DataFrame) -> None:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet

        if self._writer is None:
            found = pyarrow.Schema.from_pandas(part, preserve_index=False)
            self._schema = pyarrow.schema([(each.name, self._kinds.get(each.name, each.type)) for each in found])
            self._writer = parquet.ParquetWriter(self._path, self._schema)
        try:
            table = pyarrow.Table.from_pandas(part, self._schema, preserve_index=False)
        except (pyarrow.ArrowException, KeyError) as error:
            raise TableError(f"a part of the table has columns of another kind ({first_line(error)})") from None
        self._writer.write_table(table)
