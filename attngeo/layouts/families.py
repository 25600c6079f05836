"""The table of model families, and the rules for all others: data only, read from modeling files.

`Family` in layout.py says what an entry may state. `README.md` in this folder says how to add one.
"""

from __future__ import annotations

from typing import Any

from attngeo.errors import PROJECT_FILES
from attngeo.layouts.layout import (
    Family,
    HeadNorm,
    LatentLayout,
    Layout,
    Projection,
    Rotary,
    make_fused,
    make_linear,
    make_separate,
)

HUGGING_FACE = "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models"

HALF, INTERLEAVED = Rotary(), Rotary(interleaved=True)
LATENT_TAIL = Rotary(interleaved=True, tail=True)
RMS = HeadNorm()
BART_NORMS: dict[str, Any] = {"pre_norm": ("self_attn_layer_norm",), "cross_norm": ("encoder_attn_layer_norm",)}
INPUT_NORM = ("input_layernorm",)
C_ATTN_CROSS = Layout((make_linear("q_attn", "q", transposed=True), make_linear("c_attn", "kv", transposed=True)))
C_ATTN = make_fused("c_attn", transposed=True)
# SantaCoder, published as gpt2: queries, and the key and value that all heads share.
Q_AND_KV_ATTN = Layout(
    (make_linear("q_attn", "q", transposed=True), make_linear("kv_attn", "kv", transposed=True)), key_heads="one"
)


OWN = f"{PROJECT_FILES}/attngeo"


def _file(name: str, module: str = "") -> str:
    return f"{HUGGING_FACE}/{name}/modeling_{module or name}.py"


def _hub(model: str, file: str) -> str:
    return f"https://huggingface.co/{model}/blob/main/{file}"


def _encoder(name: str, **more: Any) -> Family:
    """Separate `query` and `key` in a post-norm bidirectional encoder."""
    return Family(source=_file(name), stack="encoder", **more)


def _llama_like(name: str, theta: float = 10_000.0, **more: Any) -> Family:
    """Separate `q_proj` and `k_proj` after an input norm, rotary by halves."""
    defaults = {"rope_theta": theta, **more.pop("defaults", {})}
    return Family(source=_file(name), **{"pre_norm": INPUT_NORM, "rotary": HALF, **more}, defaults=defaults)


def _vision(name: str, stack: Any = "encoder", *pre_norm: str, **more: Any) -> Family:
    """A pre-norm encoder of image patches."""
    return Family(source=_file(name), stack=stack, pre_norm=pre_norm or ("layernorm_before",), **more)


def _speech(name: str) -> Family:
    """wav2vec 2.0 and similar models: pre-norm only in the variant with a stable layer norm."""
    return Family(
        source=_file(name), stack="encoder", pre_norm=("layer_norm",), pre_norm_when={"do_stable_layer_norm": True},
        defaults={"do_stable_layer_norm": False},
    )  # fmt: skip


def _latent(name: str) -> Family:
    """Multi-head latent attention after an input norm."""
    return Family(
        source=_file(name), layouts=(LatentLayout(),), pre_norm=INPUT_NORM, rotary=LATENT_TAIL,
        defaults={"rope_theta": 10_000.0},
    )  # fmt: skip


