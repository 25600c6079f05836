"""A TensorStore over files of weights: on this machine, or on the Hub."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from attngeo.bounds.escape import in_utf8
from attngeo.checkpoints.formats import TensorFile, open_weights
from attngeo.checkpoints.metadata import Index
from attngeo.checkpoints.tensor import TensorInfo
from attngeo.errors import CorruptCheckpointError

Header = Mapping[str, TensorInfo]


class FileStore:
    """A TensorStore over one file of weights, or over several with an index. A file is opened when it is first needed.

    ref, config, revision, offline: see `TensorStore`. files: names of the files of weights. locate: gives the path of
    one of them, downloaded if needed, or raises. index: which file holds which tensor; None for one file. main_file:
    the name of the one file, or of the index.
    remote_header: gives a file's table of contents without a download of the whole file, or None if that is not
    possible. other: gives the path of any other file of the model, or None if there is no such file.
    """

    def __init__(
        self,
        ref: str,
        config: Mapping[str, Any],
        files: Collection[str],
        locate: Callable[[str], Path],
        *,
        main_file: str,
        index: Index | None = None,
        revision: str | None = None,
        remote_header: Callable[[str], Header | None] = lambda _: None,
        other: Callable[[str], Path | None] = lambda _: None,
        offline: bool = False,
    ) -> None:
        self.ref, self.config, self.revision, self.offline = in_utf8(ref), config, revision, offline
        self.main_file = main_file
        self._files, self._locate, self._remote_header, self._other = tuple(files), locate, remote_header, other
        self._index = index
        self._weight_map: Mapping[str, str] | None = None if index is None else index.weight_map
        self._total_nbytes = None if index is None else index.total_nbytes
        self._open: dict[str, TensorFile] = {}
        self._headers: dict[str, Header] = {}

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._file_of.keys()

    @property
    def total_nbytes(self) -> int | None:
        """Bytes of all tensors: from the index, which may not state them, or from the header of the one file."""
        if self._total_nbytes is None and self._index is None:
            self._total_nbytes = sum(info.nbytes for file in self._files for info in self._header(file).values())
        return self._total_nbytes

    @property
    def _file_of(self) -> Mapping[str, str]:
        if self._weight_map is None:
            self._weight_map = {name: file for file in self._files for name in self._header(file)}
        return self._weight_map

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype of one tensor. Raises CorruptCheckpointError if the file that the index names lacks it."""
        file = self._file_of[name]
        try:
            return self._header(file)[name]
        except KeyError:
            raise CorruptCheckpointError(
                f"{self.ref}: the index places tensor {name!r} in {file}, which does not hold it; download it again"
            ) from None

    def _header(self, file: str) -> Header:
        if file not in self._headers:
            header = None if file in self._open else self._remote_header(file)
            self._headers[file] = self._file(file).tensors if header is None else header
        return self._headers[file]

    def _file(self, file: str) -> TensorFile:
        if file not in self._open:
            self._open[file] = open_weights(file, self._locate(file), self.ref)
            self._headers[file] = self._open[file].tensors
        return self._open[file]

    def fetch(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open every file that holds one of `names`, downloaded if needed. Calls `progress` with each file's name."""
        for file in sorted({self._file_of[name] for name in names}):
            if progress is not None:
                progress(file)
            self._file(file)

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """One tensor, or rows of its first dimension, in the checkpoint's dtype."""
        self.info(name)  # raises if the tensor is not in the file that the index names
        return self._file(self._file_of[name]).read(name, rows)

    def file(self, name: str) -> Path | None:
        """The path of another file of the model, downloaded if needed; None if it is missing."""
        return self._other(name)

    def close(self) -> None:
        """Close all open files."""
        for file in self._open.values():
            file.close()
        self._open.clear()
