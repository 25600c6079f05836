"""From the configuration to rotary position embeddings: which dimensions rotate, how far per position, how scaled."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attngeo.errors import UnsupportedModelError
from attngeo.layouts.layout import Family

# Fields that say whether a model has rotary embeddings, in families that may have others.
CHOICES = ("position_embedding_type", "position_embeddings_type", "use_mem_rope", "use_rotary_embedding")
# Names of the base in layers with a sliding window, before transformers 5.
LOCAL_BASES = ("local_rope_theta", "rope_local_base_freq", "swa_rope_theta")
# Names of the share of a head that rotates.
FRACTIONS = ("partial_rotary_factor", "rotary_pct")
# Fields that say which layers have such a window.
WINDOWS = ("layer_types", "global_attn_every_n_layers", "_sliding_window_pattern", "sliding_window_pattern")


def rotary_frequencies(section: Mapping[str, Any], family: Family, head_dim: int, layer: int, ref: str) -> Tensor:
    """Radians per position of each rotated pair, float64 [pairs], at one layer of a family with rotary embeddings.

    section: the configuration of the part of the model. Scaled variants have the frequencies that they use within the
    trained context length. Raises UnsupportedModelError for an unknown kind of scaling; other exceptions (KeyError,
    ValueError, TypeError …) if the configuration makes no sense.
    Source: Su et al. 2021 (arXiv 2104.09864); linear: Chen et al. 2023 (2306.15595); yarn: Peng et al. 2023
    (2309.00071); llama3: the Llama 3.1 release; longrope: Ding et al. 2024 (2402.13753).
    """
    stated, fields, rope = _read(section, family, layer)
    usual = family.defaults.get("rope_parameters") or {}
    if "sliding_attention" in usual and not any(name in fields for name in WINDOWS):
        raise ValueError(f"it has none of {', '.join(WINDOWS)}")
    size = _count_rotated(stated, fields, rope, family, head_dim)
    base = _real(rope["rope_theta"])
    axes = 2 if family.rotary and family.rotary.axes else 1
    plain: Tensor = base ** (-torch.arange(0, size // axes, 2, dtype=torch.float64) / (size // axes))
    kind, reason = _kind(rope), "unsupported"
    match kind:
        case "default" | "dynamic" | "mrope" | "axial" if axes > 1 or kind != "axial":
            return plain.repeat(axes)
        case _ if axes > 1:
            reason = "unsupported for rows and columns, which transformers does not scale"
        case "linear":
            return plain / _real(rope["factor"])
        case "proportional":  # the last pairs of a head stand still
            width = size if family.rotary and family.rotary.tail else head_dim
            turning = int(_real(rope.get("partial_rotary_factor", 1.0)) * width // 2)
            pairs = torch.arange(width // 2, dtype=torch.float64)
            return base ** (-2 * pairs / width) * (pairs < turning) / _real(rope.get("factor", 1.0))
        case "llama3":
            return _llama3(plain, rope)
        case "yarn":
            return _yarn(plain, rope, fields, base)
        case "longrope":
            factors = torch.tensor([_real(factor) for factor in rope["short_factor"]], dtype=torch.float64)
            if factors.shape != plain.shape:
                raise ValueError(f"{len(plain)} pairs and {list(factors.shape)} factors")
            return plain / factors
    raise UnsupportedModelError(
        f"{ref}: rotary scaling {kind!r:.60} is {reason}; leave out $rope_offset", "rope_offset"
    )


def rotates(section: Mapping[str, Any], family: Family, layer: int) -> bool:
    """Whether a layer of a family with rotary embeddings rotates. In some models, all or some layers do not.

    Raises TypeError if the configuration makes no sense.
    """
    fields = {**family.defaults, **section}
    # Other families state such fields without reading them, as ModernBERT does.
    if any(fields[name] not in ("rope", "rotary", True) for name in CHOICES if name in family.defaults):
        return False
    for flags in (fields.get("no_rope_layers"), fields.get("layer_rope_theta")):
        if isinstance(flags, list) and layer < len(flags):
            return bool(flags[layer])
    if interval := fields.get("no_rope_layer_interval"):
        return (layer + 1) % _whole(interval) != 0
    local, rope = _is_local(fields, layer), fields.get("rope_parameters")
    if isinstance(rope, Mapping) and rope.get(_layer_type(fields, layer), rope) is None:
        return False
    # Without any window, all layers are alike.
    windowless = "sliding_window" in section and section["sliding_window"] is None
    return local or windowless or not (family.rotary and family.rotary.sliding)


def rotary_scaling(
    section: Mapping[str, Any], family: Family, head_dim: int, layer: int, rotated: int | None = None
) -> tuple[float, int]:
    """Factor of the rotated dimensions of queries, and of those of keys, and the number of these dimensions in a head.

    It is 1 but for yarn and longrope. It is not computed, and 1, if all dimensions rotate: then it is a factor of all
    logits. rotated: the number of dimensions, if the weights tell it. Raises what `rotary_frequencies` raises.
    """
    if not any(isinstance(section.get(name), Mapping) for name in ("rope_parameters", "rope_scaling")):
        return 1.0, 0
    stated, fields, rope = _read(section, family, layer)
    if _kind(rope) not in ("yarn", "longrope") or not rotates(section, family, layer):
        return 1.0, 0
    if rotated is None:
        rotated = _count_rotated(stated, fields, rope, family, head_dim)
        rotated += rotated % 2
    if not 0 < rotated < head_dim:
        return 1.0, 0
    factor = _attention_factor(rope, fields)
    if not 0 < factor < math.inf:
        raise ValueError(f"a factor of {factor} for rotated dimensions, expected a positive number")
    return factor, rotated


def _attention_factor(rope: Mapping[str, Any], fields: Mapping[str, Any]) -> float:
    """What yarn or longrope multiplies cosines and sines by."""
    if rope.get("attention_factor") is not None:
        return _real(rope["attention_factor"])
    trained = _trained_length(rope, fields)
    stretch = _stretch(rope, fields, trained)
    if stretch <= 1:
        return 1.0
    if _kind(rope) == "longrope":
        return math.sqrt(1 + math.log(stretch) / math.log(trained))
    scales = rope.get("mscale"), rope.get("mscale_all_dim")
    above, below = map(_real, scales) if all(scales) else (1, 0)
    return (0.1 * above * math.log(stretch) + 1) / (0.1 * below * math.log(stretch) + 1)


def _read(
    section: Mapping[str, Any], family: Family, layer: int
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The fields that a section states, the same with the family's defaults, and the rotary parameters at one layer."""
    nested = section.get("attn_config")  # of DBRX
    section = {**nested, **section} if isinstance(nested, Mapping) else section
    stated = {name: value for name, value in section.items() if value is not None}
    fields = {**family.defaults, **stated}
    return stated, fields, _parameters(stated, fields, layer)


