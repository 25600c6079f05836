"""Facts about model types without an entry in the table of families, where names alone do not tell the rules enough.

Each line was read from the modeling file of transformers, and the census compares it with the running model.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

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
from attngeo.layouts.rules import OutputNote


def _type(*layouts: Layout | LatentLayout, **facts: Any) -> Family:
    """A family without an entry in the table. It is an encoder unless a decoder is stated here or in the census."""
    return Family(**{"source": "", "layouts": layouts, "stack": "encoder", **facts})


def _types(names: str, *layouts: Layout | LatentLayout, **facts: Any) -> dict[str, Family]:
    """The same facts for several model types. names: the types, separated by spaces."""
    return dict.fromkeys(names.split(), _type(*layouts, **facts))


# Queries, keys and values in one projection, in this order.
QKV = make_fused("qkv")
QKV_PROJ = make_fused("qkv_proj")
# Gemma 4: some layers have keys only, and normalise them as values.
KEYS_AS_VALUES = make_separate("q_proj", "k_proj", "v_proj", values_are_keys=True)
# Each head of the query projection holds a query and a gate.
GATED = Layout((make_linear("q_proj", "qg", "heads"), make_linear("k_proj", "k"), make_linear("v_proj", "v")))
# Queries and keys are narrower than the input: head_dim follows from the weights.
NARROW = make_separate("q_proj", "k_proj", "v_proj", width_from_rows=True)
NARROW_BERT = make_separate("query", "key", "value", width_from_rows=True)
# Each dimension of the queries has a learned factor.
SCALED = make_separate("q_proj", "k_proj", "v_proj", q_scale="scaling")
# For each key head: its queries, the key and the value.
GROUPED = make_fused("query_key_value", blocks="key_heads")
GROUPED_WQKV = make_fused("wqkv", blocks="key_heads")
EACH_HEAD = make_fused("query_key_value", blocks="key_heads", key_heads="heads")
# The gain g is stored as g − 1.
OFFSET = HeadNorm(gain_offset=1)

# Model type → its layouts, which are tried before the rules, and other facts about it.
TYPES: dict[str, Family] = {
    **_types(
        "blip_2_vision_model blip_vision_model cohere_compass_vision deepseek_ocr2_sam_vision_model "
        "deepseek_vl_hybrid dots3_note_vision_encoder ernie4_5_vl_moe_vision exaone4_5_vision florence_vision "
        "glm4v_moe_vision glm4v_vision glm5_next_vision glm_image_vision glm_ocr_vision glmga_vision got_ocr2_vision "
        "hyperclovax_vision_v2 instructblip_vision_model instructblipvideo_vision_model mgp-str pp_chart2table_vision "
        "pp_formulanet_vision pp_ocrv6_small_rec qwen2_5_omni_vision_encoder qwen2_5_vl_vision qwen2_vl_vision "
        "qwen3_5_moe_vision qwen3_5_vision qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision qwen3_vl_vision "
        "qwen4_exp_vision radio sam_hq_vision_model seggpt slanext slanext_vision timesformer tipsv2_dpt "
        "tipsv2_vision_model timm_vit unlimited_ocr_sam_vision_model unlimited_ocr_vision videomae vitdet vitmatte "
        "vivit",
        QKV,
    ),
    **_types("intern_vit_6b qianfan_ocr_vision", make_fused("attn.qkv", outputs=make_outputs("attn.proj"))),
    **_types("kimi_k25_vision moonvit", make_fused("wqkv", outputs=make_outputs("wo", "attn.proj"))),
    **_types(
        "deepseek_ocr_clip gte new phi3_v phi4_multimodal pp_ocrv5_server_rec unlimited_ocr_vision_encoder", QKV_PROJ
    ),
    **_types(
        "bark coarse_acoustics fine_acoustics molmo2_text semantic",
        make_fused("att_proj", outputs=make_outputs("out_proj", "attn_out")),
    ),
    **_types("hf_olmo molmo", make_fused("att_proj", outputs=make_outputs("attn_out")), stack="decoder"),
    **_types(
        "nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp nemotron3_diarization_audio",
        make_fused("w_qkv"),
    ),
    "baichuan": _type(make_fused("W_pack"), stack="decoder"),
    "gradium_phonon_tts": _type(make_fused("in_proj")),
    "hrm_text": _type(make_fused("gqkv_proj", "gqkv")),
    "moss": _type(make_fused("qkv_proj", "qvk", blocks=4), stack="decoder"),
    "plamo2": _type(
        QKV_PROJ,
        stack="decoder",
        head_norm=HeadNorm(q="q_weight", k="k_weight"),
        rotary=Rotary(other="config.json does not say which of its bases each layer uses"),
    ),
    "qwen": _type(make_fused("c_attn", outputs=make_outputs("c_proj")), stack="decoder"),
    "qwen_visual": _type(make_fused("in_proj", blocks="key_heads")),
    **_types("RefinedWeb fuyu gpt_neox_japanese persimmon", GROUPED),
    **_types("internlm2 internlmxcomposer2", GROUPED_WQKV, stack="decoder"),
    "RefinedWebModel": _type(make_fused("query_key_value", when={"multi_query": True}, key_heads="one"), EACH_HEAD),
    "chatglm": _type(make_fused("query_key_value", when={"multi_query_attention": True}), EACH_HEAD, stack="decoder"),
    "telechat": _type(
        Layout((make_linear("query", "q"), make_linear("key_value", "kv", "key_heads"))), stack="decoder"
    ),
    "decision_transformer": _type(
        make_fused("c_attn", transposed=True, outputs=make_outputs("c_proj", transposed=True))
    ),
    "xlnet": _type(
        Layout(tuple(Projection(letter, letter, transposed=True) for letter in "qkv"), outputs=(Projection("o", "o"),))
    ),
    **_types("hiera sam2_hiera_det_model", make_fused("qkv", width_from_rows=True)),
    "convbert": _type(NARROW_BERT, other_outputs="its output projection also reads a convolution"),
    "perceiver": _type(NARROW_BERT),
    **_types(
        "edgetam_mask_decoder edgetam_video_mask_decoder sam2_mask_decoder sam2_video_mask_decoder "
        "sam3_tracker_mask_decoder sam3_tracker_video_mask_decoder sam_hq_mask_decoder",
        NARROW,
    ),
    **_types("timesfm timesfm2_5", SCALED),
    "gemma3n_audio": _type(make_separate("q_proj", "k_proj", "v_proj", q_scale="per_dim_scale")),
    "gemma4_audio": _type(make_separate("q_proj.linear", "k_proj.linear", "v_proj.linear", q_scale="per_dim_scale")),
    **_types("dots3_note_text longcat_flash", LatentLayout(scaled=True)),
    **_types("qwen3_5 qwen3_5_moe qwen4_exp", GATED),
    **_types("qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp_text", GATED, head_norm=OFFSET),
    **_types(
        "minimax_m3_vl_text muse_glimmer_text muse_spark_text step3p5 step3p7 step3p7_text t5gemma2_decoder "
        "t5gemma2_encoder t5gemma2_text",
        head_norm=OFFSET,
    ),
    "esmc": _type(head_norm=HeadNorm(centered=True)),
    # As published; transformers splits them into parts, and the census has these.
    **_types("qwen2_vl qwen2_5_vl", rotary=Rotary()),
    # Cross-attention normalises the input of queries and that of keys, under names of a QK-norm.
    **_types("blt_local_decoder blt_local_encoder", cross_norm=("q_norm",)),
    "hunyuan_vl_vision": _type(more_key_heads=True),
    "mimo_v2_flash": _type(
        more_key_heads=True, value_scale="attention_value_scale", defaults={"attention_value_scale": 0.707}
    ),
    **_types(
        "diffusion_gemma diffusion_gemma_text embedding_gemma2_text gemma3n_text gemma4_text gemma4_unified_text "
        "gemma4_vision",
        KEYS_AS_VALUES,
        output_notes=(OutputNote.VALUE_NORM,),
    ),
    "diffllama": _type(other_outputs="two heads share each value, and one head is subtracted from the other"),
    "neomme": _type(other_outputs="the output of a head depends on the value of its own token"),
    "nystromformer": _type(other_outputs="it adds a convolution of its values"),
    "autoformer": _type(other_attention="it compares whole sequences by auto-correlation, not single tokens"),
    "axk2": _type(other_attention="its queries combine a latent with its normalised form"),
    "yoso": _type(other_attention="it attends by hashing the angle between query and key, without a softmax"),
}

# Words of the census → why the product of a query and a key does not depend on their distance alone.
OTHER_ROTATIONS = {
    "other": "it orders rotary dimensions in its own way, for example by the axes of an image",
    "gain": "the gain of its QK-norm comes after the rotation, so the product depends on both positions",
}


@cache
def list_causal_types() -> frozenset[str]:
    """The model types whose self-attention is causal: each token attends to earlier ones only."""
    in_transformers = {row["model_type"] for row in _read_census() if row["causal"]}
    return frozenset(in_transformers | {name for name, family in TYPES.items() if family.stack == "decoder"})


@cache
def list_rotary_types() -> dict[str, Rotary]:
    """Model type → its rotation of queries and keys, for types with rotary embeddings."""
    types = {name: family.rotary for name, family in TYPES.items() if family.rotary is not None}
    for row in _read_census():
        words = row["rotary"].split()
        if words:
            flags = {word: word in words for word in ("tail", "sliding", "reversed", "axes")}
            other = OTHER_ROTATIONS.get(words[0], "")
            types[row["model_type"]] = Rotary(interleaved="neighbours" in words, other=other, **flags)
    return types


class Unembedding(NamedTuple):
    """The modules between the last layer of a model type and its unembedding.

    Attributes:
        norm: the normalisation, relative to the module with the list of layers; "" if there is none.
        gain_offset: 1 if its gain g is stored as g − 1.
        layers: all modules with weights, if there are any besides a normalisation.
    """

    norm: str
    gain_offset: float
    layers: tuple[str, ...]


@cache
def list_unembeddings() -> dict[str, Unembedding]:
    """Model type → the modules before its unembedding, for types whose running model shows them."""
    types = {}
    for row in _read_census():
        if row["head"] == "known":
            layers = tuple(row["head_layers"].split())
            types[row["model_type"]] = Unembedding(row["last_norm"], float(row["gain_offset"] or 0), layers)
    return types


def _read_census() -> Iterator[dict[str, str]]:
    return csv.DictReader((files(__package__) / "census.csv").read_text("utf-8").splitlines())
