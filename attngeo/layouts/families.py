"""The table of model families: data only, read from modeling files.

`Family` in layout.py describes the fields of an entry. `ADDING.md` in this folder says how to add one.
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
    make_outputs,
    make_separate,
)

HUGGING_FACE = "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models"

HALF = Rotary()
INTERLEAVED = Rotary(interleaved=True)
LATENT_TAIL = Rotary(interleaved=True, tail=True)
RMS = HeadNorm()
BART_NORMS: dict[str, Any] = {"pre_norm": ("self_attn_layer_norm",), "cross_norm": ("encoder_attn_layer_norm",)}
INPUT_NORM = ("input_layernorm",)
OUTPUT_NORM = ("post_attention_layernorm",)
C_PROJ = make_outputs("c_proj")
C_PROJ_CONV1D = make_outputs("c_proj", transposed=True)
C_ATTN_CROSS = Layout(
    (make_linear("q_attn", "q", transposed=True), make_linear("c_attn", "kv", transposed=True)), outputs=C_PROJ_CONV1D
)
C_ATTN = make_fused("c_attn", transposed=True, outputs=C_PROJ_CONV1D)
# SantaCoder, published as gpt2: queries, and the key and value that all heads share.
Q_AND_KV_ATTN = Layout(
    (make_linear("q_attn", "q", transposed=True), make_linear("kv_attn", "kv", transposed=True)),
    key_heads="one",
    outputs=C_PROJ_CONV1D,
)


OWN = f"{PROJECT_FILES}/attngeo"


def _file(name: str) -> str:
    return f"{HUGGING_FACE}/{name}/modeling_{name}.py"


def _hub(model: str, file: str) -> str:
    return f"https://huggingface.co/{model}/blob/main/{file}"


def _encoder(name: str, **more: Any) -> Family:
    """Separate `query` and `key` in a post-norm bidirectional encoder."""
    return Family(source=_file(name), stack="encoder", **{"post_norm": ("output.LayerNorm",), **more})


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
        source=_file(name),
        stack="encoder",
        pre_norm=("layer_norm",),
        pre_norm_when={"do_stable_layer_norm": True},
        defaults={"do_stable_layer_norm": False},
    )


def _latent(name: str) -> Family:
    """Multi-head latent attention after an input norm."""
    return Family(
        source=_file(name),
        layouts=(LatentLayout(),),
        pre_norm=INPUT_NORM,
        rotary=LATENT_TAIL,
        defaults={"rope_theta": 10_000.0},
    )


NEOX: dict[str, Any] = {
    "layouts": (make_fused("query_key_value", blocks="key_heads"),), "pre_norm": INPUT_NORM, "rotary": HALF,
    "defaults": {"rotary_pct": 0.25, "rope_theta": 10_000.0},
}  # fmt: skip
LING = Family(
    source=_hub("inclusionAI/Ling-lite", "modeling_bailing_moe.py"),
    layouts=(make_fused("query_key_value"),),
    pre_norm=INPUT_NORM,
    rotary=HALF,
    head_norm=HeadNorm(q="query_layernorm", k="key_layernorm"),
    defaults={"rope_theta": 10_000.0},
)
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
            make_fused(
                "self_attn.language_expert_query_key_value", outputs=make_outputs("self_attn.language_expert_dense")
            ),
            make_fused("vision_expert_query_key_value", outputs=make_outputs("vision_expert_dense")),
        ),
        stacks={r"^model\.layers\.\d+\.self_attn$": "decoder_vision"},
        pre_norm=INPUT_NORM,
        rotary=Rotary(other="its rotary base is stated only in its code"),
        notes=("forms compare text tokens with text tokens, or image tokens with image tokens",),
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
        layouts=(Layout((make_linear("q", "q"), make_linear("kv", "kv")), key_heads="one", outputs=C_PROJ),),
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
        layouts=(make_fused("qkv_net", outputs=make_outputs("o_net")),),
        pre_norm=("layer_norm",), pre_norm_when={"pre_lnorm": True},
        query_key_notes=("relative-position terms and their biases left out",),
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
    "mpnet": _encoder("mpnet", post_norm=("LayerNorm",)),
    "roformer": _encoder("roformer", rotary=Rotary(interleaved=True)),
    "distilbert": Family(source=_file("distilbert"), stack="encoder", post_norm=("sa_layer_norm",)),
    "albert": _encoder("albert", post_norm=("LayerNorm",), shared=("num_hidden_layers", "num_hidden_groups")),
    "deberta": _encoder(
        "deberta",
        layouts=(Layout((Projection("in_proj.weight", "qkv", "key_heads"),)),),
        query_key_notes=("relative-position terms left out",),
    ),
    "deberta-v2": _encoder("deberta_v2", query_key_notes=("relative-position terms left out",)),
    "modernbert": Family(
        source=_file("modernbert"),
        layouts=(make_fused("Wqkv"),),
        stack="encoder",
        pre_norm=("attn_norm",),
        rotary=HALF,
        defaults={"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0, "global_attn_every_n_layers": 3},
    ),
    # Encoder and decoder
    "bart": Family(source=_file("bart"), post_norm=("{}_layer_norm",)),
    "t5": Family(source=_file("t5"), pre_norm=("layer_norm",)),
    "mt5": Family(source=_file("mt5"), pre_norm=("layer_norm",)),
    # Decoders of the GPT line
    "openai-gpt": Family(source=_file("openai"), layouts=(C_ATTN,), post_norm=("ln_1",)),
    "gpt2": Family(
        source=_file("gpt2"),
        layouts=(C_ATTN_CROSS, C_ATTN, Q_AND_KV_ATTN),
        pre_norm=("ln_1",),
        cross_norm=("ln_cross_attn",),
    ),
    "gpt_bigcode": Family(
        source=_file("gpt_bigcode"),
        layouts=(
            make_fused("c_attn", when={"multi_query": True}, key_heads="one", outputs=C_PROJ),
            make_fused("c_attn", blocks="key_heads", key_heads="heads", outputs=C_PROJ),
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
    "gemma2": _llama_like("gemma2", post_norm=OUTPUT_NORM, input_gain_offset=1),
    "gemma3_text": _llama_like(
        "gemma3",
        1e6,
        post_norm=OUTPUT_NORM,
        input_gain_offset=1,
        head_norm=HeadNorm(gain_offset=1),
        defaults={"rope_local_base_freq": 10_000.0, "sliding_window_pattern": 6},
    ),
    "olmo": _llama_like("olmo", pre_norm=()),
    "olmo2": _llama_like("olmo2", pre_norm=(), post_norm=OUTPUT_NORM, head_norm=RMS),
    "phi": _llama_like(
        "phi",
        head_norm=HeadNorm(q="q_layernorm", k="k_layernorm", centered=True),
        defaults={"partial_rotary_factor": 0.5},
    ),
    "phi3": _llama_like("phi3", layouts=(make_fused("qkv_proj"),)),
    "stablelm": _llama_like(
        "stablelm",
        head_norm=HeadNorm(q="q_layernorm", k="k_layernorm", centered=True),
        defaults={"partial_rotary_factor": 0.25},
    ),
    "cohere": _llama_like("cohere", 500_000.0, rotary=INTERLEAVED, head_norm=HeadNorm(centered=True)),
    "gpt_oss": _llama_like("gpt_oss", 150_000.0, query_key_notes=("attention sink left out",)),
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
    "detr": Family(source=_file("detr"), query_key_notes=("position embeddings are added to queries and keys",)),
    "mask2former": Family(
        source=_file("mask2former"),
        uncounted_layers=1,
        query_key_notes=("position embeddings are added to queries and keys",),
    ),
    "sam_vision_model": _vision("sam", "vision", "layer_norm1", "norm1", layouts=(make_fused("qkv"),)),
    "sam_mask_decoder": Family(
        source=_file("sam"),
        layouts=(make_separate("q_proj", "k_proj", "v_proj", width_from_rows=True),),
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
