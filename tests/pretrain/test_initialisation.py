"""Starts of query and key weights: their effect on every family, and what they leave unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.running_model import inputs_for, record_tiny
from support.tiny_models import TINY_MODELS, build
from torch import Tensor

import attngeo
from attngeo.checkpoints.reference import ModelRef
from attngeo.errors import (
    CorruptCheckpointError,
    ModelNotFoundError,
    ShapeError,
    UnsupportedModelError,
    UsageError,
)
from attngeo.pretrain import initialize

Build = Callable[[str], Any]
QUERY_OR_KEY = re.compile(r"\.(q|k|q_proj|k_proj|q_lin|k_lin|query|key|query_proj|key_proj|q_attn)\.weight$")
# Read off the modeling files: what is not query or key in tensors that hold more than that.
SECOND_PART, NEOX = (lambda w: w[:, 32:]), (lambda w: w.reshape(4, 3, 8, 32)[:, 2])
CONV1D, LINEAR = (lambda w: w[:, 64:]), (lambda w: w[64:])
LATENT: dict[str, Callable[[Tensor], Tensor]] = {
    "q_a_proj": lambda w: w[:0],
    "q_b_proj": lambda w: w[:0],
    "kv_b_proj": lambda w: w.reshape(4, 11, 10)[:, 6:],
}
REST: dict[str, dict[str, Callable[[Tensor], Tensor]]] = {
    "deberta": {"in_proj": NEOX},
    "modernbert": {"Wqkv": LINEAR},
    "openai-gpt": {"c_attn": CONV1D},
    "gpt2": {"c_attn": CONV1D},
    "gpt2-cross": {"crossattention.c_attn": SECOND_PART, "attn.c_attn": CONV1D},
    "imagegpt": {"c_attn": CONV1D},
    "codegen": {"qkv_proj": lambda w: w.reshape(4, 3, 8, 32)[:, 1]},
    "gpt_bigcode": {"c_attn": lambda w: w[40:]},
    "gpt_bigcode-mha": {"c_attn": NEOX},
    "gpt_neox": {"query_key_value": NEOX},
    "bloom": {"query_key_value": NEOX},
    "falcon-new": {"query_key_value": lambda w: w.reshape(2, 4, 8, 32)[:, 3]},
    "falcon-multi-query": {"query_key_value": lambda w: w[40:]},
    "falcon-old": {"query_key_value": NEOX},
    "mpt": {"Wqkv": LINEAR},
    "phi3": {"qkv_proj": lambda w: w[48:]},
    "sam": {"qkv": LINEAR},
    "siglip": {"in_proj": LINEAR},
    "mask2former": {"cross_attn.in_proj": LINEAR},
    # Latent attention: q_a and q_b are the query's alone; of kv_b the last 5 rows of a head make values.
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
}  # fmt: skip


# One of each order of slots, of norms on queries and keys, of numbers of key heads, and of shared and cross-attention.
ONE_OF_EACH = {
    "bert", "distilbert", "albert", "deberta", "modernbert", "mpnet", "bart", "t5", "gpt2", "gpt2-cross", "gpt_neox",
    "codegen", "gpt_bigcode", "falcon-new", "falcon-multi-query", "llama", "qwen3", "gemma3_text", "olmo2",
    "phi-qk-norm", "stablelm-qk-norm", "cohere-qk-norm", "phi3", "deepseek_v2", "deepseek_v2-lite", "deepseek_v3",
    "swin", "sam", "mask2former", "siglip",
}  # fmt: skip
EVERY_FAMILY = [name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.slow) for name in TINY_MODELS]


@pytest.fixture
def fresh(built: Build) -> Build:
    """A copy of a tiny model that a test may change."""
    return lambda name: deepcopy(built(name))


def state_of(model: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_unchanged(model: Any, before: dict[str, Tensor]) -> None:
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def scores_of(model: Any, **options: Any) -> pd.DataFrame:
    return attngeo.score(model, per_head=True, **options)


def assert_symmetric(model: Any) -> None:
    """Every layer and head has a score, which is 1; each form is symmetric up to the rounding of its weights."""
    assert ((scores_of(model).symmetry - 1).abs() < 1e-5).all()
    for site, wq, wk in attngeo.attention_sites(model, dtype=torch.float64):
        if site.d_model == site.key_width:
            m = wq @ wk.repeat_interleave(len(wq) // len(wk), 0).mT
            assert (m - m.mT).norm() < 1e-5 * m.norm(), site.module


def form(wq: Tensor, wk: Tensor, head: int) -> Tensor:
    """M of one head."""
    return wq[head] @ wk[head * len(wk) // len(wq)].T


def tensors_in(output: Any) -> list[Tensor]:
    return [value for value in output.values() if isinstance(value, Tensor)]


# Every family


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_a_symmetric_start_scores_one_in_every_family(name: str, fresh: Build) -> None:
    model = fresh(name)
    before, parameters = state_of(model), dict(model.named_parameters())
    written = initialize(model, "symmetric")
    assert_symmetric(model)
    assert_only_queries_and_keys_changed(name, model, before, written)
    assert all(parameters[name] is parameter for name, parameter in model.named_parameters())
    with torch.no_grad():
        outputs = tensors_in(model(**inputs_for(TINY_MODELS[name].inputs, model)))
    assert outputs
    assert all(output.isfinite().all() for output in outputs if output.is_floating_point())


def assert_only_queries_and_keys_changed(name: str, model: Any, before: dict[str, Tensor], written: list[str]) -> None:
    after = model.state_dict()
    changed = [key for key in after if not torch.equal(after[key], before[key])]
    assert changed
    assert set(changed) <= set(written)
    assert written == [key for key, _ in model.named_parameters() if key in written]
    for key in written:
        if not QUERY_OR_KEY.search(key):
            rest = next(rest for part, rest in REST[name].items() if f".{part}" in key)
            assert torch.equal(rest(after[key]), rest(before[key]))


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_the_running_model_attends_symmetrically(name: str, fresh: Build) -> None:
    """Logits of tokens i → j and j → i, as the model computes them, are equal. This uses none of our rules."""
    model = fresh(name)
    initialize(model, "symmetric")
    for key, parameter in model.named_parameters():
        if key.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    ran = record_tiny(TINY_MODELS[name], model)
    sites = [site for site, _, _ in attngeo.attention_sites(model) if not site.is_cross]
    squares = 0
    for site in sites:
        own = ran[site.module]
        logits = torch.as_tensor(own.query) @ torch.as_tensor(own.key).mT
        if logits.shape[1] == logits.shape[2]:  # a learned query has no such square
            squares += 1
            assert (logits - logits.mT).norm() / logits.norm() < 1e-4
    assert squares == len(sites) - (name == "siglip")


# Symmetric


def test_queries_and_keys_of_bert_are_alike_but_not_tied(fresh: Build) -> None:
    model = fresh("bert")
    names = initialize(model, "symmetric", layers=[1])
    assert names == ["bert.encoder.layer.1.attention.self.key.weight"]
    own = model.bert.encoder.layer[1].attention.self
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(own.query(x) - own.query.bias, own.key(x) - own.key.bias, atol=1e-5)
    assert own.query.weight.data_ptr() != own.key.weight.data_ptr()
    other = model.bert.encoder.layer[0].attention.self
    assert not torch.equal(other.query.weight, other.key.weight)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox"])
def test_queries_stay_and_keys_become_them(name: str, fresh: Build) -> None:
    model = fresh(name)
    old = [wq for _, wq, _ in attngeo.attention_sites(model)]
    initialize(model, "symmetric")
    for (_, wq, wk), queries in zip(attngeo.attention_sites(model), old, strict=True):
        assert torch.equal(wq, queries)
        assert torch.equal(wk, queries)


@pytest.mark.parametrize(("optimiser", "lr"), [(torch.optim.SGD, 1.0), (torch.optim.AdamW, 1e-2)])
def test_the_first_step_of_training_parts_them(optimiser: Any, lr: float, fresh: Build) -> None:
    model = fresh("bert")
    initialize(model, "symmetric")
    own = model.bert.encoder.layer[0].attention.self
    ids = torch.randint(10, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    model(input_ids=ids, labels=ids.flip(1)).loss.backward()
    assert own.query.weight.grad.norm() > 0
    assert not torch.allclose(own.query.weight.grad, own.key.weight.grad)
    optimiser(model.parameters(), lr=lr).step()
    assert not torch.allclose(own.query.weight, own.key.weight)
    assert scores_of(model).symmetry.max() < 1 - 1e-5


@pytest.mark.parametrize("name", ["llama", "gemma", "olmo2"])
def test_grouped_heads_take_the_key_of_their_own_group(name: str, fresh: Build) -> None:
    model = fresh(name)
    before = state_of(model)
    initialize(model, "symmetric")
    for layer in model.model.layers:
        q, k = layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight
        for head, queries in enumerate(q.chunk(4)):
            assert torch.equal(queries, k.chunk(2)[head // 2])
    assert torch.equal(k, before["model.layers.1.self_attn.k_proj.weight"])


def test_grouped_heads_of_a_fused_tensor(fresh: Build) -> None:
    model = fresh("falcon-new")
    initialize(model, "symmetric")
    groups = model.transformer.h[0].self_attention.query_key_value.weight.reshape(2, 4, 8, 32)
    assert torch.equal(groups[:, 0], groups[:, 2])
    assert torch.equal(groups[:, 1], groups[:, 2])
    assert not torch.equal(groups[0], groups[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["bert", "gpt2", "falcon-new"])
def test_the_dtype_stays(name: str, dtype: torch.dtype, fresh: Build) -> None:
    model = fresh(name).to(dtype)
    initialize(model, "symmetric")
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert_symmetric(model)
    initialize(model, "identity", seed=0)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_frozen_and_shared_parameters(fresh: Build) -> None:
    model = fresh("bert")
    first, second = (layer.attention.self for layer in model.bert.encoder.layer)
    second.key.weight = first.key.weight
    second.query.weight = first.query.weight
    first.key.weight.requires_grad_(False)
    shared = first.key.weight
    assert initialize(model, "symmetric") == ["bert.encoder.layer.0.attention.self.key.weight"]
    assert first.key.weight is second.key.weight is shared
    assert not shared.requires_grad
    assert_symmetric(model)


def test_only_the_stack_and_the_layers_asked_for(fresh: Build) -> None:
    model = fresh("bart")
    written = initialize(model, "symmetric", stack="cross", layers=[0, 2])
    assert written == [f"model.decoder.layers.{layer}.encoder_attn.k_proj.weight" for layer in (0, 2)]
    symmetric = scores_of(model).groupby(["stack", "layer"]).symmetry.min() > 1 - 1e-6
    assert list(symmetric[symmetric].index) == [("cross", 0), ("cross", 2)]


def test_cross_attention_over_another_width_is_left_alone() -> None:
    from transformers import TrOCRConfig, TrOCRForCausalLM

    model = TrOCRForCausalLM(
        TrOCRConfig(
            vocab_size=16, d_model=32, decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=8,
            cross_attention_hidden_size=24, max_position_embeddings=16,
        )
    )  # fmt: skip
    cross = attngeo.score(model, stack="cross")
    assert all(width in cross.note.item() for width in ("32", "24"))
    for start in ("symmetric", "identity"):
        written = initialize(model, start)
        assert written
        assert all(".self_attn." in name for name in written)


# Latent attention


def latent_model(query_rank: int, seed: int = 0) -> Any:
    from dataclasses import replace

    tiny = TINY_MODELS["deepseek_v3"]
    return build(replace(tiny, config=tiny.config | {"q_lora_rank": query_rank}), seed)


@pytest.mark.parametrize("query_rank", [4, 9, 13, 14, 20])
def test_latent_queries_of_any_rank(query_rank: int) -> None:
    """Keys stay unchanged if the query latent has room for their latent, 10 + 4. Values never change."""
    model = latent_model(query_rank)
    before, keys = state_of(model), [wk for _, _, wk in attngeo.attention_sites(model)]
    written = initialize(model, "symmetric")
    assert any("kv_b" in name for name in written) == (query_rank < 14)
    assert_symmetric(model)
    for (_, wq, wk), old in zip(attngeo.attention_sites(model), keys, strict=True):
        assert (wq - wk).norm() < 1e-5 * wk.norm()
        assert torch.equal(wk, old) == (query_rank >= 14)
        assert torch.linalg.matrix_rank(wk[0], rtol=1e-4) == min(10, query_rank)
    for layer in (0, 1):
        name = f"model.layers.{layer}.self_attn.kv_b_proj.weight"
        assert torch.equal(model.state_dict()[name].reshape(4, 11, 10)[:, 6:], before[name].reshape(4, 11, 10)[:, 6:])
        name = f"model.layers.{layer}.self_attn.q_a_proj.weight"
        assert torch.equal(model.state_dict()[name][14:], before[name][14:])


@pytest.mark.parametrize(("query_rank", "gain", "expected"), [(3, 1.0, "rank 3"), (14, 0.0, "a gain of 0")])
def test_latent_queries_that_cannot_be_symmetric(query_rank: int, gain: float, expected: str) -> None:
    model = latent_model(query_rank)
    norm = model.model.layers[1].self_attn.q_a_layernorm
    torch.nn.init.constant_(norm.weight[:1], gain)
    assert_refused(model, "symmetric", UnsupportedModelError, expected)


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v2-lite"])
def test_latent_keys_are_neither_made_nor_copied(name: str, fresh: Build, built: Build) -> None:
    assert_refused(fresh(name), "identity", UnsupportedModelError, "latent")
    assert_refused(fresh(name), built(name), UnsupportedModelError, "latent")


# The scale of the start, and the published one


UNSCALED = dict.fromkeys(("deepseek_v2", "deepseek_v2-lite", "deepseek_v3"), "from one latent")


def rms(x: Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_the_scale_of_queries_and_keys_in_every_family(name: str, fresh: Build) -> None:
    """Either exactly as asked for, or refused before anything changes."""
    model = fresh(name)
    if name in UNSCALED:
        assert_refused(model, "default", UnsupportedModelError, UNSCALED[name], init_std=0.5)
        return
    initialize(model, "default", init_std=(0.5, 0.25, 0.125))
    sites = list(attngeo.attention_sites(model))
    assert sites
    for site, wq, wk in sites:
        if not site.family.head_norm:  # whose gains are in wq and wk
            assert rms(wq) == pytest.approx(0.5, rel=1e-3), site.module
            assert rms(wk) == pytest.approx(0.25, rel=1e-3), site.module


# Read off the modeling files: the parts of a fused tensor, as stored.
PARTS: dict[str, tuple[str, str, Callable[[Tensor], tuple[Tensor, ...]]]] = {
    "bert": ("bert.encoder.layer.0.attention.self", "query key value", lambda x: (x,)),
    "llama": ("model.layers.0.self_attn", "q_proj k_proj v_proj", lambda x: (x,)),
    "gpt2": ("transformer.h.0.attn", "c_attn", lambda x: x.split(32, -1)),
    "gpt_neox": ("gpt_neox.layers.0.attention", "query_key_value", lambda x: x.reshape(4, 3, 8, -1).unbind(1)),
}


def parts_of(model: Any, name: str, kind: str) -> list[Tensor]:
    """Query, key and value weights or biases of the first layer."""
    module, layers, split = PARTS[name]
    stored = [model.get_submodule(f"{module}.{layer}") for layer in layers.split()]
    return [part.flatten() for layer in stored for part in split(getattr(layer, kind).detach())]


@pytest.mark.parametrize("name", PARTS)
def test_the_scale_is_that_of_queries_keys_and_values(name: str, fresh: Build) -> None:
    model = fresh(name)
    before = parts_of(model, name, "weight")
    initialize(model, "default", init_std=(0.5, 0.25, 0.125))
    for old, new, std in zip(before, parts_of(model, name, "weight"), (0.5, 0.25, 0.125), strict=True):
        assert rms(new) == pytest.approx(std, rel=1e-5)
        assert torch.allclose(new / new.norm(), old / old.norm(), atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt_neox"])
def test_biases_are_drawn_anew(name: str, fresh: Build) -> None:
    model, again = fresh(name), fresh(name)
    weights = parts_of(model, name, "weight")
    initialize(model, "default", init_bias=(2.0, 0.0, 0.5), seed=3)
    initialize(again, "default", init_bias=(2.0, 0.0, 0.5), seed=3)
    q, k, v = parts_of(model, name, "bias")
    assert 1 < rms(q) < 3
    assert not k.any()
    assert 0.25 < rms(v) < 0.75
    assert all(map(torch.equal, parts_of(again, name, "bias"), (q, k, v)))
    assert all(map(torch.equal, parts_of(model, name, "weight"), weights))


def test_symmetry_comes_after_the_scale(fresh: Build) -> None:
    model = fresh("bert")
    initialize(model, "symmetric", init_std=0.5, init_bias=0.5, seed=0)
    q, k, v = parts_of(model, "bert", "weight")
    assert torch.equal(q, k)
    assert rms(q) == pytest.approx(0.5, rel=1e-5)
    assert rms(v) == pytest.approx(0.5, rel=1e-5)
    assert not torch.equal(*parts_of(model, "bert", "bias")[:2])


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_the_published_start_is_that_of_linear_layers(name: str, fresh: Build) -> None:
    """Of the authors' code: queries, keys and values as torch.nn.Linear makes them, then queries are keys."""
    model = fresh(name)
    before = state_of(model)
    initialize(model, "published", seed=1)
    weights = torch.cat(parts_of(model, name, "weight"))
    reference = torch.nn.Linear(32, 1000).weight.detach()
    assert weights.abs().max() <= 32**-0.5
    assert rms(weights) == pytest.approx(rms(reference), rel=0.05)
    assert_symmetric(model)
    if name != "llama":
        biases = torch.cat(parts_of(model, name, "bias"))
        assert 0.9 * 32**-0.5 < biases.abs().max() <= 32**-0.5
    others = [key for key in before if not re.search(r"query|key|value|c_attn|[qkv]_proj", key)]
    assert all(torch.equal(before[key], model.state_dict()[key]) for key in others)
    other = fresh(name)
    initialize(other, "published", seed=2)
    assert not torch.equal(weights, torch.cat(parts_of(other, name, "weight")))


