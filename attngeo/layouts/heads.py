"""Numbers of heads and their width, as config.json or the defaults of transformers state them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any

from attngeo.errors import CorruptCheckpointError
from attngeo.layouts.names import Fields

# The names of the fields. The first one that a configuration has is taken. A name may have a prefix: a field whose
# prefix is in the module's name, such as `decoder_num_attention_heads` in a decoder, comes before one without.
HEADS = (
    "num_attention_heads_per_stage", "num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads",
    "attention_heads", "heads",
)  # fmt: skip
KEY_HEADS = (
    "num_key_value_heads", "num_key_value_attention_heads", "num_kv_heads", "n_kv_heads", "kv_n_heads", "n_head_kv",
    "multi_query_group_num", "num_multi_query_heads",
)  # fmt: skip
HEAD_DIM = (
    "head_dim", "d_kv", "attention_head_size", "kv_channels", "d_head", "dim_head", "attention_head_dim",
    "hidden_size_per_head",
)  # fmt: skip
# Words of a module's name that mean the same as a prefix of a field.
SAME = {"sliding": "swa", "swa": "sliding"}
COUNTING = ("num", "n")


@dataclass(frozen=True)
class HeadConfig:
    """The heads of one stack that the configuration states; None for a number that it does not state.

    Attributes:
        heads: query heads.
        key_heads: by default as many as query heads.
        head_dim: by default the input width divided by the number of query heads, the pruned ones included.
        is_assumed: whether the section leaves out the number of query heads, so that it is the model type's default.
        pruned: number of heads that were removed from the layer; `heads` does not count them.
    """

    heads: int
    key_heads: int | None
    head_dim: int | None
    is_assumed: bool = False
    pruned: int = 0


@cache
def load_defaults() -> dict[str, dict[str, Any]]:
    """Model type → field → the value that transformers uses if a configuration leaves the field out."""
    defaults: dict[str, dict[str, Any]] = json.loads((files(__package__) / "defaults.json").read_text("utf-8"))
    return defaults


def read_heads(
    section: Fields, *, defaults: Fields, stage: int | None, words: Sequence[str], layer: int | None = None
) -> HeadConfig:
    """The heads of one stack from its section of the configuration.

    Args:
        section: the fields of the stack's tower.
        defaults: the family's values of fields that published configurations leave out.
        stage: index into lists with one value per stage; None if there are no stages.
        words: words of the module's name, in order; prefixes of fields are compared with them.
        layer: the number of the layer, if heads may have been pruned.

    Raises:
        CorruptCheckpointError: the number of heads is missing, or a number is not a positive integer.
    """
    nested = section.get("attn_config")
    if isinstance(nested, Mapping):
        section = {**section, **nested}
    read = partial(_read_positive, section=section, defaults=defaults, words=words, stage=stage)
    heads = read(HEADS)
    if heads is None:
        raise CorruptCheckpointError(f"config.json has no number of attention heads, looked for {', '.join(HEADS)}")
    # ConvBERT gives the other heads to a convolution.
    ratio = section.get("head_ratio", defaults.get("head_ratio", 1))
    if type(ratio) is int and ratio > 0:
        heads = max(heads // ratio, 1)
    is_assumed = next(fitting_fields(HEADS, section, words), None) is None
    key_heads = read(KEY_HEADS)
    pruned = 0 if layer is None else _count_pruned(section, layer, heads)
    if pruned and key_heads is not None:  # pruned models have a key head for each head
        key_heads -= pruned
    return HeadConfig(
        heads - pruned, key_heads=key_heads, head_dim=read(HEAD_DIM), is_assumed=is_assumed, pruned=pruned
    )


def choose_layer(section: Fields, layer: int) -> Fields:
    """The fields of a section, overridden by those that it states for one layer.

    These are in `per_layer_config`, in lists with one entry per layer, or in the `block_configs` of nemotron-nas.
    Raises CorruptCheckpointError if the heads of a block cannot be divided evenly.
    """
    chosen = dict(section)
    for name in (*HEADS, *KEY_HEADS, *HEAD_DIM):
        values = section.get(f"{name}_per_layer")
        if isinstance(values, list) and layer < len(values):
            chosen[name] = values[layer]
    by_layer = section.get("per_layer_config")
    if isinstance(by_layer, Mapping):
        fields = by_layer.get(str(layer), by_layer.get(layer))
        chosen |= fields if isinstance(fields, Mapping) else {}
    blocks = section.get("block_configs")
    block = blocks[layer] if isinstance(blocks, list) and layer < len(blocks) else None
    attention = block.get("attention") if isinstance(block, Mapping) else None
    group = attention.get("n_heads_in_group") if isinstance(attention, Mapping) else None
    heads = section.get("num_attention_heads")
    if group is None or type(heads) is not int:
        return chosen
    if type(group) is not int or group < 1 or heads % group:
        raise CorruptCheckpointError(
            f"config.json has n_heads_in_group = {group!r:.80} for layer {layer} in block_configs, expected a divisor "
            f"of {heads} heads"
        )
    return {**chosen, "num_key_value_heads": heads // group}


def list_unread_fields(section: Fields) -> list[str]:
    """Fields with several values that may describe the heads of layers, and that attngeo does not read."""
    read = (*HEADS, *KEY_HEADS, *HEAD_DIM, "pruned_heads")
    unread = []
    for name, value in section.items():
        is_about_heads = isinstance(name, str) and "head" in name and name.removesuffix("_per_layer") not in read
        if is_about_heads and isinstance(value, list | Mapping) and value:
            unread.append(name)
    return unread


def _count_pruned(section: Fields, layer: int, heads: int) -> int:
    """Number of heads removed from a layer, in the field of transformers 4. Raises CorruptCheckpointError."""
    stated = section.get("pruned_heads")
    if not isinstance(stated, Mapping):
        return 0
    numbers = stated.get(str(layer), stated.get(layer, []))
    is_list = isinstance(numbers, list) and all(type(number) is int and 0 <= number < heads for number in numbers)
    if not is_list or len(set(numbers)) >= heads:
        raise CorruptCheckpointError(
            f"config.json has pruned_heads = {numbers!r:.80} for layer {layer}, expected a list of numbers from 0 to "
            f"{heads - 1}, but not all of them"
        )
    return len(set(numbers))


def list_numbers(section: Fields, names: Collection[str]) -> list[int]:
    """All numbers in a section under these names, with any prefix or suffix, including each entry of a list."""
    numbers: dict[int, None] = {}
    for field, value in section.items():
        if isinstance(field, str) and any(f"_{name}_" in f"_{field}_" for name in names):
            numbers |= dict.fromkeys(positive_integers(value))
    return list(numbers)


def positive_integers(value: Any) -> list[int]:
    """The value, or the entries of a list, that are positive integers."""
    entries = value if isinstance(value, list) else [value]
    return [entry for entry in entries if type(entry) is int and entry > 0]


def fitting_fields(names: Collection[str], source: Fields, words: Sequence[str]) -> Iterator[str]:
    """Matching fields of a source: first those with a prefix whose words are all in `words`, then those without one."""
    prefixed = []
    for field in source:
        if not isinstance(field, str) or field in names:
            continue
        for name in names:
            if field.endswith(f"_{name}"):
                prefix = [word for word in field.removesuffix(f"_{name}").split("_") if word not in COUNTING]
                positions = [_find_word(word, words) for word in prefix]
                if None not in positions:
                    prefixed.append((-len(prefix), positions, field))
    yield from (field for *_, field in sorted(prefixed))
    yield from (name for name in names if name in source)


def _read_positive(
    names: Collection[str],
    *,
    section: Fields,
    defaults: Fields,
    words: Sequence[str],
    stage: int | None,
) -> int | None:
    """The value of the first field in the section, and then in the defaults; None if neither has one.

    A null field of the section means "derive it", not "use the family's default". Some files use a head_dim of 0 for
    this.
    """
    for source in (section, defaults):
        is_null = False
        for name in fitting_fields(names, source, words):
            value = source[name]
            if isinstance(value, list) and stage is not None and stage < len(value):
                value = value[stage]
            if value is None or (value == 0 and names is HEAD_DIM):
                is_null = True
                continue
            if type(value) is not int or value < 1:
                raise CorruptCheckpointError(f"config.json has {name} = {value!r:.80}, expected a positive integer")
            return value
        if is_null:
            return None
    return None


def _find_word(word: str, words: Sequence[str]) -> int | None:
    """The position of a word of a field's prefix among those of a module's name. `pred` is short for `predictor`."""
    same = (word, SAME.get(word, word))
    for position, other in enumerate(words):
        if other in same or (len(word) > 2 and other.startswith(word)):
            return position
    return None