def _kind(rope: Mapping[str, Any]) -> str:
    """The kind of scaling. Phi-3 called longrope "su", and then "yarn"."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    return "longrope" if kind == "su" or (kind == "yarn" and "short_factor" in rope) else kind


def _trained_length(rope: Mapping[str, Any], fields: Mapping[str, Any]) -> float:
    """The context length that the model was trained with, before scaling."""
    name = "original_max_position_embeddings"
    return _real(fields.get(name) or rope.get(name) or fields["max_position_embeddings"])


def _stretch(rope: Mapping[str, Any], fields: Mapping[str, Any], trained: float) -> float:
    """By how much scaling stretches the context length."""
    return _real(rope.get("factor") or _real(fields["max_position_embeddings"]) / trained)


def _parameters(stated: Mapping[str, Any], fields: Mapping[str, Any], layer: int) -> dict[str, Any]:
    """The rotary parameters at one layer, from a configuration of transformers 5 (`rope_parameters`) or earlier."""
    local = _is_local(fields, layer)
    layer_type = _layer_type(fields, layer)
    rope, usual = dict(stated.get("rope_parameters") or {}), fields.get("rope_parameters") or {}
    names = (*(LOCAL_BASES if local else ("global_rope_theta",)), "rope_theta", "rotary_emb_base")
    if not rope and (local and ("rope_local_base_freq" in fields or isinstance(usual.get(layer_type), Mapping))):
        # Earlier configurations scale the other layers only, and may leave out the base of these.
        own = usual.get(layer_type) or {}
        rope = {name: value for name, value in own.items() if name not in stated or name == "rope_theta"}
        if (name := next((name for name in LOCAL_BASES if name in stated), None)) is not None:
            rope["rope_theta"] = stated[name]
    elif not rope:
        earlier = any(name in stated for name in ("rope_scaling", *FRACTIONS, *names))
        rope = dict((stated.get("rope_scaling") or {}) if earlier else usual)
    by_type = {name: value for name, value in rope.items() if isinstance(value, Mapping)}
    if by_type:
        # Parameters for each type of layer; or those of all layers, beside something that is nested.
        common = {name: value for name, value in rope.items() if name not in by_type and value is not None}
        own = by_type.get(layer_type) or by_type.get("sliding_attention" if local else "full_attention")
        rope = common | dict(own or ({} if common else next(iter(by_type.values()))))
    if "rope_theta" not in rope:
        sources = (stated, fields, usual, usual.get(layer_type) or {})
        rope["rope_theta"] = next((known[name] for known in sources for name in names if name in known), 10_000.0)
    return rope


def _real(value: Any) -> float:
    """A number of the configuration. Raises TypeError for any other value, such as true or "0.5"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{str(value)[:40]!r} is no number")
    return float(value)


