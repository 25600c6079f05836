"""Write attngeo/layouts/defaults.json: what transformers uses if a configuration leaves out the numbers of heads.

It also has the width and the number of layers of each stack, whether token embeddings are tied to the unembedding, and
the share of a head that rotates, if it is the same in all layers and not 1. `make census` runs it. Values that a
configuration class computes from others are no defaults and are left out.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from pathlib import Path
from typing import Any

DEFAULTS = Path(__file__).parents[2] / "attngeo/layouts/defaults.json"
# Fields about attention heads: their numbers and their widths.
FIELD = re.compile(r"(^|_)(n_?heads?|heads|head_dim|head_size|dim_head|d_head|kv_channels|d_kv)(_|$)|^(qk|v)_\w+_dim$")
OTHERS = re.compile(
    r"mamba|linear|^index_|iou_|lm_head|prediction_head|global_pointer|loss|look|fov|ngram|^head_(in|out|hidden|depth)"
)


# Fields that state the width of a stack, and the number of its layers.
WIDTH = re.compile(r"((en|de)coder_|text_)?(hidden_sizes?|d_model|n_embd|embed_dims?|emb_dim|hidden_dim)|dim")
LAYERS = re.compile(r"((en|de)coder_)?(num_hidden_layers|n_layers?|num_layers|layers|depth)|num_(en|de)coder_layers")
TIED = "tie_word_embeddings"

# Whether and where a model rotates queries and keys.
ROTATING = re.compile(r"position_embeddings?_type|use_mem_rope|use_rotary_embedding|no_rope_layer_interval")
# Rotary parameters that a reader assumes anyway.
USUAL = [{"rope_theta": 10_000.0, "rope_type": kind} for kind in ("default", "axial")]


def read_defaults() -> dict[str, dict[str, Any]]:
    """Model type → field → value, for every model type of the installed transformers."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    return {name: own for name in sorted(CONFIG_MAPPING_NAMES) if (own := _fields_of(CONFIG_MAPPING[name]))}


def _fields_of(kind: type) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(kind):
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        is_of_heads = FIELD.search(field.name) and not OTHERS.search(field.name)
        is_size = WIDTH.fullmatch(field.name) or LAYERS.fullmatch(field.name)
        if (is_of_heads or is_size) and _is_count(value):
            found[field.name] = list(value) if isinstance(value, tuple) else value
        if ROTATING.fullmatch(field.name) and value != "sine":
            found[field.name] = value
        if field.name == "no_rope_layers":
            found["no_rope_layer_interval"] = 4  # of all types that have this list
    tied = _read_default(kind, TIED)
    if tied is not None:
        found[TIED] = bool(tied)
    rope = _read_default(kind, "rope_parameters") or {}
    share = rope.get("partial_rotary_factor")
    if found and share and share < 1 and "qk_rope_head_dim" not in found:
        found["partial_rotary_factor"] = share
    if rope and rope not in USUAL:
        found["rope_parameters"] = dict(sorted(rope.items()))  # kinds of layers come in the order of a set
    return found


def _read_default(kind: type, field: str) -> Any:
    """A field of a default configuration; None if it has none, or if no such configuration can be made."""
    try:
        return getattr(kind(), field, None)
    except Exception:  # some classes require a library
        return None


def _is_count(value: Any) -> bool:
    listed = isinstance(value, list | tuple) and bool(value) and all(type(one) is int for one in value)
    return type(value) is int or listed


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    rows = (f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in read_defaults().items())
    DEFAULTS.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")
