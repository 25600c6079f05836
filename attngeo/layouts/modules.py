"""Attention modules of a model, found by tensor names, and the parts that are left out, with the reason."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from attngeo.errors import CorruptCheckpointError
from attngeo.layouts.families import FAMILIES, TYPES_BY_ARCHITECTURE
from attngeo.layouts.heads import load_defaults
from attngeo.layouts.layout import Family, LatentLayout, Layout, weights_of
from attngeo.layouts.left_out import explain_nothing_found, find_changes, find_left_out
from attngeo.layouts.model_types import TYPES, list_causal_types, list_rotary_types
from attngeo.layouts.names import NUMBER, Fields, Reasons, join, pattern_of
from attngeo.layouts.rules import GGUF, NOT_ATTENTION, RULES
from attngeo.layouts.sections import TowerSection, find_section, first_architecture
from attngeo.layouts.towers import SIZES_OF, describe_named_tower, find_coded_tower


@dataclass(frozen=True)
class Module:
    """An attention module, known by its names only.

    Attributes:
        name: its name in the checkpoint, "" for the model itself.
        layout: how its projections are cut.
        family: its model family.
        section: the configuration of its tower.
        tower: the name of its tower, None in a model of one tower.
        rule: the family or rule that found it, and its names.
        certain: whether the configuration says that this section describes the tower; if not, it is the main
            section, used because no other fits.
        model_type: model type of its tower.
    """

    name: str
    layout: Layout | LatentLayout
    family: Family
    section: Fields
    tower: str | None
    rule: str
    certain: bool = True
    model_type: str = ""

    @property
    def indices(self) -> tuple[int, ...]:
        """The numbers in the name."""
        return tuple(int(segment) for segment in self.name.split(".") if NUMBER.fullmatch(segment))

    @property
    def template(self) -> str:
        """The name with its numbers replaced: the same for every layer of a stack."""
        return pattern_of(self.name)


class Tower(NamedTuple):
    """One tower of a model, or the whole model.

    Attributes:
        name: name of the tower; None in a model of one tower.
        certain: see `Module`.
        section: fields of the configuration that describe it.
        family: its family.
        model_type: its model type.
        tensors: names of the tensors in it.
    """

    name: str | None
    certain: bool
    section: Fields
    family: Family
    model_type: str
    tensors: list[str]


def survey_modules(names: AbstractSet[str], config: Fields) -> tuple[list[Module], Reasons]:
    """Every module with a query and a key projection, found by the layouts of its family or else by the rules.

    Args:
        names: all tensor names.
        config: the content of config.json.

    Returns:
        The modules, and the parts that are left out: name pattern → reason.

    Raises:
        UnsupportedModelError: there is no such module.
        CorruptCheckpointError: a layer lacks one of the two projections.
    """
    modules: dict[str, Module] = {}
    halves: dict[str, Module] = {}
    for tower in _split_towers(names, config):
        matched, incomplete = _match_modules(tower, names)
        modules |= matched
        halves |= incomplete
    reasons = _explain_others(modules, names)
    for name in reasons:
        del modules[name]
    others = {pattern_of(name): reason for name, reason in reasons.items()}
    lacking = _explain_halves(halves, modules)
    tensors: set[str] = set()
    for module in modules.values():
        tensors.update(join(module.name, weight) for weight in weights_of(module.layout))
    left_out = find_left_out(names, tensors, [*modules, *others], lacking)
    if not modules:
        raise explain_nothing_found(names, config, others | left_out)
    return list(modules.values()), {name: str(reason) for name, reason in (left_out | others).items()}


def conditions_hold(when: Fields, section: Fields, family: Family) -> bool:
    """Whether the configuration, with the family's defaults, has these values."""
    return all(section.get(name, family.defaults.get(name)) == value for name, value in when.items())


# Towers


def _split_towers(names: Iterable[str], config: Fields) -> list[Tower]:
    """The towers of a model, with the names of their tensors."""
    config = describe_named_tower(config)
    by_pattern: dict[str, TowerSection] = {}  # the layers of a stack belong to the same tower
    sections: dict[tuple[Any, ...], TowerSection] = {}
    members: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for name in names:
        pattern = pattern_of(name)
        if pattern not in by_pattern:
            by_pattern[pattern] = find_coded_tower(pattern, config) or find_section(pattern, config)
        described = by_pattern[pattern]
        identity = (described.tower, described.section.keys, described.certain)
        sections.setdefault(identity, described)
        members[identity].append(name)
    towers = []
    for identity, described in sections.items():
        fields = described.section.fields
        model_type = _model_type(fields, described.section.key, config)
        family = FAMILIES.get(model_type) or make_unlisted_family(model_type, config)
        family = replace(family, defaults={**load_defaults().get(model_type, {}), **family.defaults})
        sizes_of = fields.get(SIZES_OF)
        if sizes_of:
            family = replace(
                family, notes=(*family.notes, f"number of heads taken from {sizes_of}, not from config.json")
            )
        certain = described.certain and not sizes_of
        tensors = sorted(members[identity])
        towers.append(Tower(described.tower, certain, fields, family, model_type, tensors))
    return towers


