"""Projections of an attention site, with gains, biases and rotations by the options, and the factors of updates."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from attngeo.attention.options import ReadingOptions
from attngeo.checkpoints.adapters import FACTORS
from attngeo.choices import Convention
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError
from attngeo.geometry.factors import append_bias, fold_head_norm, rotate
from attngeo.geometry.forms import Form
from attngeo.layouts.layout import (
    AttentionSite,
    Heads,
    LatentLayout,
    Layout,
    Letter,
    Tensors,
    assemble,
    count_shared_rows,
)
from attngeo.layouts.modules import conditions_hold
from attngeo.layouts.positions import NoRotation, SiteRotation, explain_rotary, find_rotation
from attngeo.layouts.rotary import rotary_scaling


class FormNote(StrEnum):
    """Notes on forms that some questions drop; all other notes are plain texts."""

    # The form is at offset 0, the default.
    NO_OFFSET = "rotary: relative offset 0"


def key_heads_of(site: AttentionSite, convention: Convention) -> list[int]:
    """The key head of each query head h: by its group, or h mod K by the published convention."""
    if convention == "published":
        return [head % site.key_heads for head in range(site.heads)]
    return [head // (site.heads // site.key_heads) for head in range(site.heads)]


class QueryKeyProjections(NamedTuple):
    """Queries and keys of the heads of a site: the logit of tokens x and y is x·q[h]ᵀ·k[g(h)]·yᵀ.

    Attributes:
        q: queries, [heads, head_dim, d_model]; with biases, the input is one wider.
        k: keys, [key_heads, head_dim, key_width].
        notes: caveats about scores.
    """

    q: Tensor
    k: Tensor
    notes: list[str]


def projections(
    site: AttentionSite,
    tensors: Tensors,
    options: ReadingOptions = ReadingOptions(),
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> QueryKeyProjections:
    """The queries and keys of a site.

    Args:
        site: the attention site.
        tensors: tensor name → the tensor, or the rows `site.reads` of it.
        options: with_bias, fold_norm and rope_offset choose the bilinear form; the defaults give Wq·Wkᵀ itself.
        dtype: number type to compute in.
        device: device to compute on.
    """
    tensors = _cast(tensors, dtype, device)
    heads = assemble(site, tensors)
    notes = list(site.notes)
    if options.fold_norm:
        notes.append(_fold_norm(site, tensors, heads))
    for letter in heads:
        heads[letter] = _fold_head_norm(site, tensors, heads[letter], f"{letter}_gain")
    if "q_scale" in site.tensors:  # a learned factor of each dimension of the queries, which is positive
        scale = softplus(tensors[site.tensors["q_scale"]])[None]
        heads["q"] = heads["q"].change(lambda x: fold_head_norm(x, scale, centered=False))
    scaling_note = _scale_rotated(site, tensors, heads)
    notes += [_rotate(site, heads, options.rope_offset), scaling_note]
    q, q_bias, _ = heads["q"]
    k, k_bias, _ = heads["k"]
    if options.with_bias and q_bias is None and k_bias is None:
        notes.append("no biases to include")
    elif options.with_bias:
        q = append_bias(q, q_bias)
        k = append_bias(k, k_bias)
        notes.append("biases included")
    return QueryKeyProjections(q, k, [note for note in notes if note])


class OutputProjections(NamedTuple):
    """Values and outputs of a site: head h adds x·v[g(h)]ᵀ·o[h] for a token x that it attends to with weight 1.

    Attributes:
        v: values, [key_heads, value_dim, key_width]; with biases, the input is one wider.
        o: the part of the output projection that belongs to each query head, [heads, value_dim, output_width].
        bias: bias of the output projection, [output_width], if biases are included; None if it has none.
        notes: caveats about scores.
    """

    v: Tensor
    o: Tensor
    bias: Tensor | None
    notes: list[str]


def output_projections(
    site: AttentionSite,
    tensors: Tensors,
    options: ReadingOptions = ReadingOptions(),
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> OutputProjections:
    """The values and outputs of a site whose `parts` have both.

    Args:
        site: the attention site.
        tensors: as for `projections`.
        options: with_bias and fold_norm choose the form; the defaults give Wv·Wo itself.
        dtype: number type to compute in.
        device: device to compute on.

    Raises:
        UnsupportedModelError: the values or the output projection of the site are unknown.
    """
    require_outputs(site)
    tensors = _cast(tensors, dtype, device)
    heads = assemble(site, tensors, "vo")
    notes = list(site.output_notes)
    if options.fold_norm:
        notes.append(_fold_norm(site, tensors, heads))
    v, v_bias, _ = heads["v"]
    o, o_bias, _ = heads["o"]
    scale = _value_scale(site)
    v = v * scale
    v_bias = None if v_bias is None else v_bias * scale
    if "o_norm" in site.tensors:
        gain = tensors[site.tensors["o_norm"]] + site.family.input_gain_offset
        o = o * gain
        o_bias = None if o_bias is None else o_bias * gain
        notes.append("gain of the norm after attention folded into outputs")
    if options.with_bias and v_bias is None and o_bias is None:
        notes.append("no biases to include")
    elif options.with_bias:
        v = append_bias(v, v_bias)
        notes.append("biases included")
    bias = o_bias[0] if options.with_bias and o_bias is not None else None
    return OutputProjections(v, o, bias, notes)


def _value_scale(site: AttentionSite) -> float:
    """The number by which the configuration multiplies values."""
    fields = {**site.family.defaults, **site.section}
    scale = fields.get(site.family.value_scale)
    if scale is None:
        return 1.0
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise CorruptCheckpointError(f"config.json has {site.family.value_scale} = {scale!r:.80}, expected a number")
    return float(scale)


def require_outputs(site: AttentionSite) -> None:
    """Raise UnsupportedModelError if the values and outputs of a site were requested but are unknown."""
    if site.missing:
        raise UnsupportedModelError(
            f"values and outputs cannot be read: {site.missing}; read queries and keys only, or choose another stack",
            subject=site.module,
        )


def _cast(tensors: Tensors, dtype: torch.dtype, device: torch.device | str) -> dict[str, Tensor]:
    return {name: tensor.to(device=device, dtype=dtype) for name, tensor in tensors.items()}


HeadsByLetter = dict[Letter, Heads]


def _fold_norm(site: AttentionSite, tensors: Tensors, heads: HeadsByLetter) -> str:
    """Fold the norm before attention into the heads: its gain into weights, its shift into biases. Returns a note."""
    if "pre_norm" not in site.tensors:
        family = site.family
        has_norm = bool(family.pre_norm) and conditions_hold(family.pre_norm_when, site.section, family)
        is_known = bool(family.source) and not has_norm
        return "no normalisation gain before attention" if is_known else "the input norm is unknown and was not folded"
    gain = tensors[site.tensors["pre_norm"]] + site.family.input_gain_offset
    shift = tensors[site.tensors["pre_norm_bias"]] if "pre_norm_bias" in site.tensors else None
    reads_stream = "q" if site.is_cross else "qkv"
    for letter in reads_stream:
        if letter not in heads:
            continue
        weight, bias, _ = heads[letter]
        if shift is not None:
            bias = weight @ shift + (0 if bias is None else bias)
        heads[letter] = heads[letter]._replace(weight=weight * gain, bias=bias)
    if not site.is_cross:
        return "input gain folded"
    if "q" in heads:
        return "gain folded into queries only: keys read another stack"
    return "no gain folded: values read another stack"


def update_factors(
    site: AttentionSite,
    tensors: Tensors,
    q: Tensor,
    k: Tensor,
    options: ReadingOptions,
    key_heads: list[int],
) -> tuple[Form, Form]:
    """The low-rank change of W_qk by adapters, for each head and for the sum of heads.

    With ΔWq = Bq·Aq [head_dim, d_model], and ΔWk = Bk·Ak, Δ(qᵀk) = Aqᵀ·(Bqᵀ·(k + Bk·Ak)) + (Bkᵀ·q)ᵀ·Ak. Its rank is at
    most the sum of both ranks. Changes of outputs, such as rotations, apply to B, and changes of inputs to A.

    Args:
        site: the attention site.
        tensors: its tensors, from an `AdapterStore` with `only_updates`.
        q: queries of the base, as `projections` gives them.
        k: keys of the base, as `projections` gives them.
        options: how weights are read.
        key_heads: the key head of each query head.
    """
    if not isinstance(site.layout, Layout):
        raise UnsupportedModelError(
            "latent attention multiplies several weights, so its update does not have low rank; "
            "score without $adapter_only",
            "adapter_only",
            subject=site.module,
        )
    outputs = dict(tensors)
    inputs: HeadsByLetter = {}
    for letter, width in (("q", site.d_model), ("k", site.key_width)):
        name = site.tensors[letter]
        weight = tensors[name]
        if name + FACTORS[0] in tensors:
            outputs[name] = tensors[name + FACTORS[0]]
            down = tensors[name + FACTORS[1]]
        else:  # an update of zeros
            outputs[name] = torch.zeros_like(weight[:1] if site.layout.holder(letter).transposed else weight[:, :1])
            down = weight.new_zeros(1, width)
        inputs[letter] = Heads(down.to(q)[None])
    up_q, up_k, _ = projections(
        site, outputs, options.replace(with_bias=False, fold_norm=False), dtype=q.dtype, device=q.device
    )
    if options.fold_norm:
        _fold_norm(site, {name: tensor.to(q) for name, tensor in tensors.items()}, inputs)
    down_q, q_bias, _ = inputs["q"]
    down_k, k_bias, _ = inputs["k"]
    if q.shape[-1] > down_q.shape[-1]:
        down_q = append_bias(down_q, q_bias)
        down_k = append_bias(down_k, k_bias)
    from_keys = up_q.mT @ (k + up_k @ down_k)[key_heads]
    from_queries = up_k[key_heads].mT @ q
    heads = len(key_heads)
    left = torch.cat([down_q.expand(heads, -1, -1), from_queries], 1)
    right = torch.cat([from_keys, down_k.expand(heads, -1, -1)], 1)
    layer_left = torch.cat([down_q, from_queries.sum(0, keepdim=True)], 1)
    layer_right = torch.cat([from_keys.sum(0, keepdim=True), down_k], 1)
    return Form(left, right, list(range(heads))), Form(layer_left, layer_right, [0])


def _fold_head_norm(site: AttentionSite, tensors: Tensors, heads: Heads, role: str) -> Heads:
    """Fold the linear part of QK-norm: its gain, and the centring of a LayerNorm."""
    gain = heads.gain
    norm = site.family.head_norm
    if gain is None or norm is None:
        return heads
    # A vector as wide as all heads together belongs to a normalisation of all heads together.
    stored = tensors.get(site.tensors.get(role, ""))
    across_heads = stored is not None and stored.ndim == 1 and len(gain) > 1
    return heads.change(lambda x: fold_head_norm(x, gain, centered=norm.centered, across_heads=across_heads))


def _scale_rotated(site: AttentionSite, tensors: Tensors, heads: HeadsByLetter) -> str:
    """Multiply rotating dimensions by the factor of yarn or longrope, at any offset. Returns a note, or "".

    If all dimensions rotate, the factor scales all logits, and is left out, as is the scale before the softmax.
    """
    if not site.may_rotate:
        return ""
    shared = count_shared_rows(site, tensors) if isinstance(site.layout, LatentLayout) else None
    with explain_rotary("correct it"):
        factor, count = rotary_scaling(site.section, site.family, site.head_dim, site.layer, shared)
    if factor == 1:
        return ""
    factors = heads["q"].weight.new_ones(1, site.head_dim)
    factors[:, :count] = factor
    if shared is not None:
        factors = factors.flip(1)
    for letter in heads:
        heads[letter] = heads[letter].change(lambda x: fold_head_norm(x, factors, centered=False))
    return f"rotary scaling: {count} of {site.head_dim} dimensions of queries and keys multiplied by {factor:.4g}"


def _rotate(site: AttentionSite, heads: HeadsByLetter, offset: int) -> str:
    """Rotate the queries by the offset, as rotary embeddings do between two positions. Returns a note, or ""."""
    if not offset:
        return FormNote.NO_OFFSET if site.rotary else ""
    with explain_rotary("score without $rope_offset", "rope_offset"):
        rotation = find_rotation(site)
    if isinstance(rotation, NoRotation):
        if rotation.is_known:
            return f"{rotation.reason}: the offset has no effect"
        raise UnsupportedModelError(
            f"{site.section.get('model_type', site.module)!r} has no relative offset: {rotation.reason}; score without "
            "$rope_offset, or choose another stack with $stack",
            "rope_offset",
            "stack",
        )
    heads["q"] = heads["q"].change(lambda x: _turn(x, rotation, offset))
    return f"rotary: relative offset {offset}"


def turn_queries(site: AttentionSite, q: Tensor, offset: int) -> Tensor:
    """Queries that meet keys at this many positions more between them; unchanged if the site does not rotate.

    Args:
        site: the attention site.
        q: queries as `projections` gives them.
        offset: positions to add to the offset; negative to take some away.
    """
    rotation = find_rotation(site) if offset else None
    return _turn(q, rotation, offset) if isinstance(rotation, SiteRotation) else q


def _turn(x: Tensor, rotation: SiteRotation, offset: int) -> Tensor:
    """Rotate the dimensions of queries or of their biases [heads, head_dim, ...] by an offset."""
    angles = offset * rotation.frequencies
    cosine = angles.cos().to(x)
    sine = angles.sin().to(x)
    return rotate(x, cosine, sine, interleaved=rotation.interleaved, start=rotation.start)
