"""The bars for speed, each a ratio against a named baseline that is timed in the same run (`make bench`).

Baselines and subjects take turns, so that a machine that slows down slows both. The ratio of the medians is asserted
and stored with the result as `extra_info`.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
from collections.abc import Collection
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from support.checkpoints import write_single
from support.measure import by_turns
from support.mistakes import MISTAKES, write_files
from support.mistral import DH, D, H, K
from torch import Tensor

from attngeo.attention.finding import sites_of
from attngeo.attention.projections import projections
from attngeo.checkpoints.opening import open_store
from attngeo.layouts.layout import AttentionSite
from attngeo.scores.computing import score_site
from attngeo.scores.options import ScoreOptions
from attngeo.scores.spec import layer_scores, rotary_scores

# CPU seconds in which a mistake is answered.
MISTAKE = 0.6


def layer_of(mistral: Path) -> tuple[AttentionSite, dict[str, Tensor]]:
    store = open_store(mistral)
    site = sites_of(store)[0][0]
    return site, store.read_all(site.reads)


def by_definition(m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Symmetry from the symmetric and the skew part, directionality from the norms, of a matrix that was formed."""
    symmetric, skew, whole = ((m + m.T) / 2).square().sum(), ((m - m.T) / 2).square().sum(), m.square().sum()
    sums = []
    for axis in (1, 0):
        norms = torch.linalg.vector_norm(m, dim=axis)
        sums.append(norms[norms > norms.mean() + 2 * norms.std(correction=0)].sum())
    return (symmetric - skew) / whole, (sums[0] - sums[1]) / (sums[0] + sums[1]), whole.sqrt()


