"""Hidden states for parts of a model, the states that they attend to, rotations, lengths and sizes."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from attngeo.verification.inputs.images import make_flat_patches
from attngeo.verification.inputs.source import TOKENS, Source, makes, width_taken


@makes(
    "hidden_states", "hidden_state", "inputs_embeds", "x", "query", "queries", "embeddings", "src", "tgt", "inputs",
    "features", "hidden", "query_states", "key_states", "value_states", "query_embeds",
    "embedding_output", "encoder_embeddings", "noise_embeds", "context_hidden_states",
)  # fmt: skip
def make_hidden(source: Source) -> list[Any]:
    """States as wide as the module takes them."""
    return _make_states(source, width_taken(source))


@makes("key", "value")
def make_keys(source: Source) -> list[Any]:
    """States as wide as the module's projection of keys takes them."""
    return _make_states(source, _key_width(source) or width_taken(source))


@makes("last_hidden_state")
def _make_last_state(source: Source) -> list[Any]:
    return [source.noise(1, TOKENS, source.integer("input_size", "hidden_size", default=48))]


def _make_states(source: Source, width: int) -> list[Any]:
    other = source.integer("hidden_size", "d_model", "n_embd", "embed_dim", default=width)
    options = [
        source.noise(1, TOKENS, width),
        source.noise(TOKENS, width),
        source.noise(1, 4, 4, width),
        source.noise(1, 16, width),
        source.noise(1, width, 4, 4),
    ]
    if other != width:
        options.insert(1, source.noise(1, TOKENS, other))
    if {"query", "key", "value"} <= set(source.takes):
        options = [options[0], source.noise(1, 1, TOKENS, width)]
    if "grid_thw" in source.takes:
        options.insert(0, make_flat_patches(source))
    return options


@makes(
    "encoder_hidden_states", "key_value_states", "context", "memory", "cross_attention_states", "image_embeds",
    "patch_embeds", "encoder_outputs", "latents", "vision_hidden_states", "kv", "memory_states", "encoder_states",
    "keys", "values", "key_value_input",
)  # fmt: skip
def _make_context(source: Source) -> list[Any]:
    width = source.integer("encoder_hidden_size", "cross_attention_hidden_size", "encoder_width", default=0)
    own = width_taken(source)
    candidates = (_key_width(source, "cross|encoder_attn|enc_dec|EncDec"), width, _key_width(source), own)
    return [source.noise(1, 5, each) for each in dict.fromkeys(candidates) if each] + [source.noise(5, own)]


def _key_width(source: Source, within: str = "") -> int:
    """The width that the first layer of keys takes, in the submodules whose names match; 0 if there is none."""
    for name, child in source.module.named_modules():
        if isinstance(child, nn.Linear) and re.search(within, name) and re.search("k_proj|key|to_kv|k_lin|kv", name):
            return child.in_features
    return 0


@makes(
    "position_embeddings", "rotary_pos_emb", "rotary_emb", "freqs", "freqs_cis", "position_embedding", "pos_emb",
    "position_embeddings_vision",
)  # fmt: skip
def _make_rotations(source: Source) -> list[Any]:
    size = None
    for child in source.module.modules():
        size = getattr(child, "head_dim", None) or getattr(child, "qk_rope_head_dim", None)
        if isinstance(size, int):
            break
    size = size if isinstance(size, int) else source.integer("head_dim", default=16)
    shapes = ((1, TOKENS, size), (TOKENS, size), (1, TOKENS, size // 2), (TOKENS, size // 2), (16, size))
    pairs = [(torch.ones(*shape), torch.zeros(*shape)) for shape in shapes]
    width = width_taken(source)
    return [
        *pairs,
        None,
        torch.zeros(TOKENS, size // 2),
        source.noise(1, 2 * TOKENS - 1, width),
        source.noise(1, TOKENS, width),
    ]


@makes("cu_seqlens", "cu_seq_lens", "cu_seqlens_q")
def _make_lengths(_: Source) -> list[Any]:
    return [torch.tensor([0, TOKENS], dtype=torch.int32), torch.tensor([0, 16], dtype=torch.int32)]


@makes("max_seqlen")
def _make_longest(_: Source) -> list[Any]:
    return [TOKENS]


@makes("height", "width", "H", "W", "h", "w")
def _make_side(_: Source) -> list[Any]:
    return [4]


@makes("size", "spatial_shape", "hw", "input_dimensions", "image_size")
def _make_sides(_: Source) -> list[Any]:
    return [(4, 4)]


@makes("num_frames", "layer_idx", "batch_size")
def _make_one(_: Source) -> list[Any]:
    return [1]


@makes("output_attentions", "use_cache", "output_hidden_states", "interpolate_pos_encoding")
def _make_false(_: Source) -> list[Any]:
    return [False]
