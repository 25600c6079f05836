"""The settings of one weight in config.json: those of its method, changed by those of its layer or group.

Sources: https://github.com/ModelCloud/GPTQModel/blob/main/gptqmodel/quantization/config.py (`dynamic`),
https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/utils.py (`load_model`),
https://github.com/vllm-project/compressed-tensors (`apply_quantization_config`),
https://github.com/intel/auto-round (`get_layer_config`),
https://github.com/huggingface/transformers (`should_convert_module`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from attngeo.checkpoints.patterns import PatternError, matches_start
from attngeo.checkpoints.quantised.fields import (
    AUTOROUND_LAYER,
    EVERY,
    GPTQ,
    MLX,
    SCHEME,
    SKIPPED,
    WEIGHTS,
    Fields,
    require_known,
)
from attngeo.checkpoints.quantised.quark import resolve_quark
from attngeo.errors import CheckpointError, CorruptCheckpointError, UnsupportedModelError

# A name of a module, or a part of one.
LITERAL = re.compile(r"[\w.-]+", re.ASCII)
# Where a pattern of transformers may end: at a point, or at the end.
BOUNDARY = r"(?:(?<=\.)|(?=\.|$))"
# The classes of modules that a target of compressed-tensors may name.
LINEAR = ("Linear", "Module")
# Mode of MLX → the inputs of a group and the bits, if an entry does not state them.
MLX_MODES = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}
# The lists of modules that are not quantised, which transformers matches as parts of names.
FIELDS_OF_SKIPPED = ("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules", "skip_modules")
# What an entry of `dynamic` may change of a weight.
DYNAMIC = Fields(
    ("bits", "group_size", "desc_act", "sym"),
    (EVERY | SKIPPED | GPTQ).idle,
    {name: GPTQ.fixed[name] for name in ("pack_dtype", "adapter")},
)


def resolve_settings(method: str, fields: Fields, stated: Mapping[str, Any], module: str) -> list[Mapping[str, Any]]:
    """The settings of one weight; several if it may belong to several groups.

    Args:
        method: the quantisation method of the model.
        fields: the fields that its configuration may have.
        stated: its settings in config.json.
        module: the name of the weight without its ending.

    Raises:
        UnsupportedModelError: A field is unknown or not decoded.
        CorruptCheckpointError: The configuration says that the weight is not quantised.
    """
    of_model = stated
    if method == "mlx":  # modules have entries of their own
        of_model = {name: value for name, value in stated.items() if not isinstance(value, Mapping | bool)}
    require_known(of_model, fields, f"the configuration of {method}")
    for name in FIELDS_OF_SKIPPED:
        if is_listed(module, stated.get(name)):
            raise _refuse_skipped(module, name)
    match method:
        case "mlx":
            return [_resolve_mlx(stated, of_model, module)]
        case "gptq":
            return [_resolve_dynamic(stated, module)]
        case "auto-round" | "intel/auto-round":
            return [_resolve_extra(stated, module)]
        case "quark":
            return [resolve_quark(stated, module)]
        case "compressed-tensors":
            return _resolve_groups(stated, module)
    return [stated]


def estimate_settings(method: str, stated: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """The settings for counting the numbers of a weight that may never be read: fast and unchecked."""
    if method == "mlx":
        entry = stated.get(module)
        return entry if isinstance(entry, Mapping) else stated
    if method == "gptq" and stated.get("dynamic"):
        with suppress(CheckpointError):
            return _resolve_dynamic(stated, module)
    if method in ("auto-round", "intel/auto-round") and stated.get("extra_config"):
        with suppress(CheckpointError):
            return _resolve_extra(stated, module)
    if method == "compressed-tensors":
        groups = stated.get("config_groups")
        if not isinstance(groups, Mapping):
            return stated
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if isinstance(weights, Mapping):
                return weights
    return stated


def is_listed(module: str, skipped: Any) -> bool:
    """Whether a list names a module by its name, its beginning or its end. Ignores patterns."""
    if not isinstance(skipped, Sequence) or isinstance(skipped, str):
        return False
    names = [name for name in skipped if isinstance(name, str) and LITERAL.fullmatch(name)]
    return any(module == name or module.startswith(f"{name}.") or module.endswith(name) for name in names)


def is_skipped(module: str, skipped: Any) -> bool:
    """Whether transformers skips a module: a pattern matches its beginning, up to a point, or is its end.

    Raises UnsupportedModelError for an invalid pattern.
    """
    if not isinstance(skipped, Sequence) or isinstance(skipped, str):
        return False
    for pattern in skipped:
        if not isinstance(pattern, str):
            continue
        if module.endswith(pattern):
            return True
        try:
            if matches_start(rf"(?:{pattern}){BOUNDARY}", module):
                return True
        except PatternError as error:
            raise UnsupportedModelError(
                f"the pattern {pattern!r:.60} of unquantised modules {error}; give the model without quantisation"
            ) from None
    return False


def _refuse_skipped(module: str, field: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{module} is packed, but the configuration says that it is not ({field}); copy or download it again"
    )


def _resolve_mlx(stated: Mapping[str, Any], of_model: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """The entry of a module in place of all that is stated for the model, its mode included."""
    entry = stated.get(module)
    if entry is False:
        raise _refuse_skipped(module, module)
    if not isinstance(entry, Mapping):
        return of_model
    require_known(entry, MLX, f"the entry of {module}")
    mode = entry.get("mode") or "affine"
    size, bits = MLX_MODES.get(str(mode), (None, None))
    return {"mode": mode, "group_size": entry.get("group_size") or size, "bits": entry.get("bits") or bits}


def _resolve_dynamic(stated: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """The first entry of `dynamic` whose pattern matches a module, over what is stated for the model.

    Patterns with "-:" come first: their modules are not quantised.
    """
    entries = stated.get("dynamic")
    if not entries:
        return stated
    if not isinstance(entries, Mapping):
        raise CorruptCheckpointError(f"the configuration states dynamic = {entries!r:.40}, expected a table")
    for pattern in sorted(entries, key=lambda pattern: not pattern.startswith("-")):
        plain = pattern[2:] if pattern.startswith(("-:", "+:")) else pattern
        try:
            matched = matches_start(plain, module)
        except PatternError as error:
            raise UnsupportedModelError(
                f"the pattern {pattern!r:.60} of dynamic {error}; give the model without quantisation"
            ) from None
        if not matched:
            continue
        if pattern.startswith("-:"):
            raise _refuse_skipped(module, f"dynamic, {pattern!r:.60}")
        entry = entries[pattern]
        if not isinstance(entry, Mapping):
            raise CorruptCheckpointError(
                f"dynamic states {pattern!r:.60} = {entry!r:.40}, expected a table; copy or download it again"
            )
        require_known(entry, DYNAMIC, f"the entry {pattern!r:.60} of dynamic")
        return {**stated, **entry}
    return stated


def _resolve_extra(stated: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """The entry of `extra_config` with the name of a module, or the first whose pattern is in it, over the model's."""
    entries = stated.get("extra_config")
    if not entries:
        return stated
    if not isinstance(entries, Mapping):
        raise CorruptCheckpointError(f"the configuration states extra_config = {entries!r:.40}, expected a table")
    patterns = [module] if module in entries else [pattern for pattern in entries if entries[pattern]]
    for pattern in patterns:
        try:
            matched = pattern == module or matches_start(f"(?s:.*?)(?:{pattern})", module)
        except PatternError as error:
            raise UnsupportedModelError(
                f"the pattern {pattern!r:.60} of extra_config {error}; give the model without quantisation"
            ) from None
        if not matched:
            continue
        entry = entries[pattern]
        if not isinstance(entry, Mapping):
            raise CorruptCheckpointError(
                f"extra_config states {pattern!r:.60} = {entry!r:.40}, expected a table; copy or download it again"
            )
        bits = entry.get("bits")
        if type(bits) is int and bits > 8:
            raise _refuse_skipped(module, f"extra_config, {pattern!r:.60}")
        require_known(entry, AUTOROUND_LAYER, f"the entry {pattern!r:.60} of extra_config")
        return {**stated, **{name: value for name, value in entry.items() if value is not None}}
    return stated


