"""What the rules need to know about model types that have no entry in families.py: data only.

Each entry was read from the modeling file of transformers, and the census compares it with the running model.
"""

from __future__ import annotations

from attngeo.layouts.layout import HeadNorm, LatentLayout, QKLayout, Rotary, make_fused, make_separate

# Projection → model types that hold queries, keys and values in it, in this order.
IN_ORDER = {
    "qkv": (
        "blip_2_vision_model", "blip_vision_model", "cohere_compass_vision", "deepseek_ocr2_sam_vision_model",
        "deepseek_vl_hybrid", "dots3_note_vision_encoder", "ernie4_5_vl_moe_vision", "exaone4_5_vision",
        "florence_vision", "glm4v_moe_vision", "glm4v_vision", "glm5_next_vision", "glm_image_vision", "glm_ocr_vision",
        "glmga_vision", "got_ocr2_vision", "hyperclovax_vision_v2", "instructblip_vision_model",
        "instructblipvideo_vision_model", "mgp-str", "pp_chart2table_vision", "pp_formulanet_vision",
        "pp_ocrv6_small_rec", "qwen2_5_omni_vision_encoder", "qwen2_5_vl_vision",
        "qwen2_vl_vision", "qwen3_5_moe_vision", "qwen3_5_vision", "qwen3_omni_moe_vision_encoder",
        "qwen3_vl_moe_vision", "qwen3_vl_vision", "qwen4_exp_vision", "radio", "sam_hq_vision_model", "seggpt",
        "slanext", "slanext_vision", "timesformer", "tipsv2_dpt", "tipsv2_vision_model",
        "unlimited_ocr_sam_vision_model", "unlimited_ocr_vision", "videomae", "vitdet", "vitmatte", "vivit",
    ),
    "attn.qkv": ("intern_vit_6b", "qianfan_ocr_vision"),
    "wqkv": ("kimi_k25_vision", "moonvit"),
    "qkv_proj": ("gte", "new", "phi3_v", "phi4_multimodal", "pp_ocrv5_server_rec", "unlimited_ocr_vision_encoder"),
    "att_proj": ("bark", "coarse_acoustics", "fine_acoustics", "hf_olmo", "molmo", "molmo2_text", "semantic"),
    "c_attn": ("qwen",),
    "in_proj": ("gradium_phonon_tts",),
    "w_qkv": (
        "nemotron3_5_transcribe_asr_audio", "nemotron3_5_transcribe_word_timestamp", "nemotron3_diarization_audio",
    ),
    "W_pack": ("baichuan",),
}  # fmt: skip
# Projection → model types that hold in it, for each key head: its queries, the key and the value.
BY_KEY_HEAD = {
    "query_key_value": ("RefinedWeb", "fuyu", "gpt_neox_japanese", "persimmon"),
    "wqkv": ("internlm2",),
}
# Each head of the query projection holds a query and a gate.
GATED = make_separate("q_proj", "k_proj", slots="qg", blocks="heads")
GATED_TYPES = (
    "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp", "qwen4_exp_text",
)  # fmt: skip
# Queries and keys are narrower than the input: head_dim follows from the weights.
NARROW = make_separate("q_proj", "k_proj", width_from_rows=True)
NARROW_TYPES = (
    "edgetam_mask_decoder", "edgetam_video_mask_decoder", "sam2_mask_decoder", "sam2_video_mask_decoder",
    "sam3_tracker_mask_decoder", "sam3_tracker_video_mask_decoder", "sam_hq_mask_decoder",
)  # fmt: skip
# Each dimension of the queries has a learned factor.
SCALED = {
    "gemma3n_audio": make_separate("q_proj", "k_proj", q_scale="per_dim_scale"),
    "gemma4_audio": make_separate("q_proj.linear", "k_proj.linear", q_scale="per_dim_scale"),
    "timesfm": make_separate("q_proj", "k_proj", q_scale="scaling"),
    "timesfm2_5": make_separate("q_proj", "k_proj", q_scale="scaling"),
}

