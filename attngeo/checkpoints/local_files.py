"""Files of a model on this machine: configuration, weights, adapter. Reads no weights, and loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attngeo.bounds.paths import local_path
from attngeo.checkpoints.adapter_settings import require_lora
from attngeo.checkpoints.demos import require_demo
from attngeo.checkpoints.files import (
    ADAPTER,
    ADAPTER_FILES,
    GGUF,
    find_checkpoint,
    find_first,
    read_config,
    read_object,
    stated_weights,
    usual_names,
)
from attngeo.checkpoints.reference import Model, ModelRef, split_adapter_weight
from attngeo.errors import CheckpointError, CorruptCheckpointError, UsageError, about


def find_adapter(folder: Path) -> Path:
    """The weight file of a PEFT adapter in a folder. Raises CorruptCheckpointError if there is none."""
    if not (folder / ADAPTER).is_file():
        raise CorruptCheckpointError(f"it has no {ADAPTER}; give a folder that PEFT wrote, or a Hub id")
    name = find_first(folder, ADAPTER_FILES)
    if name is None:
        require_lora(read_object(folder / ADAPTER))  # the files of other methods and programs have other names
        raise CorruptCheckpointError(f"no adapter weights, looked for {' and '.join(ADAPTER_FILES)}")
    return folder / name


def find_local_config(config: str | Path) -> Path | None:
    """The config.json in a folder or at a path; None for a model on the Hub."""
    path = local_path(config)
    if not path.exists():
        return None
    return path / "config.json" if path.is_dir() else path


def refuse_config() -> UsageError:
    """The error for $config with a model that has its own configuration."""
    return UsageError("models in memory and GGUF files have their own configuration; leave out $config", "config")


def require_model(model: Model, adapters: Sequence[str] = (), config: str | Path | None = None) -> None:
    """Raise the error of opening a model if one of its local files is missing. Reads no weights.

    Does not ask the Hub, and does not load torch: call it before importing modules that compute. Parameters as in
    `opening.open_adapted`.
    """
    if not isinstance(model, str | Path):
        return
    ref = ModelRef.parse(model)
    if config is not None and ref.endswith(GGUF):
        raise refuse_config()
    fields: dict[str, Any] | None = None
    if config is not None:
        path = find_local_config(config)
        if path is None:
            ModelRef.parse(config)  # of the Hub, which says later what is missing
            fields = {}
        else:
            with about(str(config)):
                fields = read_config(path)
    with about(ref):
        if ref.kind == "folder" and is_adapter(Path(ref.name)):
            find_adapter(Path(ref.name))
        elif ref.kind == "demo":
            find_checkpoint(require_demo(ref.name), fields)
        elif ref.kind != "hub":
            find_checkpoint(Path(ref.name), fields)
    for text in adapters:
        name, _ = split_adapter_weight(text)
        adapter = ModelRef.parse(name)
        if adapter.kind != "hub":
            with about(adapter):
                find_adapter(Path(adapter.name))


def is_adapter(folder: Path) -> bool:
    """Whether a folder has a PEFT adapter but no model. It may have the configuration of its base."""
    if not (folder / ADAPTER).is_file():
        return False
    if not (folder / "config.json").is_file():
        return True
    weights = [*(folder / name for name in usual_names()), *list_stated_weights(folder)]
    return not any(path.is_file() for path in weights)


def list_stated_weights(folder: Path) -> list[Path]:
    """The weight file that config.json names, if any; it may be in another folder."""
    try:
        stated = stated_weights(read_config(folder / "config.json"))
    except CheckpointError:  # which is said when the model is opened
        return []
    return [] if stated is None else [folder / stated]
