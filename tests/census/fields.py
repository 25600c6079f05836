"""What a configuration says: its own fields, and which of them its class derives from others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from transformers import PretrainedConfig, ResNetConfig, TimmBackboneConfig


class Field(NamedTuple):
    """One field. `derived`: the class computes the value because no other is given."""

    value: Any
    derived: bool


Fields = Mapping[str, Field]
COMMON = {f.name for f in dataclasses.fields(PretrainedConfig)} - {"is_encoder_decoder"}


def own_fields(config: PretrainedConfig) -> dict[str, Field]:
    """Return the fields that the class of `config` declares, and those that were added to `config` itself."""
    fresh = _fresh_values(type(config))
    declared = {f.name: f for f in dataclasses.fields(config)}
    fields = {
        name: Field(value, derived=False)
        for name, value in vars(config).items()
        if fresh and not name.startswith("_") and name not in {*declared, *config.attribute_map, *fresh}
    }
    for name, field in declared.items():
        stored = _stored_name(config, name)
        if name in COMMON or name.startswith("_") or stored is None:
            continue
        value = vars(config)[stored]
        unset = value is not None and _default_of(field) is None
        fields[name] = Field(value, derived=unset and stored in fresh and _same(fresh[stored], value))
    if vars(config).get("_out_indices") and fresh.get("_out_indices") != config._out_indices:
        fields["out_indices"] = Field(list(config._out_indices), derived=False)
    if getattr(config, "is_heterogeneous", False):
        overrides = vars(config)["_heterogeneity_spec"].per_layer_overrides
        fields["per_layer_config"] = Field(dict(overrides), derived=False)
    return fields


def value_of(fields: Fields, name: str, default: Any = None) -> Any:
    """Return the value of a field, or the default if there is none."""
    return fields[name].value if name in fields else default


def plain_backbone(timm: TimmBackboneConfig) -> PretrainedConfig:
    """Return a ResNet in the place of a backbone that needs the timm library. Neither attends."""
    indices = [i for i in timm.out_indices or [4] if 0 < i <= 4]
    return ResNetConfig(out_indices=indices or [4], num_channels=timm.num_channels or 3)


def _stored_name(config: PretrainedConfig, name: str) -> str | None:
    """Return the name under which a field is stored; None for a property and for another name of a declared field."""
    if name in vars(config):
        return name
    stored = config.attribute_map.get(name, name)
    declared = {f.name for f in dataclasses.fields(config)}
    return stored if stored in vars(config) and stored not in declared else None


@cache
def _fresh_values(config_class: type[PretrainedConfig]) -> dict[str, Any]:
    """Return what the class makes without arguments; nothing if it cannot."""
    try:
        return vars(config_class())
    except Exception:
        return {}


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, PretrainedConfig):
        return isinstance(other, PretrainedConfig)
    return bool(one == other)
