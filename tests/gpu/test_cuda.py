"""Scores on a CUDA device against those of the CPU. `make test-gpu` runs these tests; they are skipped without one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.checkpoints import weights, write_single
from support.mistral import write_mistral

import attngeo
from attngeo.attention.finding import sites_of
from attngeo.attention.read_ahead import read_ahead
from attngeo.checkpoints.opening import open_store
from attngeo.geometry.scores import directionality, symmetry
from attngeo.scores.spec import SPREADS, number_columns, score_names

pytestmark = pytest.mark.gpu

Save = Callable[[str], Path]
CUDA = torch.device("cuda")


def assert_agrees(model: Any, **options: Any) -> None:
    """The same rows, and the same numbers to 1e-5, on both devices."""
    cpu, cuda = (attngeo.score(model, device=device, per_head=True, **options) for device in ("cpu", "cuda"))
    numbers = [*number_columns(), "frobenius_norm"]
    scores = [*score_names(), *SPREADS]
    pd.testing.assert_frame_equal(cuda.drop(columns=numbers), cpu.drop(columns=numbers))
    pd.testing.assert_frame_equal(cuda[scores], cpu[scores], check_exact=False, atol=1e-5, rtol=0)
    pd.testing.assert_frame_equal(cuda[["frobenius_norm"]], cpu[["frobenius_norm"]], check_exact=False, rtol=1e-5)


@pytest.mark.parametrize("model", ["demo:minilm", "demo:encoder", "demo:decoder"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_embedded_models(model: str, precision: str) -> None:
    assert_agrees(model, precision=precision)


@pytest.mark.parametrize("options", [{}, {"convention": "published"}, {"fold_norm": True}, {"with_bias": True}])
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "phi3", "falcon-new", "llama", "qwen3", "deepseek_v3", "t5"])
def test_families(family: str, options: dict[str, Any], saved: Save) -> None:
    """Separate and fused projections, grouped queries, QK-norm, latent attention, two stacks."""
    assert_agrees(saved(family), **options)


@pytest.mark.parametrize("family", ["llama", "gptj", "gpt_neox"])
def test_rotary_offsets(family: str, saved: Save) -> None:
    assert_agrees(saved(family), rope_offset=7)


@pytest.mark.parametrize("memory", [1, "100MB", None])
def test_wide_layers(memory: Any, tmp_path: Path) -> None:
    """The attention of Mistral-7B, whatever is in flight: heads in one batch, the layer in blocks."""
    assert_agrees(write_mistral(tmp_path, layers=3), memory=memory)


def test_empty_and_broken_heads_stay_alone(tmp_path: Path) -> None:
    """A head that is zero, and one with NaN, have no scores; the others do."""
    tensors = weights()
    tensors["model.layers.0.self_attn.q_proj.weight"][:6] = 0
    tensors["model.layers.1.self_attn.q_proj.weight"][6] = float("nan")
    assert_agrees(write_single(tmp_path, tensors))


@pytest.mark.parametrize("layers_in_memory", [0, 1, 2, 3, 100])
def test_tensors_arrive_whole_while_the_device_is_busy(layers_in_memory: int, tmp_path: Path) -> None:
    """Each layer is the file's, although copies and computations of several layers overlap."""
    folder = write_single(tmp_path, weights(layers=40, dtype=torch.bfloat16))
    busy = torch.randn(2048, 2048, device=CUDA)
    with closing(open_store(folder)) as store:
        sites, _ = sites_of(store)
        memory = max(layers_in_memory * store.count_nbytes(sites[0].reads), 1)
        found = []
        for site, tensors in read_ahead(store, sites, device=CUDA, memory=memory):
            for _ in range(5):
                busy = (busy @ busy).clamp(-1, 1)
            found.append({name: tensor.clone() for name, tensor in tensors.items()})
            assert site == sites[len(found) - 1]
            tensors.clear()
        for site, tensors in zip(sites, found, strict=True):
            for name, expected in store.read_all(site.reads).items():
                assert tensors[name].device.type == "cuda"
                assert torch.equal(tensors[name].cpu(), expected)


def test_scores_of_tensors_on_the_device() -> None:
    """Also near the threshold of an outlier, where norms are computed again in float64."""
    generator = torch.Generator().manual_seed(0)
    wq, wk = torch.randn(2, 6, 512, 64, generator=generator)
    for score in (symmetry, directionality):
        found = score(wq.cuda(), wk.cuda())  # type: ignore[operator]
        assert found.device.type == "cuda"
        torch.testing.assert_close(found.cpu(), score(wq, wk), atol=1e-5, rtol=0)  # type: ignore[operator]
