"""From tensor names and the configuration to the attention modules of a model, and what is left out, and why.

Users are told about every part that may be attention and is not read.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsupportedModelError
from attngeo.layouts.config import (
    MOST_LAYERS,
    NUMBER,
    SIZES_OF,
    Place,
    describe_named_tower,
    find_coded_tower,
    find_section,
    first_architecture,
    fitting_fields,
    is_in,
    join,
    load_defaults,
    pattern_of,
)
from attngeo.layouts.families import (
    CAUSAL_REMOTE,
    CHANGED_BY,
    CROSS_INPUT_NORMS,
    FAMILIES,
    GGUF,
    LAYOUTS,
    NORMS_BY_TYPE,
    NOT_ATTENTION,
    OTHER_ATTENTION,
    OTHER_ROTATIONS,
    ROTARY_PUBLISHED,
    RULES,
    TYPES_BY_ARCHITECTURE,
)
from attngeo.layouts.layout import Family, LatentLayout, Layout, Rotary


@dataclass(frozen=True)
class Module:
    """An attention module, known by its names only.

    name: its name in the checkpoint, "" for the model itself. section: the configuration of its part of the model.
    tower: the name of that part, None for a model of one part. rule: the family or rule that found it, and its names.
    certain: whether the configuration says that this section describes the part; otherwise it is the main section of a
    model whose other sections do not fit.
    """

    name: str
    layout: Layout | LatentLayout
    family: Family
    section: Mapping[str, Any]
    tower: str | None
    rule: str
    certain: bool = True

    @property
    def indices(self) -> tuple[int, ...]:
        """The numbers in the name."""
        return tuple(int(part) for part in self.name.split(".") if NUMBER.fullmatch(part))

    @property
    def template(self) -> str:
        """The name with its numbers replaced: the same for every layer of a stack."""
        return pattern_of(self.name)


class Tower(NamedTuple):
    """One tower of a model, or the whole model. names: its tensor names; for the other fields see `Module`."""

    tower: str | None
    certain: bool
    section: Mapping[str, Any]
    family: Family
    model_type: str
    names: list[str]


# A module that lacks its queries or its keys, and the name of the tensor.
Half = tuple[Module, str]


def survey_modules(names: Collection[str], config: Mapping[str, Any], ref: str) -> tuple[list[Module], dict[str, str]]:
    """Every module that has a query and a key projection, by the layouts of its family or else by the rules.

    Also returns what is left out, name pattern → reason.

    ref: the model's name, for errors. Raises UnsupportedModelError if there is no such module, CorruptCheckpointError
    if a layer lacks one of the two projections.
    """
    attending: dict[str, Module] = {}
    halves: list[Half] = []
    for part in _split_parts(names, config):
        modules, other = _match(part, names)
        attending |= modules
        halves += other
    others = _leave_out_others(attending, names)
    lacking = _find_halves(halves, attending, ref)
    tensors = {join(module.name, weight) for module in attending.values() for weight in _weights(module.layout)}
    left_out = find_left_out(names, tensors, [*attending, *others], lacking)
    if not attending:
        raise explain_nothing_found(names, config, others | left_out, ref)
    return list(attending.values()), left_out | others


def _match(part: Tower, names: Collection[str]) -> tuple[dict[str, Module], list[Half]]:
    """The modules of one part by name: those with a query and a key projection, and those with one of the two."""
    matched: dict[str, Module] = {}
    halves = []
    family, section = part.family, part.section
    layouts = [
        layout
        for layout in family.layouts
        if isinstance(layout, LatentLayout) or conditions_hold(layout.when, section, family)
    ] or RULES
    rule = f"family {part.model_type}" if part.model_type in FAMILIES else "rule"
    by_ending = _index_endings(part.names)
    for layout in (*layouts, *(GGUF if section.get("quantization_config") == {"quant_method": "gguf"} else ())):
        pair = _weights(layout)[-2:]
        how = f"{rule}: {pair[0]} / {pair[1]}"
        for weight, partner in (pair, pair[::-1]):
            for name in by_ending[_ending_of(weight)]:
                path = name[: -len(weight)].rstrip(".")
                if path in matched or (name != weight and not name.endswith(f".{weight}")):
                    continue
                module = Module(path, layout, family, section, part.tower, how, part.certain)
                if join(path, partner) in names:
                    matched[path] = module
                else:
                    halves.append((module, join(path, partner)))
    return matched, halves


def _index_endings(names: Iterable[str]) -> Mapping[str, list[str]]:
    """The names by their last two segments, and by the last one: mixtures of experts have tens of thousands."""
    index = defaultdict(list)
    for name in names:
        ending = _ending_of(name)
        index[ending].append(name)
        if ending != (last := ending.rpartition(".")[2]):
            index[last].append(name)
    return index


def _ending_of(name: str) -> str:
    return ".".join(name.rsplit(".", 2)[-2:])


def _leave_out_others(modules: dict[str, Module], names: Iterable[str]) -> dict[str, str]:
    """Remove from `modules` what does not attend by q·k. Returns that as name pattern → reason."""
    unlisted = {name for name, module in modules.items() if not module.family.source}
    skipped = {name: why for name in modules for pattern, why in NOT_ATTENTION if re.search(pattern, name)}
    for tensor in names if unlisted else ():
        for dot in re.finditer(r"\.", tensor):
            name, inner = tensor[: dot.start()], tensor[dot.end() :]
            if name in unlisted and inner != getattr(modules[name].layout, "q_scale", ""):
                skipped.update((name, why) for pattern, why in CHANGED_BY if re.search(pattern, inner))
    skipped |= {
        name: why for name in unlisted if (why := OTHER_ATTENTION.get(str(modules[name].section.get("model_type"))))
    }
    for name in skipped:
        del modules[name]
    return {pattern_of(name): reason for name, reason in skipped.items()}


def _find_halves(halves: Iterable[Half], modules: Mapping[str, Module], ref: str) -> dict[str, str]:
    """The modules that a rule found and that lack their queries or their keys: name pattern → reason.

    Raises CorruptCheckpointError for a layer of a listed family, if other layers of its stack have both: then a tensor
    is missing from the checkpoint.
    """
    complete = {module.template for module in modules.values()}
    skipped = {}
    for module, missing in halves:
        if module.name not in modules:
            if module.family.source and module.certain:
                if module.template not in complete:
                    continue
                raise CorruptCheckpointError(f"{ref}: {missing} is missing from {module.name}; download it again")
            skipped[module.template] = f"{module.name} has no {missing.removeprefix(module.name).lstrip('.')}"
    return skipped


def _split_parts(names: Iterable[str], config: Mapping[str, Any]) -> list[Tower]:
    """Split the model into its towers."""
    config = describe_named_tower(config)
    places: dict[str, Place] = {}  # the layers of a stack belong to the same part
    members: dict[tuple[str | None, tuple[str, ...], bool], list[str]] = defaultdict(list)
    for name in names:
        pattern = pattern_of(name)
        if pattern not in places:
            places[pattern] = find_coded_tower(pattern, config) or find_section(pattern, config)
        members[places[pattern].identity].append(name)
    parts = []
    for place in {place.identity: place for place in places.values()}.values():
        section = place.section
        model_type = _model_type(section.fields, section.key, config)
        family = FAMILIES.get(model_type) or _unlisted_family(model_type, config)
        family = replace(family, defaults={**load_defaults().get(model_type, {}), **family.defaults})
        if known := section.fields.get(SIZES_OF):
            family = replace(family, notes=(*family.notes, f"its heads are those of {known}, not from config.json"))
        tensors = sorted(members[place.identity])
        certain = place.certain and not known
        parts.append(Tower(place.part, certain, section.fields, family, model_type, tensors))
    return parts


def _model_type(section: Mapping[str, Any], key: str, config: Mapping[str, Any]) -> str:
    """The section's own model type, or else one made from the whole model's type and the section's name.

    Qwen2-VL and others were published with the whole model's type in the section of the vision tower, too.
    """
    whole = config.get("model_type") or TYPES_BY_ARCHITECTURE.get(first_architecture(config), "")
    stated = section.get("model_type") if key else whole
    composed = f"{whole}_{key.removesuffix('_config')}"
    if key and stated and stated == config.get("model_type") and composed in load_defaults():
        return composed
    if stated or not key:
        return str(stated or "")
    return next((name for name in (composed, f"{composed}_model") if name in FAMILIES), composed)


def _unlisted_family(model_type: str, config: Mapping[str, Any]) -> Family:
    """A Family for a model type that is not in the table: it is read by the rules, and a note says so."""
    causal = bool(config.get("is_decoder")) or first_architecture(config).endswith(("CausalLM", "LMHeadModel"))
    causal = causal or model_type in list_causal_types()
    return Family(
        source="",
        layouts=(*LAYOUTS.get(model_type, ()), *RULES),
        stack="decoder" if causal else "encoder",
        cross_norm=CROSS_INPUT_NORMS.get(model_type, ()),
        rotary=list_rotary_types().get(model_type),
        head_norm=NORMS_BY_TYPE.get(model_type),
        notes=(f"{model_type or 'model type'} is not a listed family; its tensor names matched a rule",),
    )


@cache
def list_causal_types() -> frozenset[str]:
    """The model types whose self-attention is causal: each token attends to earlier ones only."""
    return frozenset(row["model_type"] for row in _read_census() if row["causal"]) | set(CAUSAL_REMOTE)


@cache
def list_rotary_types() -> dict[str, Rotary]:
    """Model type → how it rotates queries and keys, for types that do."""
    found = {row["model_type"]: row["rotary"].split() for row in _read_census() if row["rotary"]}
    return ROTARY_PUBLISHED | {
        name: Rotary(
            interleaved="neighbours" in words, tail="tail" in words, sliding="sliding" in words,
            reversed="reversed" in words, axes="axes" in words, other=OTHER_ROTATIONS.get(words[0], ""),
        )
        for name, words in found.items()
    }  # fmt: skip


def _read_census() -> Iterator[dict[str, str]]:
    return csv.DictReader((files(__package__) / "census.csv").read_text("utf-8").splitlines())


def conditions_hold(when: Mapping[str, Any], section: Mapping[str, Any], family: Family) -> bool:
    """Whether the configuration, with the family's defaults, has these values."""
    return all(section.get(name, family.defaults.get(name)) == value for name, value in when.items())


