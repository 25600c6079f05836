"""From tensor names and the configuration to the attention sites of a model: their place, tensors and sizes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, takewhile
from typing import Any, NamedTuple

from attngeo.errors import CorruptCheckpointError, ShapeError, UnsupportedModelError
from attngeo.layouts.absent import find_absent_layers
from attngeo.layouts.heads import HeadConfig, Role, read_heads
from attngeo.layouts.layout import HEAD_NORMS, LATENT_ROLES, Family, HeadNorm, LatentLayout, QKLayout, Rotary, slot_rows
from attngeo.layouts.modules import Module, conditions_hold, survey_modules
from attngeo.layouts.names import MOST_LAYERS, join
from attngeo.layouts.sizes import ShapeOf, Sizes, measure

CROSS = re.compile(
    r"(encoder_attn|encdecattention|cross_?att(entio)?n|encoder_decoder_attention|second_sub_layer)", re.IGNORECASE
)
DECODER = re.compile(r"(^|\.)\w*decoder\w*\.")
ENCODER = re.compile(r"(^|\.)\w*encoder\w*\.")


@dataclass(frozen=True)
class AttentionSite:
    """One attention module: its place in the model, its sizes, and the tensors that hold its projections.

    stack, layer: its place; layers are counted from 0 within the stack. module: its name in the checkpoint. layout: how
    its projections are cut. family: its model family. section: the configuration of its part of the model. tensors:
    role → tensor name. heads, key_heads, head_dim, d_model: its sizes; query head h reads key head
    h // (heads / key_heads). key_width: the input width of the keys; it differs from d_model only in cross-attention.
    rule: how it was found. notes: caveats for readers of its scores.
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
        """Tensor name → the rows of it that are needed. Values that come after queries and keys are not read."""
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
    def may_rotate(self) -> bool:
        """Whether queries and keys may have rotary embeddings: not in cross-attention, nor with ALiBi."""
        known_without = bool(self.family.source) and self.family.rotary is None
        return not (self.is_cross or self.section.get("alibi") or known_without)

    @property
    def rotary(self) -> Rotary | None:
        """The family's rotary embeddings; None if this site has none, or if the order of its dimensions is unknown."""
        return self.family.rotary if self.may_rotate else None

    def rows(self, slots: str) -> int:
        """The output width of these slots at this site."""
        return slot_rows(slots, heads=self.heads, key_heads=self.key_heads, head_dim=self.head_dim)


class _Candidate(NamedTuple):
    """A module that attends, before its sizes are known. tensors: role → name of those that are needed."""

    stack: str
    layer: int
    module: Module
    tensors: dict[str, str]


def find_sites(
    names: Collection[str],
    config: Mapping[str, Any],
    *,
    shape_of: ShapeOf,
    ref: str,
    quantisation: str,
    biases: bool = False,
    input_norms: bool = False,
    prepare: Callable[[list[str]], None] = lambda _: None,
) -> tuple[list[AttentionSite], dict[str, str]]:
    """Find the attention sites of a model.

    names: all tensor names. config: config.json. shape_of: gives the shape of a tensor by its name. ref: the model's
    name, for errors. quantisation: the name of the quantisation that config.json states, for errors. biases,
    input_norms: whether these tensors are needed besides the weights; `shape_of` is not called for tensors that are not
    needed, so that their files need not be downloaded. prepare: is called once with the names of all that are, before
    `shape_of`.

    Returns the sites in the order of stack and layer, and what is left out: name pattern → reason.
    Raises UnsupportedModelError if the model has no attention of a known form; ShapeError or CorruptCheckpointError if
    tensors and configuration of a listed family contradict each other, or those of all modules that a rule found.
    """
    names = set(names)
    survey = survey_modules(names, config, quantisation, ref)
    sites: list[AttentionSite] = []
    unread: dict[str, str] = {}
    errors = []
    candidates: list[_Candidate] = []
    for stack, modules in _group_by_stack(survey.modules).items():
        for layer, found in _number_layers(modules):
            if reason := _explain_unread(found, layer):
                unread |= reason
                continue
            module = _recognise_head_norm(found, names)
            tensors = _find_tensors(module, names)
            needed = {part: name for part, name in tensors.items() if _is_needed(part, biases, input_norms)}
            candidates.append(_Candidate(stack, layer, module, needed))
    if not candidates:
        name, why = next(iter(unread.items()))
        raise UnsupportedModelError(f"{ref}: no attention that can be scored: {name}: {why}")
    skipped = survey.skipped | find_absent_layers(survey.modules, names) | unread
    prepare([name for each in candidates for name in each.tensors.values()])
    for stack, layer, module, tensors in candidates:
        try:
            sizes = measure(module, _stated_heads(module, layer, ref), tensors, shape_of, ref)
        except (ShapeError, CorruptCheckpointError) as error:
            if module.family.source and module.certain:
                raise
            # A rule found it. The rest of the model may be what it seems.
            errors.append(error)
            skipped.setdefault(module.template, str(error).removeprefix(f"{ref}: "))
        else:
            sites.append(_build_site(module, stack, layer, tensors, sizes))
    if errors and not sites:
        raise errors[0]
    return sites, dict(sorted(skipped.items()))


