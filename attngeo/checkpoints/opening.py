"""From a reference, or a model in memory, to its TensorStore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.folder import open_demo, open_file, open_folder
from attngeo.checkpoints.module_store import ModuleStore
from attngeo.checkpoints.reference import ModelRef
from attngeo.checkpoints.store import TensorStore
from attngeo.errors import UsageError


def open_store(model: Any, hub: HubAccess = HubAccess()) -> TensorStore:
    """Open the tensors of `model`: a reference (`org/name[@revision]`, folder, file, `demo:NAME`), or in memory.

    hub: how a model on the Hub is read. A model in memory is one of transformers.
    Raises ModelUnavailableError if the model cannot be found or reached, CheckpointError if it cannot be read,
    UsageError if `model` is neither.
    """
    if hasattr(model, "state_dict") and hasattr(getattr(model, "config", None), "to_dict"):
        return ModuleStore(model)
    if not isinstance(model, str | Path | ModelRef):
        raise UsageError(
            f"model is a {type(model).__name__}, expected a reference such as 'org/name' or a transformers model"
        )
    ref = model if isinstance(model, ModelRef) else ModelRef.parse(model)
    match ref.kind:
        case "demo":
            return open_demo(ref.name)
        case "folder":
            return open_folder(Path(ref.name), ref.text)
        case "file":
            return open_file(Path(ref.name), ref.text)
        case "hub":
            from attngeo.checkpoints.hub import open_hub

            return open_hub(ref, hub)
