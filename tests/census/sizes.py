"""The table of sizes: which field of a configuration counts what, and how small it becomes.

A field is found by its name. The first pattern that matches decides; a field that no pattern names keeps its default.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple


class Kind(Enum):
    """What a field counts."""

    WIDTH = auto()
    HEADS = auto()
    KEY_HEADS = auto()
    HEAD_DIM = auto()
    LAYERS = auto()
    TOKEN = auto()
    CAP = auto()
    RATIO = auto()
    KEEP = auto()


class Part(NamedTuple):
    """The counts of one part of a model. No two parts share them."""

    width: int
    heads: int
    key_heads: int
    head_dim: int
    layers: int


# Widths are multiples of 24, so that every count of heads divides them and the head size is even.
PARTS = (
    Part(width=96, heads=4, key_heads=2, head_dim=32, layers=2),
    Part(width=144, heads=6, key_heads=3, head_dim=16, layers=3),
    Part(width=48, heads=2, key_heads=1, head_dim=40, layers=2),
    Part(width=192, heads=12, key_heads=4, head_dim=24, layers=3),
    Part(width=72, heads=3, key_heads=1, head_dim=48, layers=2),
    Part(width=120, heads=5, key_heads=1, head_dim=56, layers=3),
    Part(width=240, heads=10, key_heads=5, head_dim=8, layers=2),
    Part(width=64, heads=8, key_heads=4, head_dim=16, layers=2),
)

VOCABULARY = 200
SPECIAL_FROM = 120  # Special tokens have ids above those of inputs, or lower ones as in the default.

# (pattern of the whole field name, kind, bound for CAP)
FIELDS: tuple[tuple[str, Kind, int], ...] = (
    (r"sliding_window|attention_window_size|local_attention|local_window_size", Kind.CAP, 4),
    (r"base_channels", Kind.CAP, 32),
    (r"upsample_initial_channel", Kind.CAP, 64),
    (r"num_filters|n_filters|encoder_n_filters|decoder_n_filters", Kind.CAP, 4),
    (r"num_res_blocks", Kind.CAP, 1),
    (r"pos_emb_(height|width|time)", Kind.KEEP, 0),
    (r"context_size", Kind.CAP, 16),
    (r"index_kpool", Kind.CAP, 2),
    (r"latent_channels|z_channels|.*(codebook|chunk|kernel|pool|batch|context|block|buffer)_size.*", Kind.KEEP, 0),
    (r"window_size", Kind.CAP, 2),
    (r".*_group_vocab", Kind.CAP, VOCABULARY),
    (r"(mamba_|ssm_)?(d_state|state_size|state_dim)", Kind.CAP, 16),
    (r"(mamba_)?n_?groups", Kind.CAP, 2),
    (r"upsample_groups", Kind.RATIO, 0),
    (r".*num_groups", Kind.CAP, 8),
    (r"width_coefficient|depth_coefficient", Kind.CAP, 1),
    (r"rotary_dim", Kind.CAP, 8),
    (r"num_kv_shared_layers", Kind.LAYERS, 0),
    (r"max_window_layers|.*_factor", Kind.KEEP, 0),
    (r"first_k_dense_replace|num_dense_layers|num_nextn_predict_layers|num_mtp_layers", Kind.CAP, 1),
    (r"linear_(num_key_heads|num_heads)", Kind.CAP, 2),
    (r"linear_num_value_heads", Kind.CAP, 4),
    (r"linear_(key_|value_)?head_dim", Kind.CAP, 8),
    (r"index_n_heads", Kind.CAP, 3),
    (r"index_head_dim", Kind.CAP, 16),
    (r".*(linear|mamba|index|conv|ssm|ngram).*(heads?|groups?)", Kind.KEEP, 0),
    (r".*(num_key_value|num_kv|n_kv|kv)(_attention)?_heads?", Kind.KEY_HEADS, 0),
    (r"num_query_groups", Kind.KEY_HEADS, 0),
    (r".*(num_(self_|cross_|self_attn_)?attention_heads|attention_heads|num_heads|n_heads?|attn_heads)", Kind.HEADS, 0),
    (r".*(num_attention_heads|num_heads|nhead)", Kind.HEADS, 0),
    (r".*_(interval|period|frequency|every_n_layers|window_pattern|layer_step|sparse_step|layer_freq)", Kind.CAP, 2),
    (r".*_layer_offset", Kind.CAP, 1),
    (r"(.*_)?(num_feat_extract_layers|num_conv_layers|num_stages)", Kind.KEEP, 0),
    (r"(.*_)?(num_hidden_layers|num_layers|n_layers?|depth|layers|num_blocks)", Kind.LAYERS, 0),
    (r"(.*_)?num_.*_layers|[lxr]_layers|(.*_)?depths|blocks_per_stage|.*resampler_depth", Kind.LAYERS, 0),
    (r".*(token|mask|pad|bos|eos|sep|cls|start|end|row|patch)_?(id|index)s?|.*_token_indices", Kind.TOKEN, 0),
    (r".*vocab_size.*", Kind.CAP, VOCABULARY),
    (r".*(moe|expert).*(intermediate|ffn|hidden)_.*", Kind.CAP, 24),
    (r".*(intermediate_size|(ffn|mlp|ff)_(dim|hidden_size|size)|d_ff|d_inner|n_inner|feedforward).*", Kind.CAP, 56),
    (r"(num|n)_(\w+_)?experts|moe_num_experts|num_local_experts", Kind.CAP, 4),
    (r".*(experts_per_tok|moe_topk|moe_top_k|moe_k|num_selected_experts|top_k)(en)?", Kind.CAP, 2),
    (r"n_group|num_expert_group", Kind.CAP, 2),
    (r"topk_group", Kind.CAP, 1),
    (r".*q_lora_rank", Kind.CAP, 20),
    (r".*(kv|o)_lora_rank", Kind.CAP, 18),
    (r"qk_nope_head_dim", Kind.CAP, 12),
    (r"qk_rope_head_dim", Kind.CAP, 8),
    (r".*v_head_dim", Kind.CAP, 10),
    (r"head_dim|kv_channels|dim_head|attention_head_size|d_kv|.*_head_dim|attention_key_dim", Kind.HEAD_DIM, 0),
    (r".*max_position_embeddings|max_(source_positions|target_positions|seq_len|sequence_length)", Kind.CAP, 72),
    (r"n_positions|n_ctx", Kind.CAP, 72),
    (r"num_queries|num_query_tokens|num_latents|.*num_proposals", Kind.CAP, 9),
    (r"num_frames|frames_per_clip", Kind.CAP, 4),
    (r"index_topk", Kind.CAP, 4),
    (r"(.*_)?(hidden_size|d_model|n_embd|embedding_size|dim|d_latents|width)", Kind.WIDTH, 0),
    (r"(.*_)?(hidden_sizes|channels?_list|channels|dims|filters|embed_dim_per_stage|projection_size)", Kind.WIDTH, 0),
    (r"(.*_)?(size|dim|units|features?|feats)", Kind.RATIO, 0),
)  # fmt: skip

MAIN_WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim", "hidden_dim", "encoder_hidden_dim")

# Given if a class has no default and does not build without.
EXPERTS = {
    "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "top_k_experts": 2,
    "moe_intermediate_size": 24, "n_shared_experts": 1,
}  # fmt: skip


def kind_of(field: str) -> tuple[Kind, int]:
    """Return what a field counts and the bound of a CAP or PERIOD."""
    for pattern, kind, bound in FIELDS:
        if re.fullmatch(pattern, field):
            return kind, bound
    return Kind.KEEP, 0
