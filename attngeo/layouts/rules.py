"""Rules for models of any family: names of projections and norms in attention modules, and of other modules.

Data only, as in `families.py`.
"""

from __future__ import annotations

from enum import StrEnum

from attngeo.layouts.layout import (
    LatentLayout,
    Layout,
    Projection,
    make_fused,
    make_linear,
    make_outputs,
    make_separate,
)

# How attention modules of any family name their projections. Each is compared with the ends of tensor names.
RULES = (
    make_separate("q_proj", "k_proj", "v_proj"),
    make_separate("query", "key", "value"),
    make_separate("q_lin", "k_lin", "v_lin"),
    make_separate("query_proj", "key_proj", "value_proj"),
    make_separate("to_q", "to_k", "to_v"),
    make_separate("Wq", "Wk", "Wv"),
    make_separate("wq", "wk", "wv"),
    make_separate("q", "k", "v"),
    make_separate("linear_q", "linear_k", "linear_v"),
    make_separate("project_q", "project_k", "project_v"),
    make_separate("q_proj.linear", "k_proj.linear", "v_proj.linear"),
    make_separate("q_head", "k_head", "v_head"),
    make_separate("query_net", "key_net", "value_net"),
    Layout((make_linear("to_q", "q"), make_linear("to_kv", "kv"))),
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
    Layout((Projection("in_proj_weight", "qkv", bias="in_proj_bias"),)),
)

# How attention modules of any family name their output projections, stored as Linear layers. The outputs of a module
# with several of them are not read. "../" leads to the enclosing module, if that is called attention.
OUTPUTS = make_outputs(
    "o_proj", "out_proj", "dense", "proj", "o", "out_lin", "linear_out", "wo", "Wo", "projection", "projection_layer",
    "to_out", "to_out.0", "out", "o_proj.linear", "output", "out_projection", "attention_out", "attn_out", "post_proj",
    "post.linear", "../output.dense", "../output", "../post",
)  # fmt: skip


class OutputNote(StrEnum):
    """Notes on steps between values and output, and on sinks, which make the weights of tokens sum to less than 1."""

    SINK = "attention sink left out: weights sum to less than 1"
    GATE = "a gate between values and output is left out"
    NORM = "a normalisation between values and output is left out"
    VALUE_NORM = "the normalisation of values is left out"
    VALUE_POSITIONS = "relative positions added to values are left out"


# Names of tensors in a module → the note that any of them calls for.
OUTPUT_NOTES = (
    (("sinks", "learnable_sink_param", "attention_sink_bias"), OutputNote.SINK),
    (("g_proj.weight", "gate_proj.weight", "linear_gate.weight"), OutputNote.GATE),
    (("attn_sub_norm.weight", "inner_attn_ln.weight"), OutputNote.NORM),
    (("emb_rel_v",), OutputNote.VALUE_POSITIONS),
)  # fmt: skip

# Layouts of GGUF files of any family, whatever the order in other files: all queries, then all keys, then all values;
# for latent attention, the keys of heads apart from their values.
GGUF = (make_fused("attn_qkv"), LatentLayout(kv_b="k_b_proj.weight", v_b="v_b_proj.weight", keys_alone=True))

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


class Reason(StrEnum):
    """Reasons for leaving out a module that also choose the error for a model without attention; others are texts."""

    UNKNOWN_FORM = "no known layout fits it"
    # It has queries and keys, but does not attend by their product.
    ASSIGNS_TOKENS = "it assigns each token to one group"
    DRAFTS_TOKENS = "it only drafts further tokens"
    HAS_HALF_THE_HEADS = "it has half the heads that config.json states"
    IS_LINEAR = "linear attention has no softmax"
    IS_PROJECTED_BEFORE = "it projects queries and keys that are already projected"
    CHOOSES_TOKENS = "it selects tokens and has no softmax"
    IS_OVER_CHANNELS = "it attends over channels, not over tokens"


# Modules that have queries and keys but do not attend by their product: pattern of the name → reason.
NOT_ATTENTION: tuple[tuple[str, Reason], ...] = (
    (r"\.downsample\.assign$", Reason.ASSIGNS_TOKENS),
    (r"(^|\.)(mtp|mtp_layers|nextn_layers)\.", Reason.DRAFTS_TOKENS),
    (r"\.text_enhancer_layer\.self_attn$", Reason.HAS_HALF_THE_HEADS),
    (r"(^|\.)(linear_attn|lightning_attn)$", Reason.IS_LINEAR),
    (r"\.cross_attn\.multihead_attn$", Reason.IS_PROJECTED_BEFORE),
    (r"(^|\.)indexer$", Reason.CHOOSES_TOKENS),
    (r"(^|\.)channel_attn$", Reason.IS_OVER_CHANNELS),
)
# Tensors that change queries or keys: pattern of the name in the module → the change.
CHANGED_BY = (
    (r"^(A_log|dt_bias|forget_gate\.|[qk]_conv1d\.)", "a linear recurrence has no softmax"),
    (r"^(k_sconv|conv_qk_depthwise|sr|sequence_reduction|conv_k|key_conv|convolution_projection_key|spatial_reduction)\.",
     "its keys pass through a convolution"),
    (r"^(per_dim_scale|scaling)$", "a learned factor scales each dimension of its queries"),
    (r"^multihead_attn\.in_proj_weight$", "its queries and keys are projected again"),
    (r"^compressor\.", "its keys are compressed from several tokens"),
    (r"^(queries_keys_values|keys_values)\.batch_norm\.", "a batch normalisation follows its projection"),
    (r"^experts\.(input|output)_linear\.weight$", "each token chooses an expert to project its queries"),
)  # fmt: skip
