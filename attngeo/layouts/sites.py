"""Tensor names and the configuration, to the attention sites of a model: which tensors, cut how, called what."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from attngeo.errors import CorruptCheckpointError, ShapeError
from attngeo.layouts.layout import Family, LatentLayout, QKLayout, Rotary, slot_rows
from attngeo.layouts.modules import Module, conditions_hold, join, survey_modules

# More than any model has: a forged configuration must not be counted up to.
MOST_LAYERS = 10_000
CROSS = re.compile(r"(encoder_attn|encdecattention|cross_?att(entio)?n|encoder_decoder_attention)", re.IGNORECASE)
DECODER = re.compile(r"(^|\.)\w*decoder\w*\.")
ENCODER = re.compile(r"(^|\.)\w*encoder\w*\.")


class Heads(Protocol):
    """What the configuration says of a stack: see `attngeo.checkpoints.config.AttentionConfig`."""

    @property
    def heads(self) -> int:
        """Query heads."""
        ...

    @property
    def key_heads(self) -> int | None:
        """Heads of keys; None for as many as heads."""
        ...

    @property
    def head_dim(self) -> int | None:
        """Width of one head; None for the input width divided by heads."""
        ...


@dataclass(frozen=True)
class AttentionSite:
    """One attention module: where it is in the model, its sizes, and the tensors that hold its projections.

    stack, layer: its place, layers counted from 0 within the stack. module: its name in the checkpoint. layout, family:
    how its projections are cut, and whose. section: the configuration of its part of the model. tensors: role → tensor
    name. heads, key_heads, head_dim, d_model: its sizes (query head h reads key head h // (heads / key_heads)).
    key_width: the input width of the keys, other than d_model only in cross-attention. rule: how it was found. notes:
    what a reader of its scores should know.
    """

    stack: str
    layer: int
    module: str
    layout: QKLayout | LatentLayout = field(repr=False)
    family: Family = field(repr=False)
    section: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, str] = field(repr=False)
    heads: int
    key_heads: int
    head_dim: int
    d_model: int
    key_width: int
    rule: str
    notes: tuple[str, ...] = ()

    @property
    def reads(self) -> dict[str, slice]:
        """Tensor name → the rows of it that hold queries and keys: not the values where those come last."""
        reads = dict.fromkeys(self.tensors.values(), slice(None))
        if isinstance(self.layout, QKLayout) and not self.layout.conv1d and self.layout.blocks == 1:
            for role, slots in (("q", self.layout.slots), ("k", self.layout.k_slots)):
                needed = slots[: max(slots.find("q"), slots.find("k")) + 1]
                reads[self.tensors[role]] = slice(0, self.rows(needed))
        return reads

    @property
    def is_cross(self) -> bool:
        """Whether the keys come from another stack than the queries."""
        return self.stack.startswith("cross")

    @property
    def rotary(self) -> Rotary | None:
        """The family's rotary embeddings, unless this site has none: cross-attention, or ALiBi instead."""
        return None if self.is_cross or self.section.get("alibi") else self.family.rotary

    def rows(self, slots: str) -> int:
        """The output width of these slots at this site."""
        return slot_rows(slots, heads=self.heads, key_heads=self.key_heads, head_dim=self.head_dim)


def find_sites(
    names: Collection[str],
    config: Mapping[str, Any],
    *,
    shape_of: Callable[[str], Sequence[int]],
    heads_of: Callable[[Mapping[str, Any], Literal["encoder", "decoder"], Mapping[str, Any], int | None], Heads],
    ref: str,
    biases: bool = False,
    input_norms: bool = False,
) -> tuple[list[AttentionSite], list[str]]:
    """The attention sites of a model in the order of stack and layer, and patterns of attention that was left out.

    names: all tensor names. config: config.json. shape_of: a tensor's shape by name. heads_of: the head counts of a
    section of the configuration, for a role, with defaults, at a stage. biases, input_norms: whether these tensors are
    wanted besides the weights; what is not wanted is not looked at, so that its file need not be there.
    Raises UnsupportedModelError where there is no attention, or none of a known form; ShapeError and
    CorruptCheckpointError where tensors and configuration contradict each other.
    """
    names = set(names)
    survey = survey_modules(names, config, ref)
    by_stack = _stacks(survey.modules)
    sites = []
    for stack, modules in by_stack.items():
        for layer, module in _layers(modules):
            if _is_speculative(module, layer):
                continue
            role: Literal["encoder", "decoder"] = "decoder" if DECODER.search(module.name) else "encoder"
            stage = module.indices[0] if module.indices else None
            heads = heads_of(module.section, role, module.family.defaults, stage)
            tensors = _tensors(module, heads.heads, names)
            wanted = {role: name for role, name in tensors.items() if _wanted(role, biases, input_norms)}
            sites.append(_measure(module, stack, layer, heads, wanted, shape_of, ref))
    return sites, survey.skipped


def _stacks(modules: Iterable[Module]) -> dict[str, list[Module]]:
    """The modules by stack: one for each pattern of names, the pattern in its name where two would be called alike."""
    by_template: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        by_template[module.template].append(module)
    by_name: dict[str, list[str]] = defaultdict(list)
    for template, members in by_template.items():
        by_name[_stack_name(members[0])].append(template)
    stacks = {}
    for name, templates in by_name.items():
        for template in templates:
            stacks[name if len(templates) == 1 else f"{name}:{template}"] = by_template[template]
    order = ["encoder", "text", "vision", "audio", "decoder", "cross"]
    return dict(sorted(stacks.items(), key=lambda item: (order.index(item[0]) if item[0] in order else 9, item[0])))


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
    # BERT and its kin become decoders by their configuration alone.
    if DECODER.search(module.name) or module.section.get("is_decoder") is True:
        return "decoder"
    return "encoder" if ENCODER.search(module.name) else module.family.stack


def _layers(modules: list[Module]) -> list[tuple[int, Module]]:
    """The modules of one stack with their layer numbers: the number that varies in their names, or a running count."""
    modules = sorted(modules, key=lambda module: module.indices)
    varying = [i for i, values in enumerate(zip(*(m.indices for m in modules), strict=True)) if len(set(values)) > 1]
    if len(varying) > 1:
        return list(enumerate(modules))
    place = varying[0] if varying else 0
    return [(module.indices[place] if module.indices else 0, module) for module in modules]


def _is_speculative(module: Module, layer: int) -> bool:
    """Whether the layer only drafts tokens ahead (multi-token prediction): stored after the model's own layers."""
    own = module.section.get("num_hidden_layers")
    return bool(module.section.get("num_nextn_predict_layers")) and isinstance(own, int) and layer >= own


def _measure(
    module: Module,
    stack: str,
    layer: int,
    heads: Heads,
    tensors: Mapping[str, str],
    shape_of: Callable[[str], Sequence[int]],
    ref: str,
) -> AttentionSite:
    """The site with its sizes, checked against the shapes of its tensors."""
    if isinstance(module.layout, LatentLayout):
        count, key_heads, head_dim, width, key_width = _latent_sizes(module, heads, tensors, shape_of, ref)
    else:
        count, key_heads, head_dim, width, key_width = _sizes(module, module.layout, heads, tensors, shape_of, ref)
    _check_vectors(tensors, (count, key_heads, head_dim, width), shape_of, ref)
    return AttentionSite(
        stack, layer, module.name, module.layout, module.family, module.section, tensors,
        heads=count, key_heads=key_heads, head_dim=head_dim, d_model=width, key_width=key_width,
        rule=module.rule, notes=_notes(module, tensors),
    )  # fmt: skip


def _tensors(module: Module, heads: int, names: Collection[str]) -> dict[str, str]:
    """Role → name of each tensor of the module that the checkpoint has."""
    layout, family = module.layout, module.family
    fields = ("q", "k", "q_bias", "k_bias") if isinstance(layout, QKLayout) else LatentLayout.__dataclass_fields__
    wanted = {role: join(module.name, getattr(layout, role)) for role in fields if getattr(layout, role)}
    if family.head_norm is not None:
        for role, norm in (("q_gain", family.head_norm.q), ("k_gain", family.head_norm.k)):
            path = join(module.name, norm)
            wanted[role] = f"{path}.weight"
            wanted |= {f"{role}.{head}": f"{path}.norms.{head}.weight" for head in range(heads)}
    if family.pre_norm and conditions_hold(family.pre_norm_when, module.section, family):
        cross = bool(CROSS.search(module.name))
        wanted |= _pre_norm(module.name, (family.cross_norm if cross else ()) or family.pre_norm, names)
    return {role: name for role, name in wanted.items() if name in names}


def _wanted(role: str, biases: bool, input_norms: bool) -> bool:
    return (biases or not role.endswith("_bias")) and (input_norms or not role.startswith("pre_norm"))


def _pre_norm(module: str, candidates: Sequence[str], names: Collection[str]) -> dict[str, str]:
    """The normalisation in front of the module: the first candidate in the nearest enclosing module that has one."""
    parts = module.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        for candidate in candidates:
            path = join(".".join(parts[:depth]), candidate)
            if f"{path}.weight" in names:
                return {"pre_norm": f"{path}.weight", "pre_norm_bias": f"{path}.bias"}
        if parts[depth].isdigit():
            break
    return {}


def _sizes(
    module: Module,
    layout: QKLayout,
    config: Heads,
    tensors: Mapping[str, str],
    shape_of: Callable[[str], Sequence[int]],
    ref: str,
) -> tuple[int, int, int, int, int]:
    (rows, width), (k_rows, key_width) = (_out_in(tensors[role], shape_of, layout.conv1d, ref) for role in ("q", "k"))
    heads = config.heads
    key_heads = {"one": 1, "heads": heads}.get(layout.key_heads, config.key_heads or heads)
    head_dim = config.head_dim
    if layout.width_from_rows and rows % heads == 0:
        head_dim = rows // heads
    if head_dim is None and width % heads == 0:
        head_dim = width // heads
    if head_dim is None:
        raise ShapeError(f"{ref}: {module.name}: {heads} heads do not divide an input width of {width}")
    if heads % key_heads:
        raise ShapeError(f"{ref}: {module.name}: {heads} heads cannot share {key_heads} key heads evenly")
    if isinstance(layout.blocks, int) and (heads % layout.blocks or key_heads % layout.blocks):
        raise ShapeError(f"{ref}: {module.name}: {heads} heads do not divide into {layout.blocks} blocks")
    for role, slots, got in (("q", layout.slots, rows), ("k", layout.k_slots, k_rows)):
        want = slot_rows(slots, heads=heads, key_heads=key_heads, head_dim=head_dim)
        if got != want:
            raise ShapeError(
                f"{ref}: {tensors[role]} has an output width of {got}, expected {want} ({slots}: {heads} heads, "
                f"{key_heads} key heads of {head_dim}); config.json and weights do not belong together"
            )
    return heads, key_heads, head_dim, width, key_width


def _latent_sizes(
    module: Module, config: Heads, tensors: Mapping[str, str], shape_of: Callable[[str], Sequence[int]], ref: str
) -> tuple[int, int, int, int, int]:
    section, heads = {**module.family.defaults, **module.section}, config.heads
    nope, rope, value = (section.get(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    if not (isinstance(nope, int) and isinstance(rope, int) and isinstance(value, int)):
        raise CorruptCheckpointError(f"{ref}: config.json lacks qk_nope_head_dim, qk_rope_head_dim or v_head_dim")
    if "kv_norm" not in tensors:
        raise CorruptCheckpointError(f"{ref}: {join(module.name, LatentLayout.kv_norm)} is missing")
    rank, width = math.prod(shape_of(tensors["kv_norm"])), _out_in(tensors["kv_a"], shape_of, False, ref)[1]
    want: dict[str, tuple[int, ...]] = {"kv_a": (rank + rope, width), "kv_b": (heads * (nope + value), rank)}
    if "q_a" in tensors:
        query_rank, _ = _out_in(tensors["q_a"], shape_of, False, ref)
        want |= {"q_a": (query_rank, width), "q_b": (heads * (nope + rope), query_rank), "q_norm": (query_rank,)}
    else:
        want["q"] = (heads * (nope + rope), width)
    for role, shape in want.items():
        if role not in tensors:
            raise CorruptCheckpointError(f"{ref}: {join(module.name, getattr(module.layout, role))} is missing")
        if tuple(shape_of(tensors[role])) != shape:
            raise ShapeError(f"{ref}: {tensors[role]} is {list(shape_of(tensors[role]))}, expected {list(shape)}")
    return heads, heads, nope + rope, width, width


def _check_vectors(
    tensors: Mapping[str, str], sizes: tuple[int, int, int, int], shape_of: Callable[[str], Sequence[int]], ref: str
) -> None:
    """Biases and gains must fit the projections that they belong to."""
    heads, key_heads, head_dim, width = sizes
    for role, name in tensors.items():
        shape = tuple(shape_of(name)) if role.endswith(("_bias", "norm")) or "_gain" in role else ()
        if role in ("pre_norm", "pre_norm_bias"):
            fits = shape == (width,)
        elif "_gain" in role:
            fits = math.prod(shape) in (head_dim, head_dim * (heads if role.startswith("q") else key_heads))
        elif role in ("q_bias", "k_bias"):
            fits = len(shape) == 1 and shape[0] % head_dim == 0
        else:
            fits = True
        if not fits:
            raise ShapeError(
                f"{ref}: {name} is {list(shape)}, which does not fit {heads} heads and {key_heads} key heads of "
                f"{head_dim} over an input of {width}"
            )


def _out_in(name: str, shape_of: Callable[[str], Sequence[int]], conv1d: bool, ref: str) -> tuple[int, int]:
    shape = shape_of(name)
    if len(shape) != 2 or 0 in shape:
        raise ShapeError(f"{ref}: {name} is {list(shape)}, expected a matrix")
    return (shape[1], shape[0]) if conv1d else (shape[0], shape[1])


def _notes(module: Module, tensors: Mapping[str, str]) -> tuple[str, ...]:
    family, notes = module.family, list(module.family.notes)
    if isinstance(module.layout, LatentLayout):
        notes.append("latent attention: low-rank factors multiplied out, latent norm gains folded")
    if any(role.startswith(("q_gain", "k_gain")) for role in tensors):
        notes.append("QK-norm: bilinear part, gain folded")
    if family.shared is not None and (applied := _times_applied(module, *family.shared)) > 1:
        notes.append(f"shared weights, applied {applied} times")
    return tuple(notes)


def _times_applied(module: Module, layers_field: str, groups_field: str) -> int:
    """How many layers use this one: layer l uses group int(l / (layers / groups))."""
    section = {**module.family.defaults, **module.section}
    layers, groups = section.get(layers_field), section.get(groups_field, 1)
    if type(layers) is not int or type(groups) is not int or not 1 <= groups <= layers <= MOST_LAYERS:
        return 1
    group = module.indices[0] if module.indices else 0
    return sum(int(layer / (layers / groups)) == group for layer in range(layers))
