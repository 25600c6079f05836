"""Tensors and configurations that contradict each other, or that no layout reads, are refused with the facts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command
from support.checkpoints import CONFIG, assert_refused, refuses_checkpoint, weights, write_single
from torch import Tensor

import attngeo
from attngeo.checkpoints.opening import open_store
from attngeo.errors import ISSUES, AttnGeoError, CorruptCheckpointError, ShapeError, UnsupportedModelError

Q0 = "model.layers.0.self_attn.q_proj.weight"
K0 = Q0.replace("q_proj", "k_proj")


def stated(method: str) -> dict[str, Any]:
    """A configuration that states a quantisation."""
    return CONFIG | {"quantization_config": {"quant_method": method}}


def without(name: str) -> dict[str, Tensor]:
    return {own: tensor for own, tensor in weights().items() if own != name}


# Latent attention with both kinds of queries: through a latent of rank 4, and straight from the input.
LATENT: dict[str, tuple[int, ...]] = {
    "q_a_proj": (4, 24), "q_a_layernorm": (4,), "q_b_proj": (32, 4), "q_proj": (32, 24),
    "kv_a_proj_with_mqa": (8, 24), "kv_a_layernorm": (5,), "kv_b_proj": (28, 5),
}  # fmt: skip
LATENT_CONFIG = {
    "model_type": "deepseek_v3", "num_attention_heads": 4, "qk_nope_head_dim": 5, "qk_rope_head_dim": 3,
    "v_head_dim": 2,
}  # fmt: skip

# What is wrong → tensors, configuration, the error, and the facts that its message must state.
Case = tuple[dict[str, Tensor], dict[str, Any], type[AttnGeoError], tuple[str, ...]]
REFUSED: dict[str, Case] = {
    "a wrong shape": (
        weights() | {Q0: torch.ones(23, 24)}, CONFIG, ShapeError,
        (Q0, "23", "expected 24", "4 heads", "2 key heads", "head_dim 6"),
    ),
    "as many queries as there are key heads": (
        {name: w[:12] if "q_proj" in name else w for name, w in weights().items()}, CONFIG, ShapeError,
        (Q0, "output width of 12", "expected 24", "4 heads", "head_dim 6"),
    ),
    "as many keys as there are heads": (
        weights() | {K0: torch.ones(24, 24)}, CONFIG, ShapeError, (K0, "output width of 24", "expected 12"),
    ),
    "a head_dim that only the width gives": (
        weights(), CONFIG | {"head_dim": 12}, ShapeError, (Q0, "expected 48", "head_dim 12"),
    ),
    "a vector for a matrix": (weights() | {Q0: torch.ones(24)}, CONFIG, ShapeError, (Q0, "[24]", "matrix")),
    "heads that do not divide": (
        weights(), CONFIG | {"num_key_value_heads": 3}, ShapeError, ("4 heads", "3 key heads"),
    ),
    "heads that do not divide the width": (
        weights(), {"model_type": "llama", "num_attention_heads": 7}, ShapeError, ("7 heads", "24"),
    ),
    "heads that do not divide into blocks": (
        {"h.0.attn.qkv_proj.weight": torch.ones(96, 32)}, {"model_type": "codegen", "n_head": 2}, ShapeError,
        ("h.0.attn", "2 heads", "4 blocks"),
    ),
    "heads that are no number": (
        weights(), CONFIG | {"num_attention_heads": "four"}, CorruptCheckpointError,
        ("config.json", "num_attention_heads = 'four'", "positive integer"),
    ),
    "zero heads": (
        weights(), CONFIG | {"num_attention_heads": 0}, CorruptCheckpointError,
        ("config.json", "num_attention_heads = 0", "positive integer"),
    ),
    "no number of heads": (
        weights(), {"model_type": "mystery"}, CorruptCheckpointError,
        ("config.json", "num_attention_heads, n_head, n_heads"),
    ),
    "a missing key": (without(K0), CONFIG, CorruptCheckpointError, (K0,)),
    "a missing query": (without(Q0), CONFIG, CorruptCheckpointError, (Q0,)),
    "integers for weights": (
        {name: tensor.to(torch.int8) for name, tensor in weights().items()}, stated("bitsandbytes"),
        CorruptCheckpointError, (Q0, "I8", "bitsandbytes", ".SCB", "missing"),
    ),
    "float8 weights": (
        {name: tensor.to(torch.float8_e4m3fn) for name, tensor in weights().items()}, stated("fp8"),
        CorruptCheckpointError, (Q0, "F8_E4M3", "fp8", "missing"),
    ),
    "packed weights": (
        {name.replace("weight", "qweight"): tensor.int() for name, tensor in weights().items()}, stated("gptq"),
        CorruptCheckpointError, ("gptq",),
    ),
    "packed weights of an unstated method": (
        {name.replace("weight", "qweight"): tensor.int() for name, tensor in weights().items()},
        CONFIG | {"quantization_config": 5}, UnsupportedModelError, ("quantised",),
    ),
    "one layer quantised": (
        {name.replace("weight", "qweight") if ".1." in name else name: tensor for name, tensor in weights().items()},
        stated("awq"), CorruptCheckpointError, ("layers.1.self_attn", "qweight", "F32", "awq"),
    ),
    "an unknown fused order": (
        {"h.0.attn.query_key_value.weight": torch.ones(72, 24)}, {"model_type": "mystery"}, UnsupportedModelError,
        ("'mystery'", "h.#.attn.query_key_value.weight", ISSUES),
    ),
    "a bias that does not fit": (
        weights() | {Q0.replace("weight", "bias"): torch.ones(25)}, CONFIG, ShapeError,
        ("q_proj.bias", "[25]", "4 heads", "2 key heads", "head_dim 6", "24"),
    ),
    "an input gain that does not fit": (
        weights() | {"model.layers.0.input_layernorm.weight": torch.ones(2, 24)}, CONFIG, ShapeError,
        ("input_layernorm.weight", "[2, 24]"),
    ),
    "a gain of queries that does not fit": (
        weights() | {Q0.replace("q_proj", "q_norm"): torch.ones(7)}, CONFIG | {"model_type": "qwen3"}, ShapeError,
        ("q_norm.weight", "[7]", "head_dim 6"),
    ),
    "two query projections": (
        {f"model.layers.0.self_attn.{name}.weight": torch.ones(shape) for name, shape in LATENT.items()}, LATENT_CONFIG,
        CorruptCheckpointError, ("q_proj.weight", "q_a_proj.weight", "expected one of them"),
    ),
    "no attention": (
        {"layers.0.mixer.in_proj.weight": torch.ones(4, 4)}, {"model_type": "mamba"}, UnsupportedModelError,
        ("'mamba'", "q_proj/k_proj"),
    ),
    "attention of another kind": (
        {"layers.0.attention.mix.weight": torch.ones(4, 4)}, {"model_type": "odd"}, UnsupportedModelError,
        ("'odd'", "layers.#.attention.mix.weight"),
    ),
}  # fmt: skip
# Biases and input gains are only read for the variants that need them.
VARIANTS = {"a bias that does not fit": {"with_bias": True}, "an input gain that does not fit": {"fold_norm": True}}


@pytest.mark.parametrize("case", REFUSED)
def test_contradictions_are_refused(case: str, tmp_path: Path) -> None:
    tensors, config, error, facts = REFUSED[case]
    write_single(tmp_path, tensors, config)
    with refuses_checkpoint(tmp_path, error, facts):
        attngeo.score(tmp_path, **VARIANTS.get(case, {}))


def test_the_command_refuses_a_contradiction_in_one_line(tmp_path: Path, inside: Command) -> None:
    tensors, config, error, facts = REFUSED["a bias that does not fit"]
    write_single(tmp_path, tensors, config)
    assert_refused(inside("score", tmp_path, "--with-bias"), tmp_path, error, facts)


@pytest.mark.parametrize("case", VARIANTS)
def test_what_a_variant_does_not_need_is_not_checked(case: str, tmp_path: Path) -> None:
    tensors, config, _, _ = REFUSED[case]
    assert len(attngeo.score(write_single(tmp_path, tensors, config))) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": "two"},
        {"num_hidden_layers": 10**12},
        {"architectures": {"a": 1}},
        {"text_config": None},
        {"quantization_config": 5},
        {"rope_scaling": "much"},
    ],
)
@pytest.mark.parametrize("model_type", ["llama", "albert", "mystery"])
def test_fields_that_do_not_matter_may_be_anything(fields: dict[str, Any], model_type: str, tmp_path: Path) -> None:
    folder = write_single(tmp_path, config=CONFIG | {"model_type": model_type} | fields)
    assert len(attngeo.score(folder)) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_scaling": "much"},
        {"rope_scaling": {"rope_type": "linear"}},
        {"rope_scaling": {"rope_type": "linear", "factor": 0}},
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}},
        {"rope_parameters": ["x"]},
        {"rope_theta": "abc"},
        {"partial_rotary_factor": 5},
    ],
)
def test_a_rotary_embedding_that_makes_no_sense_is_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    folder = write_single(tmp_path, config=CONFIG | fields)
    assert len(attngeo.score(folder)) == 2
    with pytest.raises((CorruptCheckpointError, ShapeError)) as error:
        attngeo.score(folder, rope_offset=1)
    assert str(folder) in str(error.value)


def test_other_projections_may_be_quantised(tmp_path: Path) -> None:
    """Only queries and keys are read, so it does not matter how the values are stored."""
    tensors = {n.replace("v_proj.weight", "v_proj.qweight"): t for n, t in weights().items()}
    assert len(attngeo.score(write_single(tmp_path, tensors))) == 2


def test_null_key_heads_mean_as_many_as_heads(tmp_path: Path) -> None:
    """As in transformers: null is derived from the heads; only a missing field has the family's default."""
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(24, 24, generator=generator) for name in weights() if "proj" in name}
    config = {"model_type": "mistral", "num_attention_heads": 4, "num_key_value_heads": None}
    assert attngeo.score(write_single(tmp_path, tensors, config), per_head=True)["key_head"].nunique() == 4


def test_half_precision_checkpoints_score_as_their_values_do(tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        half = weights(dtype=dtype)
        folder = write_single(tmp_path / str(dtype), half)
        same = write_single(tmp_path / f"{dtype} in float32", {name: tensor.float() for name, tensor in half.items()})
        columns = ["symmetry", "directionality", "frobenius_norm"]
        pair = [attngeo.score(path, per_head=True)[columns].to_numpy() for path in (folder, same)]
        assert abs(pair[0] - pair[1]).max() < 1e-6


def test_values_of_a_fused_projection_are_not_read(saved: Callable[[str], Path]) -> None:
    """In phi3's qkv_proj, the rows of the values come last."""
    store = open_store(saved("phi3"))
    site = next(attngeo.attention_sites(saved("phi3"))).site
    name, rows = site.tensors["q"], site.reads[site.tensors["q"]]
    read = (site.heads + site.key_heads) * site.head_dim
    assert store.read(name, rows).shape[0] == read < store.info(name).shape[0]
