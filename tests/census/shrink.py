"""Make the default configuration of a model type small.

Every part of a composite model (a sub-configuration, or the fields with one prefix such as `decoder_`) gets its own
counts. Widths that are equal by default because they are one width (what a projector takes and a tower gives) stay equal.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import PretrainedConfig, ResNetConfig, TimmBackboneConfig

from census.sizes import EXPERTS, MAIN_WIDTHS, PARTS, SPECIAL_FROM, VOCABULARY, Kind, Part, kind_of

STEP = 24  # every width is a multiple of it
SMALL = 32  # widths up to this one stay


@dataclass(frozen=True)
class Plan:
    """How far to shrink. The builder goes through several plans, boldest first.

    own_widths: each part has its own width; else equal default widths stay equal.
    grouped: fewer key heads than heads. free_head_dim: head_dim is not width / heads. small_images: few patches.
    experts: counts of experts that have no default are set. any_width: widths stay as they are by default.
    """

    own_widths: bool = True
    grouped: bool = True
    free_head_dim: bool = True
    small_images: bool = True
    experts: bool = False
    any_width: bool = False


@dataclass
class Shrinker:
    """Shrinks the configurations of one model. It remembers which part and which width it gave away."""

    plan: Plan
    overrides: Mapping[str, Any] = field(default_factory=dict)
    parts: dict[tuple[str, str], Part] = field(default_factory=dict)
    widths: dict[str, dict[int, int]] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)

    def shrink(self, default: PretrainedConfig, path: str = "") -> PretrainedConfig:
        """Return a small configuration of the class of `default`. `path` names the sub-configuration."""
        if path == "":
            self._register_widths(default, "")
        own = _own_fields(default)
        kept = self._kept_layers(default, own)
        small: dict[str, Any] = {}
        for name, (value, derived) in own.items():
            if isinstance(value, TimmBackboneConfig):
                small[name] = self.shrink(_plain_backbone(value), _join(path, name))
            elif isinstance(value, PretrainedConfig):
                small[name] = self.shrink(value, _join(path, name))
            elif name == "per_layer_config":
                small[name] = self._per_layer(value, kept, path, own)
            elif value is None and name in EXPERTS and self.plan.experts:
                small[name] = EXPERTS[name]
            elif value is None and (given := self._missing(name, path)) is not None:
                small[name] = given
            elif value is None:
                continue  # whatever the class makes of it
            elif not derived or self._must_set(name, value, kept):
                small[name] = self._value(name, value, path, own, kept)
        sections = "mrope_section" in (type(default).ignore_keys_at_rope_validation or ())
        self._fit_rotary(small, own, sections=sections)
        _fit_mamba(small, own)
        for key, value in self.overrides.items():
            prefix, _, name = key.rpartition(".")
            if prefix == path:
                small[name] = value
        small = {name: value for name, value in small.items() if value is not DROP}
        return type(default)(**small)

    # parts

    def _part(self, path: str, prefix: str = "") -> Part:
        key = (path, prefix)
        if key not in self.parts:
            self.parts[key] = PARTS[len(self.parts) % len(PARTS)]
        return self.parts[key]

    def _register_widths(self, config: PretrainedConfig, path: str) -> None:
        own = _own_fields(config)
        main = next((own[n][0] for n in MAIN_WIDTHS if n in own and type(own[n][0]) is int and not own[n][1]), None)
        known = self.widths.setdefault(path, {})
        for name, (value, _) in own.items():
            if (
                kind_of(name)[0] is Kind.WIDTH
                and isinstance(value, list | tuple)
                and value
                and isinstance(value[0], int)
            ):
                known.update(_proportional(value))
        if main is not None and main > SMALL:
            known[main] = STEP if _is_staged(own) else self._part(path).width
        for name, (value, _) in own.items():
            if isinstance(value, PretrainedConfig):
                self._register_widths(value, _join(path, name))

    def _width(self, value: int, path: str, *, invent: bool = True) -> int:
        if value <= SMALL or self.plan.any_width:
            return value
        if self.plan.own_widths:
            places = [path, "", *self.widths]
        else:
            places = ["everywhere"]
            if not self.widths.get("everywhere"):
                everywhere = self.widths["everywhere"] = {}
                for place in list(self.widths):
                    for default, small in self.widths[place].items():
                        everywhere.setdefault(default, small)
        for place in places:
            if value in self.widths.get(place, {}):
                return self.widths[place][value]
        if not invent:
            return self._fraction(value, path)
        known = self.widths.setdefault(places[0], {})
        taken = {small for place in self.widths.values() for small in place.values()}
        known[value] = next(w for w in range(STEP * 2, 10_000, STEP) if w not in taken)
        return known[value]

    def _fraction(self, value: int, path: str) -> int:
        """Return half, a quarter, twice … the small width if `value` is that of a default width of its part."""
        known = [
            item
            for place in dict.fromkeys((path, "everywhere", "", *self.widths))
            for item in self.widths.get(place, {}).items()
        ]
        for default, small in known:
            for up, down in ((1, 2), (1, 4), (2, 1), (4, 1), (3, 1)):
                if default * up == value * down and small * up % down == 0:
                    return small * up // down
        return value

    # layers

    def _kept_layers(self, config: PretrainedConfig, own: Mapping[str, tuple[Any, bool]]) -> list[int] | None:
        """Return the indices of the default layers that stay, or None without per-layer fields.

        Layers of every kind stay: `layer_types` and the like, lists of layer numbers, `per_layer_config`.
        """
        count = _layer_count(config)
        if count is None or count < 2 or _is_staged(own):
            return None
        kinds: list[list[Any]] = [[] for _ in range(count)]
        any_kind = False
        for name, (value, _) in own.items():
            column = _per_layer_column(name, value, count)
            if column is not None and 1 < len(set(map(str, column))) <= 4:
                any_kind = True
                for layer, kind in zip(kinds, column, strict=True):
                    layer.append(str(kind))
        shared = own.get("num_kv_shared_layers", (0,))[0]
        if isinstance(shared, int) and shared:
            any_kind = True
            for index, layer in enumerate(kinds):
                layer.append(str(index >= count - shared))
        if not any_kind and not any(_per_layer_column(n, v, count) is not None for n, (v, _) in own.items()):
            return None
        for name, (value, _) in own.items():
            if _is_layer_list(name, value) and re.fullmatch(ALL_STAY, name):
                any_kind = True
                for index in value:
                    place = index - (name == "out_indices")
                    if 0 <= place < count:
                        kinds[place].append(f"{name} {index}")
        first = {tuple(kind): index for index, kind in reversed(list(enumerate(kinds)))}
        kept = sorted(first.values())
        least = 2
        for index in range(count):
            if len(kept) >= least:
                break
            if index not in kept:
                kept.append(index)
        sources, _ = own.get("kv_source_layers", ([], False))
        return sorted({*kept, *(sources[index] for index in kept if sources)})

    def _must_set(self, name: str, value: Any, kept: list[int] | None) -> bool:
        """Whether a derived field must be given: the kinds of the layers that stay."""
        kind = kind_of(name)[0]
        if (
            kind in (Kind.WIDTH, Kind.LAYERS)
            and isinstance(value, list | tuple)
            and value
            and isinstance(value[0], int)
        ):
            return True
        if kind is Kind.KEY_HEADS and isinstance(value, int):
            return self.plan.grouped
        if name == "head_dim" and isinstance(value, int):
            return self.plan.free_head_dim
        if (
            name in ("image_size", "backbone_feature_sizes")
            or (kept is not None and _is_layer_list(name, value))
            or name.endswith("_blocks")
        ):
            return True
        return kept is not None and isinstance(value, list) and len(value) > 1 and isinstance(value[0], str | bool)

    def _missing(self, name: str, path: str) -> int | None:
        """Return the value of a field that has no default but is better set: a head size, or a count of key heads."""
        part = self._part(path)
        if name == "head_dim" and self.plan.free_head_dim:
            return part.head_dim
        if name == "num_key_value_heads" and self.plan.grouped:
            return part.key_heads
        return None

    def _per_layer(self, value: Any, kept: list[int] | None, path: str, own: Mapping[str, Any]) -> Any:
        given = {int(index): fields for index, fields in value.items()}
        result = {}
        for new, old in enumerate(kept or []):
            if old in given:
                fields = {name: self._value(name, v, path, own, kept) for name, v in given[old].items()}
                if "head_dim" in fields and "qk_nope_head_dim" in own:
                    fields["head_dim"] = sum(kind_of(f"qk_{half}_head_dim")[1] for half in ("nope", "rope"))
                elif "head_dim" in fields:
                    fields["head_dim"] += 16
                for heads in ("num_attention_heads", "num_key_value_heads"):
                    if "num_attention_heads" in fields and heads in fields:
                        fields[heads] *= 2
                result[new] = fields
        return result

    # values

    def _value(self, name: str, value: Any, path: str, own: Mapping[str, Any], kept: list[int] | None) -> Any:  # noqa: C901
        kind, bound = kind_of(name)
        if name == "num_kv_shared_layers" and value and kept is not None:
            return sum(index >= (_default_count(own) or 0) - value for index in kept)
        count = len(kept) if kept else None
        if isinstance(value, bool) or value is None:
            return value
        if name == "kv_source_layers" and kept is not None and value:
            return [kept.index(value[index]) for index in kept]
        if isinstance(value, list | tuple) and kept is not None and len(value) > max(kept):
            old = _default_count(own)
            if old is not None and len(value) == old:
                return [
                    self._value(name, value[i], path, own, None) if kind is not Kind.LAYERS else value[i] for i in kept
                ]
        if kept is not None and _is_layer_list(name, value):
            if name == "out_indices":
                return [kept.index(layer - 1) + 1 for layer in value if layer - 1 in kept]
            return _renumber(value, kept)
        if _is_staged(own) and re.fullmatch(r".*_blocks", name) and _is_layer_list(name, value):
            depths = next((v for n, (v, _) in own.items() if kind_of(n)[0] is Kind.LAYERS and isinstance(v, list)), [1])
            return [sum(min(depth, 2) for depth in depths) - 1]
        if name == "backbone_feature_sizes":
            return [[16 * side // max(value[0]) for side in sides] for sides in value]
        if isinstance(value, list | tuple):
            if kind is Kind.WIDTH and value and all(isinstance(v, int) for v in value):
                return [self._width(v, path) for v in value]
            if kind is Kind.LAYERS and all(isinstance(v, int) for v in value):
                return [min(v, 2) for v in value]
            if kind is Kind.TOKEN and all(isinstance(v, int) for v in value):
                return [self._token(v) for v in value]
            if name == "image_size" or name.endswith("_image_size"):
                return type(value)(self._image(v, own) for v in value)
            return value
        if isinstance(value, dict):
            return self._dict(name, value)
        if isinstance(value, float):
            return min(value, float(bound)) if kind is Kind.CAP else value
        if not isinstance(value, int):
            return value
        match kind:
            case Kind.WIDTH:
                return self._width(value, path)
            case Kind.RATIO:
                if name == "image_size" or name.endswith("_image_size") or name == "img_size":
                    return self._image(value, own)
                if name == "patch_size":
                    return self._patch(value)
                return self._width(value, path, invent=False)
            case Kind.HEADS:
                return value if value == 1 else self._heads(name, path)
            case Kind.KEY_HEADS:
                if value == 1:
                    return 1
                part = self._part(path, _prefix(name))
                if "qk_rope_head_dim" in own:  # latent attention has one latent and as many keys as queries
                    return self._heads(name, path)
                return part.key_heads if self.plan.grouped else self._heads(name, path)
            case Kind.HEAD_DIM:
                if name == "head_dim" and "qk_rope_head_dim" in own:
                    return kind_of("qk_rope_head_dim")[1]
                part = self._part(path, "")
                return part.head_dim if self.plan.free_head_dim else part.width // part.heads
            case Kind.LAYERS:
                if count is not None and _prefix(name) == "":
                    return count
                if _is_staged(own):
                    return value
                part = self._part(path, _prefix(name))
                return min(value, part.layers)
            case Kind.TOKEN:
                return self._token(value)
            case Kind.CAP | Kind.PERIOD:
                if name == "window_size" and value > 32:  # in pixels
                    return 16
                return min(value, bound)
        return value

    def _heads(self, name: str, path: str) -> int:
        part = self._part(path, _prefix(name))
        width = self._part(path).width
        if self.plan.own_widths and width % part.heads:
            return next(h for h in (8, 6, 3, 2) if width % h == 0 and h != self._part(path).heads)
        return part.heads

    def _token(self, value: int) -> int:
        if value < TOKEN_LIMIT:
            return value
        return self.tokens.setdefault(value, SPECIAL_FROM + len(self.tokens))

    def _patch(self, value: int) -> int:
        return min(value, 4) if self.plan.small_images else value

    def _image(self, value: int, own: Mapping[str, Any]) -> int:
        patch = own.get("patch_size", (None,))[0]
        if not self.plan.small_images:
            return value
        if isinstance(patch, int) and patch > 1:
            return min(value, (16 if _is_staged(own) else 4) * self._patch(patch))
        return min(value, 64)

    def _dict(self, name: str, value: dict[str, Any]) -> dict[str, Any]:
        return dict(value)

    def _fit_rotary(self, small: dict[str, Any], own: Mapping[str, Any], *, sections: bool) -> None:
        """Rescale the sections of a rotary embedding to the new head size, or set them if the class knows them."""
        head_dim = small.get("head_dim")
        if head_dim is None:
            heads = next((small[n] for n in ("num_attention_heads", "num_heads", "n_heads") if n in small), None)
            width = next((small[n] for n in MAIN_WIDTHS if n in small), None)
            if not isinstance(heads, int) or not isinstance(width, int):
                return
            head_dim = width // heads
        if "rope_parameters" in own and isinstance(own["rope_parameters"][0], dict):
            rope = _rescale(own["rope_parameters"][0], head_dim)
            if sections and "mrope_section" not in rope and "rope_type" in rope:
                third, rest = divmod(int(head_dim * (rope.get("partial_rotary_factor") or 1.0)) // 2, 3)
                rope["mrope_section"] = [third, third, third + rest]
            small["rope_parameters"] = rope


DROP = object()
TOKEN_LIMIT = 10


def _fit_mamba(small: dict[str, Any], own: Mapping[str, Any]) -> None:
    """Give a state space layer as many heads as its inner width needs, if they are the same by default."""
    for heads, size, expand in MAMBA:
        if heads in small and size in small and (heads != "num_heads" or "state_size" in small):
            inner = int(small.get(expand, own.get(expand, (2,))[0]) * small["hidden_size"])
            small[size] = 16
            small[heads] = inner // 16
            if "mamba_d_ssm" in small:
                small["mamba_d_ssm"] = inner


MAMBA = (
    ("mamba_n_heads", "mamba_d_head", "mamba_expand"),
    ("mamba_num_heads", "mamba_head_dim", "expand"),
    ("num_heads", "head_dim", "expand"),
    ("n_mamba_heads", "mamba_headdim", "mamba_expand"),
)


def _rescale(rope: dict[str, Any], head_dim: int) -> dict[str, Any]:
    result = {key: _rescale(v, head_dim) if isinstance(v, dict) else v for key, v in rope.items()}
    rotated = int(head_dim * (rope.get("partial_rotary_factor") or 1.0)) // 2
    for key in ("mrope_section", "xdrope_section"):
        if sections := rope.get(key):
            total = sum(sections)
            new = [max(1, int(s * rotated / total)) for s in sections]
            new[0] += rotated - sum(new)
            result[key] = new
    for key in ("short_factor", "long_factor"):
        if factors := rope.get(key):
            result[key] = list(factors)[:rotated] + [1.0] * (rotated - len(factors))
    if "original_max_position_embeddings" in rope and rope["original_max_position_embeddings"]:
        result["original_max_position_embeddings"] = 32
    return result


def _own_fields(config: PretrainedConfig) -> dict[str, tuple[Any, bool]]:
    """Name → (value, whether the class derives it from other fields) of the fields that the class itself declares."""
    common = {f.name for f in dataclasses.fields(PretrainedConfig)} - {"is_encoder_decoder"}
    fields: dict[str, tuple[Any, bool]] = {}
    fresh = _fresh(type(config))
    declared_names = {f.name for f in dataclasses.fields(config)} | set(config.attribute_map)
    if fresh is not None:
        for name, value in vars(config).items():
            if not name.startswith("_") and name not in declared_names and name not in vars(fresh):
                fields[name] = (value, False)
    for f in dataclasses.fields(config):
        if f.name in common or f.name.startswith("_"):
            continue
        stored = f.name
        if stored not in config.__dict__:
            stored = config.attribute_map.get(stored, stored)
            if stored not in config.__dict__ or stored in type(config).__dataclass_fields__:
                continue  # another name of a field that has its turn, or a property
        value = config.__dict__[stored]
        declared = f.default
        if declared is dataclasses.MISSING:
            declared = None if f.default_factory is dataclasses.MISSING else f.default_factory()
        as_fresh = fresh is not None and _same(fresh.__dict__.get(stored), value)
        fields[f.name] = (value, declared is None and value is not None and as_fresh)
    if vars(config).get("_out_indices") and (fresh is None or fresh._out_indices != config._out_indices):
        fields["out_indices"] = (list(config._out_indices), False)
    if getattr(config, "is_heterogeneous", False):
        overrides = config.__dict__["_heterogeneity_spec"].per_layer_overrides
        fields["per_layer_config"] = (dict(overrides), False)
    return fields


def _plain_backbone(timm: TimmBackboneConfig) -> PretrainedConfig:
    """Return a ResNet in the place of a backbone that needs the timm library. Neither attends."""
    indices = [i for i in timm.out_indices or [4] if 0 < i <= 4]
    return ResNetConfig(out_indices=indices or [4], num_channels=timm.num_channels or 3)


def _fresh(config_class: type[PretrainedConfig]) -> PretrainedConfig | None:
    try:
        return config_class()
    except Exception:
        return None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, PretrainedConfig):
        return isinstance(other, PretrainedConfig)
    return bool(one == other)


def _layer_count(config: PretrainedConfig) -> int | None:
    count = getattr(config, "num_hidden_layers", None)
    return count if isinstance(count, int) else None


def _default_count(own: Mapping[str, Any]) -> int | None:
    for name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth"):
        if isinstance(own.get(name, (None,))[0], int):
            return int(own[name][0])
    return None


ALL_STAY = r"out_indices|.*feature_layers?|deepstack.*|.*hidden_state_indices|intermediate_layers_indices|.*_out_indices|.*target_layer_ids"


def _is_staged(own: Mapping[str, Any]) -> bool:
    """Whether the layers are stages, each with its own width, depth or count of heads."""
    return any(
        re.fullmatch(STAGES, name)
        and isinstance(value, list | tuple)
        and 1 < len(value) <= 6
        and all(type(v) is int for v in value)
        for name, (value, _) in own.items()
    )


STAGES = (
    r"(encoder_|decoder_)?(depths?|hidden_sizes|num_heads|num_attention_heads|embed_dims?|layers|num_blocks|blocks_per_stage)"
    r"|embed_dim_per_stage|num_attention_heads_per_stage|stage_\w+"
)


def _is_layer_list(name: str, value: Any) -> bool:
    """Whether a field lists layer numbers."""
    named = re.fullmatch(
        r".*(index(es)?|indices|_idxs?|_layers|layer_ids?|layers_ids|blocks?|vision_feature_layer)", name
    )
    return bool(named) and isinstance(value, list) and bool(value) and all(type(v) is int for v in value)


def _per_layer_column(name: str, value: Any, count: int) -> list[Any] | None:
    """Return what a field says of each of `count` layers, or None if it does not."""
    if name == "per_layer_config":
        return [str(value.get(index, "")) for index in range(count)]
    if name == "kv_source_layers" and isinstance(value, list) and len(value) == count:
        return [source == index for index, source in enumerate(value)]
    if isinstance(value, list) and len(value) == count and not (value and isinstance(value[0], list | dict)):
        return list(value)
    if _is_layer_list(name, value) and max(value) <= count and len(value) < count:
        return [index in value for index in range(count)]
    return None


def _renumber(layers: list[int], kept: list[int]) -> list[int]:
    new = [kept.index(layer) for layer in layers if layer in kept]
    return new or [len(kept) - 1]


def _proportional(widths: list[int]) -> dict[int, int]:
    """Small widths in about the same ratios: multiples of STEP, the smallest of them STEP."""
    least = min(widths)
    if least <= 0:
        return {}
    return {width: STEP * round(width / least) for width in widths if width > SMALL or least > 8}


def _prefix(name: str) -> str:
    """Return the prefix that names a part within one configuration: `decoder_` of decoder_attention_heads."""
    match = re.match(
        r"(encoder|decoder|num_encoder|num_decoder|mit|prompt|pred|memory_attention|t2u_\w+?|speech_encoder|text_encoder)_",
        name,
    )
    if name.startswith("num_decoder") or name.startswith("decoder"):
        return "decoder"
    if name.startswith("num_encoder") or name.startswith("encoder"):
        return ""
    return match.group(1) if match else ""


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


assert SPECIAL_FROM < VOCABULARY