def _weights(layout: Layout | LatentLayout) -> tuple[str, ...]:
    if isinstance(layout, Layout):
        return layout.holder("q").name, layout.holder("k").name
    return layout.q, layout.q_a, layout.q_b, layout.kv_a, layout.kv_b


UNKNOWN = "no layout knows its form"
# Names of projections that hold queries, in a form that no layout reads.
UNREAD = re.compile(r"(^|\.)(\w*(qkv|kqv|query|queries)\w*|(\w+_)?(q|wq|qcontent|qpos)(_\w+)?)(\.linear)?\.\w+$")
# An adapter of low rank, added to the weights of queries, or in InternLM-XComposer2 to those of image tokens.
ADAPTER = re.compile(r"(^|[._])q_adapter\w*\.|qkv\.Plora_A\.")
# The innermost module that is called attention, in the name of a tensor.
ATTENTION = re.compile(r"(.*(?:^|\.)\w*att(?:n|ention)\w*)\.")
NORM = re.compile(r"norm|(^|[._])ln[._]")


def find_left_out(
    names: Collection[str], tensors: Collection[str], modules: Collection[str], halves: Mapping[str, str]
) -> dict[str, str]:
    """What may be attention and is not read: name pattern → reason.

    tensors: those that are read. modules: those that are read, and those whose reason is known. halves: the
    reasons for modules that have queries or keys only.
    """
    unread = _find_unread(names, tensors, modules)
    reasons = dict.fromkeys(unread, UNKNOWN) | _find_changed(unread, names) | dict(halves)
    return dict(_name_others(*item) for item in reasons.items())