def _whole(value: Any) -> int:
    """A whole number of the configuration. Raises TypeError for any other value."""
    if int(_real(value)) != value:
        raise TypeError(f"{value} is no whole number")
    return int(value)


def _layer_type(fields: Mapping[str, Any], layer: int) -> str:
    kinds = fields.get("layer_types")
    if isinstance(kinds, list) and layer < len(kinds):
        return str(kinds[layer])
    return "sliding_attention" if _is_local(fields, layer) else "full_attention"


def _is_local(fields: Mapping[str, Any], layer: int) -> bool:
    """Whether the layer attends within a sliding window, in models whose such layers have a base of their own."""
    kinds = fields.get("layer_types")
    if isinstance(kinds, list) and layer < len(kinds):
        return bool(kinds[layer] == "sliding_attention")
    if "global_attn_every_n_layers" in fields:
        return layer % _whole(fields["global_attn_every_n_layers"]) != 0
    pattern = fields.get("_sliding_window_pattern") or fields.get("sliding_window_pattern")
    if isinstance(pattern, str) and re.fullmatch("[LG]+", pattern):  # "LLLG": three local layers and a global one
        return pattern[layer % len(pattern)] == "L"
    return pattern is not None and (layer + 1) % _whole(pattern) != 0


def _count_rotated(
    stated: Mapping[str, Any], fields: Mapping[str, Any], rope: Mapping[str, Any], family: Family, head_dim: int
) -> int:
    """The number of dimensions of a head that rotate."""
    if family.rotary is not None and family.rotary.tail:
        return _whole(fields["qk_rope_head_dim"])
    fractions = [known[name] for known in (rope, stated) for name in FRACTIONS if name in known]
    if not fractions and "rotary_dim" in fields and "rope_parameters" not in fields:
        return _whole(fields["rotary_dim"])
    fractions += [fields[name] for name in FRACTIONS if name in fields]
    return int(head_dim * _real(fractions[0] if fractions else 1.0))


def _llama3(plain: Tensor, rope: Mapping[str, Any]) -> Tensor:
    """Stretch long wavelengths by `factor`, keep short ones, and blend between."""
    turns = _real(rope["original_max_position_embeddings"]) * plain / (2 * math.pi)
    low, high = _real(rope["low_freq_factor"]), _real(rope["high_freq_factor"])
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / _real(rope["factor"]))


def _yarn(plain: Tensor, rope: Mapping[str, Any], fields: Mapping[str, Any], base: float) -> Tensor:
    """As `_llama3`, but blend linearly over the index of the pair."""
    trained = _trained_length(rope, fields)
    factor, size = _stretch(rope, fields, trained), 2 * len(plain)

    def pair_turning(times: float) -> float:
        return size * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(base))

    fast, slow = _real(rope.get("beta_fast") or 32), _real(rope.get("beta_slow") or 1)
    first, last = pair_turning(fast), pair_turning(slow)
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    stretched = ((torch.arange(len(plain), dtype=torch.float64) - first) / max(last - first, 1e-3)).clamp(0, 1)
    return plain * (1 - stretched + stretched / factor)
