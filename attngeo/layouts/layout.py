"""How a model family declares where its query and key projections are, and how they are cut out of their tensors.

The output axis of a projection is a row of slots, each `head_dim` wide. The letters of a layout give their order. Each
letter stands for a run of heads:

    "q"  the H query heads     "k"  the K key heads     "v"  the K value heads     "g"  H gates of query heads

The order repeats in each of `blocks` equal blocks. "qkv" in one block is Q…Q K…K V…V. In as many blocks as there are
key heads it is (Q…Q K V) for each group; with one query head per group, this is the interleaving of GPT-NeoX and BLOOM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from attngeo.errors import CorruptCheckpointError

Blocks = int | Literal["heads", "key_heads"]


@dataclass(frozen=True, kw_only=True)
class QKLayout:
    """Where one attention module keeps Wq and Wk. Tensor names are relative to the module's name.

    q, k: the weights; the same name if they are fused. q_bias, k_bias: their biases, which a checkpoint may lack.
    slots, k_slots: order of the slots in each. blocks: number of times that the order repeats in a tensor with several
    kinds of slots, "key_heads" for once per key head, or "heads" for once per query head. conv1d: stored as (in, out)
    or (in, heads, head_dim) instead of (out, in). when: values of configuration fields that this layout requires.
    key_heads: the number of key heads: "config" for the configuration's, "one", or "heads" for as many as query heads
    whatever the configuration says. width_from_rows: head_dim is the output width divided by the number of heads,
    whatever the configuration says. q_scale: a vector that softplus turns into a factor for each dimension of a query.
    """

    q: str
    k: str
    q_bias: str = ""
    k_bias: str = ""
    slots: str = "q"
    k_slots: str = "k"
    blocks: Blocks = 1
    conv1d: bool = False
    when: Mapping[str, Any] = field(default_factory=dict)
    key_heads: Literal["config", "one", "heads"] = "config"
    width_from_rows: bool = False
    q_scale: str = ""

    @property
    def fused(self) -> bool:
        """Whether queries and keys are in one tensor."""
        return self.q == self.k


@dataclass(frozen=True, kw_only=True)
class LatentLayout:
    """Multi-head latent attention: queries and keys pass through a normalised latent vector of low rank.

    Wq = q_a·diag(q_norm)·q_b, or `q` alone in a model without a query latent. Wk = kv_a·diag(kv_norm)·(the key part of
    kv_b). The rows of `kv_a` after the latent are a rotary key that all heads share; `k_rope_norm` normalises it.
    scaled: the normalised latents are multiplied by sqrt(d_model / rank).
    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.
    """

    q: str = "q_proj.weight"
    q_a: str = "q_a_proj.weight"
    q_a_bias: str = "q_a_proj.bias"
    q_norm: str = "q_a_layernorm.weight"
    q_b: str = "q_b_proj.weight"
    kv_a: str = "kv_a_proj_with_mqa.weight"
    kv_a_bias: str = "kv_a_proj_with_mqa.bias"
    kv_norm: str = "kv_a_layernorm.weight"
    kv_b: str = "kv_b_proj.weight"
    k_rope_norm: str = "k_rope_only_layernorm.weight"
    scaled: bool = False


# The fields of LatentLayout that name tensors.
LATENT_ROLES = ("q", "q_a", "q_a_bias", "q_norm", "q_b", "kv_a", "kv_a_bias", "kv_norm", "kv_b", "k_rope_norm")


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary position embeddings: which dimensions of a head make a pair.

    interleaved: neighbours (2i, 2i + 1) make a pair; otherwise (i, i + half). tail: the rotated dimensions are the last
    `qk_rope_head_dim` ones of a head, not the first ones.
    """

    interleaved: bool = False
    tail: bool = False