def _find_unread(names: Iterable[str], tensors: Collection[str], listed: Collection[str]) -> list[str]:
    """Name patterns of what may be attention and that no layout reads.

    They are query projections of repeated layers, and modules called attention with two weights or more.
    """
    queries, weights = set(), defaultdict(set)
    for name in names:
        if name in tensors or not name.endswith(".weight") or NORM.search(name):
            continue
        if UNREAD.search(name) and (NUMBER.search(name) or "att" in name.lower()):
            queries.add(pattern_of(name))
        if at := ATTENTION.match(name):
            weights[at[1]].add(name)
    inside = {".".join(name.split(".")[:depth]) for name in listed for depth in range(len(name.split(".")) + 1)}
    modules = {pattern_of(module) for module, parts in weights.items() if len(parts) > 1 and module not in inside}
    others = {pattern_of(name) for name in listed}
    modules = {module for module in modules if not any(is_in(module, other) for other in others)}
    queries |= {pattern_of(name) for name in names if ADAPTER.search(name)}
    return sorted(queries | {module for module in modules if not any(is_in(name, module) for name in queries)})


def _find_changed(unread: Collection[str], names: Iterable[str]) -> dict[str, str]:
    """Those of the name patterns of unread weights whose queries or keys are changed before they meet, with how."""
    changed: dict[str, str] = {}
    for name in {pattern_of(name) for name in names} if unread else ():
        for dot in re.finditer(r"\.", name):
            module, inner = name[: dot.start()], name[dot.end() :]
            if why := next((why for pattern, why in CHANGED_BY if re.search(pattern, inner)), None):
                changed |= {pattern: why for pattern in unread if is_in(pattern, module)}
    return changed


