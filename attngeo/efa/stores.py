"""Where the sequences of a training are: in memory, or in a Parquet file that is larger than memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import pandas as pd
import torch

from attngeo.efa.columns import check_columns, code_sequences, require_columns, show_name
from attngeo.efa.sequences import POSITION, Sequences, TableReading
from attngeo.errors import DataUnavailableError, TableError, UsageError, first_line
from attngeo.training import Batches, TensorBatches, draw_generator

if TYPE_CHECKING:
    from attngeo.efa.modelling import PartModel

# Rows of a Parquet file that are read at once, at least; more if a sequence is longer.
ROWS_AT_ONCE = 1_000_000
# What pandas calls the column of an index without a name.
UNNAMED = re.compile(r"__index_level_\d+__")


class SequenceStore(Protocol):
    """Sequences of one table. An epoch of its batches is the same when it is started again."""

    def columns(self) -> list[Any]:
        """The names of the columns."""

    def frames(self, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """The rows of all sequences, in parts; `columns` at least."""

    def parts(self, reading: TableReading) -> Iterator[Sequences]:
        """The sequences, in parts. Raises TableError for rows that cannot be used."""

    def take(self, which: np.ndarray, reading: TableReading) -> Self:
        """Some of the sequences, by their numbers."""

    def count(self, reading: TableReading) -> int:
        """The number of sequences."""

    def batches(self, reading: TableReading, model: PartModel, size: int, seed: int) -> Batches:
        """Batches of tensors, in an order of the seed."""

    def fingerprint(self, reading: TableReading) -> str:
        """What tells these data from others."""


@dataclass(frozen=True)
class MemoryStore:
    """The sequences of a DataFrame. source: its name, for messages. found: the sequences once they are read."""

    frame: pd.DataFrame
    source: str
    found: list[Sequences] = field(default_factory=list, repr=False)

    def columns(self) -> list[Any]:
        """The names of the columns. Raises TableError if there are no rows."""
        check_columns(self.frame, (), self.source)
        return list(self.frame.columns)

    def frames(self, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """The whole table."""
        check_columns(self.frame, columns, self.source)
        yield self.frame

    def parts(self, reading: TableReading) -> Iterator[Sequences]:
        """All sequences at once."""
        if not self.found:
            self.found.append(reading.read(self.frame, source=self.source))
        yield self.found[0]

    def take(self, which: np.ndarray, reading: TableReading) -> Self:
        """Some of the sequences, by their numbers."""
        return replace(self, found=[next(self.parts(reading)).take(which)])

    def count(self, reading: TableReading) -> int:
        """The number of sequences."""
        return len(next(self.parts(reading)))

    def batches(self, reading: TableReading, model: PartModel, size: int, seed: int) -> Batches:
        """Batches of tensors in memory."""
        return SequenceBatches(model, next(self.parts(reading)), size, seed)

    def fingerprint(self, reading: TableReading) -> str:
        """The SHA-256 of the tensors."""
        found = next(self.parts(reading))
        digest = hashlib.sha256()
        parts = (found.known, found.items, found.values, found.coordinates, found.lagged)
        for each in (torch.as_tensor(found.starts), *parts):
            digest.update(b"" if each is None else each.numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class ParquetStore:
    """The sequences of a Parquet file in which the rows of each sequence are together; read in parts.

    path: of the file. column: that of the sequence. starts: the first row of each sequence, and the number of rows.
    chosen: whether each sequence is used.
    """

    path: Path
    column: str
    starts: np.ndarray
    chosen: np.ndarray

    @classmethod
    def open(cls, path: Path, column: str) -> Self:
        """Find the sequences, reading their column only.

        Raises DataUnavailableError if there is no such file, and TableError if it is no Parquet file, lacks the column,
        or has rows of one sequence in two places.
        """
        names: list[Any] = []
        starts: list[int] = []
        rows = 0
        for frame in _read_parts(path, [column], ROWS_AT_ONCE):
            values = frame[column]
            codes, labels = code_sequences(values, str(path), first=rows)
            changes = np.flatnonzero(np.diff(codes, prepend=-1))
            if names and labels[codes[0]] == names[-1]:
                changes = changes[1:]
            starts += (rows + changes).tolist()
            names += labels[codes[changes]].tolist()
            rows += len(frame)
        if not rows:
            raise TableError(f"{path} has no rows, expected some")
        twice = pd.Index(names)[pd.Index(names).duplicated()]
        if len(twice):
            raise TableError(f"{path}: rows of sequence {show_name(twice[0])} are in two places; sort by {column}")
        return cls(path, column, np.array([*starts, rows]), np.ones(len(starts), bool))

    def columns(self) -> list[Any]:
        """The names of the columns."""
        from pyarrow import parquet  # type: ignore[import-untyped]

        return list(parquet.read_schema(self.path).names)

    def frames(self, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """The rows of each part."""
        for first, last in self._ranges():
            yield self._read(first, last, list(columns))

    def whole_frames(self) -> Iterator[pd.DataFrame]:
        """The rows of each part, with all columns but those of an index without a name.

        Whole numbers are exact, unless some are missing and others are 2^63 or more. Raises TableError if two columns
        have one name.
        """
        columns = [name for name in self.columns() if not UNNAMED.fullmatch(name)]
        require_columns(columns, columns, str(self.path))
        for first, last in self._ranges():
            yield self._read(first, last, columns, types_mapper=_map_whole)

    def parts(self, reading: TableReading) -> Iterator[Sequences]:
        """The sequences of each part that are used, and make sense."""
        used = self._used(reading)
        for number, (first, last) in enumerate(self._ranges()):
            if used[first:last].any():
                yield self._part(number, reading)

    def take(self, which: np.ndarray, reading: TableReading) -> Self:
        """Some of the sequences, by their numbers among those that are used."""
        chosen = np.zeros_like(self.chosen)
        chosen[np.flatnonzero(self._used(reading))[which]] = True
        return replace(self, chosen=chosen)

    def count(self, reading: TableReading) -> int:
        """The number of sequences that are used."""
        return int(self._used(reading).sum())

    def batches(self, reading: TableReading, model: PartModel, size: int, seed: int) -> Batches:
        """Batches of the file: parts in a random order, and the sequences of each part."""
        used = self._used(reading)
        counts = [int(used[first:last].sum()) for first, last in self._ranges()]
        return ParquetBatches(self, reading, model, size, seed, counts)

    def fingerprint(self, reading: TableReading) -> str:
        """The file's place, size and time, and which sequences are used."""
        del reading
        state = self.path.stat()
        about = f"{self.path.absolute()} {state.st_size} {state.st_mtime_ns}".encode()
        return hashlib.sha256(about + self.chosen.tobytes()).hexdigest()

    def _used(self, reading: TableReading) -> np.ndarray:
        """Whether each sequence is used: it is chosen, and not left out because it is short."""
        used: np.ndarray = self.chosen & (np.diff(self.starts) > 1) if reading.columns.short == "drop" else self.chosen
        return used

    def _ranges(self) -> list[tuple[int, int]]:
        """The first and last sequence of each part."""
        wanted = np.arange(0, self.starts[-1], ROWS_AT_ONCE)
        edges = np.unique([*np.searchsorted(self.starts, wanted), len(self.starts) - 1])
        return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))

    def _part(self, number: int, reading: TableReading) -> Sequences:
        first, last = self._ranges()[number]
        columns, wanted = self.columns(), {*reading.needed, POSITION}
        require_columns(columns, reading.needed, str(self.path))  # here, because the message names all columns
        frame = self._read(first, last, [name for name in columns if name in wanted])
        used = np.repeat(self.chosen[first:last], np.diff(self.starts[first : last + 1]))
        return reading.read(frame[used], source=str(self.path), numbers=int(self.starts[first]) + np.flatnonzero(used))

    def _read(self, first: int, last: int, columns: list[str], **options: Any) -> pd.DataFrame:
        """The rows of sequences from `first` until before `last`. options: of pyarrow's `to_pandas`."""
        from pyarrow import parquet

        begin, end = int(self.starts[first]), int(self.starts[last])
        with _explain_damage(self.path):
            file = parquet.ParquetFile(self.path)
            counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            edges = np.concatenate([[0], np.cumsum(counts)])
            groups = [group for group in range(len(counts)) if edges[group] < end and edges[group + 1] > begin]
            table = file.read_row_groups(groups, columns=columns)
            skipped = begin - int(edges[groups[0]])
            frame: pd.DataFrame = table.slice(skipped, end - begin).to_pandas(ignore_metadata=True, **options)
        return frame


