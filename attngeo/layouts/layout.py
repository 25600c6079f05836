"""How a model family declares its projections, and how they are cut out of their tensors.

The output axis of a projection of queries, keys or values is a row of slots. The letters of a layout give their order.
Each letter stands for a run of heads:

    "q"  the H query heads     "k"  the K key heads     "v"  the K value heads     "g"  H gates of query heads

A slot of values is `value_dim` wide, every other slot `head_dim`. The letter "o" stands for the output projection. Its
input axis is a row of H slots, each `value_dim` wide: the part that multiplies the values read by each query head.

By default, only q and k are read.

The order repeats in each of `blocks` equal blocks. "qkv" in one block is Q…Q K…K V…V. In as many blocks as there are
key heads it is (Q…Q K V) for each group; with one query head per group, this is the interleaving of GPT-NeoX and BLOOM.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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
# The letters that are read by default.
LETTERS = ("q", "k")
# All letters that can be read.
WEIGHT_LETTERS = "qkvo"


@dataclass(frozen=True)
class Projection:
    """One stored layer. Tensor names are relative to the attention module.

    Attributes:
        name: its weight.
        slots: the order of its slots.
        blocks: how often the order repeats if there are several kinds of slots: a number, "key_heads" for once per key
            head, or "heads" for once per query head.
        transposed: stored as (in, out) or (in, heads, head_dim) instead of (out, in).
        bias: its bias, which may be missing from a checkpoint; "" for none.
    """

    name: str
    slots: str
    blocks: Blocks = 1
    transposed: bool = False
    bias: str = ""


@dataclass(frozen=True)
class Layout:
    """The projections of one attention module, and the tensors that hold them.

    Attributes:
        projections: its stored layers.
        when: values of configuration fields that this layout requires.
        key_heads: the number of key heads: "config" for the number in the configuration, "one", or "heads" for as many
            as query heads, whatever the configuration says.
        width_from_rows: head_dim is the output width divided by the number of heads, whatever the configuration says.
        q_scale: a vector that softplus turns into a factor for each dimension of a query.
        outputs: layers that may be its output projection; empty to use the rules.
        values_are_keys: a module without a layer for values uses its keys, before their normalisation.
    """

    projections: tuple[Projection, ...]
    when: Fields = field(default_factory=dict)
    key_heads: Literal["config", "one", "heads"] = "config"
    width_from_rows: bool = False
    q_scale: str = ""
    outputs: tuple[Projection, ...] = ()
    values_are_keys: bool = False

    def holder(self, letter: Letter) -> Projection:
        """The projection that holds the slots of this letter."""
        return next(projection for projection in self.projections if letter in projection.slots)

    @property
    def letters(self) -> str:
        """The letters of all slots."""
        return "".join(projection.slots for projection in self.projections)


@dataclass(frozen=True, kw_only=True)
class LatentLayout:
    """Multi-head latent attention: queries and keys pass through a normalised latent vector of low rank.

    Wq = q_a·diag(q_norm)·q_b, or `q` alone in a model without a query latent. Wk = kv_a·diag(kv_norm)·(key part of
    kv_b), and Wv the same with the value part. Tensor names are relative to the attention module.

    Attributes:
        q: the query weight without a latent.
        q_a: weight from the input to the query latent.
        q_a_bias: its bias.
        q_norm: gain of the normalisation of the query latent.
        q_b: weight from the query latent to the queries.
        kv_a: weight from the input to the key and value latent; the rows after the latent are a rotary key, shared by
            all heads.
        kv_a_bias: its bias.
        kv_norm: gain of the normalisation of the key and value latent.
        kv_b: weight from this latent to the keys and values.
        v_b: the value part, [heads · value_dim, rank], if `keys_alone`.
        k_rope_norm: gain of the normalisation of the rotary key.
        scaled: whether the normalised latents are multiplied by sqrt(d_model / rank).
        keys_alone: whether kv_b is the transposed key part of each head, [heads · rank, width], as in GGUF files.
        outputs: layers that may be the output projection; see `Layout`.

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
    v_b: str = ""
    k_rope_norm: str = "k_rope_only_layernorm.weight"
    scaled: bool = False
    keys_alone: bool = False
    outputs: tuple[Projection, ...] = ()