@pytest.mark.parametrize(
    ("name", "init", "options", "error", "expected"),
    [
        ("bert", "identity", {"init_std": 0.1}, UsageError, "not to identity"),
        ("bert", "published", {"init_bias": 0.1}, UsageError, "not to published"),
        ("bert", "default", {"init_std": 0.0}, UsageError, "init_std is 0.0"),
        ("bert", "default", {"init_std": (0.1, 0.1)}, UsageError, "one number, or three"),
        ("bert", "default", {"init_std": float("nan")}, UsageError, "init_std is nan"),
        ("bert", "default", {"init_bias": -1.0}, UsageError, "init_bias is -1.0"),
        ("bert", "default", {"init_bias": "a,b,c"}, UsageError, "init_bias is 'a,b,c'"),
        ("t5", "default", {"init_bias": 0.1}, UnsupportedModelError, "has no q bias"),
        ("deepseek_v2", "default", {"init_std": 0.1}, UnsupportedModelError, "latent"),
        ("deepseek_v2", "published", {}, UnsupportedModelError, "latent"),
    ],
)
def test_a_scale_that_does_not_apply(
    name: str, init: str, options: dict[str, Any], error: type[Exception], expected: str, fresh: Build
) -> None:
    assert_refused(fresh(name), init, error, expected, **options)