def _name_others(pattern: str, reason: str) -> tuple[str, str]:
    """The module and the reason if the weight is in one that does not attend; otherwise what was given."""
    parts = pattern.split(".")
    for module in (".".join(parts[: depth + 1]) for depth in range(len(parts))):
        for known, why in NOT_ATTENTION:
            if re.search(known, module):
                return module, why
    return pattern, reason


def explain_nothing_found(
    names: Collection[str], config: Mapping[str, Any], left_out: Mapping[str, str], ref: str
) -> AttnGeoError:
    """The error for a model without any attention module that a layout reads. left_out: name pattern → reason."""
    model_type = config.get("model_type") or "unknown"
    understood = {pattern: why for pattern, why in left_out.items() if why != UNKNOWN}
    # Parts of attention modules come last.
    unread = sorted(left_out.keys() - understood.keys(), key=lambda name: (name.count("."), name))
    if understood:
        no_attention = {why for _, why in NOT_ATTENTION}
        pattern, reason = min(
            understood.items(), key=lambda item: (item[1] in no_attention, item[0].count("."), item[0])
        )
        return UnsupportedModelError(f"{ref}: no attention that can be scored: {pattern}: {reason}")
    if unread and not config.get("model_type"):
        return UnsupportedModelError(
            f"{ref}: {unread[0]} seems to hold queries, but config.json has no model_type and no number of heads"
        )
    if unread:
        return UnsupportedModelError(
            f"{ref}: family {model_type!r:.60} is not supported: no layout knows the form of {unread[0]}, which seems "
            "to hold queries; declare it in attngeo/layouts/families.py"
        )
    if model_type == "attngeo_efa":  # its models of attention have names that a rule reads
        return UnsupportedModelError(
            f"{ref}: a factor model has no attention; fit a model of attention with attngeo efa fit --model efa"
        )
    pairs = [(rule.q, rule.kv_a) if isinstance(rule, LatentLayout) else _weights(rule) for rule in RULES]
    looked_for = ", ".join("/".join(name.removesuffix(".weight") for name in pair) for pair in pairs)
    hints = sorted({pattern_of(name) for name in names if re.search(r"att", name, re.IGNORECASE)})
    seen = "names with 'att' found: " + ", ".join(hints[:6]) if hints else "no tensor is named after attention"
    return UnsupportedModelError(
        f"{ref}: no query-key attention in this {model_type!r:.60} model: looked for {looked_for}; {seen}"
    )


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
    number = NUMBER.search(name)
    return (name[: number.start()].rstrip("."), int(number[0])) if number else (None, 0)


def _count_stated(module: Module) -> int:
    """The number of layers that the configuration states for the stack of a module; 0 if it states none."""
    section = module.section
    if not module.certain or module.family.shared is not None:
        return 0
    words = re.split(r"[._]", module.name.lower())
    value = next((section[name] for name in fitting_fields(LAYERS, section, words)), None)
    stated = value if type(value) is int and 0 < value <= MOST_LAYERS else 0
    return stated - UNCOUNTED.get(str(section.get("model_type")), 0)
