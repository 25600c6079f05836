"""A model in memory, with or without PEFT adapters: the weights of its base, and its active updates.

PEFT is not imported: its classes are told by their names, and its parameters by theirs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from attngeo.checkpoints.adapter_names import PREFIX
from attngeo.checkpoints.adapter_settings import LoraSettings
from attngeo.checkpoints.adapters import Adapter, AdapterStore
from attngeo.checkpoints.store import ModuleStore, TensorStore, read_state
from attngeo.errors import UnsupportedModelError, about

# PEFT's class of a layer with updates, and that of a module of which it trains a copy or some rows.
UPDATED = "BaseTunerLayer"
COPIED = "AuxiliaryTrainingWrapper"
# What PEFT puts into the names of the base's own parameters, and into those of parameters of adapters.
IN_NAMES_OF_BASE = (".base_layer.", ".original_module.")
IN_NAMES_OF_ADAPTERS = (".lora_", ".modules_to_save.", ".token_adapter.")


def open_module(model: Any, *, on_device: bool = False) -> TensorStore:
    """The tensors of a model in memory, with the updates of its active adapters.

    Names are as in the model without PEFT. A layer with merged or disabled adapters keeps the weights it has.

    Args:
        model: a transformers or PEFT model.
        on_device: see `ModuleStore`.

    Raises:
        UnsupportedModelError: An adapter uses another method than LoRA and DoRA; also as `LoraSettings`.
    """
    layers = {path: module for path, module in model.named_modules() if _is_a(module, UPDATED) or _is_a(module, COPIED)}
    if not layers:
        return ModuleStore(model, on_device=on_device)
    state = read_state(model, on_device=on_device)
    state_of_base: dict[str, Tensor] = {}
    added: dict[str, list[str]] = defaultdict(list)  # path of a layer → its parameters of adapters
    for name, tensor in state.items():
        marks = [mark for mark in IN_NAMES_OF_ADAPTERS if mark in name]
        if marks:
            added[name.partition(marks[0])[0]].append(name)
        else:
            for mark in IN_NAMES_OF_BASE:
                name = name.replace(mark, ".")
            state_of_base[name.removeprefix(PREFIX)] = tensor
    base = ModuleStore(model, state_of_base, on_device=on_device)
    updates: dict[str, dict[str, Tensor]] = defaultdict(dict)  # adapter → name in a file → its tensor
    for path, layer in layers.items():
        for adapter in _list_active(layer):
            tensors = updates[adapter]  # empty for another method than LoRA, which its settings refuse
            for stored, name in _name_parameters(path, adapter, added[path]):
                tensors[stored] = state[name]
    if not updates:
        return base
    adapters = []
    for name, tensors in updates.items():
        ref = f"{base.ref}: adapter {name}"
        config = model.peft_config[name]
        with about(ref):
            settings = LoraSettings(config.to_dict() | {"peft_type": config.peft_type.value}, has_own_base=True)
            _check_scales(layers, name, settings)
        adapters.append(Adapter(ref, base, ModuleStore(model, tensors, on_device=on_device), settings))
    return AdapterStore(base.ref, base, adapters, may_be_idle=True)


def _is_a(module: object, class_name: str) -> bool:
    """Whether the class of a module, or one that it inherits from, has this name."""
    return any(ancestor.__name__ == class_name for ancestor in type(module).__mro__)


def _list_active(layer: Any) -> list[str]:
    """The adapters that are in effect in a layer."""
    if layer.disable_adapters or getattr(layer, "merged", False):
        return []
    active: Iterable[str] = layer.active_adapters
    # Of the copies of a module, only that of the first active adapter is used.
    return list(active) if _is_a(layer, UPDATED) else list(active)[:1]


def _name_parameters(path: str, adapter: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The names that PEFT gives the parameters of an adapter in a file, and their names in the model.

    Args:
        path: their layer.
        adapter: the name of the adapter, which names in the model have and names in a file have not.
        names: all parameters of the layer.
    """
    for name in names:
        parameter, _, ending = name.removeprefix(f"{path}.").partition(".")
        named_adapter, _, last = ending.partition(".")
        if parameter == "token_adapter":
            yield name, name
        elif named_adapter == adapter:
            words = (path, last) if parameter == "modules_to_save" else (path, parameter, last)
            yield ".".join(word for word in words if word), name


def _check_scales(layers: dict[str, Any], adapter: str, settings: LoraSettings) -> None:
    """Raise UnsupportedModelError if the scale of an adapter in a layer is another one than its settings state."""
    for path, layer in layers.items():
        factors = getattr(layer, "lora_A", {})
        if adapter not in _list_active(layer) or adapter not in factors:
            continue
        scale = settings.scale(path.removeprefix(PREFIX), factors[adapter].weight.shape[0])
        if not math.isclose(layer.scaling[adapter], scale, rel_tol=1e-6):
            raise UnsupportedModelError(
                f"{path} has the scale {layer.scaling[adapter]:g}, but its settings state {scale:g}; "
                "score the model after merge_and_unload"
            )