# The fields of LatentLayout that name tensors.
LATENT_ROLES = ("q", "q_a", "q_a_bias", "q_norm", "q_b", "kv_a", "kv_a_bias", "kv_norm", "kv_b", "v_b", "k_rope_norm")


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary position embeddings: the pairs of dimensions of a head, and how they rotate.

    Attributes:
        interleaved: neighbours (2i, 2i + 1) make a pair; otherwise (i, i + half).
        tail: the last `qk_rope_head_dim` dimensions of a head rotate, not the first ones.
        sliding: only layers with a sliding window rotate.
        reversed: pairs rotate the other way.
        axes: half of the pairs rotate by the row of a patch, half by its column.
        other: why attngeo cannot apply an offset: the product of a query and a key depends on more than the offset, or
            the order of dimensions is unknown; "" if it can.
    """

    interleaved: bool = False
    tail: bool = False
    sliding: bool = False
    reversed: bool = False
    axes: bool = False
    other: str = ""


@dataclass(frozen=True, kw_only=True)
class HeadNorm:
    """A normalisation of queries and keys after projection (QK-norm). Its tensors may be missing from a checkpoint.

    Attributes:
        q: name of the module that normalises queries.
        k: name of the module that normalises keys.
        centered: LayerNorm, which subtracts the mean, instead of RMSNorm.
        gain_offset: 1 if the gain g is stored as g − 1.
    """

    q: str = "q_norm"
    k: str = "k_norm"
    centered: bool = False
    gain_offset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model family. An entry states only what the rules cannot find.

    Attributes:
        source: URL of the modeling file behind the entry; "" for a family that is not in the table.
        layouts: tried in order; empty for `RULES`.
        stack: name of the self-attention stack, unless tensor names show another.
        stacks: regular expression on a module's name → its stack, for names that the general rules do not cover.
        pre_norm: names of the normalisation before attention, relative to an enclosing module; empty for a post-norm
            model.
        cross_norm: the same for cross-attention, if it differs.
        post_norm: names of a normalisation between the output projection and the stream, relative to an enclosing
            module; {} stands for the last part of the attention module's name.
        pre_norm_when: values of configuration fields that make a model of the family pre-norm.
        input_gain_offset: 1 if the gain g is stored as g − 1.
        rotary: see `Rotary`.
        head_norm: see `HeadNorm`.
        defaults: configuration fields that published checkpoints may leave out, with the values that transformers
            then uses.
        shared: names of the configuration fields (layers, groups), if layers share weights.
        more_key_heads: some layers have more key heads than stated: as many as query heads, or twice the stated number.
        other_attention: why its attention is not a softmax of q·k, or its queries and keys are not products of weights.
        other_outputs: why the output of its heads is not a product of values and an output projection.
        value_scale: name of the configuration field that multiplies all values.
        uncounted_layers: number of layers that the configuration counts, but that have no weights of their own.
        notes: caveats for the user.
        query_key_notes: caveats about queries and keys only.
        output_notes: caveats about values and outputs only.
    """

    source: str
    layouts: tuple[Layout | LatentLayout, ...] = ()
    stack: Literal["encoder", "decoder", "text", "vision", "audio"] = "decoder"
    stacks: Mapping[str, str] = field(default_factory=dict)
    pre_norm: tuple[str, ...] = ()
    cross_norm: tuple[str, ...] = ()
    post_norm: tuple[str, ...] = ()
    pre_norm_when: Fields = field(default_factory=dict)
    input_gain_offset: float = 0.0
    rotary: Rotary | None = None
    head_norm: HeadNorm | None = None
    defaults: Fields = field(default_factory=dict)
    shared: tuple[str, str] | None = None
    more_key_heads: bool = False
    other_attention: str = ""
    other_outputs: str = ""
    value_scale: str = ""
    uncounted_layers: int = 0
    notes: tuple[str, ...] = ()
    query_key_notes: tuple[str, ...] = ()
    output_notes: tuple[str, ...] = ()