def dense_layer(
    tensors: dict[str, Tensor], head_dim: int = DH, d_model: int = D
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Every head and the layer of one site, each matrix formed and scored by the definition, in float32."""
    q, k = (weight.float().view(-1, head_dim, d_model) for weight in tensors.values())
    scores = [by_definition(q[h].T @ k[h // (H // K)]) for h in range(H)]
    summed = q.view(K, H // K, head_dim, d_model).sum(1)
    return [*scores, by_definition(summed.flatten(0, 1).T @ k.flatten(0, 1))]


def factored_layer(site: AttentionSite, tensors: dict[str, Tensor], dtype: torch.dtype) -> list[dict[str, object]]:
    q, k, notes = projections(site, tensors, dtype=dtype)
    return list(score_site(site, q, k, notes, ScoreOptions()))


def test_a_layer_against_forming_every_matrix(mistral: Path, benchmark: BenchmarkFixture) -> None:
    """At least 20 times faster in float32, all heads and the layer; faster again in bfloat16 where the CPU can."""
    site, tensors = layer_of(mistral)
    with torch.inference_mode():
        dense, factored, fast = by_turns(
            3,
            lambda: dense_layer(tensors),
            lambda: factored_layer(site, tensors, torch.float32),
            lambda: factored_layer(site, tensors, torch.bfloat16),
        )
        expected, got = dense_layer(tensors), factored_layer(site, tensors, torch.float32)
        benchmark.pedantic(factored_layer, args=(site, tensors, torch.float32), rounds=5)
    for (symmetry, _, norm), row in zip([expected[-1], *expected[:-1]], got, strict=True):
        assert row["symmetry"] == pytest.approx(symmetry.item(), abs=1e-5)
        assert row["frobenius_norm"] == pytest.approx(norm.item(), rel=1e-4)
    benchmark.extra_info |= {
        "baseline: form every matrix, s": dense, "factored, s": factored, "fast, s": fast,
        "times faster": dense / factored, "fast: times faster again": factored / fast,
    }  # fmt: skip
    print(f"\none layer: dense {dense:.2f} s, factored {factored:.3f} s ({dense / factored:.1f} times faster), "
          f"fast {fast:.3f} s ({factored / fast:.2f} times faster again)")  # fmt: skip
    assert dense / factored >= 20
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if "avx512_bf16" in flags or "amx_bf16" in flags:
        assert factored / fast >= 1.3


def test_growths_against_a_layer_without_them(mistral: Path, benchmark: BenchmarkFixture) -> None:
    """At most half as long again for the row of the layer alone, and a fifth with those of its heads, in one thread.

    The scores over all rotary offsets take at most as long as the other scores of the layer and its heads.
    """
    site, tensors = layer_of(mistral)
    q, k, notes = projections(site, tensors, dtype=torch.float32)

    def score(*, per_head: bool, scores: Collection[str]) -> list[dict[str, object]]:
        options = ScoreOptions(per_head=per_head, scores=scores)
        return list(islice(score_site(site, q, k, notes, options), None if per_head else 1))

    growths = tuple({*layer_scores()}.difference(rotary_scores()))
    settings: list[tuple[bool, Collection[str]]] = [
        *((False, ()), (False, growths)),
        *((True, ()), (True, growths), (True, rotary_scores())),
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            times = by_turns(5, *(partial(score, per_head=per_head, scores=scores) for per_head, scores in settings))
            benchmark.pedantic(score, kwargs={"per_head": False, "scores": growths}, rounds=5)
    finally:
        torch.set_num_threads(threads)
    layer, layer_growths, heads, heads_growths, heads_rotary = times
    benchmark.extra_info |= {
        "baseline: the layer, s": layer, "with growths, s": layer_growths, "times as long": layer_growths / layer,
        "baseline: with its heads, s": heads, "with heads and growths, s": heads_growths,
        "with heads: times as long": heads_growths / heads,
        "with heads and rotary scores, s": heads_rotary, "rotary: times as long": heads_rotary / heads,
    }  # fmt: skip
    print(f"\none layer: {layer:.3f} s, with growths {layer_growths:.3f} s ({layer_growths / layer:.2f} times); "
          f"with its heads {heads:.3f} s, and growths {heads_growths:.3f} s ({heads_growths / heads:.2f}), "
          f"and rotary scores {heads_rotary:.3f} s ({heads_rotary / heads:.2f})")  # fmt: skip
    assert layer_growths / layer <= 1.5
    assert heads_growths / heads <= 1.2
    assert heads_rotary / heads <= 2


def test_tiny_heads_against_forming_every_matrix(tmp_path: Path, benchmark: BenchmarkFixture) -> None:
    """At least twice as fast, in one thread: what a row costs beside its products, as in small models."""
    head_dim, d_model, layers = 8, 64, 60
    config = {
        "model_type": "mistral", "hidden_size": d_model, "num_attention_heads": H, "num_key_value_heads": K,
        "head_dim": head_dim,
    }  # fmt: skip
    generator, tensors = torch.Generator().manual_seed(0), {}
    for layer in range(layers):
        for name, heads in (("q", H), ("k", K)):
            weight = torch.randn(heads * head_dim, d_model, generator=generator)
            tensors[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = weight
    store = open_store(write_single(tmp_path, tensors, config))
    weights = [(site, store.read_all(site.reads)) for site in sites_of(store)[0]]
    sites = [(site, *projections(site, of_site, dtype=torch.float32)) for site, of_site in weights]

    def factored() -> list[list[dict[str, object]]]:
        return [list(score_site(site, q, k, notes, ScoreOptions())) for site, q, k, notes in sites]

    def dense() -> list[list[tuple[Tensor, Tensor, Tensor]]]:
        return [dense_layer(of_site, head_dim, d_model) for _, of_site in weights]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            formed, ours = by_turns(5, dense, factored)
            benchmark.pedantic(factored, rounds=5)
            expected, got = dense(), factored()
    finally:
        torch.set_num_threads(threads)
    for of_layer, rows in zip(expected, got, strict=True):
        for (symmetry, _, norm), row in zip([of_layer[-1], *of_layer[:-1]], rows, strict=True):
            assert row["symmetry"] == pytest.approx(symmetry.item(), abs=1e-5)
            assert row["frobenius_norm"] == pytest.approx(norm.item(), rel=1e-5)
    count = layers * (H + 1)
    benchmark.extra_info |= {
        "baseline: form every matrix, µs a row": formed / count * 1e6, "µs a row": ours / count * 1e6,
        "times faster": formed / ours,
    }  # fmt: skip
    print(f"\n{layers} layers of {H} tiny heads: {ours / count * 1e6:.0f} µs a row, forming every matrix "
          f"{formed / count * 1e6:.0f} µs ({formed / ours:.1f} times faster)")  # fmt: skip
    assert formed / ours >= 2


def cpu_seconds(arguments: list[str], code: int = 0, folder: Path | None = None) -> float:
    """CPU seconds of a command, start included. code: its exit code."""
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [Path(sys.executable).with_name("attngeo"), *arguments], check=False, cwd=folder, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if code else None, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == code, arguments
    return float(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


@pytest.mark.parametrize(
    ("arguments", "bar"), [(["--help"], 0.4), (["--version"], 0.4), (["score", "demo:minilm", "--fresh"], 4.0)]
)
def test_cpu_time_of_a_command(arguments: list[str], bar: float, benchmark: BenchmarkFixture) -> None:
    """The least of several runs."""
    least = min(cpu_seconds(arguments) for _ in range(3))
    benchmark.pedantic(cpu_seconds, args=(arguments,), rounds=2)
    benchmark.extra_info["CPU seconds"] = least
    print(f"\nattngeo {' '.join(arguments)}: {least:.2f} s of CPU time")
    assert least < bar


def test_cpu_time_of_mistakes(tmp_path: Path, benchmark: BenchmarkFixture) -> None:
    """Each mistake is answered within 0.6 s; one that another process slows down is repeated."""
    write_files(tmp_path)
    seconds = {}
    for line, code, _ in MISTAKES:
        tries = (cpu_seconds(shlex.split(line), code, tmp_path) for _ in range(3))
        seconds[line] = next((took for took in tries if took < MISTAKE), math.inf)
    slowest = max(seconds, key=lambda line: seconds[line])
    benchmark.pedantic(cpu_seconds, args=(shlex.split(MISTAKES[0][0]), MISTAKES[0][1]), rounds=2)
    benchmark.extra_info |= {"slowest": slowest, "CPU seconds": seconds[slowest]}
    print(f"\n{len(seconds)} mistakes: at most {seconds[slowest]:.2f} s of CPU time, by attngeo {slowest}")
    assert seconds[slowest] < MISTAKE
