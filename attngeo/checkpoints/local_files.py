"""Files of a model on this machine: configuration, weights, adapter. Reads no weights, and loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attngeo.checkpoints.demos import require_demo
from attngeo.checkpoints.files import (
    ADAPTER,
    ADAPTER_FILES,
    GGUF,
    find_checkpoint,
    read_config,
    stated_weights,
    usual_names,
)
from attngeo.checkpoints.reference import ModelRef, local_path, split_weight
from attngeo.errors import CheckpointError, CorruptCheckpointError, UsageError


def find_adapter(ref: ModelRef) -> Path:
    """The file of the weights of an adapter of PEFT in a folder. Raises CorruptCheckpointError."""
    folder = Path(ref.name)
    if not (folder / ADAPTER).is_file():
        raise CorruptCheckpointError(f"{ref.text}: no {ADAPTER} in it; give a folder that PEFT wrote, or a Hub id")
    present = _find_first(folder, ADAPTER_FILES)
    if present is None:
        raise CorruptCheckpointError(f"{ref.text}: no weights of the adapter, looked for {' and '.join(ADAPTER_FILES)}")
    return folder / present


def find_config(config: str | Path) -> Path | None:
    """The config.json that a path names, in a folder or itself; None for a model on the Hub."""
    path = local_path(config)
    if not path.exists():
        return None
    return path / "config.json" if path.is_dir() else path


def refuse_config() -> UsageError:
    """The error for a configuration that is given in place of a model's own."""
    return UsageError("models in memory and GGUF files have a configuration; leave out $config", "config")


def require_model(model: Any, adapters: Sequence[str] = (), config: str | Path | None = None) -> None:
    """Raise what opening a model would raise if a file of it on this machine is missing. Reads no weights.

    The Hub is not asked, and torch is not loaded: call it before the import of what computes. The parameters are those
    of `opening.open_adapted`.
    """
    if not isinstance(model, str | Path):
        return
    ref = ModelRef.parse(model)
    fields = None
    if config is not None and ref.text.endswith(GGUF):
        raise refuse_config()
    if config is not None:
        path = find_config(config)
        fields = {} if path is None else read_config(path, str(config))
        if path is None:
            ModelRef.parse(config)
    if ref.kind == "folder" and is_adapter(Path(ref.name)):
        find_adapter(ref)
    elif ref.kind != "hub":
        find_checkpoint(require_demo(ref.name) if ref.kind == "demo" else Path(ref.name), ref.text, fields)
    for text in adapters:
        adapter = ModelRef.parse(split_weight(text)[0])
        if adapter.kind != "hub":
            find_adapter(adapter)


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter of PEFT, and no model. It may have the configuration of its base."""
    if not (folder / ADAPTER).is_file():
        return False
    weights = [*(folder / name for name in usual_names()), *list_stated_weights(folder)]
    return not (folder / "config.json").is_file() or not any(path.is_file() for path in weights)


def _find_first(folder: Path, names: Sequence[str]) -> str | None:
    return next((name for name in names if (folder / name).is_file()), None)


def list_stated_weights(folder: Path) -> list[Path]:
    """The file of weights that config.json names: it may be in a folder of its own."""
    try:
        stated = stated_weights(read_config(folder / "config.json", ""), "")
    except CheckpointError:  # which is said when the model is opened
        return []
    return [] if stated is None else [folder / stated]