def make_linear(name: str, slots: str, blocks: Blocks = 1, *, transposed: bool = False) -> Projection:
    """A layer called `name`, with a weight and perhaps a bias."""
    return Projection(f"{name}.weight", slots, blocks, transposed, bias=f"{name}.bias")


def make_separate(q: str, k: str, v: str, *outputs: str, **more: Any) -> Layout:
    """A layout with queries, keys and values in separate Linear layers, and outputs in one of `outputs`."""
    layers = (make_linear(q, "q"), make_linear(k, "k"), make_linear(v, "v"))
    return Layout(layers, outputs=make_outputs(*outputs), **more)


def make_outputs(*names: str, transposed: bool = False) -> tuple[Projection, ...]:
    """Output projections with these names. "../" leads to the module around the attention module."""
    return tuple(make_linear(name, "o", transposed=transposed) for name in names)


def make_fused(name: str, slots: str = "qkv", blocks: Blocks = 1, *, transposed: bool = False, **more: Any) -> Layout:
    """A layout with queries and keys in one layer, called `name`, in this order of slots."""
    return Layout((make_linear(name, slots, blocks, transposed=transposed),), **more)


def weights_of(layout: Layout | LatentLayout) -> tuple[str, ...]:
    """Names of the weights of queries and keys; a module with the last two has the layout."""
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
        key_width: input width of the keys and values; differs from d_model only in cross-attention.
        value_dim: width of a value; 0 if values are not read.
        output_width: output width of the output projection; 0 if it is not read.
    """

    heads: int
    key_heads: int
    head_dim: int
    d_model: int
    key_width: int
    value_dim: int = 0
    output_width: int = 0

    def count(self, letter: Letter) -> int:
        """The number of heads of a letter."""
        return self.heads if letter in "qgo" else self.key_heads

    def width(self, letter: Letter) -> int:
        """The width of one head of a letter."""
        return self.value_dim or self.head_dim if letter in "vo" else self.head_dim

    def rows(self, slots: str) -> int:
        """The total width of all heads of these slots: the output width of their projection."""
        return sum(self.count(letter) * self.width(letter) for letter in slots)


def cut(x: Tensor, slots: str, letter: Letter, sizes: Sizes, blocks: int = 1) -> Tensor:
    """Cut the slots `letter` out of x [rows, ...]: [heads of that letter, their width, ...], in order."""
    start = sizes.rows(slots[: slots.index(letter)]) // blocks
    by_block = x.reshape(blocks, sizes.rows(slots) // blocks, *x.shape[1:])
    heads = by_block[:, start : start + sizes.rows(letter) // blocks]
    return heads.reshape(sizes.count(letter), sizes.width(letter), *x.shape[1:])


@dataclass(frozen=True, kw_only=True)
class AttentionSite(Sizes):
    """One attention module: its position in the model, its sizes, and the tensors that hold its projections.

    Attributes:
        stack: its stack, such as "encoder", "cross" or "vision".
        layer: its number in the stack, from 0.
        module: its name in the checkpoint.
        layout: how its projections are cut.
        family: its model family.
        section: the configuration of its tower.
        tensors: role → tensor name; the role of a weight is its letter.
        rule: the family or rule that found it.
        notes: caveats about its scores.
        parts: the letters that are read.
        output_notes: caveats about its values and outputs, if you asked for them.
        missing: why values and outputs cannot be read although you asked for them; "" otherwise.
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
    parts: str = "qk"
    output_notes: tuple[str, ...] = ()
    missing: str = ""

    @property
    def reads(self) -> dict[str, slice]:
        """Tensor name → the rows to read: from the first to the last slot of `parts`."""
        needed = [name for role, name in self.tensors.items() if not parts_of(role).isdisjoint(self.parts)]
        reads = dict.fromkeys(needed, slice(None))
        if isinstance(self.layout, Layout):
            for letter in self.parts.replace("o", ""):
                projection = self.layout.holder(letter)
                if not projection.transposed and projection.blocks == 1:
                    before, hull = find_hull(projection.slots, self.parts)
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


