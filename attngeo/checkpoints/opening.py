"""From a reference, or a model in memory, to its TensorStore. Imports torch; `reference` and `files` do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.bounds.names import name_type
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.adapted_module import open_module
from attngeo.checkpoints.adapter_settings import LoraSettings
from attngeo.checkpoints.adapters import Adapter, AdapterStore
from attngeo.checkpoints.demos import require_demo
from attngeo.checkpoints.file_store import FileStore, Folder, open_files, open_local
from attngeo.checkpoints.files import (
    ADAPTER,
    ADAPTER_FILES,
    GGUF,
    check_name,
    read_config,
    read_object,
    refuse_first_part,
    stated_weights,
)
from attngeo.checkpoints.local_files import find_adapter, find_local_config, is_adapter, refuse_config
from attngeo.checkpoints.quantised.quanto import recognise_method
from attngeo.checkpoints.quantised.store import DecodingStore
from attngeo.checkpoints.reference import Model, ModelRef, split_adapter_weight
from attngeo.checkpoints.repositories import find_repository
from attngeo.checkpoints.store import TensorStore, stated_quantization
from attngeo.errors import CorruptCheckpointError, UsageError, about

if TYPE_CHECKING:
    from attngeo.checkpoints.hub import Repository


def open_store(model: Model, hub: HubAccess = HubAccess(), config: str | Path | None = None) -> TensorStore:
    """Open the tensors of a model.

    Args:
        model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`), or a transformers model in memory.
        hub: how to read a model on the Hub.
        config: its config.json, if that is not beside the weights: a folder, the file, or a model on the Hub.

    Raises:
        ModelUnavailableError: The model cannot be found or reached.
        CheckpointError: The model cannot be read.
        UsageError: `model` is neither a reference nor a transformers model.
    """
    in_memory = hasattr(model, "state_dict") and hasattr(getattr(model, "config", None), "to_dict")
    if config is not None and (in_memory or str(model).endswith(GGUF)):
        raise refuse_config()
    if in_memory:
        return open_module(model)
    if not isinstance(model, str | Path):
        raise UsageError(
            f"model is {name_type(model)}, expected a reference such as 'org/name' or a transformers model"
        )
    return Opener(hub).open(ModelRef.parse(model), config)


def open_adapted(
    model: Model,
    adapters: Sequence[str],
    hub: HubAccess = HubAccess(),
    *,
    config: str | Path | None = None,
    only_updates: bool = False,
) -> TensorStore:
    """Open the tensors of a model after the changes of PEFT adapters, applied in this order.

    Args:
        model: see `open_store`.
        adapters: folders or models on the Hub, each with `=weight` at the end if the weight is not 1.
        hub: see `open_store`.
        config: see `open_store`.
        only_updates: see `AdapterStore`.

    Raises:
        CheckpointError: An adapter does not fit; also as `open_store`.
    """
    store = open_store(model, hub, config)
    if not adapters:
        return store
    opener = Opener(hub)
    weighted = map(split_adapter_weight, adapters)
    opened = ((name, *opener.read_adapter(ModelRef.parse(name)), weight) for name, weight in weighted)
    return _adapt(store.ref, store, opened, only_updates=only_updates)


def _adapt(
    ref: str,
    store: TensorStore,
    adapters: Iterable[tuple[str, TensorStore, LoraSettings, float]],
    *,
    only_updates: bool = False,
) -> AdapterStore:
    """A model as adapters change it, in a store that closes it. After an error, the model is closed.

    adapters: the name, the tensors, the settings and the weight of each.
    """
    with ExitStack() as opened:
        opened.callback(store.close)
        changes = []
        for name, tensors, settings, weight in adapters:
            opened.callback(tensors.close)
            changes.append(Adapter(name, store, tensors, settings, weight))
        adapted = AdapterStore(ref, store, changes, only_updates=only_updates)
        opened.pop_all()
    return adapted


@dataclass(frozen=True)
class Opener:
    """Opens models and adapters; `hub` says how to read those on the Hub. Errors are about the opened reference."""

    hub: HubAccess

    def open(self, ref: ModelRef, config: str | Path | None = None) -> TensorStore:
        """Open a model, or an adapter with its base. config: see `open_store`."""
        fields = None
        if config is not None:
            path = find_local_config(config) or find_repository(ModelRef.parse(config), self.hub).pin("config.json")
            with about(str(config)):
                fields = read_config(path)
        store = self._open_model(ref, fields)
        if store is None:
            return self._open_with_base(ref)
        if ref.kind == "folder" and (Path(ref.name) / ADAPTER).is_file():  # transformers adds it to the model beside it
            return _adapt(str(ref), store, [(str(ref), *self.read_adapter(ref), 1.0)])
        return store

    def _open_model(self, ref: ModelRef, fields: dict[str, Any] | None = None) -> TensorStore | None:
        """Open a model; None for an adapter. fields: its configuration, if it is given."""
        store: FileStore | None
        with about(str(ref)):
            if ref.kind == "hub":
                store = self._open_repository(ref, fields)
            elif ref.kind == "demo":
                store = open_local(require_demo(ref.name), str(ref), fields)
            elif ref.kind == "folder" and is_adapter(Path(ref.name)):
                return None
            else:
                store = open_local(Path(ref.name), str(ref), fields)
            if store is None:
                return None
            if not stated_quantization(store.config):
                method = recognise_method(store.names)
                if not method:
                    return store
                store.config = {**store.config, "quantization_config": {"quant_method": method}}
            return DecodingStore(store)

    def _open_repository(self, ref: ModelRef, fields: dict[str, Any] | None) -> FileStore | None:
        """Open a checkpoint on the Hub; None for an adapter. Downloads config.json and the index, and reads ranges.

        Raises ModelNotFoundError, AccessError for a private or gated model, NetworkError, or CheckpointError.
        """
        if ref.file is not None:
            check_name(ref.file)
        repository = find_repository(ref, self.hub)
        if fields is not None:
            repository.pin("config.json", ".gitattributes", "README.md")
        else:
            path = repository.pin()
            if path.name == ADAPTER:
                return None
            if ref.file is None and repository.download(ADAPTER) is not None:
                return None  # also beside a model: transformers adds the adapter to its base, not to that model
            is_gguf = ref.file is not None and ref.file.endswith(GGUF)
            fields = {} if is_gguf else read_config(path)
        if ref.file is not None:
            refuse_first_part(ref.file, repository.has)
        stated = stated_weights(fields) if ref.file is None else None
        main_file, index = repository.find_weights(() if stated is None else (stated,))
        return open_files(str(ref), repository, main_file, fields, index)

    def _open_with_base(self, ref: ModelRef) -> TensorStore:
        """An adapter of PEFT, with the base model that its configuration names.

        Raises ModelNotFoundError if the base cannot be found, CheckpointError if either is broken.
        """
        tensors, settings = self.read_adapter(ref)
        with about(str(ref)):
            try:
                base = ModelRef.parse(settings.base)
                if base.kind == "hub" and settings.revision:
                    base = ModelRef.parse(f"{settings.base}@{settings.revision}")
            except UsageError:
                raise CorruptCheckpointError(
                    f"{ADAPTER} names the base {settings.base!r:.80}, revision {settings.revision!r:.40}, expected a "
                    "folder or org/name; correct it"
                ) from None
        store = self._open_model(base)
        if store is None:
            with about(str(ref)):
                raise CorruptCheckpointError(
                    f"{ADAPTER} names the base {settings.base!r:.80}, which is itself an adapter, expected a model; "
                    "correct it"
                )
        return _adapt(str(ref), store, [(str(ref), tensors, settings, 1.0)])

    def read_adapter(self, ref: ModelRef) -> tuple[TensorStore, LoraSettings]:
        """The tensors of an adapter, and its settings."""
        folder: Folder | Repository
        with about(str(ref)):
            if ref.kind == "hub":
                folder = find_repository(ref, self.hub)
                settings = LoraSettings(read_object(folder.pin(ADAPTER)))
                file, _ = folder.find_weights(ADAPTER_FILES)
            else:
                weights = find_adapter(Path(ref.name))
                folder = Folder(weights.parent)
                settings = LoraSettings(read_object(weights.with_name(ADAPTER)))
                file = weights.name
            return FileStore(str(ref), {}, folder, file), settings
