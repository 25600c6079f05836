"""How a model family declares where its query and key projections are, and how they are cut out of their tensors.

The output axis of a projection is a row of slots, each `head_dim` wide. The letters of a layout give their order. Each
letter stands for a run of heads:

    "q"  the H query heads     "k"  the K key heads     "v"  the K value heads     "g"  H gates of query heads

Only q and k are read.

The order repeats in each of `blocks` equal blocks. "qkv" in one block is Q…Q K…K V…V. In as many blocks as there are
key heads it is (Q…Q K V) for each group; with one query head per group, this is the interleaving of GPT-NeoX and BLOOM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from attngeo.errors import CorruptCheckpointError
from attngeo.layouts.names import Fields

# Name of a tensor → the tensor.
Tensors = Mapping[str, Tensor]
Blocks = int | Literal["heads", "key_heads"]
Letter = str
# Those that are read.
LETTERS = ("q", "k")


@dataclass(frozen=True)
class Projection:
    """One stored layer. Names of tensors are relative to the name of the attention module.

    Attributes:
        name: its weight.
        slots: the order of the slots in it.
        blocks: number of times that the order repeats if there are several kinds of slots, "key_heads" for once per
            key head, or "heads" for once per query head.
        transposed: stored as (in, out) or (in, heads, head_dim) instead of (out, in).
        bias: its bias, which a checkpoint may lack; "" for none.
    """

    name: str
    slots: str
    blocks: Blocks = 1
    transposed: bool = False
    bias: str = ""


@dataclass(frozen=True)
class Layout:
    """Where one attention module keeps its projections.

    Attributes:
        projections: its stored layers.
        when: values of configuration fields that this layout requires.
        key_heads: the number of key heads: "config" for the configuration's, "one", or "heads" for as many as query
            heads whatever the configuration says.
        width_from_rows: head_dim is the output width divided by the number of heads, whatever the configuration
            says.
        q_scale: a vector that softplus turns into a factor for each dimension of a query.
    """

    projections: tuple[Projection, ...]
    when: Fields = field(default_factory=dict)
    key_heads: Literal["config", "one", "heads"] = "config"
    width_from_rows: bool = False
    q_scale: str = ""

    def holder(self, letter: Letter) -> Projection:
        """The projection that holds the slots of this letter."""
        return next(projection for projection in self.projections if letter in projection.slots)


@dataclass(frozen=True, kw_only=True)
class LatentLayout:
    """Multi-head latent attention: queries and keys pass through a normalised latent vector of low rank.

    Wq = q_a·diag(q_norm)·q_b, or `q` alone in a model without a query latent. Wk = kv_a·diag(kv_norm)·(the key part
    of kv_b). The rows of `kv_a` after the latent are a rotary key that all heads share; `k_rope_norm` normalises
    it.

    Attributes:
        scaled: the normalised latents are multiplied by sqrt(d_model / rank).
        keys_alone: kv_b is the transposed key part of each head, [heads · rank, width], as in GGUF files.

    The other fields name tensors, relative to the name of the attention module.

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
    keys_alone: bool = False


