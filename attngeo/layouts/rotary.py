"""Rotary position embeddings of one layer, from the configuration: rotating dimensions, frequencies, and scaling."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.errors import UnsupportedModelError
from attngeo.layouts.layout import Family
from attngeo.layouts.names import Fields

# Fields that say whether a model has rotary embeddings, in families with several kinds of position embeddings.
CHOICES = ("position_embedding_type", "position_embeddings_type", "use_mem_rope", "use_rotary_embedding")
# Names of the base, and the names that take precedence: in layers with a sliding window, before transformers 5, and in
# other layers.
BASES = ("rope_theta", "rotary_emb_base")
LOCAL_BASES = ("local_rope_theta", "rope_local_base_freq", "swa_rope_theta")
GLOBAL_BASES = ("global_rope_theta",)
# Names of the share of a head that rotates.
FRACTIONS = ("partial_rotary_factor", "rotary_pct")
# Fields that say which layers have such a window.
WINDOWS = ("layer_types", "global_attn_every_n_layers", "_sliding_window_pattern", "sliding_window_pattern")
SLIDING = "sliding_attention"
FULL = "full_attention"
# Kinds of scaling that change nothing within the trained context length.
UNSCALED = ("default", "dynamic", "mrope")


class _Rotation(NamedTuple):
    """The fields of a configuration about the rotation at one layer.

    Attributes:
        stated: non-null fields of the section.
        fields: these fields, with the family's defaults for the others.
        parameters: base and scaling at this layer.
    """

    stated: Fields
    fields: Fields
    parameters: Fields

    @property
    def scaling(self) -> Any:
        """The kind of scaling. Phi-3 called longrope "su", and then "yarn"."""
        kind = self.parameters.get("rope_type") or self.parameters.get("type") or "default"
        if kind == "su" or (kind == "yarn" and "short_factor" in self.parameters):
            return "longrope"
        return kind

    @property
    def trained_length(self) -> float:
        """The context length that the model was trained with, before scaling."""
        name = "original_max_position_embeddings"
        return _real(self.fields.get(name) or self.parameters.get(name) or self.fields["max_position_embeddings"])

    @property
    def stretch(self) -> float:
        """The factor by which scaling stretches the context length."""
        trained = self.trained_length
        stated = self.parameters.get("factor")
        return _real(stated or _real(self.fields["max_position_embeddings"]) / trained)

    @property
    def attention_factor(self) -> float:
        """The number by which yarn or longrope multiplies cosines and sines."""
        if self.parameters.get("attention_factor") is not None:
            return _real(self.parameters["attention_factor"])
        stretch = self.stretch
        if stretch <= 1:
            return 1.0
        if self.scaling == "longrope":
            return math.sqrt(1 + math.log(stretch) / math.log(self.trained_length))
        above = self.parameters.get("mscale")
        below = self.parameters.get("mscale_all_dim")
        if not (above and below):
            above = 1
            below = 0
        growth = 0.1 * math.log(stretch)
        return (growth * _real(above) + 1) / (growth * _real(below) + 1)

    def count_rotated(self, family: Family, head_dim: int) -> int:
        """The number of dimensions of a head that rotate."""
        if family.rotary is not None and family.rotary.tail:
            return _whole(self.fields["qk_rope_head_dim"])
        fractions = _find_values(FRACTIONS, self.parameters, self.stated)
        if not fractions and "rotary_dim" in self.fields and "rope_parameters" not in self.fields:
            return _whole(self.fields["rotary_dim"])
        fractions += _find_values(FRACTIONS, self.fields)
        return int(head_dim * _real(fractions[0] if fractions else 1.0))


def rotary_frequencies(section: Fields, family: Family, head_dim: int, layer: int) -> Tensor:
    """Frequencies of the rotated pairs at one layer of a family with rotary embeddings, in radians per position.

    For scaled variants, these are the frequencies within the trained context length.

    Args:
        section: the configuration of the tower.
        family: the family, with `rotary`.
        head_dim: the width of a head.
        layer: the layer's number in its stack.

    Returns:
        Float64, [pairs].

    Raises:
        UnsupportedModelError: the kind of scaling is unknown.
        ArithmeticError, AttributeError, LookupError, TypeError, ValueError: the configuration is invalid.

    Source: Su et al. 2021 (arXiv 2104.09864); linear: Chen et al. 2023 (2306.15595); yarn: Peng et al. 2023
    (2309.00071); llama3: the Llama 3.1 release; longrope: Ding et al. 2024 (2402.13753).
    """
    rotation = _read_rotation(section, family, layer)
    defaults = family.defaults.get("rope_parameters") or {}
    if SLIDING in defaults and not any(name in rotation.fields for name in WINDOWS):
        raise ValueError(f"expected one of the fields {', '.join(WINDOWS)}, found none")
    parameters = rotation.parameters
    count = rotation.count_rotated(family, head_dim)
    base = _real(parameters["rope_theta"])
    axes = 2 if family.rotary and family.rotary.axes else 1
    exponents = torch.arange(0, count // axes, 2, dtype=torch.float64) / (count // axes)
    plain: Tensor = base**-exponents
    scaling = rotation.scaling
    if scaling in UNSCALED or (scaling == "axial" and axes == 2):
        return plain.repeat(axes)
    if axes == 2:  # transformers does not scale them
        scaling = f"{scaling} of rows and columns"
    if scaling == "linear":
        return plain / _real(parameters["factor"])
    if scaling == "proportional":  # the last pairs of a head stand still
        width = count if family.rotary and family.rotary.tail else head_dim
        turning = int(_real(parameters.get("partial_rotary_factor", 1.0)) * width // 2)
        pairs = torch.arange(width // 2, dtype=torch.float64)
        return base ** (-2 * pairs / width) * (pairs < turning) / _real(parameters.get("factor", 1.0))
    if scaling == "llama3":
        return _scale_llama3(plain, parameters)
    if scaling == "yarn":
        return _scale_yarn(plain, rotation, base)
    if scaling == "longrope":
        factors = torch.tensor([_real(factor) for factor in parameters["short_factor"]], dtype=torch.float64)
        if factors.shape != plain.shape:
            raise ValueError(f"short_factor has {len(factors)} factors, expected {len(plain)}, one for each pair")
        return plain / factors
    raise UnsupportedModelError(f"rotary scaling {scaling!r:.60} is unsupported")


def rotates(section: Fields, family: Family, layer: int) -> bool:
    """Whether a layer of a family with rotary embeddings rotates; in some models, some or all layers do not.

    Raises TypeError if the configuration is invalid.
    """
    fields = {**family.defaults, **section}
    # Other families state such fields without reading them, as ModernBERT does.
    if any(fields[name] not in ("rope", "rotary", True) for name in CHOICES if name in family.defaults):
        return False
    for flags in (fields.get("no_rope_layers"), fields.get("layer_rope_theta")):
        if isinstance(flags, list) and layer < len(flags):
            return bool(flags[layer])
    interval = fields.get("no_rope_layer_interval")
    if interval:
        return (layer + 1) % _whole(interval) != 0
    layer_type = _layer_type(fields, layer)
    by_type = fields.get("rope_parameters")
    if isinstance(by_type, Mapping) and by_type.get(layer_type, by_type) is None:
        return False
    if family.rotary is None or not family.rotary.sliding:
        return True
    # Without any window, all layers are alike.
    has_no_window = "sliding_window" in section and section["sliding_window"] is None
    return has_no_window or layer_type == SLIDING


def rotary_scaling(
    section: Fields, family: Family, head_dim: int, layer: int, rotated: int | None = None
) -> tuple[float, int]:
    """The factor of the rotated dimensions of queries and keys, and the number of these dimensions in a head.

    The factor is 1 except for yarn and longrope. If all dimensions rotate, it is not computed and returned as 1: it
    would only scale all logits.

    Args:
        section: the configuration of the tower.
        family: the family, with or without `rotary`.
        head_dim: the width of a head.
        layer: the layer's number in its stack.
        rotated: the number of rotated dimensions, if known from the weights.

    Raises the errors of `rotary_frequencies`.
    """
    if not any(isinstance(section.get(name), Mapping) for name in ("rope_parameters", "rope_scaling")):
        return 1.0, 0
    rotation = _read_rotation(section, family, layer)
    if rotation.scaling not in ("yarn", "longrope") or not rotates(section, family, layer):
        return 1.0, 0
    if rotated is None:
        rotated = rotation.count_rotated(family, head_dim)
        rotated += rotated % 2
    if not 0 < rotated < head_dim:
        return 1.0, 0
    factor = rotation.attention_factor
    if not 0 < factor < math.inf:
        raise ValueError(f"the factor of rotated dimensions is {factor}, expected a positive finite number")
    return factor, rotated


def _read_rotation(section: Fields, family: Family, layer: int) -> _Rotation:
    """What a configuration of transformers 5 (`rope_parameters`) or earlier says about the rotation at a layer."""
    nested = section.get("attn_config")  # of DBRX
    if isinstance(nested, Mapping):
        section = {**nested, **section}
    stated = {name: value for name, value in section.items() if value is not None}
    fields = {**family.defaults, **stated}
    layer_type = _layer_type(fields, layer)
    bases = (*(LOCAL_BASES if layer_type == SLIDING else GLOBAL_BASES), *BASES)
    parameters = dict(stated.get("rope_parameters") or {})
    if not parameters:
        parameters = _read_earlier_parameters(stated, fields, layer_type, bases)
    by_type = {name: value for name, value in parameters.items() if isinstance(value, Mapping)}
    if by_type:
        # Parameters for each type of layer; or those of all layers, beside something that is nested.
        common = {name: value for name, value in parameters.items() if name not in by_type and value is not None}
        of_type = by_type.get(layer_type) or by_type.get(SLIDING if layer_type == SLIDING else FULL)
        if not of_type and not common:
            of_type = next(iter(by_type.values()))
        parameters = {**common, **(of_type or {})}
    if "rope_theta" not in parameters:
        defaults = fields.get("rope_parameters") or {}
        values = _find_values(bases, stated, fields, defaults, defaults.get(layer_type) or {})
        parameters["rope_theta"] = values[0] if values else 10_000.0
    return _Rotation(stated, fields, parameters)


def _read_earlier_parameters(stated: Fields, fields: Fields, layer_type: str, bases: tuple[str, ...]) -> dict[str, Any]:
    """Base and scaling of a configuration that has no `rope_parameters`, or else the family's defaults.

    layer_type: that of the layer. bases: the names that its base may have.
    """
    defaults = fields.get("rope_parameters") or {}
    of_type = defaults.get(layer_type)
    if layer_type == SLIDING and ("rope_local_base_freq" in fields or isinstance(of_type, Mapping)):
        # Earlier configurations scale the other layers only, and may leave out the base of these.
        unstated = (of_type or {}).items()
        parameters = {name: value for name, value in unstated if name not in stated or name == "rope_theta"}
        local_bases = _find_values(LOCAL_BASES, stated)
        if local_bases:
            parameters["rope_theta"] = local_bases[0]
        return parameters
    if any(name in stated for name in ("rope_scaling", *FRACTIONS, *bases)):
        return dict(stated.get("rope_scaling") or {})
    return dict(defaults)


def _find_values(names: tuple[str, ...], *sources: Fields) -> list[Any]:
    """The values that fields of these names have, those of the first source first."""
    values = []
    for source in sources:
        values += [source[name] for name in names if name in source]
    return values


def _layer_type(fields: Fields, layer: int) -> str:
    """The type of a layer: that of `layer_types`, or `SLIDING` if it attends within a window, or else `FULL`."""
    layer_types = fields.get("layer_types")
    if isinstance(layer_types, list) and layer < len(layer_types):
        return str(layer_types[layer])
    if "global_attn_every_n_layers" in fields:
        is_sliding = layer % _whole(fields["global_attn_every_n_layers"]) != 0
        return SLIDING if is_sliding else FULL
    pattern = fields.get("_sliding_window_pattern") or fields.get("sliding_window_pattern")
    if pattern is None:
        return FULL
    if isinstance(pattern, str) and re.fullmatch("[LG]+", pattern):  # "LLLG": three local layers and a global one
        is_sliding = pattern[layer % len(pattern)] == "L"
    else:
        is_sliding = (layer + 1) % _whole(pattern) != 0
    return SLIDING if is_sliding else FULL


def _real(value: Any) -> float:
    """A number of the configuration. Raises TypeError for any other value, such as true or "0.5"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{str(value)[:40]!r} is not a number")
    return float(value)


