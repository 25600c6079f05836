"""What heads write and what others read: the cost beside that of W_qk, and beside the bare products."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from safetensors.torch import save_file
from support.checkpoints import write_config
from support.measure import by_turns, peak_gigabytes
from support.mistral import write_mistral

import attngeo

# Products of the heads of two layers: three kinds, in both directions.
PRODUCTS = 6


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    """Two layers of Mistral-7B, with values and outputs."""
    return write_mistral(tmp_path, layers=2, outputs=True)


def test_what_heads_write_costs_what_queries_and_keys_cost(layers: Path, benchmark: BenchmarkFixture) -> None:
    """Within 2.0 times."""
    benchmark.pedantic(lambda: None)
    score = partial(attngeo.score, layers, per_head=True, layers=[0])
    of_keys, of_outputs = by_turns(3, score, partial(score, circuit="ov"))
    ratio = of_outputs / of_keys
    benchmark.extra_info |= {"baseline: qk, s": of_keys, "ov, s": of_outputs, "ratio": ratio}
    print(f"\na layer of Mistral: qk {of_keys:.2f} s, ov {of_outputs:.2f} s ({ratio:.2f} times)")
    assert ratio < 2.0


def test_two_layers_of_mistral_are_composed(layers: Path, benchmark: BenchmarkFixture) -> None:
    """Within 3 times of the bare products of their heads."""
    benchmark.pedantic(lambda: None)
    generator = torch.Generator().manual_seed(0)
    heads, others = (torch.randn(4096, 4096, generator=generator) for _ in range(2))

    def multiply() -> None:
        for _ in range(PRODUCTS):
            heads @ others.T

    bare, whole = by_turns(2, multiply, partial(attngeo.compose, layers))
    ratio = whole / bare
    benchmark.extra_info |= {"baseline: bare products, s": bare, "compose, s": whole, "ratio": ratio}
    print(f"\ntwo layers of Mistral: {whole:.2f} s, {PRODUCTS} bare products {bare:.2f} s ({ratio:.2f} times)")
    assert ratio < 3.0


@pytest.mark.parametrize(("form", "limit"), [("plain", 2.5), ("rotary", 2.0)])
def test_the_mirrors_of_a_layer_of_mistral(
    form: str, limit: float, tmp_path: Path, benchmark: BenchmarkFixture
) -> None:
    """Within 2.5 times of scoring the layer and its heads; over rotary offsets within 2.0 times."""
    benchmark.pedantic(lambda: None)
    path = write_mistral(tmp_path, layers=1)
    score = partial(attngeo.score, path, per_head=True, fresh=True)
    of_heads, of_pairs = by_turns(3, score, partial(attngeo.mirrors, path, form=form, fresh=True))
    ratio = of_pairs / of_heads
    benchmark.extra_info |= {"baseline: score, s": of_heads, "mirrors, s": of_pairs, "ratio": ratio}
    print(f"\na layer of Mistral: score {of_heads:.2f} s, mirrors {form} {of_pairs:.2f} s ({ratio:.2f} times)")
    assert ratio < limit


def test_the_shape_of_gpt2_fits_a_gigabyte(tmp_path: Path, benchmark: BenchmarkFixture) -> None:
    benchmark.pedantic(lambda: None)
    config = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12}
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for layer in range(12):
        tensors[f"h.{layer}.attn.c_attn.weight"] = torch.randn(768, 2304, generator=generator)
        tensors[f"h.{layer}.attn.c_proj.weight"] = torch.randn(768, 768, generator=generator)
    save_file(tensors, write_config(tmp_path, config) / "model.safetensors")
    peak = peak_gigabytes([sys.executable, "-m", "attngeo", "compose", tmp_path, "-q"])
    (wall,) = by_turns(1, partial(attngeo.compose, tmp_path))
    benchmark.extra_info |= {"baseline: GB": 1.0, "peak, GB": peak, "whole, s": wall}
    print(f"\nGPT-2-small's shape: {wall:.1f} s, peak {peak:.2f} GB")
    assert peak < 1.0
