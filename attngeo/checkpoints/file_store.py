"""A TensorStore over files of weights: on this machine, or on the Hub."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from attngeo.bounds.escape import in_utf8
from attngeo.checkpoints.ahead import start_all
from attngeo.checkpoints.formats import TensorFile, open_weights
from attngeo.checkpoints.metadata import Index
from attngeo.checkpoints.source import ByteSource
from attngeo.checkpoints.tensor import TensorInfo
from attngeo.errors import CorruptCheckpointError


class FileStore:
    """A TensorStore over one file of weights, or over several with an index. A file is opened when it is first needed.

    ref, config, revision, offline: see `TensorStore`. files: names of the files of weights. open_source: opens one of
    them, or raises. index: which file holds which tensor; None for one file. main_file: the name of the one file, or of
    the index. other: gives the path of any other file of the model, or None if there is no such file. at_once: how many
    files `fetch` opens at a time.
    """

    def __init__(
        self,
        ref: str,
        config: Mapping[str, Any],
        files: Collection[str],
        open_source: Callable[[str], ByteSource],
        *,
        main_file: str,
        index: Index | None = None,
        revision: str | None = None,
        other: Callable[[str], Path | None] = lambda _: None,
        offline: bool = False,
        at_once: int = 1,
    ) -> None:
        self.ref, self.config, self.revision, self.offline = in_utf8(ref), config, revision, offline
        self.main_file = main_file
        self._files, self._open_source, self._other = tuple(files), open_source, other
        self._index, self._at_once = index, at_once
        self._weight_map: Mapping[str, str] | None = None if index is None else index.weight_map
        self._total_nbytes = None if index is None else index.total_nbytes
        self._sources: dict[str, ByteSource] = {}
        self._open: dict[str, TensorFile] = {}
        self.lanes, self._lock, self._closed = 1, Lock(), False
        self._opening: defaultdict[str, Lock] = defaultdict(Lock)

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._file_of.keys()

    @property
    def total_nbytes(self) -> int | None:
        """Bytes of all tensors: from the index, which may not state them, or from the header of the one file."""
        if self._total_nbytes is None and self._index is None:
            self._total_nbytes = sum(info.nbytes for file in self._files for info in self._file(file).tensors.values())
        return self._total_nbytes

    @property
    def _file_of(self) -> Mapping[str, str]:
        if self._weight_map is None:
            self._weight_map = {name: file for file in self._files for name in self._file(file).tensors}
        return self._weight_map

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype of one tensor. Raises CorruptCheckpointError if the file that the index names lacks it."""
        file = self._file_of[name]
        try:
            return self._file(file).tensors[name]
        except KeyError:
            raise CorruptCheckpointError(
                f"{self.ref}: the index places tensor {name!r} in {file}, which does not hold it; download it again"
            ) from None

    def _file(self, file: str) -> TensorFile:
        """A file, opened once; several threads may open several files."""
        with self._lock:
            opening = self._opening[file]
        with opening:
            if self._closed:
                raise self._refuse(file)
            if file not in self._open:
                source = self._open_source(file)
                opened = open_weights(file, source, self.ref)
                with self._lock:
                    if self._closed:
                        opened.close()
                        raise self._refuse(file)
                    self._sources[file], self._open[file] = source, opened
                    self.lanes = max(self.lanes, source.lanes)
            return self._open[file]

    def _refuse(self, file: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self.ref}: {file} is read after the checkpoint was closed")

    def fetch(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open every file that holds one of `names`. Calls `progress` with each file's name."""
        files = sorted({self._file_of[name] for name in names})
        with closing(start_all(self._file, files, self._at_once)) as opened:
            for file, wait in zip(files, opened, strict=True):
                if progress is not None:
                    progress(file)
                wait()

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """One tensor, or rows of its first dimension, in the checkpoint's dtype."""
        return self.read_all({name: rows})[name]

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, torch.Tensor]:
        """Rows of each of these tensors; at once from each file that is remote."""
        found = {}
        for file, own in self._divide(reads).items():
            opened = self._file(file)
            with self._sources[file].hold(opened.extents(own)):
                found.update({name: opened.read(name, rows) for name, rows in own.items()})
        return {name: found[name] for name in reads}

    def count_requests(self, reads: Iterable[Mapping[str, slice]]) -> dict[str, int]:
        """Remote file → the requests for its header, and those that `read_all` sends for each of these reads."""
        counts: Counter[str] = Counter()
        for each in reads:
            for file, own in self._divide(each).items():
                counts[file] += self._sources[file].count_requests(self._file(file).extents(own))
        counts.update({file: source.requests for file, source in self._sources.items()})
        return {file: count for file, count in counts.items() if count}

    def _divide(self, reads: Mapping[str, slice]) -> dict[str, dict[str, slice]]:
        """File → the reads that it serves. Opens the files."""
        by_file: dict[str, dict[str, slice]] = defaultdict(dict)
        for name, rows in reads.items():
            self.info(name)  # raises if the tensor is not in the file that the index names
            by_file[self._file_of[name]][name] = rows
        return by_file

    def file(self, name: str) -> Path | None:
        """The path of another file of the model, downloaded if needed; None if it is missing."""
        return self._other(name)

    def download(self, progress: Callable[[str], None]) -> None:
        """Make every file of weights a whole file on this machine. Calls `progress` with each file's name."""
        for file in self._files:
            progress(file)
            self.file(file)
        self._close_files()  # what was remote is opened again as a file on this machine

    def close(self) -> None:
        """Close all open files. A later `read` fails."""
        with self._lock:
            self._closed = True
        self._close_files()

    def _close_files(self) -> None:
        with self._lock:
            files = [*self._open.values()]
            self._open.clear()
            self._sources.clear()
        for file in files:
            file.close()
