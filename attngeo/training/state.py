"""The state of an unfinished training: one safetensors file, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from attngeo.errors import TrainingError, first_line
from attngeo.tables.files import atomic_write

FILE = "training.safetensors"
KEY = "attngeo"


def save_state(folder: Path, groups: Mapping[str, Mapping[str, Tensor]], about: Mapping[str, Any]) -> None:
    """Write groups of named tensors, and what JSON can say. Raises OutputError."""
    tensors = {
        f"{group}.{name}": tensor.detach().to("cpu").contiguous()
        for group, named in groups.items()
        for name, tensor in named.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / FILE) as path:
        save_file(_part(tensors), path, metadata={KEY: json.dumps(about)})


def _part(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory, as safetensors requires."""
    seen: set[int] = set()
    parted = {}
    for name, tensor in tensors.items():
        parted[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(parted[name].data_ptr())
    return parted


def load_state(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]] | None:
    """What `save_state` wrote; None if there is no file. Raises TrainingError if it cannot be read."""
    path = folder / FILE
    if not path.is_file():
        return None
    groups: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()[KEY])
            for full in file.keys():  # noqa: SIM118 - no mapping
                group, _, name = full.partition(".")
                groups.setdefault(group, {})[name] = file.get_tensor(full)
    except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
        raise TrainingError(f"{path} cannot be read ({first_line(error)}); remove it to train from the start") from None
    return groups, about


def remove_state(folder: Path) -> None:
    """Remove the file, which is no longer needed when the trained model is saved."""
    (folder / FILE).unlink(missing_ok=True)


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The tensors of an optimizer by the number of their parameter and their name."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": tensor for number, named in state.items() for name, tensor in named.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimizer the tensors of `flatten_optimizer`."""
    state: dict[int, dict[str, Tensor]] = {}
    for full, tensor in tensors.items():
        number, _, name = full.partition(".")
        state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
