"""From config.json to the heads of an attention stack: query heads, key heads and head_dim under their many names."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from attngeo.errors import CorruptCheckpointError

Role = Literal["encoder", "decoder"]

# The names of the fields. The first one that a configuration has is taken. A name may have a prefix: a field whose
# prefix is in the module's name, such as `decoder_num_attention_heads` in a decoder, comes before one without.
HEADS = (
    "num_attention_heads_per_stage", "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads",
    "heads",
)  # fmt: skip
KEY_HEADS = (
    "num_key_value_heads", "num_key_value_attention_heads", "num_kv_heads", "n_kv_heads", "kv_n_heads", "n_head_kv",
    "multi_query_group_num",
)  # fmt: skip
HEAD_DIM = ("head_dim", "d_kv", "attention_head_size", "kv_channels", "d_head", "dim_head", "attention_head_dim")
# Words of a module's name that mean the same as a prefix of a field.
SAME = {"sliding": "swa", "swa": "sliding"}
COUNTING = ("num", "n")


@dataclass(frozen=True)
class HeadConfig:
    """The heads of one stack as the configuration states them; None for a number that it does not state.

    heads: query heads. key_heads: by default as many as query heads. head_dim: by default the input width divided by
    the number of query heads.
    """

    heads: int
    key_heads: int | None
    head_dim: int | None


@cache
def load_defaults() -> dict[str, dict[str, Any]]:
    """Model type → field → the value that transformers uses if a configuration leaves the field out."""
    found: dict[str, dict[str, Any]] = json.loads((files(__package__) / "defaults.json").read_text("utf-8"))
    return found


def read_heads(
    section: Mapping[str, Any],
    role: Role,
    *,
    defaults: Mapping[str, Any],
    stage: int | None,
    ref: str,
    words: Sequence[str] = (),
) -> HeadConfig:
    """Read the heads of one stack from its section of the configuration.

    defaults: the family's values of fields that published configurations leave out. stage: which entry to take from a
    list that has one value for each stage; None if there are no stages. words: those of the module's name, in their
    order. Raises CorruptCheckpointError if the number of heads is missing, or if a number is not a positive integer.
    """
    known = [*words, role]
    if isinstance(nested := section.get("attn_config"), Mapping):
        section = {**section, **nested}
    heads = _read_positive(HEADS, section, defaults, known, stage, ref)
    if heads is None:
        raise CorruptCheckpointError(
            f"{ref}: config.json has no number of attention heads, looked for {', '.join(HEADS)}"
        )
    # ConvBERT gives the other heads to a convolution.
    ratio = section.get("head_ratio", defaults.get("head_ratio", 1))
    return HeadConfig(
        max(heads // ratio, 1) if type(ratio) is int and ratio > 0 else heads,
        key_heads=_read_positive(KEY_HEADS, section, defaults, known, stage, ref),
        head_dim=_read_positive(HEAD_DIM, section, defaults, known, stage, ref),
    )


def list_numbers(section: Mapping[str, Any], names: Collection[str]) -> list[int]:
    """All numbers that a section states under these names, with any prefix or suffix; of a list, every entry."""
    found: dict[int, None] = {}
    for field, value in section.items():
        if isinstance(field, str) and any(f"_{name}_" in f"_{field}_" for name in names):
            numbers = value if isinstance(value, list) else [value]
            found |= dict.fromkeys(number for number in numbers if type(number) is int and number > 0)
    return list(found)


def _read_positive(
    names: Collection[str],
    section: Mapping[str, Any],
    defaults: Mapping[str, Any],
    words: Sequence[str],
    stage: int | None,
    ref: str,
) -> int | None:
    """The value of the first field in the section, and then in the defaults; None if neither has one."""
    stated_as_null = False
    for source in (section, defaults):
        if stated_as_null:  # null means "derive it", not "the family's default"
            return None
        for name in fitting_fields(names, source, words):
            value = source[name]
            if isinstance(value, list) and stage is not None and stage < len(value):
                value = value[stage]
            if value is None or (value == 0 and names is HEAD_DIM):  # some files state a head_dim of 0 for "derive it"
                stated_as_null = stated_as_null or source is section
                continue
            if type(value) is not int or value < 1:
                raise CorruptCheckpointError(
                    f"{ref}: config.json has {name} = {value!r:.80}, expected a positive integer"
                )
            return value
    return None


def fitting_fields(names: Collection[str], source: Mapping[str, Any], words: Sequence[str]) -> Iterator[str]:
    """The fields that a source has: those with a prefix whose words are all in `words`, then those without a prefix."""
    prefixed = []
    for name in source:
        for ending in names:
            if isinstance(name, str) and name.endswith(f"_{ending}") and name not in names:
                prefix = [word for word in name.removesuffix(f"_{ending}").split("_") if word not in COUNTING]
                places = [_place(word, words) for word in prefix]
                if None not in places:
                    prefixed.append((-len(prefix), places, name))
    yield from (name for *_, name in sorted(prefixed))
    yield from (name for name in names if name in source)


def _place(word: str, words: Sequence[str]) -> int | None:
    """Where a word of a field's prefix stands among those of a module's name. `pred` is short for `predictor`."""
    same = (word, SAME.get(word, word))
    return next((at for at, own in enumerate(words) if own in same or (len(word) > 2 and own.startswith(word))), None)