def _resolve_groups(stated: Mapping[str, Any], module: str) -> list[Mapping[str, Any]]:
    """The groups of compressed-tensors that a module may be in, each with the fields of its weights."""
    sparse = stated.get("sparsity_config")
    form = sparse.get("format", "dense") if isinstance(sparse, Mapping) else sparse
    if form not in (None, "dense"):
        raise UnsupportedModelError(
            f"the sparse format {form!r:.40} is not supported; give the model without quantisation"
        )
    ignored = stated.get("ignore") or []
    if not isinstance(ignored, Sequence) or isinstance(ignored, str):
        raise CorruptCheckpointError(
            f"the configuration states ignore = {ignored!r:.40}, expected a list; copy or download it again"
        )
    if any(_rank_target(target, module) in (EXACT, PATTERNED) for target in ignored):
        raise _refuse_skipped(module, "ignore")
    ranked = [(_rank_group(group, module), group) for group in _read_groups(stated)]
    best = min((rank for rank, _ in ranked if rank is not UNKNOWN), default=OTHER)
    settings: list[Mapping[str, Any]] = []
    for rank, group in ranked:
        if rank in (best, UNKNOWN):  # all, if modules have other names there
            file_format = group.get("format") or stated.get("format")
            settings.append({**stated, **group["weights"], "format": file_format})
    if not settings:
        raise CorruptCheckpointError("no group in config_groups describes weights; copy or download it again")
    return settings


def _read_groups(stated: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The groups with weights. Raises CorruptCheckpointError for what is no group."""
    groups = stated.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise CorruptCheckpointError(
            f"the configuration states config_groups = {groups!r:.40}, expected a table of groups"
        )
    for name, group in groups.items():
        table = f"the group {name!r:.40} of config_groups"
        is_group = isinstance(group, Mapping) and isinstance(group.get("targets"), list)
        if not is_group or not isinstance(group.get("weights"), Mapping | None):
            raise CorruptCheckpointError(f"{table} is {group!r:.60}, expected a table with targets and weights")
        require_known(group, SCHEME, table)
        weights = group.get("weights")
        if weights is not None:
            require_known(weights, WEIGHTS, table)
            yield group


# How well a target fits: by its name, by a pattern, as one of all linear layers, not, or not known.
EXACT, PATTERNED, BY_CLASS, OTHER, UNKNOWN = 0, 1, 2, 3, None


def _rank_target(target: Any, module: str) -> int | None:
    """How well a target fits a module."""
    if not isinstance(target, str):
        return OTHER
    if target.startswith("re:"):
        try:
            return PATTERNED if matches_start(target.removeprefix("re:"), module) else OTHER
        except PatternError:
            return UNKNOWN
    if target == module:
        return EXACT
    return BY_CLASS if target in LINEAR else OTHER


def _rank_group(group: Mapping[str, Any], module: str) -> int | None:
    """How well the best target of a group fits a module."""
    ranks = [_rank_target(target, module) for target in group["targets"]]
    best = min((rank for rank in ranks if rank is not None), default=OTHER)
    return UNKNOWN if UNKNOWN in ranks and best > PATTERNED else best