NEOX: dict[str, Any] = {
    "layouts": (make_fused("query_key_value", blocks="key_heads"),), "pre_norm": INPUT_NORM, "rotary": HALF,
    "defaults": {"rotary_pct": 0.25, "rope_theta": 10_000.0},
}  # fmt: skip
LING = Family(
    source=_hub("inclusionAI/Ling-lite", "modeling_bailing_moe.py"), layouts=(make_fused("query_key_value"),),
    pre_norm=INPUT_NORM, rotary=HALF, head_norm=HeadNorm(q="query_layernorm", k="key_layernorm"),
    defaults={"rope_theta": 10_000.0},
)  # fmt: skip
# Models that are published with code of their own, or whose code left transformers.
REMOTE: dict[str, Family] = {
    "bailing_moe": LING,
    "bailing_moe_v2": LING,
    "codet5p_module": Family(
        source=_hub("Salesforce/codet5p-2b", "modeling_codet5p.py"),
        layouts=(
            Layout((make_linear("q_attn", "q"), make_linear("qkv_proj", "vk", 4))),
            make_fused("qkv_proj", "qvk", blocks=4),
        ),
        pre_norm=("ln_1",),
        rotary=INTERLEAVED,
        defaults={"rope_theta": 10_000.0},
    ),
    # Text and image tokens have weights of their own.
    "cogvlm": Family(
        source=_hub("THUDM/cogvlm2-llama3-chat-19B", "modeling_cogvlm.py"),
        layouts=(
            make_fused("self_attn.language_expert_query_key_value"), make_fused("vision_expert_query_key_value"),
        ),
        stacks={r"^model\.layers\.\d+\.self_attn$": "decoder_vision"},
        pre_norm=INPUT_NORM,
        rotary=Rotary(other="the base of its rotation is only in its code"),
        notes=("forms of text tokens, or of image tokens, with themselves only",),
    ),
    "cogvlm_vision": Family(
        source=_hub("THUDM/cogvlm2-llama3-chat-19B", "visual.py"), layouts=(make_fused("query_key_value"),),
        stack="vision",
    ),
    "gpt_neox_reward_model": Family(
        source="https://github.com/LAION-AI/Open-Assistant/blob/main/model/model_training/models/reward_model.py",
        **NEOX,
    ),
    "gpt_refact": Family(
        source=_hub("refactai/Refact-1_6B-fim", "modeling_gpt_refact.py"),
        layouts=(Layout((make_linear("q", "q"), make_linear("kv", "kv")), key_heads="one"),),
        pre_norm=("ln_1",),
    ),
    "jais": Family(
        source=_hub("core42/jais-13b", "modeling_jais.py"), layouts=(C_ATTN,), pre_norm=("ln_1",),
    ),
    "neobert": Family(
        source=_hub("chandar-lab/NeoBERT", "model.py"), layouts=(make_fused("qkv", blocks="key_heads"),),
        stack="encoder", pre_norm=("attention_norm",), rotary=INTERLEAVED, defaults={"rope_theta": 10_000.0},
    ),
    "openelm": Family(
        source=_hub("apple/OpenELM-270M", "modeling_openelm.py"), layouts=(make_fused("qkv_proj"),),
        pre_norm=("attn_norm",), rotary=HALF, head_norm=RMS, defaults={"rope_theta": 10_000.0},
    ),
    "transfo-xl": Family(
        source=f"{HUGGING_FACE.replace('v5.23.0', 'v4.35.2')}/transfo_xl/modeling_transfo_xl.py",
        layouts=(make_fused("qkv_net"),), pre_norm=("layer_norm",), pre_norm_when={"pre_lnorm": True},
        notes=("relative-position terms and their biases left out",),
    ),
}  # fmt: skip
# Configurations without a model type: architecture → the type in this table.
TYPES_BY_ARCHITECTURE = {"CogVLMForCausalLM": "cogvlm", "CogVLMVideoForCausalLM": "cogvlm"}

# Models that attngeo itself saves. A causal one has is_decoder in its configuration.
OWN_FAMILIES = {
    "attngeo_efa": Family(source=f"{OWN}/estimators/efa/saving.py", stack="encoder"),
    "attngeo_tabular": Family(source=f"{OWN}/estimators/tabular/coding.py", stack="encoder"),
}

