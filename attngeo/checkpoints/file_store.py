"""FileStore: the tensors in one weight file, or in several with an index, in a folder or on the Hub."""

from __future__ import annotations

import logging
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from pkgutil import resolve_name
from threading import Lock
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attngeo.bounds.machine import THREADS
from attngeo.bounds.names import in_utf8
from attngeo.checkpoints.files import (
    ADVICE_FOR_POINTERS,
    GGUF,
    LONGEST_POINTER,
    POINTER,
    SAFETENSORS,
    Index,
    find_checkpoint,
    is_index,
    list_parts,
    read_index,
    read_object,
    require_format,
)
from attngeo.checkpoints.gguf import GgufFile, open_splits
from attngeo.checkpoints.meta_parts import JoinedParts
from attngeo.checkpoints.safetensors import list_names
from attngeo.checkpoints.store import TensorInfo, TensorStore
from attngeo.checkpoints.tensor_file import ByteSource, RegularFile, TensorFile, read_bytes
from attngeo.errors import CheckpointError, CorruptCheckpointError, about

if TYPE_CHECKING:
    from attngeo.checkpoints.hub import Repository

log = logging.getLogger(__name__)

NUMBER = re.compile(r"\d+")
# What trainings with rounded weights keep beside them: of torch, of NVIDIA's modelopt, and of torchao and torchtune.
ROUNDING = re.compile(r"(.+\.weight)_(?:fake_quant|quantizer|fake_quantizer)\..+")
# Threads that read headers of files on this machine: a file server answers several at once.
MOST_HEADER_THREADS = 8


class Folder:
    """A folder with the files of a checkpoint. Has the attributes and methods of a `Repository`."""

    revision = None
    offline = False
    at_once = 1

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, file: str) -> Path:
        """The path of a weight file."""
        return self.path / file

    def find(self, file: str) -> Path | None:
        """The path of another file; None if there is no such file."""
        path = self.path / file
        return path if path.is_file() else None

    download = find  # nothing has to be fetched


