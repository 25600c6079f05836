"""Make the default configuration of a model type small.

Every part of a composite model (a sub-configuration, or the fields with one prefix such as `decoder_`) gets its own
counts. Widths that are equal by default because they are one width (what a projector takes and a tower gives) stay
equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import PretrainedConfig, TimmBackboneConfig

from census.fields import Fields, own_fields, plain_backbone, value_of
from census.fitting import fit_rotary, fit_state_spaces
from census.layers import default_count, is_layer_list, is_staged, kept_layers, renumber
from census.sizes import EXPERTS, MAIN_WIDTHS, PARTS, SPECIAL_FROM, Kind, Part, kind_of

STEP = 24  # every width is a multiple of it
SMALL = 32  # widths up to this one stay
EVERYWHERE = "everywhere"
PREFIXES = r"(mit|prompt|pred|memory_attention|t2u_\w+?|speech_encoder|text_encoder)_"


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


@dataclass(frozen=True)
class SitePlace:
    """Where a field stands: the path of its configuration, all fields there, and the layers that stay."""

    path: str
    own: Fields
    kept: list[int] | None


@dataclass
class Shrinker:
    """Shrinks the configurations of one model. It remembers which part and which width it gave away."""

    plan: Plan
    overrides: Mapping[str, Any] = field(default_factory=dict)
    parts: dict[tuple[str, str], Part] = field(default_factory=dict)
    widths: dict[str, dict[int, int]] = field(default_factory=dict)
    main_widths: dict[str, int] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)

    def shrink(self, default: PretrainedConfig, path: str = "") -> PretrainedConfig:
        """Return a small configuration of the class of `default`. `path` names the sub-configuration."""
        if path == "":
            self._register_widths(default, "")
        own = own_fields(default)
        place = SitePlace(path, own, kept_layers(default, own))
        small = {name: new for name in own if (new := self._field(name, place)) is not None}
        fit_rotary(small, own, sections="mrope_section" in (type(default).ignore_keys_at_rope_validation or ()))
        fit_state_spaces(small, own)
        for key, value in self.overrides.items():
            prefix, _, name = key.rpartition(".")
            if prefix == path:
                small[name] = value
        return type(default)(**small)

    def _field(self, name: str, place: SitePlace) -> Any:
        """Return the new value of a field, or None to leave it to the class."""
        value, derived = place.own[name]
        if isinstance(value, TimmBackboneConfig):
            value = plain_backbone(value)
        if isinstance(value, PretrainedConfig):
            return self.shrink(value, f"{place.path}.{name}".lstrip("."))
        if name == "per_layer_config":
            return self._per_layer(value, place)
        if value is None:
            return self._missing(name, place.path)
        return self._value(name, value, place) if not derived or self._must_set(name, value, place) else None

    def _missing(self, name: str, path: str) -> int | None:
        """Return the value of a field that has no default but is better set."""
        if name == "head_dim" and self.plan.free_head_dim:
            return self._part(path).head_dim
        if name == "num_key_value_heads" and self.plan.grouped:
            return self._part(path).key_heads
        return EXPERTS.get(name) if self.plan.experts else None

    def _must_set(self, name: str, value: Any, place: SitePlace) -> bool:
        """Whether a derived field must be given, because the class derives it from the default sizes."""
        kind = kind_of(name)[0]
        if isinstance(value, list | tuple):
            of_layers = place.kept is not None and len(value) > 1 and isinstance(value[0], str | bool)
            of_stages = kind in (Kind.WIDTH, Kind.LAYERS) and bool(value) and isinstance(value[0], int)
            numbers = place.kept is not None and is_layer_list(name, list(value))
            named = name in ("image_size", "backbone_feature_sizes") or name.endswith("_blocks")
            return of_layers or of_stages or numbers or named
        if kind is Kind.KEY_HEADS:
            return self.plan.grouped
        return name == "image_size" or (name == "head_dim" and self.plan.free_head_dim)

    # parts and widths

    def _part(self, path: str, prefix: str = "") -> Part:
        key = (path, prefix)
        if key not in self.parts:
            self.parts[key] = PARTS[len(self.parts) % len(PARTS)]
        return self.parts[key]

    def _register_widths(self, config: PretrainedConfig, path: str) -> None:
        """Choose the main width of every part, and the widths of stages, before anything refers to them."""
        own = own_fields(config)
        known = self.widths.setdefault(path, {})
        for name, (value, _) in own.items():
            if kind_of(name)[0] is Kind.WIDTH and isinstance(value, list | tuple) and _is_numbers(value):
                known.update(_proportional(value))
        main = next((own[n].value for n in MAIN_WIDTHS if n in own and not own[n].derived), None)
        if type(main) is int and main > SMALL:
            known[main] = STEP if is_staged(own) else self._part(path).width
            self.main_widths[path] = main
        for name, (value, _) in own.items():
            if isinstance(value, PretrainedConfig):
                self._register_widths(value, f"{path}.{name}".lstrip("."))

    def _places(self, path: str) -> list[str]:
        """Return where to look for a width that is known already, nearest first."""
        if self.plan.own_widths:
            return list(dict.fromkeys([path, "", *self.widths]))
        if EVERYWHERE not in self.widths:
            merged: dict[int, int] = {}
            for known in self.widths.values():
                merged = {**known, **merged}
            self.widths[EVERYWHERE] = merged
        return [EVERYWHERE]

    def _width(self, value: int, path: str, *, invent: bool = True) -> int:
        """Return the small width for a default one; a new one if `invent`, else a fraction of a known one."""
        if value <= SMALL or self.plan.any_width:
            return value
        places = self._places(path)
        known = {default: small for place in reversed(places) for default, small in self.widths.get(place, {}).items()}
        if value in known:
            return known[value]
        if not invent:
            return _fraction(value, known)
        taken = {small for own in self.widths.values() for small in own.values()}
        new = next(width for width in range(STEP * 2, 10_000, STEP) if width not in taken)
        self.widths.setdefault(places[0], {})[value] = new
        return new

    def _heads(self, name: str, path: str) -> int:
        heads = self._part(path, _prefix(name)).heads
        width = self._width(self.main_widths[path], path) if path in self.main_widths else 0
        if width % heads == 0:
            return heads
        taken = {self._part(path).heads} if _prefix(name) else set()
        return next(count for count in (8, 6, 4, 3, 2, 1) if width % count == 0 and count not in taken)

    # values

    def _value(self, name: str, value: Any, place: SitePlace) -> Any:
        if isinstance(value, bool):
            return value
        if isinstance(value, list | tuple):
            return self._list(name, value, place)
        if isinstance(value, int):
            return self._number(name, value, place)
        if isinstance(value, float) and kind_of(name)[0] is Kind.CAP:
            return min(value, float(kind_of(name)[1]))
        return value

    def _list(self, name: str, value: Any, place: SitePlace) -> Any:
        kind = kind_of(name)[0]
        own, kept = place.own, place.kept
        if name == "kv_source_layers" and kept is not None:
            return [kept.index(value[index]) for index in kept]
        if kept is not None and len(value) == default_count(own) and len(value) > max(kept):
            return [value[i] if kind is Kind.LAYERS else self._value(name, value[i], place) for i in kept]
        if kept is not None and is_layer_list(name, value):
            return renumber(name, value, kept)
        if name in SPECIAL:
            return SPECIAL[name](value, place)
        if name.endswith("image_size"):
            return type(value)(self._image(side, own) for side in value)
        if _is_numbers(value):
            match kind:
                case Kind.WIDTH:
                    return [self._width(v, place.path) for v in value]
                case Kind.LAYERS:
                    return [min(v, 2) for v in value]
                case Kind.TOKEN:
                    return [self._token(v) for v in value]
        return value

    def _number(self, name: str, value: int, place: SitePlace) -> int:
        kind, bound = kind_of(name)
        match kind:
            case Kind.WIDTH:
                return self._width(value, place.path)
            case Kind.RATIO:
                return self._side_or_width(name, value, place)
            case Kind.HEADS | Kind.KEY_HEADS | Kind.HEAD_DIM:
                return self._head_count(kind, name, value, place)
            case Kind.LAYERS:
                return self._layers(name, value, place)
            case Kind.TOKEN:
                return self._token(value)
            case Kind.CAP:
                # A large window is in pixels.
                return 16 if name == "window_size" and value > SMALL else min(value, bound)
        return value

    def _side_or_width(self, name: str, value: int, place: SitePlace) -> int:
        if name.endswith("image_size") or name == "img_size":
            return self._image(value, place.own)
        if name == "patch_size":
            return self._patch(value)
        return self._width(value, place.path, invent=False)

    def _head_count(self, kind: Kind, name: str, value: int, place: SitePlace) -> int:
        part = self._part(place.path, _prefix(name))
        latent = "qk_rope_head_dim" in place.own
        if kind is Kind.HEAD_DIM:
            if name == "head_dim" and latent:
                return kind_of("qk_rope_head_dim")[1]
            own = self._part(place.path)
            return own.head_dim if self.plan.free_head_dim else own.width // own.heads
        if value == 1:
            return 1
        # Latent attention has one latent, and as many keys as queries.
        grouped = kind is Kind.KEY_HEADS and self.plan.grouped and not latent
        return part.key_heads if grouped else self._heads(name, place.path)

    def _layers(self, name: str, value: int, place: SitePlace) -> int:
        if name == "num_kv_shared_layers":
            first = (default_count(place.own) or 0) - value
            return sum(index >= first for index in place.kept or [])
        if place.kept and not _prefix(name):
            return len(place.kept)
        return value if is_staged(place.own) else min(value, self._part(place.path, _prefix(name)).layers)

    def _per_layer(self, given: dict[Any, dict[str, Any]], place: SitePlace) -> dict[int, dict[str, Any]]:
        """Return the fields in which single layers differ: larger heads, or more of them."""
        by_index = {int(index): fields for index, fields in given.items()}
        result = {}
        for new, old in enumerate(place.kept or []):
            if old not in by_index:
                continue
            fields = {name: self._value(name, value, place) for name, value in by_index[old].items()}
            if "head_dim" in fields:
                fields["head_dim"] += STEP - 8
            if "num_attention_heads" in fields:
                for name in {"num_attention_heads", "num_key_value_heads"} & fields.keys():
                    fields[name] *= 2
            result[new] = fields
        return result

    def _token(self, value: int) -> int:
        return value if value < 10 else self.tokens.setdefault(value, SPECIAL_FROM + len(self.tokens))

    def _patch(self, value: int) -> int:
        return min(value, 4) if self.plan.small_images else value

    def _image(self, value: int, own: Fields) -> int:
        patch = value_of(own, "patch_size")
        if not self.plan.small_images:
            return value
        if isinstance(patch, int) and patch > 1:
            return min(value, (16 if is_staged(own) else 4) * self._patch(patch))
        return min(value, 64)


def _is_numbers(values: Any) -> bool:
    return bool(values) and all(type(value) is int for value in values)


def _fraction(value: int, known: Mapping[int, int]) -> int:
    """Return half, a quarter, twice … a small width if `value` is that of its default; else the value itself."""
    for default, small in known.items():
        for up, down in ((1, 2), (1, 4), (2, 1), (4, 1), (3, 1)):
            if default * up == value * down and small * up % down == 0:
                return small * up // down
    return value


def _proportional(widths: Any) -> dict[int, int]:
    """Small widths in about the same ratios: multiples of STEP, the smallest of them STEP."""
    least = min(widths)
    if least <= 0:
        return {}
    return {width: STEP * round(width / least) for width in widths if width > SMALL or least > 8}


def _last_block(_: list[int], place: SitePlace) -> list[int]:
    """Attend globally in the last block of the last stage."""
    lists = (v for n, (v, _) in place.own.items() if kind_of(n)[0] is Kind.LAYERS and isinstance(v, list))
    return [sum(min(depth, 2) for depth in next(lists, [1])) - 1]


def _feature_sizes(sizes: list[list[int]], _: SitePlace) -> list[list[int]]:
    """Sides of the feature maps of a small image."""
    return [[16 * side // max(sizes[0]) for side in sides] for sides in sizes]


SPECIAL = {"backbone_feature_sizes": _feature_sizes, "global_attention_blocks": _last_block}


def _prefix(name: str) -> str:
    """Return the prefix that names a part within one configuration: `decoder` of decoder_attention_heads."""
    if name.startswith(("num_decoder", "decoder")):
        return "decoder"
    match = re.match(PREFIXES, name)
    return match.group(1) if match else ""