FAMILIES: dict[str, Family] = {
    **OWN_FAMILIES,
    **REMOTE,
    # Text encoders
    "bert": _encoder("bert"),
    "roberta": _encoder("roberta"),
    "xlm-roberta": _encoder("xlm_roberta"),
    "electra": _encoder("electra"),
    "mpnet": _encoder("mpnet"),
    "roformer": _encoder("roformer", rotary=Rotary(interleaved=True)),
    "distilbert": Family(source=_file("distilbert"), stack="encoder"),
    "albert": _encoder("albert", shared=("num_hidden_layers", "num_hidden_groups")),
    "deberta": _encoder(
        "deberta",
        layouts=(Layout((Projection("in_proj.weight", "qkv", "key_heads"),)),),
        notes=("relative-position terms left out",),
    ),
    "deberta-v2": _encoder("deberta_v2", notes=("relative-position terms left out",)),
    "modernbert": Family(
        source=_file("modernbert"),
        layouts=(make_fused("Wqkv"),),
        stack="encoder",
        pre_norm=("attn_norm",),
        rotary=HALF,
        defaults={"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0, "global_attn_every_n_layers": 3},
    ),
    # Encoder and decoder
    "bart": Family(source=_file("bart")),
    "t5": Family(source=_file("t5"), pre_norm=("layer_norm",)),
    "mt5": Family(source=_file("mt5"), pre_norm=("layer_norm",)),
    # Decoders of the GPT line
    "openai-gpt": Family(source=_file("openai"), layouts=(C_ATTN,)),
    "gpt2": Family(
        source=_file("gpt2"),
        layouts=(C_ATTN_CROSS, C_ATTN, Q_AND_KV_ATTN),
        pre_norm=("ln_1",),
        cross_norm=("ln_cross_attn",),
    ),
    "gpt_bigcode": Family(
        source=_file("gpt_bigcode"),
        layouts=(
            make_fused("c_attn", when={"multi_query": True}, key_heads="one"),
            make_fused("c_attn", blocks="key_heads", key_heads="heads"),
        ),
        pre_norm=("ln_1",),
        defaults={"multi_query": True},
    ),
    "gpt_neo": Family(source=_file("gpt_neo"), pre_norm=("ln_1",)),
    "gptj": Family(source=_file("gptj"), pre_norm=("ln_1",), rotary=INTERLEAVED, defaults={"rotary_dim": 64}),
    "codegen": Family(
        source=_file("codegen"),
        layouts=(make_fused("qkv_proj", slots="qvk", blocks=4),),
        pre_norm=("ln_1",),
        rotary=INTERLEAVED,
        defaults={"rotary_dim": 64},
    ),
    "gpt_neox": Family(source=_file("gpt_neox"), **NEOX),
    "bloom": Family(
        source=_file("bloom"), layouts=(make_fused("query_key_value", blocks="key_heads"),), pre_norm=INPUT_NORM
    ),
    "falcon": Family(
        source=_file("falcon"),
        layouts=(
            make_fused("query_key_value", blocks="key_heads", when={"new_decoder_architecture": True}),
            make_fused("query_key_value", when={"multi_query": True}, key_heads="one"),
            make_fused("query_key_value", blocks="key_heads", key_heads="heads"),
        ),
        pre_norm=("ln_attn", "input_layernorm"),
        rotary=HALF,
        defaults={"multi_query": True, "new_decoder_architecture": False, "rope_theta": 10_000.0},
    ),
    "mpt": Family(source=_file("mpt"), layouts=(make_fused("Wqkv"),), pre_norm=("norm_1",)),
    "opt": Family(
        source=_file("opt"),
        pre_norm=("self_attn_layer_norm",),
        pre_norm_when={"do_layer_norm_before": True},
        defaults={"do_layer_norm_before": True},
    ),
    # Decoders of the LLaMA line
    "llama": _llama_like("llama"),
    "mistral": _llama_like("mistral"),
    "mixtral": _llama_like("mixtral", 1e6),
    "qwen2": _llama_like("qwen2"),
    "qwen3": _llama_like("qwen3", head_norm=RMS),
    "qwen3_moe": _llama_like("qwen3_moe", head_norm=RMS),
    "gemma": _llama_like("gemma", input_gain_offset=1),
    "gemma2": _llama_like("gemma2", input_gain_offset=1),
    "gemma3_text": _llama_like(
        "gemma3",
        1e6,
        input_gain_offset=1,
        head_norm=HeadNorm(gain_offset=1),
        defaults={"rope_local_base_freq": 10_000.0, "sliding_window_pattern": 6},
    ),
    "olmo": _llama_like("olmo", pre_norm=()),
    "olmo2": _llama_like("olmo2", pre_norm=(), head_norm=RMS),
    "phi": _llama_like(
        "phi",
        head_norm=HeadNorm(q="q_layernorm", k="k_layernorm", centred=True),
        defaults={"partial_rotary_factor": 0.5},
    ),
    "phi3": _llama_like("phi3", layouts=(make_fused("qkv_proj"),)),
    "stablelm": _llama_like(
        "stablelm",
        head_norm=HeadNorm(q="q_layernorm", k="k_layernorm", centred=True),
        defaults={"partial_rotary_factor": 0.25},
    ),
    "cohere": _llama_like("cohere", 500_000.0, rotary=INTERLEAVED, head_norm=HeadNorm(centred=True)),
    "gpt_oss": _llama_like("gpt_oss", 150_000.0, notes=("attention sink left out",)),
    "deepseek_v2": _latent("deepseek_v2"),
    "deepseek_v3": _latent("deepseek_v3"),
    # Vision
    "vit": _vision("vit"),
    "deit": _vision("deit"),
    "beit": _vision("beit"),
    "dinov2": _vision("dinov2", "encoder", "norm1"),
    "vit_mae": _vision("vit_mae"),
    "imagegpt": Family(
        source=_file("imagegpt"), layouts=(C_ATTN_CROSS, C_ATTN), pre_norm=("ln_1",), cross_norm=("ln_cross_attn",)
    ),
    "swin": Family(source=_file("swin"), stack="encoder", pre_norm=("layernorm_before",)),
    "detr": Family(source=_file("detr"), notes=("position embeddings are added to queries and keys",)),
    "mask2former": Family(source=_file("mask2former"), notes=("position embeddings are added to queries and keys",)),
    "sam_vision_model": _vision("sam", "vision", "layer_norm1", "norm1", layouts=(make_fused("qkv"),)),
    "sam_mask_decoder": Family(
        source=_file("sam"),
        layouts=(make_separate("q_proj", "k_proj", width_from_rows=True),),
        stack="decoder",
        stacks={
            r"final_attn_token_to_image": "cross_final_token_to_image",
            r"cross_attn_token_to_image": "cross_token_to_image",
            r"cross_attn_image_to_token": "cross_image_to_token",
        },
    ),
    # Vision and text
    "clip_text_model": _vision("clip", "text", "layer_norm1"),
    "clip_vision_model": _vision("clip", "vision", "layer_norm1", stacks={r"(^|\.)head\.": "vision_pooling"}),
    "siglip_text_model": _vision("siglip", "text", "layer_norm1"),
    "siglip_vision_model": _vision("siglip", "vision", "layer_norm1", stacks={r"(^|\.)head\.": "vision_pooling"}),
    "git": _encoder("git", stacks={r"^(git\.)?encoder\.": "text"}),
    "git_vision_model": _vision("git", "vision", "layer_norm1"),
    "mllama_text_model": _llama_like("mllama", 500_000.0, head_norm=RMS),
    "mllama_vision_model": _vision(
        "mllama",
        "vision",
        "input_layernorm",
        defaults={"num_attention_heads": 16},
        stacks={r"global_transformer\.": "vision_global"},
    ),
    # Audio
    "wav2vec2": _speech("wav2vec2"),
    "hubert": _speech("hubert"),
    "wavlm": _speech("wavlm"),
    "unispeech": _speech("unispeech"),
    "whisper": Family(source=_file("whisper"), **BART_NORMS),
    "speech_to_text": Family(source=_file("speech_to_text"), **BART_NORMS),
    "speecht5": Family(source=_file("speecht5")),
    "musicgen_decoder": Family(source=_file("musicgen"), **BART_NORMS),
}

# Families that consist of towers of other families: model type → names of its parts in the table.
COMPOSITES: dict[str, tuple[str, ...]] = {
    "clip": ("clip_text_model", "clip_vision_model"),
    "siglip": ("siglip_text_model", "siglip_vision_model"),
    "gemma3": ("gemma3_text", "siglip_vision_model"),
    "mllama": ("mllama_text_model", "mllama_vision_model"),
    "sam": ("sam_vision_model", "sam_mask_decoder"),
    "musicgen": ("t5", "musicgen_decoder"),
}


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


# What GGUF files of any family have in place of tensors of another order: all queries, then all keys, then all values;
# and of latent attention, the keys of heads apart from their values.
GGUF = (make_fused("attn_qkv"), LatentLayout(kv_b="k_b_proj.weight", keys_alone=True))

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

# What the rules need to know about model types that have no entry in `FAMILIES`. Each line was read from the modeling
# file of transformers, and the census compares it with the running model.

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
        "timm_vit", "unlimited_ocr_sam_vision_model", "unlimited_ocr_vision", "videomae", "vitdet", "vitmatte", "vivit",
    ),
    "attn.qkv": ("intern_vit_6b", "qianfan_ocr_vision"),
    "wqkv": ("kimi_k25_vision", "moonvit"),
    "qkv_proj": (
        "deepseek_ocr_clip", "gte", "new", "phi3_v", "phi4_multimodal", "plamo2", "pp_ocrv5_server_rec",
        "unlimited_ocr_vision_encoder",
    ),
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
    "in_proj": ("qwen_visual",),
    "query_key_value": ("RefinedWeb", "fuyu", "gpt_neox_japanese", "persimmon"),
    "wqkv": ("internlm2", "internlmxcomposer2"),
}
# Each head of the query projection holds a query and a gate.
GATED = Layout((make_linear("q_proj", "qg", "heads"), make_linear("k_proj", "k")))
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

