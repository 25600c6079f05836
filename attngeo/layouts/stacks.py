"""Stacks of a model, such as its encoder and its decoder, and the numbers of the layers in them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from attngeo.layouts.modules import Module

# Parts of module names: cross-attention, and modules in a decoder or an encoder.
CROSS = re.compile(
    r"(encoder_attn|encdecattention|cross_?att(entio)?n|encoder_decoder_attention|second_sub_layer)", re.IGNORECASE
)
DECODER = re.compile(r"(^|\.)\w*decoder\w*\.")
ENCODER = re.compile(r"(^|\.)\w*encoder\w*\.")
# The order of stacks in tables; others follow by their names.
STACKS = ("encoder", "text", "vision", "audio", "decoder", "cross")


def group_by_stack(modules: Iterable[Module]) -> dict[str, list[Module]]:
    """The modules by stack. Each name pattern is one stack; if stacks would share a name, it includes the pattern."""
    by_template: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        by_template[module.template].append(module)
    by_name: dict[str, list[str]] = defaultdict(list)
    for template, members in by_template.items():
        by_name[_stack_name(members[0])].append(template)
    stacks = {}
    for name, templates in by_name.items():
        for template in templates:
            stack = name if len(templates) == 1 else f"{name}:{template}"
            stacks[stack] = by_template[template]
    listed = [stack for stack in STACKS if stack in stacks]
    others = sorted(stacks.keys() - listed)
    return {stack: stacks[stack] for stack in (*listed, *others)}


def _stack_name(module: Module) -> str:
    for pattern, stack in module.family.stacks.items():
        if re.search(pattern, module.name):
            return stack
    if CROSS.search(module.name):
        return "cross"
    if module.tower:
        return module.tower
    if module.family.stack not in ("encoder", "decoder"):
        return module.family.stack
    # BERT and similar models become decoders by their configuration alone.
    if DECODER.search(module.name) or module.section.get("is_decoder") is True:
        return "decoder"
    is_causal = module.family.stack == "decoder" and not module.family.source
    if is_causal and not module.section.get("is_encoder_decoder"):
        return "decoder"
    return "encoder" if ENCODER.search(module.name) else module.family.stack


def number_layers(modules: list[Module]) -> list[tuple[int, Module]]:
    """The modules of one stack with their layer numbers.

    A layer's number is the number in its name that varies within the stack. If several vary, layers are counted from 0.
    """
    modules = sorted(modules, key=lambda module: module.indices)
    columns = zip(*(module.indices for module in modules), strict=True)
    varying = [position for position, numbers in enumerate(columns) if len(set(numbers)) > 1]
    if len(varying) > 1:
        return list(enumerate(modules))
    position = varying[0] if varying else 0
    return [(module.indices[position] if module.indices else 0, module) for module in modules]
