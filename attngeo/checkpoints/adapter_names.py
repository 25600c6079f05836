"""Names of the tensors of a PEFT adapter: which tensor of the base each belongs to, and as what.

An adapter is named after the modules of the running model; its base has the names of its checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from attngeo.checkpoints.store import TensorStore

# What PEFT puts before the names of all modules, and how the name of a weight ends.
PREFIX = "base_model.model."
WEIGHT = ".weight"
# What a tensor of an adapter is to the tensor of the base that it belongs to. "whole" and "base" take its place; "base"
# is changed by the update of the same module. "other" changes it in a way that is not computed here.
Role = Literal["A", "B", "magnitude", "whole", "base", "other"]
UPDATE: tuple[Role, ...] = ("A", "B", "magnitude")
# A parameter of an update, of any method; what comes after it, without the adapter's name, → its role.
PARAMETER = re.compile(r"(.+?)\.lora_(.+)", re.DOTALL)
PARAMETERS: dict[str, Role] = {
    "A.weight": "A", "B.weight": "B", "magnitude_vector": "magnitude", "magnitude_vector.weight": "magnitude",
}  # fmt: skip
# PEFT's name of an adapter that has no other. A whole state_dict has it in the names of parameters.
DEFAULT_ADAPTER = ".default"
# What trainers put around modules, as parts of the names of all tensors inside; and one that they put in front.
AROUND = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod")
IN_FRONT = "module."
# What holds the layers of a model in a checkpoint without the prefix of its class.
HOLDERS = ("block", "blocks", "decoder", "encoder", "h", "layer", "layers")
# The most parts of a name that are left out one after the other.
MOST_NAME_PARTS = 50


def read_name(stored: str) -> tuple[str, Role] | None:
    """The base tensor that an adapter tensor belongs to, and its role; None if it is not used.

    >>> read_name("base_model.model.layers.0.q_proj.lora_A.weight")
    ('layers.0.q_proj.weight', 'A')
    """
    path = strip_wrappers(stored).removeprefix(PREFIX)
    parameter = PARAMETER.fullmatch(path)
    if parameter is not None:
        module, ending = parameter.groups()
        role = PARAMETERS.get(ending.replace(DEFAULT_ADAPTER, ""), "other")
        if module.endswith(".base_layer"):  # two updates, one around the other
            role = "other"
        return module.removesuffix(".base_layer") + WEIGHT, role
    if ".original_module." in path:  # what modules_to_save has taken the place of
        return None
    if ".token_adapter." in path:
        return path.partition(".token_adapter.")[0] + WEIGHT, "other"
    path = path.replace(f".modules_to_save{DEFAULT_ADAPTER}", "")
    role = "base" if path.endswith(f".base_layer{WEIGHT}") else "whole"
    return path.replace(".base_layer.", "."), role


def strip_wrappers(stored: str) -> str:
    """The name of a tensor without the wrappers that trainers put around modules."""
    parts = [part for part in stored.split(".") if part not in AROUND]
    return ".".join(parts).removeprefix(IN_FRONT)


def is_found_by_peft(stored: str, name: str, in_base: str) -> bool:
    """Whether PEFT finds the module of an adapter tensor in the model that transformers builds from the base.

    PEFT looks for the exact name. For any other name, it warns and runs the base without the update. transformers adds
    the prefix of a class to the names of a checkpoint without one.

    Args:
        stored: the adapter tensor.
        name: the tensor of the trained model; see `read_name`.
        in_base: the matching tensor of the base; see `match_names`.
    """
    if stored != strip_wrappers(stored) or not stored.startswith(PREFIX):
        return False
    if name.endswith(f".{in_base}"):
        prefix = name.removesuffix(f".{in_base}")
        return "." not in prefix and in_base.partition(".")[0] in HOLDERS
    return not in_base.endswith(f".{name}")


def match_names(may_be_renamed: Mapping[str, bool], base: TensorStore) -> dict[str, str]:
    """Tensor names in the model that an adapter was trained on → the matching names in the base, if there are any.

    The base has the same name; or exactly one name that ends in it or that it ends in (a model without a head has
    shorter names); or a name that transformers renames to it.

    Args:
        may_be_renamed: name → whether to ask transformers how it renames tensors if the base lacks the name; this takes
            seconds.
        base: the model whose names are searched.
    """
    matches: dict[str, str] = {}
    candidates: dict[str, list[str]] = {}
    for name in may_be_renamed:
        if name in base.names:
            matches[name] = name
        else:
            candidates[name] = [end for end in _list_ends(name) if end in base.names]
    if not candidates:
        return matches
    for in_base in base.names:
        for end in _list_ends(in_base):
            if end in candidates:
                candidates[end].append(in_base)
    missing = []
    for name, names in candidates.items():
        if len(names) == 1:
            matches[name] = names[0]
        else:
            missing.append(name)
    if any(may_be_renamed[name] for name in missing):
        matches |= _match_renamed(missing, base)
    return matches


def _match_renamed(names: Iterable[str], base: TensorStore) -> dict[str, str]:
    """Names → the base's name of each one that transformers gives a tensor of the base."""
    from attngeo.checkpoints.renaming import find_renaming  # loads transformers, which scoring needs for nothing else

    rename = find_renaming(base.config, base.names)
    if rename is None:
        return {}
    renamed = {rename(in_base): in_base for in_base in base.names}
    matches = {name: renamed.get(name) or renamed.get(rename(name)) for name in names}
    return {name: in_base for name, in_base in matches.items() if in_base is not None}


def _list_ends(name: str) -> list[str]:
    """What a name is without its first parts: "b.c" and "c" of "a.b.c"; nothing of one with more parts than names have.

    The last part alone, such as "weight", is in most names, and never a name.
    """
    parts = name.split(".")
    if len(parts) > MOST_NAME_PARTS:
        return []
    return [".".join(parts[first:]) for first in range(1, len(parts))]
