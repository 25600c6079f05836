"""Comparing two models: the cost beside that of scoring one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from safetensors.torch import load_file
from support.checkpoints import write_single
from support.measure import by_turns
from support.mistral import write_mistral

import attngeo


@pytest.mark.parametrize(("per_head", "limit"), [(False, 2.5), (True, 3.5)], ids=["layers", "heads"])
def test_two_layers_of_mistral_are_compared(
    tmp_path: Path, benchmark: BenchmarkFixture, per_head: bool, limit: float
) -> None:
    """Whole layers within 2.5 times of scoring those of one model; with heads and their overlaps within 3.5 times."""
    benchmark.pedantic(lambda: None)
    first = write_mistral(tmp_path / "first", layers=2)
    generator = torch.Generator().manual_seed(1)
    moved = {
        name: tensor + (0.001 * torch.randn(tensor.shape, generator=generator)).bfloat16()
        for name, tensor in load_file(first / "model.safetensors").items()
    }
    config = {
        "model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128,
    }  # fmt: skip
    other = write_single(tmp_path / "other", moved, config)
    score = partial(attngeo.score, str(first), per_head=per_head)
    one, both = by_turns(5, score, partial(attngeo.compare, [str(first), str(other)], per_head=per_head))
    ratio = both / one
    benchmark.extra_info |= {"baseline: score one, s": one, "compare two, s": both, "ratio": ratio}
    print(f"\ntwo layers of Mistral: score {one:.2f} s, compare {both:.2f} s ({ratio:.2f} times)")
    assert ratio < limit
