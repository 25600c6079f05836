"""Checkpoints on this machine: a folder, a weights file beside its config.json, or one that a package carries."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

from attngeo.checkpoints.config import read_config
from attngeo.checkpoints.demos import DEMOS
from attngeo.checkpoints.store import FileStore, read_index, refuse_incomplete
from attngeo.errors import CorruptCheckpointError, ModelNotFoundError, UnsupportedModelError

log = logging.getLogger(__name__)

# Tried in this order; the first that is there is read. An index comes before a file of the same format.
WEIGHTS = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)


def open_demo(name: str) -> FileStore:
    """The checkpoint that `demo:name` stands for. Raises ModelNotFoundError, with the install command if known."""
    if name not in DEMOS:
        raise ModelNotFoundError(f"demo:{name}: no such demo model, expected one of: {', '.join(DEMOS)}")
    module, folder, install = DEMOS[name]
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModelNotFoundError(f"demo:{name}: the package that carries it is not installed; run {install}")
    return open_folder(Path(spec.origin).parent / folder, f"demo:{name}")


def open_folder(folder: Path, ref: str) -> FileStore:
    """The checkpoint in a folder. Raises ModelNotFoundError without config.json, CorruptCheckpointError if broken."""
    if not (folder / "config.json").is_file() and (folder / "model/config.json").is_file():
        raise ModelNotFoundError(f"{ref}: no config.json in {folder}; a model lies in {folder / 'model'}, name that")
    config = read_config(folder / "config.json", ref)
    name = next((name for name in WEIGHTS if (folder / name).is_file()), None) or _only_weights(folder, ref)
    return _open(folder, name, ref, config)


def open_file(path: Path, ref: str) -> FileStore:
    """The checkpoint in one file, or behind one index; its config.json must lie beside it."""
    if path.suffix == ".gguf":
        raise UnsupportedModelError(f"{ref}: GGUF is not supported; give the safetensors checkpoint it was made from")
    if path.name != "config.json" and not path.name.endswith((".safetensors", ".bin", ".pt", ".pth", ".index.json")):
        raise UnsupportedModelError(f"{ref}: expected a .safetensors, .bin, .pt, .pth or .index.json file, or a folder")
    if path.name == "config.json":
        return open_folder(path.parent, ref)
    return _open(path.parent, path.name, ref, read_config(path.with_name("config.json"), ref))


def _open(folder: Path, name: str, ref: str, config: dict[str, object]) -> FileStore:
    def other(file: str) -> Path | None:
        return folder / file if (folder / file).is_file() else None

    log.info("%s: %s in %s", ref, name, folder)
    if not name.endswith(".index.json"):
        refuse_incomplete(name, ref)
        return FileStore(ref, config, [name], lambda file: folder / file, other=other)
    weight_map, total = read_index(folder / name, ref)
    files = sorted(set(weight_map.values()))

    def locate(file: str) -> Path:
        if not (folder / file).is_file():
            present = sum((folder / shard).is_file() for shard in files)
            raise CorruptCheckpointError(
                f"{ref}: shard {file} is missing ({present} of {len(files)} shards are there); download it again"
            )
        return folder / file

    return FileStore(ref, config, files, locate, weight_map=weight_map, total_nbytes=total, other=other)


def _only_weights(folder: Path, ref: str) -> str:
    """The one weights file or index in a folder that has none of the usual names."""
    for pattern in ("*.safetensors.index.json", "*.safetensors", "*.bin.index.json", "*.bin"):
        paths = (path for path in folder.glob(pattern) if path.is_file())
        found = sorted(path.name for path in paths if path.name != "training_args.bin")
        if len(found) == 1:
            return found[0]
        if found:
            refuse_incomplete(found[0], ref)
            raise CorruptCheckpointError(f"{ref}: several weight files ({', '.join(found[:4])}); name the one to read")
    raise CorruptCheckpointError(
        f"{ref}: no weights, looked for {', '.join(WEIGHTS)} and any single *.safetensors or *.bin"
    )