LAYOUTS: dict[str, tuple[QKLayout | LatentLayout, ...]] = {
    **{name: (make_fused(weight),) for weight, names in IN_ORDER.items() for name in names},
    **{name: (make_fused(weight, blocks="key_heads"),) for weight, names in BY_KEY_HEAD.items() for name in names},
    **{name: (layout,) for name, layout in SCALED.items()},
    **dict.fromkeys(GATED_TYPES, (GATED,)),
    **dict.fromkeys(NARROW_TYPES, (NARROW,)),
    "RefinedWebModel": (
        make_fused("query_key_value", when={"multi_query": True}, key_heads="one"),
        make_fused("query_key_value", blocks="key_heads", key_heads="heads"),
    ),
    "chatglm": (
        make_fused("query_key_value", when={"multi_query_attention": True}),
        make_fused("query_key_value", blocks="key_heads", key_heads="heads"),
    ),
    "decision_transformer": (make_fused("c_attn", conv1d=True),),
    "xlnet": (QKLayout(q="q", k="k", conv1d=True),),
    "hrm_text": (make_fused("gqkv_proj", "gqkv"),),
    **dict.fromkeys(("hiera", "sam2_hiera_det_model"), (make_fused("qkv", width_from_rows=True),)),
    **dict.fromkeys(("dots3_note_text", "longcat_flash"), (LatentLayout(scaled=True),)),
    **dict.fromkeys(("convbert", "perceiver"), (make_separate("query", "key", width_from_rows=True),)),
    "moss": (make_fused("qkv_proj", "qvk", blocks=4),),
    "telechat": (
        QKLayout(
            q="query.weight", k="key_value.weight", q_bias="query.bias", k_bias="key_value.bias", k_slots="kv",
            blocks="key_heads",
        ),
    ),
}  # fmt: skip

# Decoders that are not in transformers. For those that are, the census tells.
CAUSAL_REMOTE = ("baichuan", "chatglm", "hf_olmo", "internlm2", "molmo", "moss", "qwen", "telechat")

# QK-norms whose form the names and shapes of their tensors do not tell.
OFFSET = HeadNorm(gain_offset=1)
NORMS_BY_TYPE: dict[str, HeadNorm] = {
    **dict.fromkeys(
        (
            "minimax_m3_vl_text", "muse_glimmer_text", "muse_spark_text", "qwen3_5_moe_text", "qwen3_5_text",
            "qwen3_next", "qwen4_exp_text", "step3p5", "step3p7", "step3p7_text", "t5gemma2_decoder",
            "t5gemma2_encoder", "t5gemma2_text",
        ),
        OFFSET,
    ),
    "esmc": HeadNorm(centred=True),
}  # fmt: skip

# Rotary embeddings of types that rotate a part of each head by default: which dimensions make a pair.
ROTARY_BY_TYPE: dict[str, Rotary] = {
    **dict.fromkeys(("glm", "glm4", "moonshine"), Rotary(interleaved=True)),
    **dict.fromkeys(("gpt_neox_japanese", "nemotron", "persimmon", "qwen3_next"), Rotary()),
}

# Types whose cross-attention normalises the input of queries and that of keys, under names of a QK-norm.
CROSS_INPUT_NORMS = dict.fromkeys(("blt_local_decoder", "blt_local_encoder"), ("q_norm",))

# Modules that have queries and keys but do not attend by their product: pattern of the name → reason.
NOT_ATTENTION = (
    (r"\.downsample\.assign$", "it assigns each token to one group"),
    (r"(^|\.)(mtp|mtp_layers|nextn_layers)\.", "it drafts further tokens"),
    (r"\.text_enhancer_layer\.self_attn$", "it has half of the heads that config.json states"),
    (r"(^|\.)(linear_attn|lightning_attn)$", "linear attention has no softmax"),
    (r"\.cross_attn\.multihead_attn$", "its queries and keys were projected before"),
    (r"(^|\.)indexer$", "it chooses tokens and has no softmax"),
    (r"(^|\.)channel_attn$", "it attends over channels, not over tokens"),
)
# Tensors beside queries and keys: pattern of the name in the module → what it does to them.
CHANGED_BY = (
    (r"^(A_log|dt_bias|forget_gate\.|[qk]_conv1d\.)", "a linear recurrence has no softmax"),
    (r"^(k_sconv|conv_qk_depthwise|sr|sequence_reduction|conv_k|key_conv|convolution_projection_key|spatial_reduction)\.",
     "its keys pass a convolution"),
    (r"^(per_dim_scale|scaling)$", "each dimension of its queries is multiplied by a learned factor"),
    (r"^multihead_attn\.in_proj_weight$", "its queries and keys are projected again"),
    (r"^compressor\.", "its keys are compressed from several tokens"),
    (r"^(queries_keys_values|keys_values)\.batch_norm\.", "a batch normalisation follows its projection"),
    (r"^experts\.(input|output)_linear\.weight$", "each token chooses the projection of its queries among experts"),
)  # fmt: skip
# Model types whose attention is no softmax of q·k, or whose queries and keys are no products of weights.
OTHER_ATTENTION = {
    "autoformer": "auto-correlation of whole sequences, not products of tokens",
    "axk2": "its queries are a sum of a latent with and without normalisation",
    "yoso": "it attends by hashing the angle between query and key, without a softmax",
}