def parts_of(role: str) -> frozenset[Letter]:
    """The letters that need the tensor of a role.

    >>> sorted(parts_of("kv_norm")), sorted(parts_of("q_bias")), sorted(parts_of("pre_norm"))
    (['k', 'v'], ['q'], ['k', 'o', 'q', 'v'])
    """
    if role.startswith("kv_"):
        return frozenset("kv")
    return frozenset(role[0] if role[0] in WEIGHT_LETTERS else WEIGHT_LETTERS)


def find_hull(slots: str, letters: str) -> tuple[str, str]:
    """The slots before those of the letters, and the slots from the first to the last of the letters."""
    positions = [slots.index(letter) for letter in letters if letter in slots]
    first = min(positions)
    return slots[:first], slots[first : max(positions) + 1]


class Heads(NamedTuple):
    """Heads of one letter at one site: the queries, for example.

    Attributes:
        weight: [heads, width, d_model]; for outputs, the last dimension is the output width.
        bias: [heads, width], or None.
        gain: gain of a normalisation after projection, [heads or 1, width], or None.
    """

    weight: Tensor
    bias: Tensor | None = None
    gain: Tensor | None = None

    def change(self, function: Callable[[Tensor], Tensor]) -> Heads:
        """The heads after a linear map of their outputs."""
        bias = None if self.bias is None else function(self.bias)
        return self._replace(weight=function(self.weight), bias=bias)


def assemble(site: AttentionSite, tensors: Tensors, letters: Collection[Letter] = LETTERS) -> dict[Letter, Heads]:
    """Cut projections of `site` out of its tensors.

    Args:
        site: the attention site.
        tensors: tensor name → the tensor, or the rows `site.reads` of it, in the dtype to compute in.
        letters: the letters to cut, among `site.parts`.

    Returns:
        Letter → its heads.

    Raises:
        CorruptCheckpointError: a weight is missing, or has fewer rows than its heads need.
    """
    heads = {}
    if "o" in letters:
        heads["o"] = _cut_outputs(site, tensors)
    if isinstance(site.layout, LatentLayout):
        return heads | _assemble_latent(site, site.layout, tensors, letters)
    for letter in letters:
        if letter == "o":
            continue
        projection = site.layout.holder(letter)
        weight = _cut_heads(site, projection, tensors, letter, letter)
        bias = None
        if f"{letter}_bias" in site.tensors:
            bias = _cut_heads(site, projection, tensors, f"{letter}_bias", letter)
        heads[letter] = Heads(weight, bias, _gain(site, tensors, f"{letter}_gain"))
    return heads


def _cut_outputs(site: AttentionSite, tensors: Tensors) -> Heads:
    """The output projection: its weight for each query head; its bias, common to all of them, as one head."""
    weight = tensors[site.tensors["o"]]
    columns = weight.flatten(1) if not output_axis(site, "o") else weight.T  # [output width, heads · value_dim]
    of_heads = columns.T.reshape(site.heads, site.value_dim, site.output_width)
    bias = tensors[site.tensors["o_bias"]][None] if "o_bias" in site.tensors else None
    return Heads(of_heads, bias)


