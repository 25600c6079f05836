"""Checkpoints on this machine: a folder, a file of weights, or a demo that a Python package contains."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attngeo.checkpoints import formats
from attngeo.checkpoints.file_store import FileStore
from attngeo.checkpoints.formats import INDEX_SUFFIX, is_index, require_format, usual_names
from attngeo.checkpoints.known_models import DEMOS, locate_demo
from attngeo.checkpoints.metadata import read_config, read_index, refuse_shard
from attngeo.checkpoints.regular_file import RegularFile
from attngeo.checkpoints.suggest import did_you_mean
from attngeo.errors import CorruptCheckpointError, ModelNotFoundError

log = logging.getLogger(__name__)


def open_demo(name: str) -> FileStore:
    """Open the checkpoint named `demo:name`. Raises ModelNotFoundError, with the command that installs it if known."""
    if name not in DEMOS:
        raise ModelNotFoundError(
            f"demo:{name}: unknown demo model, expected one of: {', '.join(DEMOS)}{did_you_mean(f'demo:{name}')}"
        )
    if (folder := locate_demo(name)) is None:
        module, _, install = DEMOS[name]
        raise ModelNotFoundError(f"demo:{name}: the Python package {module} is not installed; run {install}")
    return open_folder(folder, f"demo:{name}")


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
    own_config = None if is_index(path.name) else require_format(path.name, ref).read_config
    config = own_config(path, ref) if own_config else read_config(path.with_name("config.json"), ref)
    return _open(path.parent, path.name, ref, config)


def _open(folder: Path, name: str, ref: str, config: Mapping[str, Any]) -> FileStore:
    def other(file: str) -> Path | None:
        return folder / file if (folder / file).is_file() else None

    log.info("%s: %s in %s", ref, name, folder)
    if not is_index(name):
        require_format(name, ref)
        refuse_shard(name, ref)
        return FileStore(ref, config, [name], lambda file: RegularFile(folder / file), main_file=name, other=other)
    index = read_index(folder / name, ref)

    def open_shard(file: str) -> RegularFile:
        if not (folder / file).is_file():
            present = sum((folder / shard).is_file() for shard in index.files)
            raise CorruptCheckpointError(
                f"{ref}: shard {file} is missing, {present} of {len(index.files)} shards found; download it again"
            )
        return RegularFile(folder / file)

    return FileStore(ref, config, index.files, open_shard, main_file=name, index=index, other=other)


def _find_only_weights(folder: Path, ref: str) -> str:
    """The one file of weights, or the one index, in a folder that has none of the usual names."""
    for each in formats.FORMATS:
        for ending in (each.suffixes[0] + INDEX_SUFFIX, each.suffixes[0]):
            paths = (path for path in folder.glob(f"*{ending}") if path.is_file())
            found = sorted(path.name for path in paths if path.name not in each.not_weights)
            if len(found) > 1:
                refuse_shard(found[0], ref)
                raise CorruptCheckpointError(
                    f"{ref}: {len(found)} files of weights in {folder} ({', '.join(found[:4])}); give one of them"
                )
            if found:
                return found[0]
    usual = ", ".join(usual_names())
    single = " or ".join(f"*{each.suffixes[0]}" for each in formats.FORMATS if each.open)
    raise CorruptCheckpointError(f"{ref}: no weights in {folder}, looked for {usual} and for a single {single}")
