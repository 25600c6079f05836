"""Layers that a checkpoint lacks: the configuration announces them, or others come after them, and no tensor is theirs.

A hybrid model has other tensors in the layers that do not attend, so that a layer without any tensor is a damaged
checkpoint, for example one whose index lost a shard.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from attngeo.layouts.heads import fitting_fields
from attngeo.layouts.modules import Module
from attngeo.layouts.names import MOST_LAYERS, NUMBER, join

# Fields that state the number of layers; a prefix such as `decoder_` tells the stack.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers", "depth")
# The last word of what repeats for each layer, and not for each stage or tower.
LAYER = re.compile(r"(^|[._])(layers?|blocks?|h|resblocks)$")

# Model type → layers that its configuration counts and that have no weights of their own.
# https://github.com/huggingface/transformers/blob/main/src/transformers/models/mask2former/modeling_mask2former.py
UNCOUNTED = {"mask2former": 1}


def find_absent_layers(modules: Iterable[Module], names: Iterable[str]) -> dict[str, str]:
    """The layers without any tensor, in the stacks of these modules: name of the layer → reason.

    names: all tensor names.
    """
    stacks = {prefix: module for module in modules if (prefix := _split(module.name)[0]) is not None}
    present: dict[str, set[int]] = defaultdict(set)
    for name in names:
        prefix, number = _split(name)
        if prefix in stacks:
            present[prefix].add(number)
    sharing = Counter(id(module.section) for module in stacks.values())
    absent = {}
    for prefix, module in stacks.items():
        last, stated = max(present[prefix]), _count_stated(module)
        # A number of a section with several stacks, or for stages, may be meant for others, or for all together.
        announced = stated if sharing[id(module.section)] == 1 and LAYER.search(prefix) and stated > last + 1 else 0
        why = f"config.json announces {announced} layers" if announced else f"layer {last} comes after it"
        for number in range(min(max(announced, last + 1), MOST_LAYERS)):
            if number not in present[prefix]:
                absent[join(prefix, str(number))] = f"the checkpoint has no tensor of it, but {why}"
    return absent


def _split(name: str) -> tuple[str | None, int]:
    """What is in front of the first number of a name, and the number; None if it has none."""
    found = NUMBER.search(name)
    return (name[: found.start()].rstrip("."), int(found[0])) if found else (None, 0)


def _count_stated(module: Module) -> int:
    """The number of layers that the configuration states for the stack of a module; 0 if it states none."""
    section = module.section
    if not module.certain or module.family.shared is not None:
        return 0
    words = re.split(r"[._]", module.name.lower())
    value = next((section[name] for name in fitting_fields(LAYERS, section, words)), None)
    stated = value if type(value) is int and 0 < value <= MOST_LAYERS else 0
    return stated - UNCOUNTED.get(str(section.get("model_type")), 0)
