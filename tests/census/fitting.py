"""Fields that follow from others once these are small: sections of rotary embeddings, heads of state space layers."""

from __future__ import annotations

from typing import Any

from census.fields import Fields, value_of
from census.sizes import MAIN_WIDTHS

# Fields: number of heads, their width, and how many times wider than the model they are together.
STATE_SPACES = (
    ("mamba_n_heads", "mamba_d_head", "mamba_expand"),
    ("mamba_num_heads", "mamba_head_dim", "expand"),
    ("num_heads", "head_dim", "expand"),
    ("n_mamba_heads", "mamba_headdim", "mamba_expand"),
)
STATE_HEAD = 16


def fit_rotary(small: dict[str, Any], own: Fields, *, sections: bool) -> None:
    """Rescale the rotary embedding to the new head size. `sections`: the class knows sections, so they are set."""
    head_dim = small.get("head_dim")
    if head_dim is None:
        heads = next((small[n] for n in ("num_attention_heads", "num_heads", "n_heads") if n in small), None)
        width = next((small[n] for n in MAIN_WIDTHS if n in small), None)
        if not isinstance(heads, int) or not isinstance(width, int):
            return
        head_dim = width // heads
    if isinstance(value_of(own, "rope_parameters"), dict):
        rope = _rescale(own["rope_parameters"].value, head_dim)
        if sections and "mrope_section" not in rope and "rope_type" in rope:
            third, rest = divmod(_pairs(rope, head_dim), 3)
            rope["mrope_section"] = [third, third, third + rest]
        small["rope_parameters"] = rope


def fit_state_spaces(small: dict[str, Any], own: Fields) -> None:
    """Give a state space layer as many heads as its inner width needs."""
    for heads, size, expand in STATE_SPACES:
        if heads in small and size in small and (heads != "num_heads" or "state_size" in small):
            inner = int(small.get(expand, value_of(own, expand, 2)) * small["hidden_size"])
            small[size] = STATE_HEAD
            small[heads] = inner // STATE_HEAD
            if "mamba_d_ssm" in small:
                small["mamba_d_ssm"] = inner


def _pairs(rope: dict[str, Any], head_dim: int) -> int:
    return int(head_dim * (rope.get("partial_rotary_factor") or 1.0)) // 2


def _rescale(rope: dict[str, Any], head_dim: int) -> dict[str, Any]:
    result = {key: _rescale(v, head_dim) if isinstance(v, dict) else v for key, v in rope.items()}
    pairs = _pairs(rope, head_dim)
    for key in ("mrope_section", "xdrope_section"):
        if sections := rope.get(key):
            new = [max(1, size * pairs // sum(sections)) for size in sections]
            result[key] = [new[0] + pairs - sum(new), *new[1:]]
    for key in ("short_factor", "long_factor"):
        if factors := rope.get(key):
            result[key] = [*factors[:pairs], *[1.0] * (pairs - len(factors))]
    if rope.get("original_max_position_embeddings"):
        result["original_max_position_embeddings"] = 32
    return result