LAYOUTS: dict[str, tuple[Layout | LatentLayout, ...]] = {
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
    "decision_transformer": (make_fused("c_attn", transposed=True),),
    "xlnet": (Layout((Projection("q", "q", transposed=True), Projection("k", "k", transposed=True))),),
    "hrm_text": (make_fused("gqkv_proj", "gqkv"),),
    **dict.fromkeys(("hiera", "sam2_hiera_det_model"), (make_fused("qkv", width_from_rows=True),)),
    **dict.fromkeys(("dots3_note_text", "longcat_flash"), (LatentLayout(scaled=True),)),
    **dict.fromkeys(("convbert", "perceiver"), (make_separate("query", "key", width_from_rows=True),)),
    "moss": (make_fused("qkv_proj", "qvk", blocks=4),),
    "telechat": (
        Layout((make_linear("query", "q"), make_linear("key_value", "kv", "key_heads"))),
    ),
}  # fmt: skip

# Decoders that are not in transformers. For those that are, the census tells.
CAUSAL_REMOTE = (
    "baichuan", "chatglm", "hf_olmo", "internlm2", "internlmxcomposer2", "molmo", "moss", "plamo2", "qwen", "telechat",
)  # fmt: skip

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
    "plamo2": HeadNorm(q="q_weight", k="k_weight"),
}  # fmt: skip

# Rotary embeddings of model types as published, which transformers splits into parts. For all others, the census tells.
ROTARY_PUBLISHED = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), HALF),
    "plamo2": Rotary(other="config.json does not say which of its bases a layer uses"),
}
# Words of the census → why the product of a query and a key does not depend on their distance alone.
OTHER_ROTATIONS = {
    "other": "it rotates in an order of its own, such as by several axes of an image",
    "gain": "the gain of its QK-norm follows the rotation, so that the product depends on both positions",
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