# The fields of LatentLayout that name tensors.
LATENT_ROLES = ("q", "q_a", "q_a_bias", "q_norm", "q_b", "kv_a", "kv_a_bias", "kv_norm", "kv_b", "k_rope_norm")


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary position embeddings: which dimensions of a head make a pair.

    Attributes:
        interleaved: neighbours (2i, 2i + 1) make a pair; otherwise (i, i + half).
        tail: the rotated dimensions are the last `qk_rope_head_dim` ones of a head, not the first ones.
        sliding: only layers with a sliding window rotate.
        reversed: they rotate the other way.
        axes: half of the pairs rotate by the row of a patch and half by its column.
        other: why the product of a query and a key does not depend on an offset of positions alone; then no offset
            is read.
    """

    interleaved: bool = False
    tail: bool = False
    sliding: bool = False
    reversed: bool = False
    axes: bool = False
    other: str = ""


@dataclass(frozen=True, kw_only=True)
class HeadNorm:
    """A normalisation of queries and keys after projection (QK-norm). A checkpoint may lack its tensors.

    Attributes:
        q: name of the module that normalises queries.
        k: name of the module that normalises keys.
        centred: LayerNorm, which subtracts the mean, instead of RMSNorm.
        gain_offset: 1 if the gain g is stored as g − 1.
    """

    q: str = "q_norm"
    k: str = "k_norm"
    centred: bool = False
    gain_offset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model family. An entry states only what the rules do not find by themselves.

    Attributes:
        source: URL of the modeling file that the entry was read from; "" for a family that is not in the table.
        layouts: tried in order; empty for `RULES`.
        stack: name of the self-attention stack if tensor names do not tell.
        stacks: regular expression on a module's name → its stack, for names that the general rules do not cover.
        pre_norm: names of the normalisation in front of attention, relative to an enclosing module; empty for a
            post-norm model.
        cross_norm: the same for cross-attention, if it has another one.
        pre_norm_when: values of configuration fields that a pre-norm model of the family has.
        input_gain_offset: 1 if the gain g is stored as g − 1.
        rotary: see `Rotary`.
        head_norm: see `HeadNorm`.
        defaults: configuration fields that published checkpoints may leave out, with the values that transformers
            then uses.
        shared: names of the configuration fields (layers, groups) of a family whose layers share weights.
        more_key_heads: some layers have more key heads than is stated, as many as query heads, or twice as many.
        other_attention: why its attention is no softmax of q·k, or its queries and keys are no products of weights.
        uncounted_layers: number of layers that the configuration counts and that have no weights of their own.
        notes: caveats for the user.
    """

    source: str
    layouts: tuple[Layout | LatentLayout, ...] = ()
    stack: Literal["encoder", "decoder", "text", "vision", "audio"] = "decoder"
    stacks: Mapping[str, str] = field(default_factory=dict)
    pre_norm: tuple[str, ...] = ()
    cross_norm: tuple[str, ...] = ()
    pre_norm_when: Fields = field(default_factory=dict)
    input_gain_offset: float = 0.0
    rotary: Rotary | None = None
    head_norm: HeadNorm | None = None
    defaults: Fields = field(default_factory=dict)
    shared: tuple[str, str] | None = None
    more_key_heads: bool = False
    other_attention: str = ""
    uncounted_layers: int = 0
    notes: tuple[str, ...] = ()


def make_linear(name: str, slots: str, blocks: Blocks = 1, *, transposed: bool = False) -> Projection:
    """A layer named `name`, with a weight and perhaps a bias."""
    return Projection(f"{name}.weight", slots, blocks, transposed, bias=f"{name}.bias")


def make_separate(q: str, k: str, **more: Any) -> Layout:
    """A layout with queries and keys in two Linear layers, named `q` and `k`."""
    return Layout((make_linear(q, "q"), make_linear(k, "k")), **more)


def make_fused(name: str, slots: str = "qkv", blocks: Blocks = 1, *, transposed: bool = False, **more: Any) -> Layout:
    """A layout with queries and keys in one layer, named `name`, in this order of slots."""
    return Layout((make_linear(name, slots, blocks, transposed=transposed),), **more)


def weights_of(layout: Layout | LatentLayout) -> tuple[str, ...]:
    """The names of the weights that queries and keys are read from; the last two show that a module has the layout."""
    if isinstance(layout, Layout):
        return layout.holder("q").name, layout.holder("k").name
    return layout.q, layout.q_a, layout.q_b, layout.kv_a, layout.kv_b


@dataclass(frozen=True)
class Sizes:
    """The sizes of one attention module.

    Attributes:
        heads: number of query heads; head h reads key head h // (heads / key_heads).
        key_heads: number of key heads.
        head_dim: width of a query and of a key.
        d_model: input width of the queries.
        key_width: input width of the keys, which differs from d_model only in cross-attention.
    """

    heads: int
    key_heads: int
    head_dim: int
    d_model: int
    key_width: int

    def count(self, letter: Letter) -> int:
        """The number of heads of a letter."""
        return self.heads if letter in "qg" else self.key_heads

    def rows(self, slots: str) -> int:
        """The output width of a projection with these slots."""
        return self.head_dim * sum(map(self.count, slots))


