"""From config.json to the heads of an attention stack: query heads, key heads and head_dim under their many names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from attngeo.errors import CorruptCheckpointError

Role = Literal["encoder", "decoder"]

# The names of the fields. The first one that a configuration has is taken; a role's own names come before these.
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
ROLE_HEADS = {
    "encoder": ("encoder_attention_heads",),
    "decoder": ("decoder_attention_heads", "decoder_num_attention_heads"),
}
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
HEAD_DIM = ("head_dim", "d_kv", "attention_head_size", "kv_channels")


@dataclass(frozen=True)
class HeadConfig:
    """The heads of one stack as the configuration states them; None for a number that it does not state.

    heads: query heads. key_heads: by default as many as query heads. head_dim: by default the input width divided by
    the number of query heads.
    """

    heads: int
    key_heads: int | None
    head_dim: int | None


def read_heads(
    section: Mapping[str, Any], role: Role, *, defaults: Mapping[str, Any], stage: int | None, ref: str
) -> HeadConfig:
    """Read the heads of one stack from its section of the configuration.

    defaults: the family's values of fields that published configurations leave out. stage: which entry to take from a
    list that has one value for each stage; None if there are no stages. Raises CorruptCheckpointError if the number of
    heads is missing, or if a number is not a positive integer.
    """
    names = (*ROLE_HEADS[role], *HEADS)
    heads = _read_positive(names, section, defaults, stage, ref)
    if heads is None:
        raise CorruptCheckpointError(
            f"{ref}: config.json has no number of attention heads, looked for {', '.join(names)}"
        )
    return HeadConfig(
        heads,
        key_heads=_read_positive(KEY_HEADS, section, defaults, stage, ref),
        head_dim=_read_positive(HEAD_DIM, section, defaults, stage, ref),
    )


def _read_positive(
    names: Sequence[str], section: Mapping[str, Any], defaults: Mapping[str, Any], stage: int | None, ref: str
) -> int | None:
    """The first of the fields `names` that has a value, in the section and then in the defaults; None if none has."""
    stated_as_null = False
    for source in (section, defaults):
        if stated_as_null:  # null means "derive it", not "the family's default"
            return None
        for name in names:
            value = source.get(name)
            if isinstance(value, list) and stage is not None and stage < len(value):
                value = value[stage]
            if value is None and name in source and source is section:
                stated_as_null = True
            if value is None:
                continue
            if type(value) is not int or value < 1:
                raise CorruptCheckpointError(f"{ref}: config.json has {name} = {value!r}, expected a positive integer")
            return value
    return None
