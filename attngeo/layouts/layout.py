"""The vocabulary of `families.py`: how a model family declares where its query and key projections are.

The output axis of a projection is a row of slots, each `head_dim` wide. The letters of a layout give their order. Each
letter stands for a run of heads:

    "q"  the H query heads     "k"  the K key heads     "v"  the K value heads     "g"  H gates of query heads

The order repeats in each of `blocks` equal blocks. "qkv" in one block is Q…Q K…K V…V. In as many blocks as there are
key heads it is (Q…Q K V) for each group; with one query head per group, this is the interleaving of GPT-NeoX and BLOOM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

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


# How attention modules of any family name their projections. Each is compared with the ends of tensor names.
RULES = (
    make_separate("q_proj", "k_proj"),
    make_separate("query", "key"),
    make_separate("q_lin", "k_lin"),
    make_separate("query_proj", "key_proj"),
    make_separate("to_q", "to_k"),
    make_separate("Wq", "Wk"),
    make_separate("wq", "wk"),
    make_separate("q", "k"),
    make_separate("linear_q", "linear_k"),
    make_separate("project_q", "project_k"),
    make_separate("q_proj.linear", "k_proj.linear"),
    make_separate("q_head", "k_head"),
    make_separate("query_net", "key_net"),
    QKLayout(q="to_q.weight", k="to_kv.weight", q_bias="to_q.bias", k_bias="to_kv.bias", k_slots="kv"),
    make_fused("Wqkv"),
    LatentLayout(),
    LatentLayout(
        q="wq.weight",
        q_a="wq_a.weight",
        q_a_bias="wq_a.bias",
        q_b="wq_b.weight",
        q_norm="q_a_norm.weight",
        kv_a="wkv_a_with_mqa.weight",
        kv_a_bias="wkv_a_with_mqa.bias",
        kv_b="wkv_b.weight",
        kv_norm="kv_a_norm.weight",
    ),
    # torch.nn.MultiheadAttention, whose order is fixed.
    QKLayout(
        q="in_proj_weight", k="in_proj_weight", q_bias="in_proj_bias", k_bias="in_proj_bias", slots="qkv", k_slots="qkv"
    ),
)


# How modules of any family name the normalisations of queries and keys.
HEAD_NORMS = (
    ("q_norm", "k_norm"),
    ("q_layernorm", "k_layernorm"),
    ("query_layernorm", "key_layernorm"),
    ("query_norm", "key_norm"),
    ("norm_q", "norm_k"),
    ("q_ln", "k_ln"),
    ("q_layer_norm", "k_layer_norm"),
    # Beside queries and keys that are fused in a module named attn.
    ("attn.q_norm", "attn.k_norm"),
    ("attention.q_norm", "attention.k_norm"),
)


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
