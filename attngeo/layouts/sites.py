"""Attention sites of a model: its attention modules with their stack and layer, their tensors and their sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, count
from typing import NamedTuple

from attngeo.choices import Parts
from attngeo.errors import CorruptCheckpointError, ShapeError, UnsupportedModelError
from attngeo.layouts.absent import find_absent_layers, find_idle_layers
from attngeo.layouts.exports import recognise_export
from attngeo.layouts.heads import HeadConfig, choose_layer, read_heads
from attngeo.layouts.layout import LATENT_ROLES, LETTERS, AttentionSite, HeadNorm, LatentLayout, Layout, Sizes
from attngeo.layouts.modules import Module, conditions_hold, survey_modules
from attngeo.layouts.names import MOST_LAYERS, Fields, Reasons, join
from attngeo.layouts.outputs import OutputTensors, locate_outputs
from attngeo.layouts.rules import HEAD_NORMS
from attngeo.layouts.sizes import ShapeOf, StoredModule, measure_outputs, measure_sizes
from attngeo.layouts.stacks import CROSS, DECODER, ENCODER, group_by_stack, number_layers

# Names of the gain in normalisations.
NORM_GAINS = ("weight", "scale")


class _Candidate(NamedTuple):
    """A module that attends, before its sizes are known.

    Attributes:
        stack: name of its stack.
        layer: number of its layer.
        module: the module.
        tensors: role → name of a needed tensor.
        outputs: its values and output projection; None if not needed.
    """

    stack: str
    layer: int
    module: Module
    tensors: dict[str, str]
    outputs: OutputTensors | None


def find_sites(
    names: Collection[str],
    config: Fields,
    *,
    shape_of: ShapeOf,
    parts: Parts = "qk",
    biases: bool = False,
    input_norms: bool = False,
    prepare: Callable[[list[str]], None] = lambda _: None,
) -> tuple[list[AttentionSite], Reasons]:
    """Find the attention sites of a model.

    Args:
        names: all tensor names.
        config: the content of config.json.
        shape_of: returns the shape of a tensor, by its name. Called only for needed tensors, so that the files of
            others are not downloaded.
        parts: the letters that are needed: queries, keys, values and outputs. A site with unknown values or outputs has
            queries and keys only.
        biases: whether biases are needed besides the weights.
        input_norms: whether the normalisations before attention are needed.
        prepare: called once with the names of all needed tensors, before `shape_of`.

    Returns:
        The sites in the order of stack and layer, and the parts that are left out: name pattern → reason.

    Raises:
        UnsupportedModelError: the model has no attention of a known form.
        ShapeError, CorruptCheckpointError: tensors and configuration contradict each other, in a listed family or in
            every module that a rule found.
    """
    names = set(names)
    modules, skipped = survey_modules(names, config)
    candidates, unread = _list_candidates(modules, names, with_outputs=not {"v", "o"}.isdisjoint(parts))
    if not candidates:
        name, reason = next(iter(unread.items()))
        raise UnsupportedModelError(f"no attention that can be scored: {name}: {reason}")
    for candidate in candidates:
        _drop_unneeded(candidate.tensors, biases=biases, input_norms=input_norms)
    skipped |= find_absent_layers(modules, names) | unread
    prepare(list(chain.from_iterable(candidate.tensors.values() for candidate in candidates)))
    sites = []
    errors = []
    for stack, layer, module, tensors, outputs in candidates:
        stored = StoredModule(module, tensors, shape_of)
        pruned = 0
        try:
            stated = _stated_heads(module, layer)
            pruned = stated.pruned
            sizes = measure_sizes(stored, stated)
        except (ShapeError, CorruptCheckpointError) as error:
            if module.family.source and module.certain:
                raise
            # Only a rule found it. The rest of the model may still be readable.
            errors.append(error)
            skipped.setdefault(module.template, str(error))
            continue
        missing = ""
        output_notes: tuple[str, ...] = ()
        if outputs is not None:
            sizes, missing = _measure_outputs(stored, sizes, outputs)
            output_notes = (*_common_notes(module), *outputs.notes)
        if missing:
            tensors = {role: name for role, name in tensors.items() if role[0] not in "vo"}
        site = AttentionSite(
            stack=stack,
            layer=layer,
            module=module.name,
            layout=module.layout,
            family=module.family,
            section=module.section,
            tensors=tensors,
            **vars(sizes),
            rule=module.rule,
            notes=_notes(module, tensors, pruned),
            parts="".join(part for part in parts if not missing or part not in "vo"),
            output_notes=output_notes,
            missing=missing,
        )
        sites.append(site)
    if errors and not sites:
        raise errors[0]
    return sites, dict(sorted(skipped.items()))


def _drop_unneeded(tensors: dict[str, str], *, biases: bool, input_norms: bool) -> None:
    """Drop the roles of biases and of input norms, if these are not needed."""
    for role in list(tensors):
        is_unneeded_bias = role.endswith("_bias") and not biases
        is_unneeded_norm = role.startswith(("pre_norm", "o_norm")) and not input_norms
        if is_unneeded_bias or is_unneeded_norm:
            del tensors[role]


def _list_candidates(
    modules: Collection[Module], names: Collection[str], *, with_outputs: bool
) -> tuple[list[_Candidate], Reasons]:
    """The modules in the order of stack and layer, and the modules left out: name pattern → reason."""
    candidates: list[_Candidate] = []
    unread: Reasons = {}
    idle = find_idle_layers(modules)
    for stack, members in group_by_stack(modules).items():
        for layer, module in number_layers(members):
            reason = _explain_unread(module, layer)
            if not reason and module.name in idle:
                reason = {module.template: idle[module.name]}
            if reason:
                unread |= reason
                continue
            normed = _recognise_head_norm(recognise_export(module, names), names)
            outputs = None
            tensors = _find_tensors(normed, names)
            if with_outputs:
                outputs = locate_outputs(normed, names)
                normed = outputs.module
                tensors |= outputs.tensors
                post_norm = _find_norm(normed.name, normed.family.post_norm, names)
                tensors |= {"o_norm": post_norm} if post_norm else {}
            candidates.append(_Candidate(stack, layer, normed, tensors, outputs))
    return candidates, unread


def _explain_unread(module: Module, layer: int) -> Reasons:
    """Why the layer is left out: name or name pattern of its module → reason; empty if it is read.

    Layers after the model's own only draft further tokens (multi-token prediction). In some models, the last layers use
    the keys of an earlier layer instead of their own.
    """
    layers = module.section.get("num_hidden_layers")
    drafting = module.section.get("num_nextn_predict_layers")
    sharing = module.section.get("num_kv_shared_layers")
    if type(layers) is not int:
        return {}
    if type(drafting) is int and layers <= layer < layers + drafting:
        return {module.name: "it only drafts further tokens"}
    if type(sharing) is int and sharing > 0 and layer >= layers - sharing:
        return {module.template: f"the last {sharing} layers use the keys of earlier layers"}
    return {}


def _recognise_head_norm(module: Module, names: Collection[str]) -> Module:
    """The module, with a QK-norm by its tensor names if a rule found the module. A norm with biases is centred."""
    if module.family.source or module.family.head_norm:
        return module
    for q, k in HEAD_NORMS:
        if q in module.family.cross_norm:  # it normalises the input
            continue
        path = join(module.name, q)
        if f"{path}.weight" in names or f"{path}.norms.0.weight" in names:
            norm = HeadNorm(q=q, k=k, centered=f"{path}.bias" in names)
            return replace(module, family=replace(module.family, head_norm=norm))
    return module


def _stated_heads(module: Module, layer: int) -> HeadConfig:
    """The heads of the module in its section of the configuration, with the settings of this layer."""
    section = choose_layer(module.section, layer)
    is_decoder = module.family.stack == "decoder" and not ENCODER.search(module.name)
    # The word encoder in the name of a cross-attention says where its keys come from.
    words = re.split(r"[._]", CROSS.sub("", module.name).lower())
    words.append("decoder" if DECODER.search(module.name) or is_decoder else "encoder")
    stage = _stage(module, section)
    return read_heads(section, defaults=module.family.defaults, stage=stage, words=words, layer=layer)


def _stage(module: Module, section: Fields) -> int | None:
    """The stage of a model whose heads differ from stage to stage: the first number in the module's name.

    If the configuration states the number of blocks of each stage, that number counts the blocks of all stages.
    """
    if not module.indices:
        return None
    number = module.indices[0]
    blocks = section.get("blocks_per_stage")
    if not isinstance(blocks, list) or not all(type(size) is int for size in blocks):
        return number
    return next((stage for stage, end in enumerate(accumulate(blocks)) if number < end), None)


def _measure_outputs(stored: StoredModule, sizes: Sizes, outputs: OutputTensors) -> tuple[Sizes, str]:
    """The sizes, completed for values and outputs if their tensors fit, and the reason if they do not."""
    if outputs.missing:
        return sizes, outputs.missing
    try:
        return measure_outputs(stored, sizes), ""
    except (ShapeError, CorruptCheckpointError) as error:
        return sizes, str(error)


# Tensors


def _find_tensors(module: Module, names: Collection[str]) -> dict[str, str]:
    """Role → name of each tensor in the checkpoint that the layout or the family names."""
    layout = module.layout
    family = module.family
    fields: dict[str, str] = {}
    if isinstance(layout, Layout):
        holders = {letter: layout.holder(letter) for letter in LETTERS}
        fields |= {letter: projection.name for letter, projection in holders.items()}
        fields |= {f"{letter}_bias": projection.bias for letter, projection in holders.items()}
        fields["q_scale"] = layout.q_scale
    else:
        fields |= {role: getattr(layout, role) for role in LATENT_ROLES}
    wanted = {role: join(module.name, name) for role, name in fields.items() if name}
    raw_bias = join(module.name, "q_bias")
    if wanted.get("q_bias") not in names and raw_bias in names:
        wanted["q_bias"] = raw_bias  # some models give biases to queries and values only
    if family.head_norm is not None:
        wanted |= _find_gain("q_gain", join(module.name, family.head_norm.q), names)
        wanted |= _find_gain("k_gain", join(module.name, family.head_norm.k), names)
    if conditions_hold(family.pre_norm_when, module.section, family):
        cross_norm = family.cross_norm if CROSS.search(module.name) else ()
        pre_norm = _find_norm(module.name, cross_norm or family.pre_norm, names)
        if pre_norm:
            wanted |= {"pre_norm": pre_norm, "pre_norm_bias": f"{pre_norm.rpartition('.')[0]}.bias"}
    return {role: name for role, name in wanted.items() if name in names}


def _find_gain(role: str, norm: str, names: Collection[str]) -> dict[str, str]:
    """Role → name of the gain of a normalisation of queries or keys: one tensor, or one per head."""
    tensors = {role: norm if norm in names else f"{norm}.weight"}
    for head in count():
        name = f"{norm}.norms.{head}.weight"
        if name not in names:
            break
        tensors[f"{role}.{head}"] = name
    return tensors


def _find_norm(module: str, candidates: Sequence[str], names: Collection[str]) -> str | None:
    """The gain of a norm before or after the module: the first candidate in it, or else in the nearest module around.

    The search stops at the module's layer: the first enclosing module whose name is a number.
    """
    segments = module.split(".")
    for depth in range(len(segments), -1, -1):
        enclosing = ".".join(segments[:depth])
        for candidate in candidates:
            path = join(enclosing, candidate.format(segments[-1]))
            for gain in NORM_GAINS:
                if f"{path}.{gain}" in names:
                    return f"{path}.{gain}"
        if depth < len(segments) and segments[depth].isdigit():
            break
    return None


# Notes


def _notes(module: Module, tensors: Mapping[str, str], pruned: int) -> tuple[str, ...]:
    """Caveats about scores of queries and keys. pruned: the number of removed heads."""
    notes = [*module.family.query_key_notes, *_common_notes(module)]
    if pruned:
        notes.append(f"{pruned} pruned heads are missing; the others are numbered from 0")
    if any(role.startswith(("q_gain", "k_gain")) for role in tensors):
        notes.append("QK-norm: its gain is folded in, its division is left out")
    return tuple(notes)


def _common_notes(module: Module) -> tuple[str, ...]:
    """Caveats about all scores."""
    notes = list(module.family.notes)
    if isinstance(module.layout, LatentLayout):
        notes.append("latent attention: low-rank factors multiplied out, latent norm gains folded")
    applied = _times_applied(module)
    if applied > 1:
        notes.append(f"shared weights, applied {applied} times")
    return tuple(notes)


def _times_applied(module: Module) -> int:
    """How many layers use these weights. If groups share weights, layer l uses group int(l / (layers / groups))."""
    if module.family.shared is None:
        return 1
    layers_field, groups_field = module.family.shared
    section = {**module.family.defaults, **module.section}
    layers = section.get(layers_field)
    groups = section.get(groups_field, 1)
    if type(layers) is not int or type(groups) is not int or not 1 <= groups <= layers <= MOST_LAYERS:
        return 1
    group = module.indices[0] if module.indices else 0
    return sum(int(layer / (layers / groups)) == group for layer in range(layers))
