"""The tensors and the headers of families in GGUF files, and of their rotary embeddings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pandas as pd
import pytest
import torch
from support.checkpoints import write_single
from support.circuits import assert_same_outputs
from support.gguf_files import CONFIG, HEAD, KEYS, NAMES, SCORES, draw_state, rename, write_tensors
from support.tiny_models import TINY_MODELS, build
from torch import Tensor

import attngeo
from attngeo.errors import UnsupportedModelError


def sort_heads(tensor: Tensor, heads: int, key_heads: int) -> Tensor:
    """Groups of queries, a key and a value as llama.cpp's converter writes them: all queries, all keys, all values."""
    groups = tensor.reshape(key_heads, heads // key_heads + 2, -1, *tensor.shape[1:])
    return torch.cat([groups[:, part].flatten(0, -tensor.ndim) for part in (slice(-2), slice(-2, -1), slice(-1, None))])


FUSED_NAMES = {"self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output"}
# Tiny model → architecture, its names in the file by their names in the checkpoint, query heads and key heads.
FUSED: dict[str, tuple[str, dict[str, str], int, int]] = {
    "gpt2": ("gpt2", {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_1": "attn_norm"}, 4, 4),
    "gpt_neox": (
        "gptneox",
        {
            "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output", "input_layernorm": "attn_norm",
        }, 4, 4,
    ),
    "bloom": ("bloom", FUSED_NAMES | {"input_layernorm": "attn_norm"}, 4, 4),
    "falcon-new": ("falcon", FUSED_NAMES | {"ln_attn": "attn_norm_2", "ln_mlp": "attn_norm"}, 4, 2),
    "falcon-multi-query": ("falcon", FUSED_NAMES | {"input_layernorm": "attn_norm"}, 4, 1),
    "mpt": ("mpt", {"attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm_1": "attn_norm"}, 4, 4),
}  # fmt: skip


def assert_equal_scores(folder: Path, count: int, offset: int = 0, *, outputs: bool = True) -> None:
    """model.gguf has the scores of the checkpoint `plain`, as they are and with biases, norms and an offset.

    outputs: it has the same values and outputs, too.
    """
    for options in ({}, {"with_bias": True, "fold_norm": True}, *([{"rope_offset": offset}] if offset else [])):
        scores, expected = (
            attngeo.score(path, per_head=True, **options) for path in (folder / "model.gguf", folder / "plain")
        )
        assert len(scores) == len(expected) == count
        assert scores["stack"].tolist() == expected["stack"].tolist()
        assert scores["key_head"].equals(expected["key_head"])
        np.testing.assert_allclose(scores[SCORES[:2]], expected[SCORES[:2]], rtol=0, atol=2e-5)
        np.testing.assert_allclose(scores[SCORES[2]], expected[SCORES[2]], rtol=1e-5)
    if outputs:
        assert_same_outputs(folder / "model.gguf", folder / "plain")


@pytest.mark.parametrize("case", FUSED)
def test_fused_tensors_are_read_in_the_order_of_the_file(case: str, tmp_path: Path) -> None:
    model = randomise(build(TINY_MODELS[case]))
    model.save_pretrained(tmp_path / "plain")
    architecture, names, heads, key_heads = FUSED[case]
    width = model.config.hidden_size
    rotated = {"gpt_neox": width // 8, "falcon-new": width // 4, "falcon-multi-query": width // 4}.get(case)
    values = {"embedding_length": width, "block_count": 2, "attention.head_count": heads}
    values |= {} if key_heads == heads else {"attention.head_count_kv": key_heads}
    values |= {"rope.dimension_count": rotated} if rotated else {}
    tensors = rename(model.state_dict(), names)
    for name in tensors:
        if "attn_qkv" in name and case not in ("gpt2", "mpt"):
            tensors[name] = sort_heads(tensors[name], heads, key_heads)
        elif name.endswith(("attn_qkv.weight", "attn_output.weight")) and case == "gpt2":
            tensors[name] = tensors[name].T
    write_tensors(tmp_path / "model.gguf", architecture, values, tensors)
    assert_equal_scores(tmp_path, 10, offset=3 if rotated else 0)
    # No other kind of file has this order, even if a tensor is called so.
    module = next(inner for inner, stored in FUSED[case][1].items() if stored == "attn_qkv")
    named = {name.replace(module, f"{module.rpartition('.')[0]}.attn_qkv"): x for name, x in model.state_dict().items()}
    foreign = write_single(tmp_path / "foreign", {name: x.clone() for name, x in named.items()}, model.config.to_dict())
    with pytest.raises(UnsupportedModelError):
        attngeo.score(foreign)


def randomise(model: Any) -> Any:
    """Norms and biases are no ones and zeros any more."""
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def test_both_stacks_and_cross_attention_of_t5(tmp_path: Path) -> None:
    model = randomise(build(TINY_MODELS["t5"]))
    model.save_pretrained(tmp_path / "plain")
    config = model.config
    values = {
        "embedding_length": config.d_model, "block_count": config.num_layers, "attention.head_count": config.num_heads,
        "attention.key_length": config.d_kv, "decoder_block_count": config.num_decoder_layers,
    }  # fmt: skip
    names = {"layer.0.layer_norm": "attn_norm", "layer.1.layer_norm": "cross_attn_norm"} | {
        f"layer.{place}.{module}.{letter}": f"{cross}attn_{letter}"
        for cross, place, module in (("", 0, "SelfAttention"), ("cross_", 1, "EncDecAttention")) for letter in "qkvo"
    }  # fmt: skip
    tensors = {
        f"{stack}.{name}": tensor
        for stack in ("enc", "dec")
        for name, tensor in rename(
            {name: tensor for name, tensor in model.state_dict().items() if name.startswith(f"{stack}oder")}, names
        ).items()
        if stack == "dec" or "cross" not in name
    }
    write_tensors(tmp_path / "model.gguf", "t5", values, tensors)
    assert_equal_scores(tmp_path, 5 * (config.num_layers + 2 * config.num_decoder_layers))


SEPARATE = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
}  # fmt: skip
COMMON = {"embedding_length": 32, "block_count": 2, "attention.head_count": 4}
GROUPED = COMMON | {"attention.head_count_kv": 2}
# Tiny model → architecture, its names in the file by their names in the checkpoint, and the header.
OTHERS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "stablelm": ("stablelm", SEPARATE, GROUPED | {"rope.dimension_count": 2}),
    "cohere": ("command-r", SEPARATE, GROUPED | {"rope.freq_base": 500_000.0, "rope.scaling.type": "none"}),
    "cohere-qk-norm": (
        "command-r", SEPARATE | {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"},
        GROUPED | {"rope.freq_base": 500_000.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_separate_tensors_of_other_families(case: str, tmp_path: Path) -> None:
    architecture, names, values = OTHERS[case]
    model = randomise(build(TINY_MODELS[case]))
    model.save_pretrained(tmp_path / "plain")
    write_tensors(tmp_path / "model.gguf", architecture, values, rename(model.state_dict(), names))
    assert_equal_scores(tmp_path, 10, offset=3)


def test_norms_of_heads_in_one_tensor(tmp_path: Path) -> None:
    """llama.cpp stacks those of StableLM, which has one norm for each head."""
    model = randomise(build(TINY_MODELS["stablelm-qk-norm"]))
    model.save_pretrained(tmp_path / "plain")
    state = model.state_dict()
    tensors = rename(state, SEPARATE)
    for layer in range(2):
        for letter, heads in (("q", 4), ("k", 2)):
            norms = f"model.layers.{layer}.self_attn.{letter}_layernorm.norms"
            gains = torch.stack([state[f"{norms}.{head}.weight"] for head in range(heads)])
            tensors[f"blk.{layer}.attn_{letter}_norm.weight"] = gains
    write_tensors(tmp_path / "model.gguf", "stablelm", GROUPED | {"rope.dimension_count": 2}, tensors)
    assert_equal_scores(tmp_path, 10, offset=3)


def test_nomic_bert(tmp_path: Path) -> None:
    from transformers import NomicBertConfig, NomicBertModel

    torch.manual_seed(0)
    model = randomise(NomicBertModel(NomicBertConfig(**TINY_MODELS["bert"].config)))
    model.save_pretrained(tmp_path / "plain")
    tensors = {
        f"blk.{layer}.attn_qkv.weight": torch.cat(
            [model.state_dict()[f"layers.{layer}.self_attn.{letter}_proj.weight"] for letter in "qkv"]
        )
        for layer in range(2)
    } | {
        f"blk.{layer}.attn_output.weight": model.state_dict()[f"layers.{layer}.self_attn.o_proj.weight"]
        for layer in range(2)
    }
    write_tensors(tmp_path / "model.gguf", "nomic-bert", COMMON | {"rope.freq_base": 1000.0}, tensors)
    assert_equal_scores(tmp_path, 10, offset=3)


LATENT = SEPARATE | {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
}  # fmt: skip


@pytest.mark.parametrize("form", ["earlier", "absorbed"])
@pytest.mark.parametrize("case", ["deepseek_v2", "deepseek_v2-lite", "deepseek_v3"])
def test_latent_attention(case: str, form: str, tmp_path: Path) -> None:
    """Keys of heads and values in one tensor, or apart, the keys transposed."""
    model = randomise(build(TINY_MODELS[case]))
    model.save_pretrained(tmp_path / "plain")
    tensors, config = rename(model.state_dict(), LATENT), model.config
    nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
    sizes = {"attention.key_length": nope + rope, "attention.value_length": value, "rope.dimension_count": rope}
    sizes |= {"attention.head_count_kv": 4}
    if form == "absorbed":
        sizes = {f"{name}_mla" if "length" in name else name: size for name, size in sizes.items()} | {
            "attention.key_length": config.kv_lora_rank + rope, "attention.value_length": config.kv_lora_rank,
            "attention.head_count_kv": 1,
        }  # fmt: skip
        for layer in range(2):
            both = tensors.pop(f"blk.{layer}.attn_kv_b.weight").view(4, nope + value, -1)
            tensors[f"blk.{layer}.attn_k_b.weight"] = both[:, :nope].mT
            tensors[f"blk.{layer}.attn_v_b.weight"] = both[:, nope:]
    write_tensors(tmp_path / "model.gguf", "deepseek2", COMMON | sizes, tensors)
    assert_equal_scores(tmp_path, 10, offset=3)


# What config.json states of a LLaMA with heads of 64 → what the header states, and tensors.
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
SHORT = [1.0 + place / 8 for place in range(HEAD // 2)]


def divide_llama3() -> Tensor:
    """By what LLaMA 3 divides its frequencies, as transformers computes them."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    fields = {name: value for name, value in CONFIG.items() if name != "rope_theta"}
    turning = [
        LlamaRotaryEmbedding(LlamaConfig(**fields, rope_parameters={"rope_theta": 5000.0, **rope})).inv_freq
        for rope in ({"rope_type": "default"}, LLAMA3)
    ]
    return turning[0] / turning[1]


SCALED: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[], dict[str, Tensor]]]] = {
    "linear": ({"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}, dict),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16},
        {"type": "yarn", "factor": 4.0, "original_context_length": 64, "yarn_beta_fast": 16.0}, dict,
    ),
    "llama3": (LLAMA3, {}, lambda: {"rope_freqs.weight": divide_llama3()}),
    "longrope": (
        {
            "rope_type": "longrope", "short_factor": SHORT, "long_factor": SHORT, "attention_factor": 1.5,
            "original_max_position_embeddings": 64,
        },
        {"attn_factor": 1.5},
        lambda: {"rope_factors_long.weight": torch.ones(HEAD // 2), "rope_factors_short.weight": torch.tensor(SHORT)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SCALED)
def test_the_scaling_of_rotary_embeddings(kind: str, tmp_path: Path) -> None:
    stated, header, factors = SCALED[kind]
    state = draw_state()
    write_single(tmp_path / "plain", state, CONFIG | {"model_type": "qwen2", "rope_scaling": stated})
    values = KEYS | {"rope.freq_base": 5000.0} | {f"rope.scaling.{name}": value for name, value in header.items()}
    tensors = rename(state, NAMES) | factors()
    write_tensors(tmp_path / "model.gguf", "qwen2", values, tensors)
    assert_equal_scores(tmp_path, 10, offset=3, outputs=False)
    if factors is not dict:  # they may be in another file than the metadata
        write_tensors(tmp_path / "split.gguf", "qwen2", values, tensors, split_max_tensors=7)
        parts = [gguf.GGUFReader(path) for path in sorted(tmp_path.glob("split-*.gguf"))]
        assert [any("rope_" in tensor.name for tensor in part.tensors) for part in parts] == [False, True]
        scores = attngeo.score(tmp_path / "split-00001-of-00002.gguf", rope_offset=3)
        expected = attngeo.score(tmp_path / "model.gguf", rope_offset=3)
        pd.testing.assert_frame_equal(scores[SCORES], expected[SCORES], check_exact=True)


def test_a_scaling_of_some_dimensions_counts_without_an_offset(tmp_path: Path) -> None:
    """Phi-4-mini's: the rotating dimensions of queries and keys are multiplied."""
    state = draw_state()
    stated = SCALED["longrope"][0] | {"short_factor": SHORT[: HEAD // 4], "long_factor": SHORT[: HEAD // 4]}
    plain = CONFIG | {"model_type": "qwen2", "rope_scaling": stated, "partial_rotary_factor": 0.5}
    write_single(tmp_path / "plain", state, plain)
    values = KEYS | {"rope.freq_base": 5000.0, "rope.scaling.attn_factor": 1.5, "rope.dimension_count": HEAD // 2}
    tensors = {"rope_factors_short.weight": torch.tensor(SHORT[: HEAD // 4])} | rename(state, NAMES)
    write_tensors(tmp_path / "model.gguf", "qwen2", values, tensors)
    assert_equal_scores(tmp_path, 10, offset=3, outputs=False)
