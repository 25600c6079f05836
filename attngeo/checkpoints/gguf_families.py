"""How llama.cpp stores each family of models in a .gguf file: the names of tensors, and what it changes in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class GgufFamily(NamedTuple):
    """How llama.cpp stores a family.

    Attributes:
        model_type: model type of transformers.
        permuted: whether the two rows of a rotary pair of queries or keys are neighbours.
        gain_offset: number added to the gains of norms.
        block: name of a layer, with the stack if there are two.
        names: module → its name in a layer, if that is unusual.
    """

    model_type: str
    permuted: bool = False
    gain_offset: float = 0.0
    block: str = "model.layers.{}"
    names: Mapping[str, str] = {}


BERT = {
    "attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm",
}  # fmt: skip
LATENT = {
    "attn_q_a": "self_attn.q_a_proj", "attn_q_b": "self_attn.q_b_proj", "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj", "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}  # fmt: skip
T5 = {
    **{f"attn_{letter}": f"layer.0.SelfAttention.{letter}" for letter in "qkvo"},
    **{f"cross_attn_{letter}": f"layer.1.EncDecAttention.{letter}" for letter in "qkvo"},
    "attn_norm": "layer.0.layer_norm",
    "cross_attn_norm": "layer.1.layer_norm",
}


def _fused(module: str, norm: str, **more: str) -> dict[str, str]:
    """The names of a family whose queries, keys and values llama.cpp puts one after the other, heads unmixed."""
    return {"attn_qkv": f"{module}.attn_qkv", "attn_output": f"{module}.o_proj", "attn_norm": norm, **more}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "bert": GgufFamily("bert", block="encoder.layer.{}", names=BERT),
    "bloom": GgufFamily("bloom", block="transformer.h.{}", names=_fused("self_attention", "input_layernorm")),
    "command-r": GgufFamily("cohere"),
    "deepseek2": GgufFamily("deepseek_v2", names=LATENT),
    "falcon": GgufFamily(
        "falcon", block="transformer.h.{}", names=_fused("self_attention", "input_layernorm", attn_norm_2="ln_attn")
    ),
    "gemma": GgufFamily("gemma", gain_offset=1.0),
    "gemma2": GgufFamily("gemma2", gain_offset=1.0),
    "gemma3": GgufFamily("gemma3_text", gain_offset=1.0),
    "gpt2": GgufFamily("gpt2", block="transformer.h.{}", names=_fused("attn", "ln_1")),
    "gptneox": GgufFamily("gpt_neox", block="gpt_neox.layers.{}", names=_fused("attention", "input_layernorm")),
    "granite": GgufFamily("granite", permuted=True),
    "llama": GgufFamily("llama", permuted=True),  # and Mistral and Mixtral
    "mpt": GgufFamily(
        "mpt",
        block="transformer.blocks.{}",
        names=_fused("attn", "norm_1", attn_q_norm="attn.q_ln", attn_k_norm="attn.k_ln"),
    ),
    "nomic-bert": GgufFamily(
        "nomic_bert", block="encoder.layers.{}", names={"attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj"}
    ),
    "olmo2": GgufFamily("olmo2"),
    "phi3": GgufFamily("phi3"),
    "qwen2": GgufFamily("qwen2"),
    "qwen3": GgufFamily("qwen3"),
    "qwen3moe": GgufFamily("qwen3_moe"),
    "stablelm": GgufFamily("stablelm", names={f"attn_{x}_norm": f"self_attn.{x}_layernorm" for x in "qk"}),
    "starcoder2": GgufFamily("starcoder2"),
    "t5": GgufFamily("t5", block="{}.block.{}", names=T5),
    "t5encoder": GgufFamily("t5", block="{}.block.{}", names=T5),
}
# Architectures whose heads rotate as a whole: llama.cpp refuses another number.
ROTATE_ALL = ("falcon", "llama")
NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
}  # fmt: skip
OUTSIDE = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}
BLOCK = re.compile(r"(?:(enc|dec)\.)?blk\.(0|[1-9][0-9]{0,5})\.(\w+)\.(weight|bias)")
# A tensor of queries or keys, which every layer of the architectures below has.
LAYER = re.compile(r"((?:enc|dec)\.)?blk\.(0|[1-9][0-9]{0,5})\.attn_(?:qkv|[qk]|q_[ab]|k_b|kv_b|kv_a_mqa)\.weight")
