"""Checkpoints in files: the table of formats, what config.json and an index state, and the store over the weights.

A new format is a module with a class that fits `TensorFile`, and an entry in `FORMATS`. A module of a format, and torch
with it, is imported when the first file of that format is opened; this one imports neither.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from attngeo.bounds import MOST_INDEX_BYTES, in_utf8, read_small_text
from attngeo.errors import CorruptCheckpointError, ModelNotFoundError, UnsupportedModelError, first_line

if TYPE_CHECKING:
    from torch import Tensor

    from attngeo.checkpoints.sources import ByteSource, Extent
    from attngeo.checkpoints.store import TensorInfo

log = logging.getLogger(__name__)

Value = TypeVar("Value")
Result = TypeVar("Result")

# The end of the name of an index: the JSON file that tells which file of a sharded checkpoint holds which tensor.
INDEX_SUFFIX = ".index.json"
LONGEST_NAME = 200
# A thousand times the bytes of the largest models that are known.
MOST_TOTAL = 10**15
SHARD = re.compile(r"-\d{5}-of-(\d{5})\.")
# How the names of threads that open files begin. One that waits for a server keeps the process until that has answered.
THREADS = "attngeo-open"


class TensorFile(Protocol):
    """One open file of weights."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The table of contents: tensor name → shape, dtype and place."""
        ...

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """One tensor, or rows of its first dimension, on the CPU in the file's dtype."""
        ...

    def extents(self, reads: Mapping[str, slice]) -> Iterable[Extent]:
        """The bytes of the file that `read` needs for these rows of these tensors."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


@dataclass(frozen=True, kw_only=True)
class Format:
    """One file format.

    name: what users call it. suffixes: how its file names end; the first one is the usual one. usual_stem: what
    transformers calls the file of a checkpoint, before the suffix; "" if transformers does not write this format.
    open: opens one file, and raises CheckpointError if it is broken; None for a format that is not supported, with
    `advice` on what to use instead. read_config: reads the configuration from the file itself, given its path and the
    user's reference; None if the configuration is the config.json beside the file (a folder always needs one).
    not_weights: files with the usual suffix that hold something else.
    """

    name: str
    suffixes: tuple[str, ...]
    usual_stem: str = ""
    open: Callable[[ByteSource], TensorFile] | None = None
    read_config: Callable[[Path, str], dict[str, Any]] | None = None
    not_weights: tuple[str, ...] = ()
    advice: str = ""


def _open_safetensors(source: ByteSource) -> TensorFile:
    from attngeo.checkpoints.safetensors import SafetensorsFile

    return SafetensorsFile(source)


def _open_torch(source: ByteSource) -> TensorFile:
    from attngeo.checkpoints.torch_file import TorchFile

    return TorchFile(source)


SAFETENSORS = Format(name="safetensors", suffixes=(".safetensors",), usual_stem="model", open=_open_safetensors)

# In the order in which they are tried.
FORMATS: tuple[Format, ...] = (
    SAFETENSORS,
    Format(
        name="PyTorch",
        suffixes=(".bin", ".pt", ".pth"),
        usual_stem="pytorch_model",
        open=_open_torch,
        not_weights=("training_args.bin",),
    ),
    Format(name="GGUF", suffixes=(".gguf",), advice="give the safetensors checkpoint that the GGUF file was made from"),
)


def usual_names() -> tuple[str, ...]:
    """The files to try in a folder or repository, in this order. The index of a format comes before its one file."""
    names = [f"{kind.usual_stem}{kind.suffixes[0]}" for kind in FORMATS if kind.usual_stem and kind.open]
    return tuple(name for file in names for name in (f"{file}{INDEX_SUFFIX}", file))


def is_index(file: str) -> bool:
    """Whether a file is named as the index of a sharded checkpoint."""
    return file.endswith(INDEX_SUFFIX)


def is_weights(file: str) -> bool:
    """Whether a file is named as weights of a known format, supported or not, or as an index of weights."""
    return is_index(file) or any(file.endswith(kind.suffixes) for kind in FORMATS)


def require_format(file: str, ref: str) -> Format:
    """The format of a file, by its suffix. Raises UnsupportedModelError if it is unknown or not supported."""
    kind = next((kind for kind in FORMATS if file.endswith(kind.suffixes)), None)
    # A reference to the file itself names it already.
    named = ref if ref.endswith(file) else f"{ref}: {file}"
    if kind is None:
        suffixes = [suffix for supported in FORMATS if supported.open for suffix in supported.suffixes]
        raise UnsupportedModelError(
            f"{named}: unknown format, expected a folder or a file that ends in one of: "
            f"{', '.join((*suffixes, INDEX_SUFFIX))}"
        )
    if kind.open is None:
        raise UnsupportedModelError(f"{named}: {kind.name} files are not supported; {kind.advice}")
    return kind


def read_config(path: Path, ref: str) -> dict[str, Any]:
    """Parse config.json. Raises ModelNotFoundError if it is missing, CorruptCheckpointError if it is no JSON object."""
    try:
        config = json.loads(read_small_text(path))
    except FileNotFoundError:
        raise ModelNotFoundError(
            f"{ref}: no config.json in {path.parent}; give a folder that save_pretrained wrote, or a Hub id"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(
            f"{ref}: config.json is not readable JSON ({first_line(error)}); download it again"
        ) from None
    if not isinstance(config, dict):
        raise CorruptCheckpointError(
            f"{ref}: config.json is a {type(config).__name__}, expected an object; download it again"
        )
    _check_model_types(config, ref)
    return config


def _check_model_types(config: dict[str, Any], ref: str) -> None:
    """Raise CorruptCheckpointError for a model_type, here or in a section, that is no short text.

    It names the family, and is written into every table.
    """
    sections: list[dict[str, Any]] = [config]
    while sections:
        section = sections.pop()
        stated = section.get("model_type")
        if stated is not None and not (isinstance(stated, str) and len(stated) <= LONGEST_NAME):
            kind = f"a text of {len(stated):,} characters" if isinstance(stated, str) else f"a {type(stated).__name__}"
            raise CorruptCheckpointError(
                f"{ref}: config.json has {kind} as model_type, expected a name of at most {LONGEST_NAME} characters"
            )
        sections += [value for value in section.values() if isinstance(value, dict)]


class Index(NamedTuple):
    """weight_map: tensor name → file. total_nbytes: bytes of all tensors, None if the index does not state them."""

    weight_map: Mapping[str, str]
    total_nbytes: int | None

    @property
    def files(self) -> list[str]:
        """The files that the index names, each once, in order."""
        return sorted(set(self.weight_map.values()))


def read_index(path: Path, ref: str) -> Index:
    """Parse a `*.index.json`. Raises CorruptCheckpointError, or UnsupportedModelError for an unknown file format.

    An index may only name files beside it: an absolute path, or one through `..`, is refused.
    """
    try:
        index = json.loads(read_small_text(path, MOST_INDEX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(
            f"{ref}: {path.name} is not readable JSON ({first_line(error)}); download it again"
        ) from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise CorruptCheckpointError(
            f"{ref}: {path.name} has no weight_map, expected one of tensor name → file; download it again"
        )
    for file in set(weight_map.values()):
        if PurePosixPath(file).name != file or "\\" in file or file in ("", ".", "..") or len(file) > LONGEST_NAME:
            raise CorruptCheckpointError(
                f"{ref}: {path.name} points to {file!r:.80}, outside its folder; expected plain file names"
            )
        require_format(file, f"{ref}: {path.name}")
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return Index(weight_map, total if type(total) is int and 0 < total < MOST_TOTAL else None)


class FileStore:
    """A TensorStore over one file of weights, or over several with an index. A file is opened when it is first needed.

    ref, config, folder, revision, offline: see `TensorStore`. main_file: the name of the one file, or of the index.
    open_source: opens a file of weights by its name, or raises. index: which file holds which tensor; None for one
    file. other: gives the path of any other file of the model, or None if there is no such file; by default those in
    `folder`. at_once: how many files `fetch` opens at a time.
    """

    def __init__(
        self,
        ref: str,
        config: Mapping[str, Any],
        folder: Path,
        main_file: str,
        open_source: Callable[[str], ByteSource],
        *,
        index: Index | None = None,
        revision: str | None = None,
        other: Callable[[str], Path | None] | None = None,
        offline: bool = False,
        at_once: int = 1,
    ) -> None:
        self.ref, self.config, self.revision, self.offline = in_utf8(ref), config, revision, offline
        self.main_file = main_file
        self.folder: Path | None = folder
        self._files = [main_file] if index is None else index.files
        self._open_source, self._index, self._at_once = open_source, index, at_once
        self._other = other or (lambda name: path if (path := folder / name).is_file() else None)
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
            self._total_nbytes = sum(info.nbytes for info in self._file(self.main_file).tensors.values())
        return self._total_nbytes

    @property
    def _file_of(self) -> Mapping[str, str]:
        if self._weight_map is None:
            self._weight_map = dict.fromkeys(self._file(self.main_file).tensors, self.main_file)
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
                opener = require_format(file, self.ref).open
                assert opener is not None  # require_format has refused the others
                source = self._open_source(file)
                opened = opener(source)
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

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """One tensor, or rows of its first dimension, in the checkpoint's dtype."""
        return self.read_all({name: rows})[name]

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, Tensor]:
        """Rows of each of these tensors; at once from each file that is remote."""
        tensors = {}
        for file, part in self._divide(reads).items():
            opened = self._file(file)
            with self._sources[file].hold(opened.extents(part)):
                tensors.update({name: opened.read(name, rows) for name, rows in part.items()})
        return {name: tensors[name] for name in reads}

    def count_requests(self, reads: Iterable[Mapping[str, slice]]) -> dict[str, int]:
        """Remote file → the requests for its header, and those that `read_all` sends for each of these reads."""
        counts: Counter[str] = Counter()
        for step in reads:
            for file, part in self._divide(step).items():
                counts[file] += self._sources[file].count_requests(self._file(file).extents(part))
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


