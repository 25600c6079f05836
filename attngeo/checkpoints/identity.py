"""Identities of models: they show whether the content is unchanged. Reads no weights, and loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.demos import locate_demo
from attngeo.checkpoints.files import ADAPTER, is_weights
from attngeo.checkpoints.local_files import list_stated_weights
from attngeo.checkpoints.reference import Model, ModelRef
from attngeo.checkpoints.repositories import find_repository


class Identity(NamedTuple):
    """The identity of a model's content.

    The weights of a commit that are read offline may differ from those read online.

    Attributes:
        ref: the model; on the Hub, at one commit.
        content: names, texts and numbers that are equal for equal contents.
        is_whole: whether all files of the model can be reached.
    """

    ref: ModelRef
    content: Mapping[str, Any]
    is_whole: bool = True

    def is_current(self) -> bool:
        """Whether the model still has this content. The content of a commit never changes."""
        return self.is_whole and (self.ref.kind == "hub" or identify(self.ref) == self)


def identify(model: Model, hub: HubAccess = HubAccess()) -> Identity | None:
    """The identity of a model: its commit on the Hub; or the name, size and times of each local file.

    Any change of a file changes the identity, even if size and modification time stay the same, because the system
    records the time of each write. Only a write through a memory map changes no time and goes unnoticed.

    Args:
        model: a reference, or a model in memory.
        hub: how to access the Hub.

    Returns:
        None for a model in memory, and for a reference without a checkpoint: opening it reports the error.

    Raises:
        ModelUnavailableError: A model on the Hub cannot be found or reached; also as `ModelRef.parse`.
    """
    if not isinstance(model, str | Path):
        return None
    ref = ModelRef.parse(model)
    if ref.kind == "hub":
        repository = find_repository(ref, hub)
        if repository.pin().name == ADAPTER:
            return None
        pinned = ref.pin(repository.revision)
        content = {"hub": repository.endpoint, "name": ref.name, "commit": repository.revision, "file": ref.file}
        return Identity(pinned, content, is_whole=not repository.offline)
    if ref.kind == "folder" and (Path(ref.name) / ADAPTER).is_file():  # the base may be elsewhere, and may change
        return None
    path = locate_demo(ref.name) if ref.kind == "demo" else Path(ref.name)
    of_files = None if path is None else identify_path(path)
    return None if of_files is None else Identity(ref, of_files)


def identify_path(path: Path) -> dict[str, Any] | None:
    """The content of the identity of a folder or file; None if it has no checkpoint or cannot be read."""
    folder = path if path.is_dir() else path.parent
    try:
        paths = [path for path in folder.iterdir() if path.name == "config.json" or is_weights(path.name)]
        paths += list_stated_weights(folder)
        states = [(str(path.relative_to(folder)), path.stat()) for path in sorted(set(paths))]
    except OSError:
        return None
    files = [
        [name, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_dev, state.st_ino]
        for name, state in states
    ]
    return {"path": str(path.resolve()), "files": files} if files else None
