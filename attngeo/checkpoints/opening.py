"""From a reference, or a model in memory, to its TensorStore. Imports torch; `reference` and `files` do not."""

from __future__ import annotations

import logging
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attngeo.bounds.names import in_utf8
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.adapted_module import open_module
from attngeo.checkpoints.adapter_settings import LoraSettings
from attngeo.checkpoints.adapters import Adapter, AdapterStore
from attngeo.checkpoints.demos import require_demo
from attngeo.checkpoints.files import (
    ADAPTER,
    ADAPTER_FILES,
    ADVICE_FOR_POINTERS,
    GGUF,
    LONGEST_POINTER,
    POINTER,
    THREADS,
    Index,
    check_name,
    find_checkpoint,
    is_index,
    read_config,
    read_index,
    read_object,
    require_format,
    stated_weights,
)
from attngeo.checkpoints.local_files import find_adapter, find_config, is_adapter, refuse_config
from attngeo.checkpoints.reference import ModelRef, split_weight
from attngeo.checkpoints.store import (
    ByteSource,
    RegularFile,
    TensorFile,
    TensorInfo,
    TensorStore,
    stated_quantisation,
)
from attngeo.errors import CorruptCheckpointError, UsageError

if TYPE_CHECKING:
    from attngeo.checkpoints.hub import Repository

log = logging.getLogger(__name__)

NUMBER = re.compile(r"\d+")


def open_store(model: Any, hub: HubAccess = HubAccess(), config: str | Path | None = None) -> TensorStore:
    """Open the tensors of `model`: a reference (`org/name[@revision]`, folder, file, `demo:NAME`), or in memory.

    hub: how a model on the Hub is read. config: where its config.json is, if it is not beside its weights: a folder,
    that file, or a model on the Hub. A model in memory is one of transformers.
    Raises ModelUnavailableError if the model cannot be found or reached, CheckpointError if it cannot be read,
    UsageError if `model` is neither.
    """
    in_memory = hasattr(model, "state_dict") and hasattr(getattr(model, "config", None), "to_dict")
    if config is not None and (in_memory or str(getattr(model, "text", model)).endswith(GGUF)):
        raise refuse_config()
    if in_memory:
        return open_module(model)
    if not isinstance(model, str | Path | ModelRef):
        raise UsageError(
            f"model is a {type(model).__name__}, expected a reference such as 'org/name' or a transformers model"
        )
    ref = model if isinstance(model, ModelRef) else ModelRef.parse(model)
    store = _open_model(ref, hub, None if config is None else _read_other_config(config, hub))
    if store is None:
        return _open_adapter(ref, hub)
    if ref.kind == "folder" and (Path(ref.name) / ADAPTER).is_file():  # transformers adds it to the model beside it
        return _add_adapter(ref, hub, store)
    return store


def _open_model(ref: ModelRef, hub: HubAccess, fields: dict[str, Any] | None = None) -> TensorStore | None:
    """Open a model; None for an adapter. fields: its configuration, if it is given."""
    store: FileStore | None = None
    match ref.kind:
        case "demo":
            store = open_local(require_demo(ref.name), ref.text, fields)
        case "folder" if not is_adapter(Path(ref.name)):
            store = open_local(Path(ref.name), ref.text, fields)
        case "file":
            store = open_local(Path(ref.name), ref.text, fields)
        case "hub":
            store = _open_hub(ref, hub, fields)
    if store is None or not stated_quantisation(store.config):
        return store
    from attngeo.checkpoints.quantised.store import DecodingStore

    return DecodingStore(store)


def open_adapted(
    model: Any,
    adapters: Sequence[str],
    hub: HubAccess = HubAccess(),
    *,
    config: str | Path | None = None,
    only_updates: bool = False,
) -> TensorStore:
    """Open the tensors of `model` as adapters of PEFT change them, one after the other.

    adapters: folders or models on the Hub, with `=weight` after them if it is not 1. only_updates: see `AdapterStore`.
    Raises as `open_store`, and CheckpointError for an adapter that does not fit.
    """
    with ExitStack() as opened:
        store = open_store(model, hub, config)
        opened.callback(store.close)
        if adapters:
            changes = []
            for text in adapters:
                name, weight = split_weight(text)
                tensors, settings = _read_adapter(ModelRef.parse(name), hub)
                opened.callback(tensors.close)
                changes.append(Adapter(name, store, tensors, settings, weight))
            store = AdapterStore(store.ref, store, changes, only_updates=only_updates)
        opened.pop_all()
    return store