class SequenceBatches(TensorBatches):
    """Batches of sequences in memory, each as long as its longest one."""

    def __init__(self, model: PartModel, sequences: Sequences, size: int, seed: int) -> None:
        super().__init__((torch.arange(len(sequences)),), size, seed)
        self._model, self._sequences = model, sequences

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[torch.Tensor, ...]]:
        """The batches of an epoch, from 0, without the first `start` ones."""
        for (which,) in islice(super().epoch(number), start, None):
            yield self._model.tensors(self._sequences.take(which.numpy()))


class ParquetBatches:
    """Batches of a `ParquetStore`; only one part of the file is in memory. counts: sequences of each part."""

    def __init__(
        self,
        store: ParquetStore,
        reading: TableReading,
        model: PartModel,
        size: int,
        seed: int,
        counts: Sequence[int],
    ) -> None:
        self._store, self._reading, self._model = store, reading, model
        self._size, self._seed, self._counts = size, seed, counts

    def __len__(self) -> int:
        return sum(-(-count // self._size) for count in self._counts)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[torch.Tensor, ...]]:
        """The batches of an epoch, from 0, without the first `start` ones; parts that are skipped are not read."""
        left = start
        for part in torch.randperm(len(self._counts), generator=draw_generator(self._seed, number)).tolist():
            batches = -(-self._counts[part] // self._size)
            if left >= batches:  # also a part without any
                left -= batches
                continue
            sequences = self._store._part(part, self._reading)
            seed = int(np.random.SeedSequence([self._seed, part]).generate_state(1)[0])
            yield from SequenceBatches(self._model, sequences, self._size, seed).epoch(number, left)
            left = 0


def open_store(data: pd.DataFrame | str | Path, column: str, source: str) -> SequenceStore:
    """The sequences of a DataFrame, or of a Parquet file that is read in parts. source: of the former, for messages."""
    if isinstance(data, pd.DataFrame):
        return MemoryStore(data, source)
    if not isinstance(data, str | Path):
        raise UsageError(f"{source} is a {type(data).__name__}, expected a DataFrame or the path of a Parquet file")
    return ParquetStore.open(Path(data).expanduser(), column)


def _read_parts(path: Path, columns: list[str], rows: int) -> Iterator[pd.DataFrame]:
    """Some columns of a Parquet file. Raises DataUnavailableError, or TableError if it is none or lacks a column."""
    from pyarrow import parquet

    with _explain_damage(path):
        file = parquet.ParquetFile(path)
        missing = [name for name in columns if name not in file.schema_arrow.names]
        if missing:
            have = ", ".join(file.schema_arrow.names[:10])
            raise TableError(f"{path}: no column {missing[0]!r}, expected one; it has {have}")
        for batch in file.iter_batches(rows, columns=columns):
            yield batch.to_pandas(ignore_metadata=True)


def _map_whole(kind: Any) -> Any:
    """The pandas type of whole numbers, of which some may be missing; None for others."""
    from pyarrow import types

    return pd.Int64Dtype() if types.is_integer(kind) and not types.is_uint64(kind) else None


@contextmanager
def _explain_damage(path: Path) -> Iterator[None]:
    """Raise TableError for a file that is no Parquet file, and DataUnavailableError if there is none."""
    try:
        yield
    except FileNotFoundError:
        raise DataUnavailableError(f"{path} does not exist; give a .parquet file") from None
    except (TableError, MemoryError, GeneratorExit):
        raise
    except Exception as error:  # a damaged file makes Arrow raise errors of many kinds
        raise TableError(f"{path} cannot be read as a Parquet file ({first_line(error)})") from None