def _explain_unread(module: Module, layer: int) -> dict[str, str]:
    """Why the layer is left out, by the name of its module, or by the pattern of all of these; empty if it is not.

    Layers that follow those of the model only draft further tokens (multi-token prediction). The last layers of some
    models use the keys of an earlier one, and have none of their own.
    """
    names = ("num_hidden_layers", "num_nextn_predict_layers", "num_kv_shared_layers")
    layers, more, shared = (module.section.get(name) for name in names)
    if type(layers) is not int:
        return {}
    if type(more) is int and layers <= layer < layers + more:
        return {module.name: "it drafts further tokens"}
    if type(shared) is int and shared > 0 and layer >= layers - shared:
        return {module.template: f"the last {shared} layers use the keys of earlier ones"}
    return {}


def _recognise_head_norm(module: Module, names: Collection[str]) -> Module:
    """The module with the QK-norm that its tensors are named after, if a rule found it. One with biases is centred."""
    if module.family.source or module.family.head_norm:
        return module
    for q, k in HEAD_NORMS:
        if q in module.family.cross_norm:  # it normalises the input
            continue
        path = join(module.name, q)
        if f"{path}.weight" in names or f"{path}.norms.0.weight" in names:
            norm = HeadNorm(q=q, k=k, centred=f"{path}.bias" in names)
            return replace(module, family=replace(module.family, head_norm=norm))
    return module


def _stated_heads(module: Module, layer: int, ref: str) -> HeadConfig:
    """The heads of the module as its section of the configuration states them, or for this layer in particular."""
    section, by_layer = module.section, module.section.get("per_layer_config")
    if isinstance(by_layer, Mapping):
        own = by_layer.get(str(layer), by_layer.get(layer))
        section = {**section, **own} if isinstance(own, Mapping) else section
    decoder = DECODER.search(module.name) or (module.family.stack == "decoder" and not ENCODER.search(module.name))
    role: Role = "decoder" if decoder else "encoder"
    # The encoder in the name of a cross-attention is where its keys come from.
    words = re.split(r"[._]", CROSS.sub("", module.name).lower())
    return read_heads(
        section, role, defaults=module.family.defaults, stage=_stage(module, section), ref=ref, words=words
    )


def _stage(module: Module, section: Mapping[str, Any]) -> int | None:
    """The stage of a model whose heads differ from stage to stage: the first number in the module's name.

    If the configuration states the number of blocks of each stage, that number counts the blocks of all stages.
    """
    first = module.indices[0] if module.indices else None
    blocks = section.get("blocks_per_stage")
    if first is None or not isinstance(blocks, list) or not all(type(size) is int for size in blocks):
        return first
    return next((stage for stage, end in enumerate(accumulate(blocks)) if first < end), None)


def _build_site(module: Module, stack: str, layer: int, tensors: Mapping[str, str], sizes: Sizes) -> AttentionSite:
    return AttentionSite(
        stack, layer, module.name, module.layout, module.family, module.section, tensors,
        heads=sizes.heads, key_heads=sizes.key_heads, head_dim=sizes.head_dim, d_model=sizes.d_model,
        key_width=sizes.key_width, rule=module.rule, notes=_notes(module, tensors),
    )  # fmt: skip