def test_weights_of_zero_have_no_scale(fresh: Build) -> None:
    model = fresh("bert")
    torch.nn.init.zeros_(model.bert.encoder.layer[1].attention.self.value.weight)
    assert_refused(model, "default", UnsupportedModelError, "is 0 or not finite", init_std=0.1)


# Identity


def nearest(rank: int, generator: torch.Generator, size: int = 32) -> Tensor:
    """The definition, by an SVD."""
    z = torch.randn(size, size, generator=generator, dtype=torch.float64) / size**0.5
    u, s, vh = torch.linalg.svd(0.7 * z + 0.7 * torch.eye(size, dtype=torch.float64))
    return (u[:, :rank] * s[:rank]) @ vh[:rank]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("bert", 8), ("gpt2", 8), ("gpt_neox", 8), ("codegen", 4), ("falcon-new", 8), ("gpt_bigcode", 8), ("llama", 12),
        ("qwen3", 12), ("gemma3_text", 12), ("olmo2", 8), ("cohere-qk-norm", 7), ("phi-qk-norm", 7),
    ],
)  # fmt: skip
def test_identity_is_the_nearest_of_its_rank(name: str, rank: int, fresh: Build) -> None:
    """Also with QK-norm, whose gains are undone, and whose centring removes a dimension."""
    model = fresh(name)
    before = state_of(model)
    written = initialize(model, "identity", seed=3)
    assert_only_queries_and_keys_changed(name, model, before, written)
    generator = torch.Generator().manual_seed(3)
    for site, wq, wk in attngeo.attention_sites(model, dtype=torch.float64):
        expected = [nearest(rank, generator) for _ in range(site.key_heads)]
        for head in range(site.heads):
            want = expected[head * site.key_heads // site.heads]
            assert (form(wq, wk, head) - want).norm() / want.norm() < 1e-5
            assert torch.linalg.matrix_rank(form(wq, wk, head), rtol=1e-6) == rank
            assert want.trace() > 0
    assert scores_of(model).symmetry.min() > 0.5


def test_identity_shares_its_scale_between_queries_and_keys(fresh: Build) -> None:
    model = fresh("bert")
    initialize(model, "identity", seed=0)
    for _, wq, wk in attngeo.attention_sites(model):
        assert torch.allclose(wq.mT @ wq, wk.mT @ wk, atol=1e-4)
        assert torch.allclose(
            (wq.mT @ wq).diagonal(0, 1, 2), torch.linalg.svdvals(wq @ wk.mT)[:, :8].flip(1), atol=1e-4
        )


@pytest.mark.parametrize("size", [16, 48])
def test_heads_as_wide_as_the_model_or_wider_hold_all_of_it(size: int) -> None:
    from transformers import LlamaConfig, LlamaModel

    model = LlamaModel(
        LlamaConfig(
            vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=1, head_dim=size,
            intermediate_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    initialize(model, "identity", seed=1)
    ((_, wq, wk),) = attngeo.attention_sites(model)
    noise = ((wq @ wk.mT)[0] - 0.7 * torch.eye(16)) / 0.7
    assert abs(noise.mean()) < 0.05
    assert 0.8 < noise.std() * 4 < 1.2


def test_the_seed_decides_the_start(fresh: Build) -> None:
    def start(seed: Any) -> Tensor:
        model = fresh("bert")
        initialize(model, "identity", layers=[0], seed=seed)
        return torch.as_tensor(model.bert.encoder.layer[0].attention.self.query.weight.detach())

    assert torch.equal(start(5), start(5))
    assert not torch.allclose(start(5), start(6))
    torch.manual_seed(5)
    assert torch.equal(start(None), start(5))
    assert not torch.allclose(start(None), start(None))


@pytest.mark.parametrize("gain", [0.0, float("nan")])
def test_gains_that_no_weight_undoes(gain: float, fresh: Build) -> None:
    model = fresh("qwen3")
    torch.nn.init.constant_(model.model.layers[1].self_attn.k_norm.weight[3:4], gain)
    assert_refused(model, "identity", UnsupportedModelError, "gain of 0")


# Another checkpoint


@pytest.mark.parametrize(
    "name",
    [
        "bert", "gpt2", "falcon-new", "bart",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt_neox", "llama", "albert", "swin")),
    ],
)  # fmt: skip
def test_a_checkpoint_gives_its_queries_and_keys(name: str, fresh: Build, tmp_path: Path) -> None:
    source, model = build(TINY_MODELS[name], seed=1), fresh(name)
    source.save_pretrained(tmp_path)
    before, wanted = state_of(model), scores_of(source)
    assert not scores_of(model).symmetry.equals(wanted.symmetry)
    written = initialize(model, tmp_path)
    pd.testing.assert_frame_equal(scores_of(model).drop(columns="model"), wanted.drop(columns="model"))
    assert_only_queries_and_keys_changed(name, model, before, written)
    for reference in (str(tmp_path), ModelRef.parse(tmp_path), source):
        again = fresh(name)
        assert initialize(again, reference) == written
        assert_unchanged(again, state_of(model))


def test_a_checkpoint_for_some_layers_in_another_dtype(fresh: Build) -> None:
    source, model = build(TINY_MODELS["bert"], seed=1), fresh("bert").to(torch.bfloat16)
    initialize(model, source, layers=[1])
    got, want = (x.bert.encoder.layer[1].attention.self.key.weight for x in (model, source))
    assert torch.equal(got, want.to(torch.bfloat16))
    got, want = (x.bert.encoder.layer[0].attention.self.key.weight for x in (model, source))
    assert not torch.equal(got, want.to(torch.bfloat16))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_model_given_to_itself_stays(name: str, fresh: Build) -> None:
    model = fresh(name)
    before = state_of(model)
    initialize(model, model)
    assert_unchanged(model, before)


def test_default_leaves_everything(fresh: Build) -> None:
    model = fresh("bert")
    before = state_of(model)
    assert initialize(model, "default") == []
    assert_unchanged(model, before)


# Faults


def assert_refused(model: Any, init: Any, error: type[Exception], expected: str, **options: Any) -> None:
    """The error is one line, and no weight changes."""
    before = {name: tensor for name, tensor in state_of(model).items() if not tensor.is_meta}
    with pytest.raises(error, match=re.escape(expected)) as raised:
        initialize(model, init, **options)
    assert "\n" not in str(raised.value)
    after = model.state_dict()
    assert all(torch.equal(after[name].nan_to_num(), tensor.nan_to_num()) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("name", "init", "error", "expected"),
    [
        ("bert", "symetric", UsageError, "'symetric'; did you mean symmetric"),
        ("bert", "zzz", UsageError, "'zzz'; expected one of: default, symmetric, identity"),
        ("bert", "no model at all", UsageError, "'no model at all'"),
        ("bert", 7, UsageError, "int"),
        ("bert", "/nowhere/at/all", ModelNotFoundError, "/nowhere/at/all"),
        ("bert", "model.safetensors", ModelNotFoundError, "model.safetensors"),
        (
            "bert",
            "demo:minilm",
            ShapeError,
            "12 heads and 12 key heads of 32 over a width of 384, expected 4 heads",
        ),
    ],
)
def test_what_is_no_start(name: str, init: Any, error: type[Exception], expected: str, fresh: Build) -> None:
    assert_refused(fresh(name), init, error, expected)


def test_a_checkpoint_that_does_not_fit(fresh: Build, built: Build) -> None:
    assert_refused(fresh("bart"), built("bert"), UsageError, "decoder layer 0")
    assert_refused(fresh("modernbert"), built("bert"), UsageError, "encoder layer 2")
    assert_refused(fresh("llama"), built("qwen2"), ShapeError, "2 key heads of 8 over a width of 32, expected 4 heads")
    assert initialize(fresh("modernbert"), built("bert"), layers=[0, 1])


def test_a_last_layer_that_does_not_fit_leaves_the_first_alone(fresh: Build) -> None:
    from dataclasses import replace

    tiny = TINY_MODELS["swin"]
    other = build(replace(tiny, config=tiny.config | {"num_heads": [2, 2]}))
    assert_refused(fresh("swin"), other, ShapeError, "2 heads and 2 key heads of 12 over a width of 24")


@pytest.mark.parametrize("init", ["symmetric", "identity"])
def test_weights_without_values(init: str, fresh: Build, built: Build) -> None:
    model = fresh("bert")
    model.bert.encoder.layer[1].attention.self.key.to("meta")
    assert_refused(model, init, CorruptCheckpointError, "meta")
    assert_refused(fresh("bert"), model, CorruptCheckpointError, "meta")
    assert_refused(model, built("bert"), CorruptCheckpointError, "meta")


def test_weights_that_are_no_parameters(fresh: Build) -> None:
    model = fresh("bert")
    key = model.bert.encoder.layer[1].attention.self.key
    weight = key.weight.detach()
    del key.weight
    key.register_buffer("weight", weight)
    assert_refused(model, "symmetric", UnsupportedModelError, "key.weight")


def test_quantised_weights(fresh: Build) -> None:
    model = fresh("bert")
    key = model.bert.encoder.layer[1].attention.self.key
    key.weight = torch.nn.Parameter(key.weight.to(torch.int8), requires_grad=False)
    assert_refused(model, "symmetric", UnsupportedModelError, "I8")


def test_what_is_no_model(fresh: Build) -> None:
    with pytest.raises(UsageError, match="str"):
        initialize("demo:minilm", "symmetric")
    with pytest.raises(UsageError, match="Linear"):
        initialize(torch.nn.Linear(2, 2), "symmetric")
    assert_refused(fresh("bert"), "symmetric", UsageError, "'decoder'", stack="decoder")
    assert_refused(fresh("bert"), "symmetric", UsageError, "layer 2", layers=[2])
    assert_refused(fresh("bert"), "identity", UsageError, "seed is 'x'", seed="x")