def _whole(value: Any) -> int:
    """A whole number of the configuration. Raises TypeError for any other value."""
    if int(_real(value)) != value:
        raise TypeError(f"{value} is not a whole number")
    return int(value)


def _scale_llama3(plain: Tensor, parameters: Fields) -> Tensor:
    """Frequencies [pairs] with long wavelengths stretched by `factor`, short ones kept, and a blend between."""
    turns = _real(parameters["original_max_position_embeddings"]) * plain / (2 * math.pi)
    low = _real(parameters["low_freq_factor"])
    high = _real(parameters["high_freq_factor"])
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / _real(parameters["factor"]))


def _scale_yarn(plain: Tensor, rotation: _Rotation, base: float) -> Tensor:
    """As `_scale_llama3`, but the blend is linear over the index of the pair."""
    parameters = rotation.parameters
    trained = rotation.trained_length
    size = 2 * len(plain)

    def pair_turning(times: float) -> float:
        return size * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(base))

    first = pair_turning(_real(parameters.get("beta_fast") or 32))
    last = pair_turning(_real(parameters.get("beta_slow") or 1))
    if parameters.get("truncate", True):
        first = math.floor(first)
        last = math.ceil(last)
    first = max(first, 0)
    last = min(last, size - 1)
    pairs = torch.arange(len(plain), dtype=torch.float64)
    # As transformers, also if the blend ends before it begins, with a small base.
    width = last - first or 1e-3
    stretched = ((pairs - first) / width).clamp(0, 1)
    return plain * (1 - stretched + stretched / rotation.stretch)
