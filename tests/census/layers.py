"""Which layers of a default configuration stay: at least one of every kind."""

from __future__ import annotations

import re
from typing import Any

from transformers import PretrainedConfig

from census.fields import Fields, value_of

LEAST = 2
# Lists of layer numbers whose layers all stay, because as many other modules take their outputs.
ALL_STAY = (
    r"out_indices|.*_out_indices|.*feature_layers?|deepstack.*|.*hidden_state_indices|intermediate_layers_indices"
    r"|.*target_layer_ids"
)
LAYER_NUMBERS = r".*(index(es)?|indices|_idxs?|_layers|layer_ids?|layers_ids|blocks?|vision_feature_layer)"
STAGES = (
    r"(encoder_|decoder_)?"
    r"(depths?|hidden_sizes|num_heads|num_attention_heads|embed_dims?|layers|num_blocks|blocks_per_stage)"
    r"|embed_dim_per_stage|num_attention_heads_per_stage|stage_\w+"
)
COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth")


def is_staged(own: Fields) -> bool:
    """Whether the layers are stages, each with its own width, depth or number of heads."""
    return any(
        re.fullmatch(STAGES, name)
        and isinstance(value, list | tuple)
        and 1 < len(value) <= 6
        and all(type(v) is int for v in value)
        for name, (value, _) in own.items()
    )


def is_layer_list(name: str, value: Any) -> bool:
    """Whether a field lists layer numbers."""
    named = re.fullmatch(LAYER_NUMBERS, name)
    return bool(named) and isinstance(value, list) and bool(value) and all(type(v) is int for v in value)


def default_count(own: Fields) -> int | None:
    """Return the number of layers, if it is a field."""
    return next((value_of(own, name) for name in COUNTS if isinstance(value_of(own, name), int)), None)


def kept_layers(config: PretrainedConfig, own: Fields) -> list[int] | None:
    """Return the indices of the default layers that stay, or None if no field speaks of single layers.

    A layer of every kind stays. Kinds come from `layer_types` and the like, lists of layer numbers, `per_layer_config`
    and from which layers share keys and values.
    """
    count = getattr(config, "num_hidden_layers", None)
    if not isinstance(count, int) or count < LEAST or is_staged(own):
        return None
    columns = {name: column for name, (value, _) in own.items() if (column := _column(name, value, count)) is not None}
    if not columns:
        return None
    telling = [column for column in columns.values() if 1 < len(set(map(str, column))) <= 4]
    telling += [
        [index in value and index for index in range(count)]
        for name, (value, _) in own.items()
        if re.fullmatch(ALL_STAY, name) and is_layer_list(name, value)
        for value in [[layer - (name == "out_indices") for layer in value]]
    ]
    first: dict[str, int] = {}
    for index in range(count):
        first.setdefault(str([column[index] for column in telling]), index)
    others = [index for index in range(count) if index not in first.values()]
    kept = [*first.values(), *others[: max(LEAST - len(first), 0)]]
    sources = value_of(own, "kv_source_layers")
    return sorted({*kept, *(sources[index] for index in kept)} if sources else kept)


def _column(name: str, value: Any, count: int) -> list[Any] | None:
    """Return what a field says of each of `count` layers, or None if it says nothing of single layers."""
    if name == "num_kv_shared_layers" and value:
        return [index >= count - value for index in range(count)]
    if name == "per_layer_config":
        return [str(value.get(index, "")) for index in range(count)]
    if not isinstance(value, list):
        return None
    if name == "kv_source_layers" and len(value) == count:
        return [source == index for index, source in enumerate(value)]
    if len(value) == count and not isinstance(value[0], list | dict):
        return value
    if is_layer_list(name, value) and max(value) <= count and len(value) < count:
        return [index in value for index in range(count)]
    return None


def renumber(name: str, layers: list[int], kept: list[int]) -> list[int]:
    """Return the new numbers of the layers that stay; of the last one if none of the layers stays."""
    if name == "out_indices":  # number 0 is the embedding
        return [kept.index(layer - 1) + 1 for layer in layers if layer - 1 in kept]
    return [kept.index(layer) for layer in layers if layer in kept] or [len(kept) - 1]
