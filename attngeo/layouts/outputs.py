"""The values and the output projection of an attention module, and whatever lies between the two."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

from attngeo.layouts.layout import LatentLayout, Layout, Projection
from attngeo.layouts.modules import Module
from attngeo.layouts.names import join
from attngeo.layouts.rules import OUTPUT_NOTES, OUTPUTS, OutputNote

# Leads from a module to the enclosing one, which is searched only if it is called attention: others have unrelated
# layers of the same shape.
AROUND = "../"
ATTENTION = re.compile(r"att(n|ention)?[^.]*$", re.IGNORECASE)


class OutputTensors(NamedTuple):
    """The values and the output projection of one module.

    Attributes:
        module: the module; its layout has one output projection, and a layer for values.
        tensors: role → tensor name.
        notes: caveats about its outputs.
        missing: why its values or outputs are unknown; "" if both are known.
    """

    module: Module
    tensors: dict[str, str]
    notes: tuple[str, ...] = ()
    missing: str = ""


def locate_outputs(module: Module, names: Collection[str]) -> OutputTensors:
    """Values and output projection of a module with queries and keys, found by tensor names.

    names: all tensor names.
    """
    if module.family.other_outputs:
        return OutputTensors(module, {}, missing=module.family.other_outputs)
    layout, tensors = _locate_values(module, names)
    if not tensors:
        return OutputTensors(module, {}, missing="its layout names no layer for values")
    absent = [name for role, name in tensors.items() if role != "v_bias" and name not in names]
    if absent:
        return OutputTensors(module, {}, missing=f"it has no {absent[0]}")
    candidates = layout.outputs or OUTPUTS
    outputs = list(_find_outputs(module, candidates, names))
    if len(outputs) != 1:
        looked_for = ", ".join(output.name.removesuffix(".weight") for output in candidates)
        several = ", ".join(output.name for output in outputs)
        reason = f"found several candidates: {several}" if outputs else f"found none, looked for {looked_for}"
        return OutputTensors(module, {}, missing=f"its output projection is unknown: {reason}")
    (output,) = outputs
    tensors["o"] = _resolve(module.name, output.name)
    tensors["o_bias"] = _resolve(module.name, output.bias)
    located = replace(module, layout=replace(layout, outputs=(output,)))
    stored = {role: name for role, name in tensors.items() if name in names}
    return OutputTensors(located, stored, _list_notes(module, names))


def _locate_values(module: Module, names: Collection[str]) -> tuple[Layout | LatentLayout, dict[str, str]]:
    """The layout with a layer for values, and role → name of their tensors; empty if the layout does not name them."""
    layout = module.layout
    if isinstance(layout, LatentLayout):
        role = "v_b" if layout.keys_alone else "kv_b"
        return layout, {role: join(module.name, getattr(layout, role))}
    if "v" not in layout.letters:
        return layout, {}
    holder = layout.holder("v")
    if layout.values_are_keys and join(module.name, holder.name) not in names:
        holder = replace(layout.holder("k"), slots="v")
        others = tuple(projection for projection in layout.projections if projection.slots != "v")
        layout = replace(layout, projections=(*others, holder))
    tensors = {"v": join(module.name, holder.name)}
    for bias in (holder.bias, "v_bias"):  # the second one of models that give biases to queries and values only
        name = join(module.name, bias)
        if bias and name in names:
            tensors.setdefault("v_bias", name)
    return layout, tensors


def _find_outputs(module: Module, candidates: Collection[Projection], names: Collection[str]) -> Iterator[Projection]:
    """The candidates that the checkpoint has."""
    around = module.name.rpartition(".")[0]
    for candidate in candidates:
        if candidate.name.startswith(AROUND) and not ATTENTION.search(around):
            continue
        if _resolve(module.name, candidate.name) in names:
            yield candidate


def _resolve(module: str, name: str) -> str:
    """The full name of a tensor of a module, or of the enclosing module."""
    if name.startswith(AROUND):
        return join(module.rpartition(".")[0], name.removeprefix(AROUND))
    return join(module, name)


def _list_notes(module: Module, names: Collection[str]) -> tuple[str, ...]:
    """Notes on steps left out between values and output, by the family and the tensor names of the module."""
    notes = dict.fromkeys(module.family.output_notes)
    if isinstance(module.layout, Layout) and "g" in module.layout.letters:
        notes[OutputNote.GATE] = None
    for tensors, note in OUTPUT_NOTES:
        if any(join(module.name, tensor) in names for tensor in tensors):
            notes[note] = None
    return tuple(notes)