def start_all(
    function: Callable[[Value], Result], values: Sequence[Value], at_once: int
) -> Generator[Callable[[], Result], None, None]:
    """For each value, in their order, what waits for `function(value)` and returns its result, or raises its error.

    at_once: how many threads make these calls; with one, each call is made when it is waited for. If the generator is
    closed, no further call begins, and nobody waits for those that are being made.
    """
    if at_once == 1 or len(values) < 2:
        yield from (partial(function, value) for value in values)
        return
    threads = ThreadPoolExecutor(at_once, thread_name_prefix=THREADS)
    try:
        yield from [threads.submit(function, value).result for value in values]
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def open_folder(folder: Path, ref: str) -> FileStore:
    """Open the checkpoint in a folder. Raises ModelNotFoundError without a config.json, CheckpointError if broken."""
    if not (folder / "config.json").is_file() and (folder / "model/config.json").is_file():
        raise ModelNotFoundError(f"{ref}: no config.json in {folder}; give {folder / 'model'}, which has one")
    config = read_config(folder / "config.json", ref)
    name = next((name for name in usual_names() if (folder / name).is_file()), None) or _find_only_weights(folder, ref)
    return _open(folder, name, ref, config)


def open_file(path: Path, ref: str) -> FileStore:
    """Open the checkpoint in one file, or behind one index. Its config.json must be beside it, or inside the file.

    Raises ModelNotFoundError without a config.json, CheckpointError if the file is broken or of an unsupported format.
    """
    if path.name == "config.json":
        return open_folder(path.parent, ref)
    read_inside = None if is_index(path.name) else require_format(path.name, ref).read_config
    config = read_inside(path, ref) if read_inside else read_config(path.with_name("config.json"), ref)
    return _open(path.parent, path.name, ref, config)


