"""The bars for a whole checkpoint from the disk: reading hides behind computing, or computing behind reading."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from support.measure import by_turns, forget, peak_gigabytes

import attngeo
from attngeo.attention.finding import sites_of
from attngeo.attention.opened import DTYPES
from attngeo.attention.projections import projections
from attngeo.checkpoints.opening import open_store
from attngeo.choices import Precision
from attngeo.scores.computing import score_site
from attngeo.scores.options import ScoreOptions


@pytest.mark.parametrize(("precision", "per_head"), [("float32", True), ("fast", True), ("fast", False)])
def test_a_checkpoint_against_its_slower_half(
    mistral: Path, benchmark: BenchmarkFixture, precision: Precision, per_head: bool
) -> None:
    """Within 1.3 times of the larger of reading alone and computing alone. Each read is from the disk, not from memory.

    Computing alone has the tensors in memory. The three cases compute less and less, so that reading counts for more.
    """
    with closing(open_store(mistral)) as store:
        sites, _ = sites_of(store)
        in_memory = [store.read_all(site.reads) for site in sites]

        def read_alone() -> None:
            forget(mistral / "model.safetensors")
            for site in sites:
                store.read_all(site.reads)

        def compute_alone() -> None:
            with torch.inference_mode():
                for site, tensors in zip(sites, in_memory, strict=True):
                    q, k, notes = projections(site, tensors, dtype=DTYPES[precision])
                    rows = score_site(site, q, k, notes, ScoreOptions())
                    _ = list(rows) if per_head else next(rows)

        def whole() -> None:
            forget(mistral / "model.safetensors")
            attngeo.score(mistral, precision=precision, per_head=per_head, fresh=True)

        reading, computing, both = by_turns(3, read_alone, compute_alone, whole)
    in_memory.clear()
    benchmark.pedantic(whole, rounds=1)
    times = both / max(reading, computing)
    benchmark.extra_info |= {
        "baseline: reading alone, s": reading, "baseline: computing alone, s": computing, "whole, s": both,
        "times": times,
    }  # fmt: skip
    print(
        f"\n32 layers, {precision}, {'heads and layers' if per_head else 'layers'}: reading alone {reading:.2f} s, "
        f"computing alone {computing:.2f} s, from the disk {both:.2f} s ({times:.2f} times the larger one)"
    )
    assert times < 1.3


@pytest.mark.parametrize("arguments", [[], ["--memory", "64GB"], ["--memory", "1B"]])
def test_memory_of_a_checkpoint(mistral: Path, benchmark: BenchmarkFixture, arguments: list[str]) -> None:
    """Peak resident memory of the command under 1.5 GB, over a checkpoint of 1.3 GB, however much it may take."""
    command = [Path(sys.executable).with_name("attngeo"), "score", mistral, "--fresh", *arguments]
    gigabytes = benchmark.pedantic(peak_gigabytes, args=(command,), rounds=1)
    benchmark.extra_info["peak resident memory, GB"] = gigabytes
    print(f"\n{' '.join(['score', *arguments])}: peak resident memory {gigabytes:.2f} GB")
    assert gigabytes < 1.5
