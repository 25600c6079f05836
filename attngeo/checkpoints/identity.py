"""Identities of models: what tells whether the content of one is unchanged. Reads no weights, and loads no torch."""

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

    Offline, weights of a commit may be read that differ from those read online.

    Attributes:
        ref: the model; on the Hub, at one commit.
        content: names, texts and numbers that are equal for equal contents.
        is_whole: whether all of its files can be reached.
    """

    ref: ModelRef
    content: Mapping[str, Any]
    is_whole: bool = True

    def is_current(self) -> bool:
        """Whether the model has this content now, as a whole. That of a commit never changes."""
        return self.is_whole and (self.ref.kind == "hub" or identify(self.ref) == self)


def identify(model: Model, hub: HubAccess = HubAccess()) -> Identity | None:
    """The identity of a reference: the commit of a model on the Hub; name, size and times of each file of another one.

    A change of a file changes it, even one that keeps size and time of modification: the system notes the time of each
    write. Only a write through a memory map changes no time, and is not noticed.

    Args:
        model: a reference, or a model in memory.
        hub: how the Hub is asked.

    Returns:
        None for a model in memory, and for what is missing or no checkpoint: opening it says what is wrong.

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
    """The content of an identity of a folder or file; None if it is no checkpoint, or cannot be read."""
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
