"""Layers that a checkpoint lacks: those in front of its last one, and those that config.json announces."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from attngeo.layouts.heads import fitting_fields
from attngeo.layouts.modules import Module
from attngeo.layouts.names import MOST_LAYERS, NUMBER, Reasons, join

# Fields that state the number of layers; a prefix such as `decoder_` tells the stack.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers", "depth")
# The last word of what repeats for each layer, and not for each stage or tower.
LAYER = re.compile(r"(^|[._])(layers?|blocks?|h|resblocks)$")


def find_absent_layers(modules: Iterable[Module], names: Iterable[str]) -> Reasons:
    """The layers without any tensor, in the stacks of these modules: name of the layer → reason.

    names: all tensor names.
    """
    stacks: dict[str, Module] = {}
    for module in modules:
        prefix, _ = _split(module.name)
        if prefix is not None:
            stacks[prefix] = module
    present: dict[str, set[int]] = defaultdict(set)
    for name in names:
        prefix, number = _split(name)
        if prefix in stacks:
            present[prefix].add(number)
    sharing = Counter(id(module.section) for module in stacks.values())
    absent = {}
    for prefix, module in stacks.items():
        last = max(present[prefix])
        count = last + 1
        reason = f"layer {last} comes after it"
        # A number of a section with several stacks, or for stages, may be meant for others, or for all together.
        if sharing[id(module.section)] == 1 and LAYER.search(prefix):
            announced = _count_stated(module)
            if announced > count:
                count = announced
                reason = f"config.json announces {announced} layers"
        for number in range(min(count, MOST_LAYERS)):
            if number not in present[prefix]:
                absent[join(prefix, str(number))] = f"the checkpoint has no tensor of it, but {reason}"
    return absent


def _split(name: str) -> tuple[str | None, int]:
    """What is in front of the first number of a name, and the number; None if it has none."""
    number = NUMBER.search(name)
    if number is None:
        return None, 0
    return name[: number.start()].rstrip("."), int(number[0])


def _count_stated(module: Module) -> int:
    """The number of layers that the configuration states for the stack of a module; 0 if it states none."""
    if not module.certain or module.family.shared is not None:
        return 0
    words = re.split(r"[._]", module.name.lower())
    fields = fitting_fields(LAYERS, module.section, words)
    name = next(fields, None)
    stated = module.section[name] if name is not None else None
    if type(stated) is not int or not 0 < stated <= MOST_LAYERS:
        return 0
    return stated - module.family.uncounted_layers
