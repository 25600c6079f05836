"""Layers missing from a checkpoint, and extra layers that config.json does not count and that therefore never run."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable

from attngeo.layouts.heads import fitting_fields, load_defaults
from attngeo.layouts.modules import Module
from attngeo.layouts.names import MOST_LAYERS, NUMBER, Fields, Reasons, join, name_layers

# Fields that state the number of layers; a prefix such as `decoder_` names the stack.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers", "depth")
# The last word of what repeats for each layer, and not for each stage or tower.
LAYER = re.compile(r"(^|[._])(layers?|blocks?|h|resblocks)$")


def find_absent_layers(modules: Iterable[Module], names: Iterable[str]) -> Reasons:
    """Layers without any tensor in the stacks of these modules: name of the layer → reason.

    A layer is expected if a later one exists, or if config.json counts it. names: all tensor names.
    """
    announced = count_layers(modules)
    present: dict[str, set[int]] = defaultdict(set)
    for name in names:
        prefix, number = _split(name)
        if prefix in announced:
            present[prefix].add(number)
    absent = {}
    for prefix, stated in announced.items():
        last = max(present[prefix])
        count = last + 1
        reason = f"it has layer {last}"
        if stated > count:
            count = stated
            reason = f"config.json states {stated} layers"
        for number in range(min(count, MOST_LAYERS)):
            if number not in present[prefix]:
                absent[join(prefix, str(number))] = f"the checkpoint has no tensors for this layer, although {reason}"
    return absent


def find_idle_layers(modules: Collection[Module]) -> dict[str, str]:
    """Modules in layers beyond the number in config.json, which transformers does not build: name → reason."""
    counts = count_layers(modules, with_defaults=True)
    stated = count_layers(modules)
    idle: dict[str, list[int]] = defaultdict(list)
    firsts: dict[str, int] = {}
    for module in modules:
        prefix, number = _split(module.name)
        if prefix is not None:
            # The code of a type that transformers does not know may have something else in front of its layers.
            first = 0 if module.model_type in load_defaults() else number
            firsts[prefix] = min(first, firsts.get(prefix, number))
    for module in modules:
        prefix, number = _split(module.name)
        if prefix is not None and 0 < counts[prefix] <= number - firsts[prefix]:
            idle[prefix].append(number)
    reasons = {}
    for module in modules:
        prefix, number = _split(module.name)
        if prefix is None or number not in idle[prefix]:
            continue
        count = counts[prefix]
        verb = "runs" if len(set(idle[prefix])) == 1 else "run"
        noun = "layer" if count == 1 else "layers"
        built = f"config.json states {count} {noun}, and transformers builds no more"
        if not stated[prefix]:
            built = f"config.json does not state the number of layers, and transformers builds {count}"
        reasons[module.name] = f"{name_layers(idle[prefix])} never {verb}: {built}"
    return reasons


def count_layers(modules: Iterable[Module], *, with_defaults: bool = False) -> dict[str, int]:
    """Number of layers that the configuration states for each stack, by the part of the names before the layer number.

    0 if the configuration states none. with_defaults: use the default of the model type instead of 0.
    """
    stacks: dict[str, Module] = {}
    for module in modules:
        prefix, _ = _split(module.name)
        if prefix is not None:
            stacks[prefix] = module
    sharing: dict[int, list[str]] = defaultdict(list)
    for prefix, module in stacks.items():
        sharing[id(module.section)].append(prefix)
    counts = {}
    for prefix, module in stacks.items():
        has_own_section = _are_one_model(sharing[id(module.section)], module)
        counts[prefix] = _count_stated(prefix, module, module.section, has_own_section=has_own_section)
        if with_defaults and not counts[prefix]:
            counts[prefix] = _count_stated(prefix, module, module.family.defaults, has_own_section=has_own_section)
    return counts


def _are_one_model(prefixes: list[str], module: Module) -> bool:
    """Whether a number of layers without a prefix applies to all of these stacks, which one section describes.

    It does for a single stack, and for an encoder with its decoder if the decoder has no number of its own.
    """
    if len(prefixes) == 1:
        return True
    is_pair = len(prefixes) == 2 and module.section.get("is_encoder_decoder") is True
    return is_pair and {"encoder", "decoder"} <= set(re.split(r"[._]", ".".join(prefixes)))


def _split(name: str) -> tuple[str | None, int]:
    """The part of a name before its first number, and the number; None and 0 without a number."""
    number = NUMBER.search(name)
    if number is None:
        return None, 0
    return name[: number.start()].rstrip("."), int(number[0])


def _count_stated(prefix: str, module: Module, section: Fields, *, has_own_section: bool) -> int:
    """The number of layers that the configuration states for the stack of a module; 0 if it states none.

    prefix: the part of the names before the layer number. section: of the configuration. has_own_section: whether a
    field without a prefix counts. In a section for stages or for several stacks, the number may be meant for another
    stack, or for all of them together.
    """
    if not module.certain or module.family.shared is not None or not LAYER.search(prefix):
        return 0
    words = re.split(r"[._]", prefix.lower())
    for field in fitting_fields(LAYERS, section, words):
        stated = section[field]
        if type(stated) is int and 0 < stated <= MOST_LAYERS and (has_own_section or field not in LAYERS):
            return stated - module.family.uncounted_layers
    return 0
