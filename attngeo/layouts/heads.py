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
    """The heads of one stack as the configuration states them; None for a number that it does not state.

    Attributes:
        heads: query heads.
        key_heads: by default as many as query heads.
        head_dim: by default the input width divided by the number of query heads.
        is_assumed: whether the number of query heads is a default of the model type, which the section leaves out.
    """

    heads: int
    key_heads: int | None
    head_dim: int | None
    is_assumed: bool = False


@cache
def load_defaults() -> dict[str, dict[str, Any]]:
    """Model type → field → the value that transformers uses if a configuration leaves the field out."""
    defaults: dict[str, dict[str, Any]] = json.loads((files(__package__) / "defaults.json").read_text("utf-8"))
    return defaults


def read_heads(section: Fields, *, defaults: Fields, stage: int | None, words: Sequence[str]) -> HeadConfig:
    """The heads of one stack from its section of the configuration.

    Args:
        section: the fields of the stack's tower.
        defaults: the family's values of fields that published configurations leave out.
        stage: which entry to take from a list that has one value for each stage; None if there are no stages.
        words: those of the module's name, in their order, which prefixes of fields may have.

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
    return HeadConfig(heads, key_heads=read(KEY_HEADS), head_dim=read(HEAD_DIM), is_assumed=is_assumed)


def list_numbers(section: Fields, names: Collection[str]) -> list[int]:
    """All numbers that a section states under these names, with any prefix or suffix; of a list, every entry."""
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
    """The fields that a source has: those with a prefix whose words are all in `words`, then those without a prefix."""
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

    A field of the section that is null means "derive it", not "the family's default". Some files state a head_dim of 0
    for that.
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
