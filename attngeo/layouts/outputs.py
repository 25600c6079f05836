"""Where an attention module keeps its values and its output projection, and what stands between the two."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

from attngeo.layouts.layout import LatentLayout, Layout, Projection
from attngeo.layouts.modules import Module
from attngeo.layouts.names import join
from attngeo.layouts.rules import GATE, OUTPUT_NOTES, OUTPUTS

# What leads from a module to the one around it. Only a module that is called attention is looked into: others have
# layers of other names and the same shape.
AROUND = "../"
ATTENTION = re.compile(r"att(n|ention)?[^.]*$", re.IGNORECASE)


class OutputTensors(NamedTuple):
    """The values and the output projection of one module.

    Attributes:
        module: the module; its layout has one output projection, and a layer for values.
        tensors: role → tensor name.
        notes: caveats for readers of its outputs.
        missing: why they are not known; "" if they are.
    """

    module: Module
    tensors: dict[str, str]
    notes: tuple[str, ...] = ()
    missing: str = ""


def locate_outputs(module: Module, names: Collection[str]) -> OutputTensors:
    """Values and output projection of a module that has queries and keys, by the names of its tensors.

    names: all tensor names.
    """
    if module.family.other_outputs:
        return OutputTensors(module, {}, missing=module.family.other_outputs)
    layout = module.layout
    tensors: dict[str, str] = {}
    if isinstance(layout, LatentLayout):
        values = layout.v_b if layout.keys_alone else layout.kv_b
        if layout.keys_alone:
            tensors["v_b"] = join(module.name, values)
    else:
        if layout.values_are_keys and _find_values(module, layout, names) is None:
            keys = layout.holder("k")
            others = tuple(projection for projection in layout.projections if projection.slots != "v")
            layout = replace(layout, projections=(*others, replace(keys, slots="v")))
        if "v" not in layout.letters:
            return OutputTensors(module, {}, missing="no layout knows its values")
        holder = layout.holder("v")
        values = holder.name
        tensors["v"] = join(module.name, values)
        biases = [join(module.name, bias) for bias in (holder.bias, "v_bias") if bias]
        stored_biases = [bias for bias in biases if bias in names]
        if stored_biases:
            tensors["v_bias"] = stored_biases[0]
    if join(module.name, values) not in names:
        return OutputTensors(module, {}, missing=f"it has no {values}, where its values were looked for")
    found = list(_find_outputs(module, layout.outputs or OUTPUTS, names))
    if len(found) != 1:
        looked_for = ", ".join(output.name.removesuffix(".weight") for output in layout.outputs or OUTPUTS)
        several = ", ".join(output.name for output in found)
        reason = f"any of {several} may be its output projection" if found else f"it has none of {looked_for}"
        return OutputTensors(module, {}, missing=f"its output projection is unknown: {reason}")
    (output,) = found
    tensors["o"] = _resolve(module.name, output.name)
    tensors["o_bias"] = _resolve(module.name, output.bias)
    notes = _list_notes(module, names)
    located = replace(module, layout=replace(layout, outputs=(output,)))
    return OutputTensors(located, {role: name for role, name in tensors.items() if name in names}, notes)


def _find_values(module: Module, layout: Layout, names: Collection[str]) -> str | None:
    """The name of the layer that holds values, if the checkpoint has one."""
    if "v" not in layout.letters:
        return None
    name = join(module.name, layout.holder("v").name)
    return name if name in names else None


def _find_outputs(module: Module, candidates: Collection[Projection], names: Collection[str]) -> Iterator[Projection]:
    """Those of the candidates that the checkpoint has."""
    around = module.name.rpartition(".")[0]
    for candidate in candidates:
        if candidate.name.startswith(AROUND) and not ATTENTION.search(around):
            continue
        if _resolve(module.name, candidate.name) in names:
            yield candidate


def _resolve(module: str, name: str) -> str:
    """The full name of a tensor of a module, or of the one around it."""
    if name.startswith(AROUND):
        return join(module.rpartition(".")[0], name.removeprefix(AROUND))
    return join(module, name)


def _list_notes(module: Module, names: Collection[str]) -> tuple[str, ...]:
    """What is left out between values and output, by the family and the names of tensors in the module."""
    notes = dict.fromkeys(module.family.output_notes)
    if isinstance(module.layout, Layout) and "g" in module.layout.letters:
        notes[GATE] = None
    for tensors, note in OUTPUT_NOTES:
        if any(join(module.name, tensor) in names for tensor in tensors):
            notes[note] = None
    return tuple(notes)