def _open_adapter(ref: ModelRef, hub: HubAccess) -> TensorStore:
    """An adapter of PEFT, with the base model that its configuration names.

    Raises ModelNotFoundError if the base cannot be found, CheckpointError if either is broken.
    """
    with ExitStack() as opened:
        tensors, settings = _read_adapter(ref, hub)
        opened.callback(tensors.close)
        base = _parse_base(ref, settings)
        store = _open_model(base, hub)
        if store is None:
            raise CorruptCheckpointError(
                f"{ref.text}: {ADAPTER} names the base {settings.base!r:.80}, which is an adapter itself, expected a "
                "model; correct it"
            )
        opened.callback(store.close)
        changed = AdapterStore(ref.text, store, [Adapter(ref.text, store, tensors, settings)])
        opened.pop_all()
    return changed


def _parse_base(ref: ModelRef, settings: LoraSettings) -> ModelRef:
    """The base that an adapter names, at the revision that it states. Raises CorruptCheckpointError for no name."""
    try:
        base = ModelRef.parse(settings.base)
        if base.kind == "hub" and settings.revision is not None:
            base = ModelRef.parse(f"{settings.base}@{settings.revision}")
    except UsageError:
        raise CorruptCheckpointError(
            f"{ref.text}: {ADAPTER} names the base {settings.base!r:.80}, revision {settings.revision!r:.40}, expected "
            "a folder, or org/name; correct it"
        ) from None
    return base


def _add_adapter(ref: ModelRef, hub: HubAccess, store: TensorStore) -> AdapterStore:
    """The model of an open store with the adapter in the same folder."""
    with ExitStack() as opened:
        opened.callback(store.close)
        tensors, settings = _read_adapter(ref, hub)
        opened.callback(tensors.close)
        changed = AdapterStore(ref.text, store, [Adapter(ref.text, store, tensors, settings)])
        opened.pop_all()
    return changed


def _read_adapter(ref: ModelRef, hub: HubAccess) -> tuple[TensorStore, LoraSettings]:
    """The tensors of an adapter, and its settings."""
    if ref.kind == "hub":
        repository = _find_repository(ref, hub)
        path = repository.pin(ADAPTER)
        file, _ = repository.find_weights(ADAPTER_FILES)
        return FileStore(ref.text, {}, repository, file), LoraSettings(ref.text, read_object(path, ref.text))
    weights = find_adapter(ref)
    settings = LoraSettings(ref.text, read_object(weights.with_name(ADAPTER), ref.text))
    return FileStore(ref.text, {}, Folder(weights.parent), weights.name), settings


def _read_other_config(config: str | Path, hub: HubAccess) -> dict[str, Any]:
    """The configuration in a folder, in a file, or of a model on the Hub. Raises as `read_config`."""
    path = find_config(config) or _find_repository(ModelRef.parse(config), hub).pin("config.json")
    return read_config(path, str(config))


def _open_hub(ref: ModelRef, access: HubAccess, config: dict[str, Any] | None = None) -> FileStore | None:
    """Open a checkpoint on the Hub; None for an adapter. Downloads config.json and the index, and reads ranges.

    access: whether only the cache is used, or each file of weights that is needed is downloaded into it. config: see
    `find_checkpoint`.
    Raises ModelNotFoundError, AccessError for a private or gated model, NetworkError, or CheckpointError.
    """
    if ref.file is not None:
        check_name(ref.file, ref.text)
    repository = _find_repository(ref, access)
    path = repository.pin() if config is None else repository.pin("config.json", ".gitattributes", "README.md")
    is_adapter_there = path.name == ADAPTER or (ref.file is None and repository.download(ADAPTER) is not None)
    if config is None and is_adapter_there:
        return None  # also beside a model: transformers adds the adapter to the base that it names, not to that model
    if config is None and not (ref.file or "").endswith(GGUF):
        config = read_config(path, ref.text)
    stated = stated_weights(config or {}, ref.text) if ref.file is None else None
    main_file, index = repository.find_weights(() if stated is None else (stated,))
    return _open_files(ref.text, repository, main_file, config or {}, index)


def _find_repository(ref: ModelRef, access: HubAccess) -> Repository:
    from attngeo.checkpoints.hub import Repository  # loads the Hub's client, which files on disk do not need

    return Repository(ref, access)


class Folder:
    """A folder with the files of a checkpoint. Its attributes and methods are those of a `Repository`."""

    revision, offline, at_once = None, False, 1

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, file: str) -> Path:
        """The path of a file of weights."""
        return self.path / file

    def find(self, file: str) -> Path | None:
        """The path of another file; None if there is no such file."""
        return path if (path := self.path / file).is_file() else None

    download = find  # nothing has to be fetched