def cut(x: Tensor, slots: str, letter: Letter, sizes: Sizes, blocks: int = 1) -> Tensor:
    """Cut the slots `letter` out of x [rows, ...]: [heads of that letter, head_dim, ...], in their order."""
    start = sizes.rows(slots[: slots.index(letter)]) // blocks
    by_block = x.reshape(blocks, sizes.rows(slots) // blocks, *x.shape[1:])
    heads = by_block[:, start : start + sizes.rows(letter) // blocks]
    return heads.reshape(sizes.count(letter), sizes.head_dim, *x.shape[1:])


@dataclass(frozen=True, kw_only=True)
class AttentionSite(Sizes):
    """One attention module: its position in the model, its sizes, and the tensors that hold its projections.

    Attributes:
        stack: the stack that it belongs to, such as "encoder", "cross" or "vision".
        layer: its number in the stack, from 0.
        module: its name in the checkpoint.
        layout: how its projections are cut.
        family: its model family.
        section: the configuration of its tower.
        tensors: role → tensor name; the role of a weight is its letter.
        rule: how it was found.
        notes: caveats for readers of its scores.
    """

    stack: str
    layer: int
    module: str
    layout: Layout | LatentLayout = field(repr=False)
    family: Family = field(repr=False)
    section: Fields = field(repr=False)
    tensors: Mapping[str, str] = field(repr=False)
    rule: str
    notes: tuple[str, ...] = ()

    @property
    def reads(self) -> dict[str, slice]:
        """Tensor name → the rows of it that are needed: the hull of the slots of queries and keys."""
        reads = dict.fromkeys(self.tensors.values(), slice(None))
        if isinstance(self.layout, Layout):
            for letter in LETTERS:
                projection = self.layout.holder(letter)
                if not projection.transposed and projection.blocks == 1:
                    before, hull = find_hull(projection.slots)
                    start = self.rows(before)
                    reads[self.tensors[letter]] = slice(start, start + self.rows(hull))
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


def find_hull(slots: str) -> tuple[str, str]:
    """The slots in front of queries and keys, and the slots from the first of these to the last."""
    positions = [slots.index(letter) for letter in LETTERS if letter in slots]
    first = min(positions)
    return slots[:first], slots[first : max(positions) + 1]


class Heads(NamedTuple):
    """Heads of one letter at one site: the queries, for example.

    Attributes:
        weight: [heads, width, d_model].
        bias: [heads, width], or None.
        gain: of a normalisation after projection, [heads or 1, width], or None.
    """

    weight: Tensor
    bias: Tensor | None = None
    gain: Tensor | None = None

    def change(self, function: Callable[[Tensor], Tensor]) -> Heads:
        """The heads after a linear map of their outputs."""
        bias = None if self.bias is None else function(self.bias)
        return self._replace(weight=function(self.weight), bias=bias)


def assemble(site: AttentionSite, tensors: Tensors) -> dict[Letter, Heads]:
    """Cut the projections of `site` out of its tensors.

    Args:
        site: the attention site.
        tensors: tensor name → the tensor, or the rows `site.reads` of it, in the dtype to compute in.

    Returns:
        Letter → its heads.

    Raises:
        CorruptCheckpointError: a weight is missing, or has fewer rows than its heads need.
    """
    if isinstance(site.layout, LatentLayout):
        return _assemble_latent(site, site.layout, tensors)
    heads = {}
    for letter in LETTERS:
        projection = site.layout.holder(letter)
        weight = _cut_heads(site, projection, tensors, letter, letter)
        bias = None
        if f"{letter}_bias" in site.tensors:
            bias = _cut_heads(site, projection, tensors, f"{letter}_bias", letter)
        heads[letter] = Heads(weight, bias, _gain(site, tensors, f"{letter}_gain"))
    return heads


def _assemble_latent(site: AttentionSite, layout: LatentLayout, tensors: Tensors) -> dict[Letter, Heads]:
    """The queries and keys of multi-head latent attention."""
    by_role = {role: tensors[name] for role, name in site.tensors.items()}
    rank = by_role["kv_norm"].numel()
    nope_dim = site.head_dim - count_shared_rows(site, tensors)
    # The biases of the down-projections are the weights of one more input, which is 1.
    has_bias = "q_a_bias" in by_role or "kv_a_bias" in by_role
    down = {}
    for role in ("q", "q_a", "kv_a"):
        if role in by_role:
            weight = by_role[role]
            bias = by_role.get(f"{role}_bias", weight.new_zeros(len(weight)))
            down[role] = torch.cat([weight, bias[:, None]], 1) if has_bias else weight
    q = down["q"] if "q" in down else (by_role["q_b"] * by_role["q_norm"]) @ down["q_a"]
    if layout.keys_alone:
        up = by_role["kv_b"].view(site.heads, rank, -1).mT
    else:
        up = by_role["kv_b"].reshape(site.heads, -1, rank)[:, :nope_dim]
    up = up * by_role["kv_norm"]
    if layout.scaled:
        up = up * (site.d_model / rank) ** 0.5
    rope = down["kv_a"][rank:]
    if "k_rope_norm" in by_role:
        rope = rope * by_role["k_rope_norm"][:, None]
    k = torch.cat([up @ down["kv_a"][:rank], rope.expand(site.heads, *rope.shape)], dim=1)
    heads = {}
    for letter, weight in (("q", q.reshape(site.heads, site.head_dim, -1)), ("k", k)):
        gain = _gain(site, tensors, f"{letter}_gain")
        heads[letter] = Heads(weight[..., : site.d_model], weight[..., -1] if has_bias else None, gain)
    return heads


def count_shared_rows(site: AttentionSite, tensors: Tensors) -> int:
    """The width of the rotary key of latent attention, which all heads share: the last dimensions of a head."""
    return len(tensors[site.tensors["kv_a"]]) - tensors[site.tensors["kv_norm"]].numel()


def output_axis(site: AttentionSite, letter: Letter) -> int:
    """The output dimension of a stored weight: 0 for a Linear layer, 1 for a Conv1D."""
    return int(isinstance(site.layout, Layout) and site.layout.holder(letter).transposed)


def number_outputs(site: AttentionSite, tensors: Tensors) -> dict[Letter, Heads]:
    """The row of each output of the heads in the stored weights: letter → weight [heads, width], and the gains.

    For writing weights back. It cuts numbered outputs as `assemble` cuts weights. Works for `Layout` only.
    """
    numbers = dict(tensors)
    for letter in LETTERS:
        axis = output_axis(site, letter)
        name = site.tensors[letter]
        numbers[name] = torch.arange(tensors[name].shape[axis]).unsqueeze(1 - axis)
    numbered = assemble(site, numbers)
    return {letter: heads._replace(weight=heads.weight.squeeze(-1)) for letter, heads in numbered.items()}


def _cut_heads(site: AttentionSite, projection: Projection, tensors: Tensors, role: str, letter: Letter) -> Tensor:
    """The heads of this letter in the weight or bias of this `role`."""
    name = site.tensors[role]
    slots = projection.slots
    x = tensors[name]
    if x.ndim > 1 and projection.transposed:
        x = x.flatten(1).T
    is_weight = role == letter
    if not is_weight and not name.endswith(projection.bias or " "):
        slots = letter  # a vector beside the layer
    blocks = projection.blocks
    if slots == letter:
        blocks = 1
    elif blocks == "heads":
        blocks = site.heads
    elif blocks == "key_heads":
        blocks = site.key_heads
    # Perhaps only the hull of the wanted slots was read. Rows after the slots of `letter` are not needed.
    if blocks == 1:
        if is_weight and len(x) < site.rows(slots):
            _, slots = find_hull(slots)
        slots = slots[: slots.index(letter) + 1]
        x = x[: site.rows(slots)]
    if len(x) != site.rows(slots):
        raise CorruptCheckpointError(
            f"{name} has {len(x)} rows, expected {site.rows(slots)}; the checkpoint contradicts itself"
        )
    return cut(x, slots, letter, site, blocks)


def _gain(site: AttentionSite, tensors: Tensors, role: str) -> Tensor | None:
    """The gain [heads or 1, head_dim] of the normalisation of queries or keys, stored as one tensor or one per head."""
    if role in site.tensors:
        roles = [role]
    else:
        per_head = [other for other in site.tensors if other.startswith(f"{role}.")]
        roles = sorted(per_head, key=lambda other: int(other.split(".")[1]))
    if not roles:
        return None
    gains = [tensors[site.tensors[stored]].reshape(-1, site.head_dim) for stored in roles]
    offset = site.family.head_norm.gain_offset if site.family.head_norm else 0.0
    return torch.cat(gains) + offset