@dataclass(frozen=True, kw_only=True)
class HeadNorm:
    """A normalisation of queries and keys after projection (QK-norm). A checkpoint may lack its tensors.

    q, k: names of the two modules. centred: LayerNorm, which subtracts the mean, instead of RMSNorm. gain_offset: 1 if
    the gain g is stored as g − 1.
    """

    q: str = "q_norm"
    k: str = "k_norm"
    centred: bool = False
    gain_offset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model family. An entry states only what the rules do not find by themselves.

    source: URL of the modeling file that the entry was read from; "" for a family that is not in the table.
    layouts: tried in order; empty for `RULES`. stack: name of the self-attention stack if tensor names do not tell.
    stacks: regular expression on a module's name → its stack, for names that the general rules do not cover.
    pre_norm: names of the normalisation in front of attention, relative to an enclosing module; empty for a post-norm
    model. cross_norm: the same for cross-attention, if it has another one. pre_norm_when: values of configuration
    fields that a pre-norm model of the family has. input_gain_offset: 1 if the gain g is stored as g − 1.
    rotary: see `Rotary`. head_norm: see `HeadNorm`. defaults: configuration fields that published checkpoints may leave
    out, with the values that transformers then uses. shared: names of the configuration fields (layers, groups) of a
    family whose layers share weights. notes: caveats for the user.
    """

    source: str
    layouts: tuple[QKLayout | LatentLayout, ...] = ()
    stack: Literal["encoder", "decoder", "text", "vision", "audio"] = "decoder"
    stacks: Mapping[str, str] = field(default_factory=dict)
    pre_norm: tuple[str, ...] = ()
    cross_norm: tuple[str, ...] = ()
    pre_norm_when: Mapping[str, Any] = field(default_factory=dict)
    input_gain_offset: float = 0.0
    rotary: Rotary | None = None
    head_norm: HeadNorm | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    shared: tuple[str, str] | None = None
    notes: tuple[str, ...] = ()


def make_separate(q: str, k: str, **more: Any) -> QKLayout:
    """A layout with queries and keys in two Linear layers, named `q` and `k`."""
    return QKLayout(q=f"{q}.weight", k=f"{k}.weight", q_bias=f"{q}.bias", k_bias=f"{k}.bias", **more)


def make_fused(name: str, slots: str = "qkv", blocks: Blocks = 1, **more: Any) -> QKLayout:
    """A layout with queries and keys in one layer, named `name`, in the given order of slots."""
    return QKLayout(
        q=f"{name}.weight", k=f"{name}.weight", q_bias=f"{name}.bias", k_bias=f"{name}.bias",
        slots=slots, k_slots=slots, blocks=blocks, **more,
    )  # fmt: skip


def cut(x: Tensor, slots: str, letter: str, *, heads: int, key_heads: int, head_dim: int, blocks: int) -> Tensor:
    """Cut the slots `letter` out of x [slots·head_dim, ...]: [heads of that letter, head_dim, ...], in their order."""
    counts = {"q": heads, "k": key_heads, "v": key_heads, "g": heads}
    runs = [counts[slot] // blocks for slot in slots]
    start = sum(runs[: slots.index(letter)])
    by_block = x.reshape(blocks, sum(runs), head_dim, *x.shape[1:])
    return by_block[:, start : start + runs[slots.index(letter)]].flatten(0, 1)


def slot_rows(slots: str, *, heads: int, key_heads: int, head_dim: int) -> int:
    """The output width of a projection with these slots: their number times head_dim."""
    counts = {"q": heads, "k": key_heads, "v": key_heads, "g": heads}
    return sum(counts[slot] for slot in slots) * head_dim


def latent_weights(
    tensors: Mapping[str, Tensor], *, heads: int, nope_dim: int, rope_dim: int, bias: bool, scaled: bool = False
) -> tuple[Tensor, Tensor]:
    """The q and k of multi-head latent attention, [heads, nope_dim + rope_dim, d_model] each.

    tensors: field of LatentLayout → tensor, in the dtype to compute in. nope_dim, rope_dim: number of dimensions of a
    head without and with rotary embeddings. scaled: see `LatentLayout`. bias: return the biases that result from those
    of the down-projections instead, [heads, nope_dim + rope_dim] each.
    """

    def down(name: str, rows: slice) -> Tensor:
        weight = tensors[name]
        if not bias:
            return weight[rows]
        return tensors[f"{name}_bias"][rows] if f"{name}_bias" in tensors else weight.new_zeros(len(weight))[rows]

    rank = tensors["kv_norm"].shape[0]
    if "q" in tensors:
        q = tensors["q"] if not bias else tensors["q"].new_zeros(len(tensors["q"]))
    else:
        q = (tensors["q_b"] * tensors["q_norm"]) @ down("q_a", slice(None))
    up = tensors["kv_b"].reshape(heads, -1, rank)[:, :nope_dim] * tensors["kv_norm"]
    if scaled:
        up = up * (tensors["kv_a"].shape[1] / rank) ** 0.5
    nope = up @ down("kv_a", slice(0, rank))
    rope = down("kv_a", slice(rank, rank + rope_dim))
    if "k_rope_norm" in tensors:
        gain = tensors["k_rope_norm"]
        rope = rope * (gain if bias else gain[:, None])
    k = torch.cat([nope, rope.expand(heads, *rope.shape)], dim=1)
    return q.reshape(heads, nope_dim + rope_dim, *q.shape[1:]), k


@dataclass(frozen=True)
class AttentionSite:
    """One attention module: its place in the model, its sizes, and the tensors that hold its projections.

    stack, layer: its place; layers are counted from 0 within the stack. module: its name in the checkpoint. layout: how
    its projections are cut. family: its model family. section: the configuration of its part of the model. tensors:
    role → tensor name. heads, key_heads, head_dim, d_model: its sizes; query head h reads key head
    h // (heads / key_heads). key_width: the input width of the keys; it differs from d_model only in cross-attention.
    rule: how it was found. notes: caveats for readers of its scores.
    """

    stack: str
    layer: int
    module: str
    layout: QKLayout | LatentLayout = field(repr=False)
    family: Family = field(repr=False)
    section: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, str] = field(repr=False)
    heads: int
    key_heads: int
    head_dim: int
    d_model: int
    key_width: int
    rule: str
    notes: tuple[str, ...] = ()

    @property
    def reads(self) -> dict[str, slice]:
        """Tensor name → the rows of it that are needed. Values that come after queries and keys are not read."""
        reads = dict.fromkeys(self.tensors.values(), slice(None))
        if isinstance(self.layout, QKLayout) and not self.layout.conv1d and self.layout.blocks == 1:
            for role, slots in (("q", self.layout.slots), ("k", self.layout.k_slots)):
                needed = slots[: max(slots.find("q"), slots.find("k")) + 1]
                reads[self.tensors[role]] = slice(0, self.rows(needed))
        return reads

    @property
    def is_cross(self) -> bool:
        """Whether the keys come from another stack than the queries."""
        return self.stack.startswith("cross")

    @property
    def may_rotate(self) -> bool:
        """Whether queries and keys may have rotary embeddings: not in cross-attention, nor with ALiBi."""
        known_without = bool(self.family.source) and self.family.rotary is None
        return not (self.is_cross or self.section.get("alibi") or known_without)

    @property
    def rotary(self) -> Rotary | None:
        """The family's rotary embeddings; None if this site has none, or if the order of its dimensions is unknown."""
        return self.family.rotary if self.may_rotate else None

    def rows(self, slots: str) -> int:
        """The output width of these slots at this site."""
        return slot_rows(slots, heads=self.heads, key_heads=self.key_heads, head_dim=self.head_dim)


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