def _model_type(section: Fields, key: str, config: Fields) -> str:
    """The section's own model type, or else one made from the whole model's type and the section's name.

    Qwen2-VL and others were published with the whole model's type in the section of the vision tower, too.
    """
    whole_type = config.get("model_type") or TYPES_BY_ARCHITECTURE.get(first_architecture(config), "")
    if not key:
        return str(whole_type or "")
    stated = section.get("model_type")
    composed = f"{whole_type}_{key.removesuffix('_config')}"
    if stated and stated == config.get("model_type") and composed in load_defaults():
        return composed
    if stated:
        return str(stated)
    for name in (composed, f"{composed}_model"):
        if name in FAMILIES:
            return name
    return composed


def make_unlisted_family(model_type: str, config: Fields) -> Family:
    """The Family of a model type that is not in the table: rules read it, and a note says so."""
    family = TYPES.get(model_type, Family(source=""))
    is_causal = (
        bool(config.get("is_decoder"))
        or first_architecture(config).endswith(("CausalLM", "LMHeadModel"))
        or model_type in list_causal_types()
    )
    return replace(
        family,
        layouts=(*family.layouts, *RULES),
        stack="decoder" if is_causal else "encoder",
        rotary=list_rotary_types().get(model_type),
        notes=(f"{model_type or 'model type'} is not a listed family; its tensor names matched a rule",),
    )


# Matching


def _match_modules(tower: Tower, names: Collection[str]) -> tuple[dict[str, Module], dict[str, Module]]:
    """The modules of one tower.

    Modules with a query and a key projection by their name, modules with only one by the name of the missing tensor.
    """
    matched: dict[str, Module] = {}
    halves = {}
    origin = f"family {tower.model_type}" if tower.model_type in FAMILIES else "rule"
    by_ending = _index_endings(tower.tensors)
    layouts = [
        layout
        for layout in tower.family.layouts
        if isinstance(layout, LatentLayout) or conditions_hold(layout.when, tower.section, tower.family)
    ]
    layouts = layouts or list(RULES)
    if tower.section.get("quantization_config") == {"quant_method": "gguf"}:
        layouts += GGUF
    for layout in layouts:
        first, second = weights_of(layout)[-2:]
        rule = f"{origin}: {first} / {second}"
        for weight, partner in ((first, second), (second, first)):
            for name in by_ending[_ending_of(weight)]:
                path = name[: -len(weight)].rstrip(".")
                if path in matched or (name != weight and not name.endswith(f".{weight}")):
                    continue
                module = Module(
                    path, layout, tower.family, tower.section, tower.name, rule, tower.certain, tower.model_type
                )
                missing = join(path, partner)
                if missing in names:
                    matched[path] = module
                else:
                    halves[missing] = module
    return matched, halves


def _index_endings(names: Iterable[str]) -> Mapping[str, list[str]]:
    """The names by their last two segments, and by the last one: mixtures of experts have tens of thousands."""
    index = defaultdict(list)
    for name in names:
        ending = _ending_of(name)
        last = ending.rpartition(".")[2]
        index[ending].append(name)
        if ending != last:
            index[last].append(name)
    return index


def _ending_of(name: str) -> str:
    return ".".join(name.rsplit(".", 2)[-2:])


# What does not attend


def _explain_others(modules: Mapping[str, Module], names: AbstractSet[str]) -> Reasons:
    """The modules that do not attend by q·k: name → reason."""
    reasons: Reasons = {}
    for name in modules:
        for pattern, reason in NOT_ATTENTION:
            if re.search(pattern, name):
                reasons[name] = reason
    unlisted = {name: module for name, module in modules.items() if not module.family.source}
    scales = {join(name, getattr(module.layout, "q_scale", "")) for name, module in unlisted.items()}
    reasons |= find_changes(unlisted, names - scales)
    for name, module in unlisted.items():
        if module.family.other_attention:
            reasons[name] = module.family.other_attention
    return reasons


def _explain_halves(halves: Mapping[str, Module], modules: Mapping[str, Module]) -> Reasons:
    """Modules that a rule found, but whose queries or keys are missing: name pattern → reason.

    halves: missing tensor → its module.

    Raises CorruptCheckpointError for a layer of a listed family if other layers of its stack have both: the checkpoint
    then lacks a tensor.
    """
    complete = {module.template for module in modules.values()}
    reasons: Reasons = {}
    for missing, module in halves.items():
        if module.name in modules:
            continue
        if not (module.family.source and module.certain):
            reasons[module.template] = f"{module.name} has no {missing.removeprefix(module.name).lstrip('.')}"
        elif module.template in complete:
            raise CorruptCheckpointError(f"{missing} is missing from {module.name}; copy or download the model again")
    return reasons