def _open_source(place: Folder | Repository, file: str) -> ByteSource:
    """A file of weights: on this machine, or ranges of it. Raises CorruptCheckpointError for a pointer of git-lfs."""
    opened = place.open(file)
    source = RegularFile(opened) if isinstance(opened, Path) else opened
    if len(POINTER) <= source.size <= LONGEST_POINTER:
        start = bytes(source.read(0, len(POINTER), "header").numpy())
        if start == POINTER.encode():
            source.close()
            raise CorruptCheckpointError(f"{source.where}: {ADVICE_FOR_POINTERS}")
    return source


class FileStore(TensorStore):
    """A TensorStore over one file of weights, or over several with an index. A file is opened when it is first needed.

    ref, config: see `TensorStore`. place: where its files are. main_file: the name of the one file, or of the index.
    index: which file holds which tensor; None for one file. opened: files that are open already. opener: what opens
    the others, if it is not that of their format.
    """

    def __init__(
        self,
        ref: str,
        config: Mapping[str, Any],
        place: Folder | Repository,
        main_file: str,
        index: Index | None = None,
        opened: Mapping[str, tuple[ByteSource, TensorFile]] | None = None,
        opener: Callable[[ByteSource], TensorFile] | None = None,
    ) -> None:
        self.ref, self.config, self.revision, self.offline = in_utf8(ref), config, place.revision, place.offline
        self._files = [main_file] if index is None else index.files
        self.main_file, self.format = main_file, require_format(self._files[0], ref).name
        self.folder = place.path
        self._place, self._index, self._opener = place, index, opener
        self._sources = {name: source for name, (source, _) in (opened or {}).items()}
        self._open = {name: file for name, (_, file) in (opened or {}).items()}
        self._lanes = max((source.lanes for source in self._sources.values()), default=1)
        self._again: dict[str, str] = {}
        self._lock, self._closed = Lock(), False
        self._opening: defaultdict[str, Lock] = defaultdict(Lock)

    @property
    def lanes(self) -> int:
        """How many reads at once make it faster."""
        return self._lanes

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._places.keys()

    @property
    def total_nbytes(self) -> int | None:
        """Bytes of all tensors: from the index, which may not state them, or from the header of the one file."""
        if self._index is not None:
            return self._index.total_nbytes
        return sum(info.nbytes for info in self._file(self.main_file).tensors.values())

    @property
    def parameters(self) -> int | None:
        """Number of floating-point elements, in files that are not open by the bytes that the index states."""
        return self.count(lambda info: math.prod(info.shape) if info.dtype.startswith(("F", "BF")) else 0)

    def count(self, weights: Callable[[TensorInfo], int]) -> int | None:
        """The sum of a number for each tensor, in files that are not open by the bytes that the index states.

        None if the index does not state them.
        """
        infos = [info for file in self._open.values() for info in file.tensors.values()]
        count, nbytes, total = sum(map(weights, infos)), sum(info.nbytes for info in infos), self.total_nbytes
        if len(self._open) >= len(self._files):  # the first of several may hold no tensor
            return count
        return None if not nbytes or total is None or total < nbytes else count + (total - nbytes) * count // nbytes

    @cached_property
    def _places(self) -> Mapping[str, str]:
        """Name → the file that holds the tensor."""
        if self._index is None:
            return dict.fromkeys(self._file(self.main_file).tensors, self.main_file)
        return self._index.weight_map

    def info(self, name: str) -> TensorInfo:
        """Shape, dtype and bytes of one tensor. Raises CorruptCheckpointError if the file of the index lacks it."""
        file = self._places[name]
        try:
            info = self._file(file).tensors[name]
        except KeyError:
            raise CorruptCheckpointError(
                f"{self.ref}: the index places tensor {name!r} in {file}, which does not hold it; download it again"
            ) from None
        if name in self._again:
            raise CorruptCheckpointError(
                f"{self.ref}: the index places tensor {name!r} in {file}, and {self._again[name]}, which transformers "
                "reads later, holds it, too; save the model again"
            )
        return info

    def _file(self, file: str) -> TensorFile:
        """A file, opened once; several threads may open several files."""
        with self._lock:
            opening = self._opening[file]
        with opening:
            if self._closed:
                raise self._refuse(file)
            if file not in self._open:
                opener = self._opener or require_format(file, self.ref).open
                assert opener is not None  # require_format has refused the others
                source = _open_source(self._place, file)
                opened = opener(source)
                again = _find_stored_again(self._index, file, opened.tensors, self.ref) if self._index else {}
                with self._lock:
                    self._again |= again
                    if self._closed:
                        opened.close()
                        raise self._refuse(file)
                    self._sources[file], self._open[file] = source, opened
                    self._lanes = max(self._lanes, source.lanes)
            return self._open[file]

    def _refuse(self, file: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self.ref}: {file} is read after the checkpoint was closed")

    def open(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open every file that holds one of `names`. Calls `progress` with each file's name.

        After an error or Ctrl-C, nobody waits for files that are being opened: a server may be silent.
        """
        files = sorted({self._places[name] for name in names})
        with ExitStack() as stack:
            openings: list[Callable[[], TensorFile]] = [partial(self._file, file) for file in files]
            if self._place.at_once > 1 and len(files) > 1:
                threads = ThreadPoolExecutor(self._place.at_once, thread_name_prefix=THREADS)
                stack.callback(threads.shutdown, wait=False, cancel_futures=True)
                openings = [threads.submit(opening).result for opening in openings]
            for file, wait in zip(files, openings, strict=True):
                if progress is not None:
                    progress(file)
                wait()

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, Tensor]:
        """Rows of each of these tensors; at once from each file that is remote."""
        by_file: dict[str, dict[str, slice]] = defaultdict(dict)
        for name, rows in reads.items():
            self.info(name)  # raises if the tensor is not in the file that the index names
            by_file[self._places[name]][name] = rows
        tensors = {}
        for file, part in by_file.items():
            opened = self._file(file)
            with self._sources[file].hold(opened.extents(part)):
                tensors.update({name: opened.read(name, rows) for name, rows in part.items()})
        return {name: tensors[name] for name in reads}

    def file(self, name: str) -> Path | None:
        """The path of another file of the model, downloaded if needed; None if it is missing."""
        return self._place.find(name)

    def download(self, progress: Callable[[str], None]) -> None:
        """Make every file of weights a whole file on this machine. Calls `progress` with each file's name."""
        for file in self._files:
            progress(file)
            self._place.download(file)
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


def _find_stored_again(index: Index, file: str, tensors: Collection[str], ref: str) -> dict[str, str]:
    """The tensors of a file for which its index names a file before it, name → this file: transformers reads it last.

    Raises CorruptCheckpointError if the index lacks a tensor of a kind that it has: it belongs to other files, and
    transformers loads what the files hold.
    """
    others = [name for name in tensors if index.weight_map.get(name) != file]
    unlisted = [name for name in others if name not in index.weight_map]
    kinds = {NUMBER.sub("#", name) for name in index.weight_map} if unlisted else set()
    missing = next((name for name in unlisted if NUMBER.sub("#", name) in kinds), None)
    if missing is not None:
        raise CorruptCheckpointError(
            f"{ref}: {file} holds {missing!r:.80}, which is not in the index; it is that of other files: download it "
            "again, or save the model again"
        )
    return {name: file for name in others if index.weight_map.get(name, file) < file}


def open_local(path: Path, ref: str, config: Mapping[str, Any] | None = None) -> FileStore:
    """Open the checkpoint in a folder, in one file, or behind one index. The arguments are those of `find_checkpoint`.

    Raises CheckpointError.
    """
    found = find_checkpoint(path, ref, config)
    index = read_index(found.folder / found.name, ref) if is_index(found.name) else None
    return _open_files(ref, Folder(found.folder), found.name, found.config, index)


def _open_files(
    ref: str, place: Folder | Repository, name: str, config: Mapping[str, Any], index: Index | None
) -> FileStore:
    """Open a file of weights, or an index. A GGUF file, or the first file of several, has its own configuration.

    Raises CheckpointError if it is broken.
    """
    log.info("%s: %s in %s, %d files of weights", ref, name, place.path, 1 if index is None else len(index.files))
    if not name.endswith(GGUF):
        return FileStore(ref, config, place, name, index)
    from attngeo.checkpoints.gguf import GgufFile, open_splits

    source = _open_source(place, name)
    first = GgufFile(source)
    opened = {name: (source, first)}
    if first.metadata.get("split.count", 1) != 1:
        opened |= open_splits(first, name, partial(_open_source, place))
        total = sum(info.nbytes for _, file in opened.values() for info in file.tensors.values())
        index = Index({tensor: part for part, (_, file) in opened.items() for tensor in file.tensors}, total)
    return FileStore(ref, first.config, place, name, index, opened, partial(GgufFile, inherited=first.metadata))