def _assemble_latent(
    site: AttentionSite, layout: LatentLayout, tensors: Tensors, letters: Collection[Letter]
) -> dict[Letter, Heads]:
    """The queries, keys and values of multi-head latent attention, as far as `letters` has them."""
    by_role = {role: tensors[name] for role, name in site.tensors.items() if name in tensors}
    # The biases of the down-projections are the weights of one more input, which is 1.
    has_bias = "q_a_bias" in by_role or "kv_a_bias" in by_role
    down = {}
    for role in ("q", "q_a", "kv_a"):
        if role in by_role:
            weight = by_role[role]
            bias = by_role.get(f"{role}_bias", weight.new_zeros(len(weight)))
            down[role] = torch.cat([weight, bias[:, None]], 1) if has_bias else weight
    heads = {}
    for letter in letters:
        if letter == "q":
            q = down["q"] if "q" in down else (by_role["q_b"] * by_role["q_norm"]) @ down["q_a"]
            weight = q.reshape(site.heads, site.head_dim, -1)
        elif letter in "kv":
            weight = _read_latent(site, layout, by_role, down["kv_a"], letter)
        else:
            continue
        bias_of_heads = weight[..., -1] if has_bias else None
        heads[letter] = Heads(weight[..., : site.d_model], bias_of_heads, _gain(site, tensors, f"{letter}_gain"))
    return heads


def _read_latent(site: AttentionSite, layout: LatentLayout, by_role: Tensors, down: Tensor, letter: Letter) -> Tensor:
    """The keys or values [heads, width, inputs] that heads read from the latent, the keys with their rotary part.

    by_role: role → tensor. down: `kv_a`, perhaps with a bias.
    """
    gain = by_role["kv_norm"].flatten()
    rank = len(gain)
    if layout.scaled:
        gain = gain * (site.d_model / rank) ** 0.5
    rope = down[rank:]
    if not layout.keys_alone:
        unrotated = site.head_dim - len(rope)
        keys, values = by_role["kv_b"].reshape(site.heads, -1, rank).tensor_split([unrotated], dim=1)
        up = keys if letter == "k" else values
    elif letter == "k":
        up = by_role["kv_b"].view(site.heads, rank, -1).mT
    else:
        up = by_role["v_b"].reshape(site.heads, -1, rank)
    read = (up * gain) @ down[:rank]
    if letter == "v":
        return read
    if "k_rope_norm" in by_role:
        rope = rope * by_role["k_rope_norm"][:, None]
    return torch.cat([read, rope.expand(site.heads, *rope.shape)], dim=1)


def count_shared_rows(site: AttentionSite, tensors: Tensors) -> int:
    """The width of the rotary key that all heads of latent attention share: the last dimensions of a head."""
    return len(tensors[site.tensors["kv_a"]]) - tensors[site.tensors["kv_norm"]].numel()


def output_axis(site: AttentionSite, letter: Letter) -> int:
    """The output dimension of a stored weight: 0 for a Linear layer, 1 for a Conv1D."""
    if letter == "o":
        return int(site.layout.outputs[0].transposed)
    return int(isinstance(site.layout, Layout) and site.layout.holder(letter).transposed)


def number_outputs(site: AttentionSite, tensors: Tensors, letters: Collection[Letter] = LETTERS) -> dict[Letter, Heads]:
    """The row of each output of the heads in the stored tensors: letter → weight and bias [heads, width]; the gains.

    Used to write weights and biases back. Cuts numbered outputs as `assemble` cuts weights. Works for `Layout` only.
    """
    numbers = dict(tensors)
    for letter in letters:
        axis = output_axis(site, letter)
        name = site.tensors[letter]
        numbers[name] = torch.arange(tensors[name].shape[axis]).unsqueeze(1 - axis)
        bias = site.tensors.get(f"{letter}_bias")
        if bias is not None:
            numbers[bias] = torch.arange(len(tensors[bias]))
    numbered = assemble(site, numbers, letters)
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
    # Perhaps only the rows from the first to the last wanted slot were read. Rows after the slots of `letter` are not
    # needed.
    if blocks == 1:
        if is_weight and len(x) < site.rows(slots):
            _, slots = find_hull(slots, site.parts)
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