def _open(folder: Path, name: str, ref: str, config: Mapping[str, Any]) -> FileStore:
    from attngeo.checkpoints.sources import RegularFile

    log.info("%s: %s in %s", ref, name, folder)
    index = read_index(folder / name, ref) if is_index(name) else None
    if index is None:
        require_format(name, ref)
        _refuse_shard(name, ref)

    def open_source(file: str) -> ByteSource:
        if index is not None and not (folder / file).is_file():
            present = sum((folder / shard).is_file() for shard in index.files)
            raise CorruptCheckpointError(
                f"{ref}: shard {file} is missing, {present} of {len(index.files)} shards found; download it again"
            )
        return RegularFile(folder / file)

    return FileStore(ref, config, folder, name, open_source, index=index)


def _find_only_weights(folder: Path, ref: str) -> str:
    """The one file of weights, or the one index, in a folder that has none of the usual names."""
    for kind in FORMATS:
        for ending in (kind.suffixes[0] + INDEX_SUFFIX, kind.suffixes[0]):
            paths = (path for path in folder.glob(f"*{ending}") if path.is_file())
            names = sorted(path.name for path in paths if path.name not in kind.not_weights)
            if len(names) > 1:
                _refuse_shard(names[0], ref)
                raise CorruptCheckpointError(
                    f"{ref}: {len(names)} files of weights in {folder} ({', '.join(names[:4])}); give one of them"
                )
            if names:
                return names[0]
    usual = ", ".join(usual_names())
    single = " or ".join(f"*{kind.suffixes[0]}" for kind in FORMATS if kind.open)
    raise CorruptCheckpointError(f"{ref}: no weights in {folder}, looked for {usual} and for a single {single}")


def _refuse_shard(file: str, ref: str) -> None:
    """Raise CorruptCheckpointError if `file` is one shard of several: alone it holds only a part of the model."""
    if (shard := SHARD.search(file)) and int(shard[1]) > 1:
        raise CorruptCheckpointError(
            f"{ref}: {file} is one of {int(shard[1])} shards, and their index is missing; give the folder that has "
            "every shard and the index, such as model.safetensors.index.json"
        )
