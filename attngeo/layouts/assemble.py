"""From the tensors of one site to the projections of its heads. Reads nothing: the tensors are arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.errors import CorruptCheckpointError
from attngeo.layouts.layout import QKLayout, cut, latent_weights
from attngeo.layouts.sites import AttentionSite


class Projections(NamedTuple):
    """The projections of one site.

    q: [heads, head_dim, d_model]. k: [key_heads, head_dim, d_model]. q_bias, k_bias: [heads or key_heads, head_dim], or
    None. q_gain, k_gain: gain of a normalisation after projection, [heads or 1, head_dim], or None.
    """

    q: Tensor
    k: Tensor
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    q_gain: Tensor | None = None
    k_gain: Tensor | None = None


def assemble(site: AttentionSite, tensors: Mapping[str, Tensor]) -> Projections:
    """Cut the projections of `site` out of its tensors.

    tensors: tensor name → the rows `site.reads` of that tensor, in the dtype to compute in. Raises
    CorruptCheckpointError if a weight is missing, or has fewer rows than its heads need.
    """
    gains = tuple(_gain(site, tensors, role) for role in ("q_gain", "k_gain"))
    if isinstance(site.layout, QKLayout):
        q, q_bias = (_heads(site, site.layout, tensors, role, "q") for role in ("q", "q_bias"))
        k, k_bias = (_heads(site, site.layout, tensors, role, "k") for role in ("k", "k_bias"))
        if q is None or k is None:
            raise CorruptCheckpointError(f"{site.module}: query or key weight is missing")
        return Projections(q, k, q_bias, k_bias, *gains)
    by_role = {role: tensors[name] for role, name in site.tensors.items()}
    rope_dim = count_shared_rows(site, tensors)
    sizes = {"heads": site.heads, "nope_dim": site.head_dim - rope_dim, "rope_dim": rope_dim}
    scaled = site.layout.scaled
    q, k = latent_weights(by_role, **sizes, bias=False, scaled=scaled)
    if "q_a_bias" in by_role or "kv_a_bias" in by_role:
        return Projections(q, k, *latent_weights(by_role, **sizes, bias=True, scaled=scaled), *gains)
    return Projections(q, k, None, None, *gains)


def count_shared_rows(site: AttentionSite, tensors: Mapping[str, Tensor]) -> int:
    """The width of the rotary key of latent attention, which all heads share: the last dimensions of a head."""
    return len(tensors[site.tensors["kv_a"]]) - tensors[site.tensors["kv_norm"]].numel()


def output_axis(site: AttentionSite) -> int:
    """The output dimension of the stored query and key weights: 0 for a Linear layer, 1 for a Conv1D."""
    return int(isinstance(site.layout, QKLayout) and site.layout.conv1d)


def number_outputs(site: AttentionSite, tensors: Mapping[str, Tensor]) -> Projections:
    """The place of each output of the heads in the stored weights: q [heads, head_dim], k [key_heads, head_dim].

    For writing weights back; the gains are those of the site. It cuts numbered outputs as `assemble` cuts weights.
    Works for `QKLayout` only.
    """
    axis, numbers = output_axis(site), dict(tensors)
    for name in (site.tensors["q"], site.tensors["k"]):
        numbers[name] = torch.arange(tensors[name].shape[axis]).unsqueeze(1 - axis)
    found = assemble(site, numbers)
    return found._replace(q=found.q.squeeze(-1), k=found.k.squeeze(-1))


def _heads(
    site: AttentionSite, layout: QKLayout, tensors: Mapping[str, Tensor], role: str, letter: str
) -> Tensor | None:
    """The slots of queries or keys in the weight or bias of this `role`; None if the site has no such tensor."""
    if role not in site.tensors:
        return None
    x = tensors[site.tensors[role]]
    if x.ndim > 1 and layout.conv1d:
        x = x.flatten(1).T
    slots = layout.slots if letter == "q" else layout.k_slots
    if role.endswith("bias") and not _same_layer(getattr(layout, letter), getattr(layout, role)):
        slots = letter
    named = {"heads": site.heads, "key_heads": site.key_heads}
    blocks = layout.blocks if isinstance(layout.blocks, int) else named[layout.blocks]
    if slots == letter:
        blocks = 1
    # Only the rows up to the last slot of queries and keys were read. Rows after the slots of `letter` are not needed.
    if blocks == 1:
        slots = slots[: slots.index(letter) + 1]
        x = x[: site.rows(slots)]
    if x.shape[0] != site.rows(slots):
        raise CorruptCheckpointError(
            f"{site.tensors[role]} has {x.shape[0]} rows, expected {site.rows(slots)}; "
            "the checkpoint contradicts itself"
        )
    return cut(x, slots, letter, heads=site.heads, key_heads=site.key_heads, head_dim=site.head_dim, blocks=blocks)


def _same_layer(weight: str, bias: str) -> bool:
    return weight.removesuffix("weight") == bias.removesuffix("bias")


def _gain(site: AttentionSite, tensors: Mapping[str, Tensor], role: str) -> Tensor | None:
    """The gain [heads or 1, head_dim] of the normalisation of queries or keys, stored as one tensor or one per head."""
    parts = sorted((key for key in site.tensors if key.startswith(f"{role}.")), key=lambda key: int(key.split(".")[1]))
    found = [tensors[site.tensors[key]] for key in ([role] if role in site.tensors else parts)]
    if not found:
        return None
    offset = site.family.head_norm.gain_offset if site.family.head_norm else 0.0
    return torch.cat([gain.reshape(-1, site.head_dim) for gain in found]) + offset