class FileStore(TensorStore):
    """A TensorStore over one weight file, or several with an index. Files are opened when first needed.

    Args:
        ref: the model's name; errors begin with it.
        config: the parsed config.json.
        folder: folder of its files.
        main_file: name of the one file, or of the index.
        index: which file holds which tensor; None for one file.
        opened: files that are already open, by name.
        opener: function that opens the other files; None for the opener of their format.
    """

    def __init__(
        self,
        ref: str,
        config: Mapping[str, Any],
        folder: Folder | Repository,
        main_file: str,
        index: Index | None = None,
        opened: Mapping[str, TensorFile] = {},
        opener: Callable[[ByteSource], TensorFile] | None = None,
    ) -> None:
        self.ref = in_utf8(ref)
        self.config = config
        self.revision = folder.revision
        self.offline = folder.offline
        self.folder = folder.path
        self.main_file = main_file
        self._file_names = [main_file] if index is None else index.files
        self.format = require_format(self._file_names[0]).name
        self._source_folder = folder
        self._index = index
        self._opener = opener
        self._open = dict(opened)
        self._lanes = max((file.source.lanes for file in opened.values()), default=1)
        self._repeated: dict[str, str] = {}  # tensor → a file that holds it, too, after the one that the index names
        self._is_compared = False
        self._comparing = Lock()
        self._lock = Lock()
        self._closed = False
        self._opening: defaultdict[str, Lock] = defaultdict(Lock)

    @property
    def lanes(self) -> int:
        """Number of parallel reads that make reading faster."""
        return self._lanes

    @property
    def nested_under(self) -> str:
        """The key that holds the tensors in a single file; "" for the top level, or several files."""
        return self._open_file(self.main_file).nested_under if self._index is None else ""

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._weight_map.keys()

    @property
    def total_nbytes(self) -> int | None:
        """Bytes of all tensors, from the index (None if it does not state them) or the header of the one file."""
        if self._index is not None:
            return self._index.total_nbytes
        return sum(info.nbytes for info in self._open_file(self.main_file).tensors.values())

    @property
    def parameters(self) -> int | None:
        """Number of floating-point elements; for files that are not open, estimated from the bytes in the index."""
        return self.count(lambda info: math.prod(info.shape) if info.dtype.startswith(("F", "BF")) else 0)

    def count(self, weights: Callable[[TensorInfo], int]) -> int | None:
        """The sum of a number over all tensors; for files that are not open, estimated from the bytes in the index.

        None if the index does not state the bytes.
        """
        count = 0
        nbytes = 0
        for file in self._open.values():
            for info in file.tensors.values():
                count += weights(info)
                nbytes += info.nbytes
        total = self.total_nbytes
        if len(self._open) >= len(self._file_names):  # the first of several may hold no tensor
            return count
        if not nbytes or total is None or total < nbytes:
            return None
        return count + (total - nbytes) * count // nbytes

    @cached_property
    def _weight_map(self) -> Mapping[str, str]:
        """Name → the file that holds the tensor."""
        if self._index is None:
            return dict.fromkeys(self._open_file(self.main_file).tensors, self.main_file)
        return self._index.weight_map

    def info(self, name: str) -> TensorInfo:
        """Shape, dtype and bytes of one tensor.

        Raises CorruptCheckpointError if the file in the index lacks the tensor, or if a later file also contains it or
        has a tensor that the index lacks, because transformers would load that.
        """
        self._compare_with_index()
        file = self._weight_map[name]
        info = self._open_file(file).tensors.get(name)
        if info is not None and name not in self._repeated:
            return info
        with about(self.ref):
            if info is None:
                raise CorruptCheckpointError(
                    f"the index places tensor {name!r} in {file}, which does not contain it; copy or download it again"
                )
            raise CorruptCheckpointError(
                f"the index places tensor {name!r} in {file}, but {self._repeated[name]}, which transformers reads "
                "later, also contains it; save the model again"
            )

    def _open_file(self, file: str) -> TensorFile:
        """A file, opened once; several threads may open several files."""
        with self._lock:
            opening = self._opening[file]
        with opening:
            self._require_not_closed(file)
            if file in self._open:
                return self._open[file]
            with about(self.ref):
                opener = self._opener or resolve_name(require_format(file).opener)
                source = _open_source(self._source_folder, file)
            opened = opener(source)
            with about(self.ref):
                repeated = _find_repeated(self._index, file, opened.tensors) if self._index else {}
            with self._lock:
                self._repeated |= repeated
                if self._closed:
                    opened.close()
                self._require_not_closed(file)
                self._open[file] = opened
                self._lanes = max(self._lanes, source.lanes)
            return opened

    @property
    def _is_compared_here(self) -> bool:
        """Whether all files are on this machine, so that the names in them are compared with their index."""
        return self._index is None or isinstance(self._source_folder, Folder)

    @cached_property
    def _rounded(self) -> frozenset[str]:
        """The weights beside which a training keeps what it rounds them by, whenever a layer runs."""
        matches = [ROUNDING.fullmatch(name) for name in self.names if "quant" in name]
        return frozenset(match[1] for match in matches if match is not None)

    def list_notes(self, names: Iterable[str]) -> list[str]:
        """Notes if the running model rounds these weights, and if files that are not open may also contain them."""
        notes = []
        rounded = [name for name in names if name in self._rounded]
        if rounded:
            notes.append(f"{rounded[0]} is scored as stored, before the quantiser beside it rounds it")
        count = len(self._file_names)
        if not self._is_compared_here and len(self._open) < count:
            notes.append(
                f"{len(self._open)} of {count} weight files compared with their index: transformers takes a "
                "tensor from the last file that contains it"
            )
        return notes

    def _compare_with_index(self) -> None:
        """Read the names in all files on this machine, once. What they hold counts for transformers, not the index.

        Of files on the Hub, only those are compared that are opened.
        """
        with self._comparing:
            if self._is_compared:
                return
            others = [file for file in self._file_names if file not in self._open]
            if self._index is None or not self._is_compared_here or not others:
                self._is_compared = True
                return
            with ThreadPoolExecutor(MOST_HEADER_THREADS, thread_name_prefix=THREADS) as threads:
                by_file = dict(zip(others, threads.map(self._list_stored, others), strict=True))
            with about(self.ref):
                for file, names in by_file.items():
                    self._repeated |= _find_repeated(self._index, file, names)
            self._is_compared = True

    def _list_stored(self, file: str) -> list[str]:
        """The names of the tensors in a file; none if it cannot be read, which is said when it is needed."""
        try:
            source = _open_source(self._source_folder, file)
        except CheckpointError:
            return []
        try:
            if file.endswith(SAFETENSORS):
                return list_names(source)
            opener = self._opener or resolve_name(require_format(file).opener)
            return list(opener(source).tensors)
        except CheckpointError:
            return []
        finally:
            source.close()

    def _require_not_closed(self, file: str) -> None:
        if self._closed:
            with about(self.ref):
                raise CorruptCheckpointError(f"cannot read {file}: the checkpoint is closed")

    def open(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open every file that holds one of `names`. Calls `progress` with each file's name.

        After an error or Ctrl-C, does not wait for files that are still being opened: a server may be silent.
        """
        files = sorted({self._weight_map[name] for name in names})
        with ExitStack() as stack:
            openings: list[Callable[[], TensorFile]] = [partial(self._open_file, file) for file in files]
            if self._source_folder.at_once > 1 and len(files) > 1:
                threads = ThreadPoolExecutor(self._source_folder.at_once, thread_name_prefix=THREADS)
                stack.callback(threads.shutdown, wait=False, cancel_futures=True)
                openings = [threads.submit(opening).result for opening in openings]
            for file, wait in zip(files, openings, strict=True):
                if progress is not None:
                    progress(file)
                wait()

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, Tensor]:
        """Rows of each of these tensors; from a remote file, all at once."""
        by_file: dict[str, dict[str, slice]] = defaultdict(dict)
        for name, rows in reads.items():
            self.info(name)  # raises if the tensor is not in the file that the index names
            by_file[self._weight_map[name]][name] = rows
        tensors = {}
        for file_name, reads_of_file in by_file.items():
            file = self._open_file(file_name)
            with about(file.source.where), file.source.hold(file.extents(reads_of_file)):
                for name, rows in reads_of_file.items():
                    tensors[name] = file.read(name, rows)
        return {name: tensors[name] for name in reads}

    def file(self, name: str) -> Path | None:
        """The path of another file of the model, downloaded if needed; None if it is missing."""
        return self._source_folder.find(name)

    def download(self, progress: Callable[[str], None]) -> None:
        """Download every weight file completely. Calls `progress` with each file's name."""
        for file in self._file_names:
            progress(file)
            self._source_folder.download(file)
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
        for file in files:
            file.close()


def _find_repeated(index: Index, file: str, tensors: Collection[str]) -> dict[str, str]:
    """The tensors of a file for which its index names a file before it, name → this file: transformers reads it last.

    Raises CorruptCheckpointError if the index lacks a tensor whose name differs from a listed one by its numbers only:
    it belongs to other files, and transformers loads what the files hold.
    """
    others = [name for name in tensors if index.weight_map.get(name) != file]
    unlisted = [name for name in others if name not in index.weight_map]
    if unlisted:
        listed_patterns = {NUMBER.sub("#", name) for name in index.weight_map}
        for name in unlisted:
            if NUMBER.sub("#", name) in listed_patterns:
                raise CorruptCheckpointError(
                    f"{file} contains {name!r:.80}, which is not in the index, so the index belongs to other files; "
                    "copy or download it again, or save the model again"
                )
    return {name: file for name in others if index.weight_map.get(name, file) < file}


def open_local(path: Path, ref: str, config: Mapping[str, Any] | None = None) -> FileStore:
    """Open the checkpoint in a folder, in one file, or behind an index.

    Args:
        path: see `find_checkpoint`.
        ref: the model's name.
        config: see `find_checkpoint`.

    Raises:
        CheckpointError: There is no checkpoint, or it cannot be read.
    """
    checkpoint = find_checkpoint(path, config)
    index = read_index(checkpoint.folder / checkpoint.name) if is_index(checkpoint.name) else None
    parts = list_parts(checkpoint.folder / checkpoint.name)
    if parts:
        log.info("%s: %s and %d more parts in %s", ref, checkpoint.name, len(parts), checkpoint.folder)
        stated = checkpoint.folder / "params.json"
        params = read_object(stated) if stated.is_file() else {}
        opener = partial(JoinedParts, others=parts, stated={**checkpoint.config, **params})
        return FileStore(ref, checkpoint.config, Folder(checkpoint.folder), checkpoint.name, opener=opener)
    return open_files(ref, Folder(checkpoint.folder), checkpoint.name, checkpoint.config, index)


def open_files(
    ref: str, folder: Folder | Repository, name: str, config: Mapping[str, Any], index: Index | None
) -> FileStore:
    """Open a weight file or an index. A GGUF file (the first of several) has its own configuration.

    Raises CheckpointError if it is broken.
    """
    files = "1 weight file" if index is None or len(index.files) == 1 else f"{len(index.files):,} weight files"
    log.info("%s: %s in %s, %s", ref, name, folder.path, files)
    if not name.endswith(GGUF):
        return FileStore(ref, config, folder, name, index)
    first = GgufFile(_open_source(folder, name))
    opened = {name: first}
    if not first.is_whole:
        opened |= open_splits(first, name, partial(_open_source, folder))
        weight_map: dict[str, str] = {}
        total = 0
        for split, file in opened.items():
            weight_map |= dict.fromkeys(file.tensors, split)
            total += sum(info.nbytes for info in file.tensors.values())
        index = Index(weight_map, total)
    return FileStore(ref, first.config, folder, name, index, opened, partial(GgufFile, inherited=first.metadata))


def _open_source(folder: Folder | Repository, file: str) -> ByteSource:
    """A weight file: on this machine, or ranges of it. Raises CorruptCheckpointError for a pointer of git-lfs."""
    opened = folder.open(file)
    source = RegularFile(opened) if isinstance(opened, Path) else opened
    if len(POINTER) <= source.size <= LONGEST_POINTER:
        with about(source.where):
            if read_bytes(source, 0, len(POINTER), "header") == POINTER.encode():
                source.close()
                raise CorruptCheckpointError(ADVICE_FOR_POINTERS)
    return source
