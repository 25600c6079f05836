"""What tells one content of a checkpoint from another: a key for results. Reads no weights, and imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.formats import is_weights
from attngeo.checkpoints.known_models import locate_demo
from attngeo.checkpoints.reference import ModelRef


class Identity(NamedTuple):
    """ref: the model; on the Hub, at one commit. content: equal for equal contents, of names, texts and numbers."""

    ref: ModelRef
    content: Mapping[str, Any]

    def is_current(self) -> bool:
        """Whether the model still has this content. That of a commit never changes."""
        return self.ref.kind == "hub" or identify(self.ref) == self


def identify(model: Any, hub: HubAccess = HubAccess()) -> Identity | None:
    """The identity of a reference: the commit of a model on the Hub; name, size and times of each file of another one.

    A change of a file changes it, even one that keeps size and time of modification: the system notes the time of any
    change of a file. None for a model in memory, and for what is missing or no checkpoint: opening it says what is
    wrong. Raises ModelUnavailableError if a model on the Hub cannot be found or reached, and as `ModelRef.parse`.
    """
    if not isinstance(model, str | Path | ModelRef):
        return None
    ref = model if isinstance(model, ModelRef) else ModelRef.parse(model)
    if ref.kind == "hub":
        return _identify_remote(ref, hub)
    path = locate_demo(ref.name) if ref.kind == "demo" else Path(ref.name)
    files = None if path is None else _list_files(path if path.is_dir() else path.parent)
    return Identity(ref, {"path": str(path.resolve()), "files": files}) if path is not None and files else None


def _identify_remote(ref: ModelRef, hub: HubAccess) -> Identity:
    from huggingface_hub import constants

    from attngeo.checkpoints.repository import Repository

    repository = Repository(ref, hub)
    repository.pin()
    pinned = dataclasses.replace(ref, revision=repository.revision)
    return Identity(pinned, {"hub": constants.ENDPOINT, "name": ref.name, "commit": repository.revision})


def _list_files(folder: Path) -> list[list[Any]] | None:
    """Name, size, times and number of config.json and of each file of weights; None if they cannot be read."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.name == "config.json" or is_weights(path.name))
        states = [(path.name, path.stat()) for path in paths]
    except OSError:
        return None
    return [[name, at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino] for name, at in states]