def _group_by_stack(modules: Iterable[Module]) -> dict[str, list[Module]]:
    """The modules by stack. Each pattern of names is one stack; the pattern is added to names that are not unique."""
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
    # BERT and similar models become decoders by their configuration alone.
    if DECODER.search(module.name) or module.section.get("is_decoder") is True:
        return "decoder"
    causal = module.family.stack == "decoder" and not module.family.source
    if causal and not module.section.get("is_encoder_decoder"):
        return "decoder"
    return "encoder" if ENCODER.search(module.name) else module.family.stack


def _number_layers(modules: list[Module]) -> list[tuple[int, Module]]:
    """The modules of one stack with their layer numbers.

    A layer's number is the number in its name that varies within the stack. If several vary, it is a running count.
    """
    modules = sorted(modules, key=lambda module: module.indices)
    varying = [i for i, values in enumerate(zip(*(m.indices for m in modules), strict=True)) if len(set(values)) > 1]
    if len(varying) > 1:
        return list(enumerate(modules))
    place = varying[0] if varying else 0
    return [(module.indices[place] if module.indices else 0, module) for module in modules]


def _find_tensors(module: Module, names: Collection[str]) -> dict[str, str]:
    """Role → name of each tensor that the layout and the family name and the checkpoint has."""
    layout, family = module.layout, module.family
    fields = ("q", "k", "q_bias", "k_bias", "q_scale") if isinstance(layout, QKLayout) else LATENT_ROLES
    wanted = {role: join(module.name, getattr(layout, role)) for role in fields if getattr(layout, role)}
    raw_bias = join(module.name, "q_bias")
    if wanted.get("q_bias") not in names and raw_bias in names:
        wanted["q_bias"] = raw_bias  # some models give biases to queries and values only
    if family.head_norm is not None:
        for role, norm in (("q_gain", family.head_norm.q), ("k_gain", family.head_norm.k)):
            path = join(module.name, norm)
            wanted[role] = f"{path}.weight"
            per_head = (f"{path}.norms.{head}.weight" for head in count())
            wanted |= {f"{role}.{head}": name for head, name in enumerate(takewhile(names.__contains__, per_head))}
    if conditions_hold(family.pre_norm_when, module.section, family):
        own = family.cross_norm if CROSS.search(module.name) else ()
        wanted |= _find_pre_norm(module.name, own or family.pre_norm, names)
    return {role: name for role, name in wanted.items() if name in names}


def _is_needed(role: str, biases: bool, input_norms: bool) -> bool:
    return (biases or not role.endswith("_bias")) and (input_norms or not role.startswith("pre_norm"))


def _find_pre_norm(module: str, candidates: Sequence[str], names: Collection[str]) -> dict[str, str]:
    """The normalisation in front of the module: the first candidate in it, or in the nearest module around it.

    The search stops at the module's layer: the first enclosing module whose name is a number.
    """
    parts = module.split(".")
    for depth in range(len(parts), -1, -1):
        for candidate in candidates:
            path = join(".".join(parts[:depth]), candidate)
            if f"{path}.weight" in names:
                return {"pre_norm": f"{path}.weight", "pre_norm_bias": f"{path}.bias"}
        if "".join(parts[depth : depth + 1]).isdigit():
            break
    return {}


def _notes(module: Module, tensors: Mapping[str, str]) -> tuple[str, ...]:
    family, notes = module.family, list(module.family.notes)
    if isinstance(module.layout, LatentLayout):
        notes.append("latent attention: low-rank factors multiplied out, latent norm gains folded")
    if any(role.startswith(("q_gain", "k_gain")) for role in tensors):
        notes.append("QK-norm: its gain is folded in, its division is left out")
    if family.shared is not None and (applied := _times_applied(module, *family.shared)) > 1:
        notes.append(f"shared weights, applied {applied} times")
    return tuple(notes)


def _times_applied(module: Module, layers_field: str, groups_field: str) -> int:
    """How many layers use this group of shared weights: layer l uses group int(l / (layers / groups))."""
    section = {**module.family.defaults, **module.section}
    layers, groups = section.get(layers_field), section.get(groups_field, 1)
    if type(layers) is not int or type(groups) is not int or not 1 <= groups <= layers <= MOST_LAYERS:
        return 1
    group = module.indices[0] if module.indices else 0
    return sum(int(layer / (layers / groups)) == group for layer in range(layers))
