"""config.json, and what it says of one attention stack: heads, key heads and head width under their many names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attngeo.errors import CorruptCheckpointError, ModelNotFoundError

Role = Literal["encoder", "decoder"]

# The field names in use, most specific first; a role's own come before the general ones.
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
ROLE_HEADS = {
    "encoder": ("encoder_attention_heads",),
    "decoder": ("decoder_attention_heads", "decoder_num_attention_heads"),
}
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
HEAD_DIM = ("head_dim", "d_kv", "attention_head_size", "kv_channels")


@dataclass(frozen=True)
class AttentionConfig:
    """What the configuration says of one stack; None where it says nothing and the default applies.

    heads: query heads. key_heads: heads of keys, by default as many as heads. head_dim: width of one head, by default
    the input width divided by heads.
    """

    heads: int
    key_heads: int | None
    head_dim: int | None


def read_config(path: Path, ref: str) -> dict[str, Any]:
    """The parsed config.json. Raises ModelNotFoundError where it is absent, CorruptCheckpointError where not JSON."""
    try:
        config = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelNotFoundError(
            f"{ref}: no config.json in {path.parent}; give a folder as save_pretrained writes it, or a Hub id"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{ref}: config.json is not readable JSON ({error}); download it again") from None
    if not isinstance(config, dict):
        raise CorruptCheckpointError(f"{ref}: config.json holds a {type(config).__name__}, expected an object")
    return config


def attention_config(
    section: Mapping[str, Any], role: Role, *, defaults: Mapping[str, Any], stage: int | None, ref: str
) -> AttentionConfig:
    """The head counts of one stack, from its section of the configuration.

    `defaults` fills in fields that published configurations leave out, `stage` picks from lists with one value per
    stage. Raises CorruptCheckpointError where the number of heads is missing or a number is not a positive integer.
    """
    heads = _positive((*ROLE_HEADS[role], *HEADS), section, defaults, stage, ref)
    if heads is None:
        looked_for = ", ".join((*ROLE_HEADS[role], *HEADS))
        raise CorruptCheckpointError(
            f"{ref}: config.json does not say how many attention heads there are, looked for {looked_for}"
        )
    return AttentionConfig(
        heads,
        _positive(KEY_HEADS, section, defaults, stage, ref),
        _positive(HEAD_DIM, section, defaults, stage, ref),
    )


def _positive(
    names: Sequence[str], section: Mapping[str, Any], defaults: Mapping[str, Any], stage: int | None, ref: str
) -> int | None:
    stated_as_null = False
    for source in (section, defaults):
        if stated_as_null:  # null means "derive it", not "what the family usually has"
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
