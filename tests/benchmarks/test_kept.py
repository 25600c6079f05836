"""The bar for scores that are kept: the answer costs about the start of Python and pandas."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from support.checkpoints import write_single

LAYERS, HEADS, DH = 32, 32, 4
CONFIG = {"model_type": "llama", "hidden_size": 128, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}


def cpu_seconds(command: Sequence[object], rounds: int = 3) -> float:
    """CPU time of a command, which must succeed: the least of several runs, after one that does not count."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, capture_output=True);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
    )
    command = [sys.executable, "-c", code, *map(str, command)]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(rounds + 1)]
    return min(float(run.stdout) for run in runs[1:])


def test_a_stored_answer_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: BenchmarkFixture
) -> None:
    """Less than 1.5 s of CPU time, for 32 layers with 32 heads each, whose rows are written to a file."""
    benchmark.pedantic(lambda: None)
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "cache"))
    tensors = {
        f"model.layers.{layer}.self_attn.{name}_proj.weight": torch.randn(HEADS * DH, 128)
        for layer in range(LAYERS)
        for name in ("q", "k")
    }
    model = write_single(tmp_path / "model", tensors, CONFIG)
    attngeo = Path(sys.executable).with_name("attngeo")
    command = [attngeo, "score", model, "-o", tmp_path / "rows.parquet"]
    subprocess.run([*command, "-q"], check=True, stdout=subprocess.DEVNULL)
    kept, computed = cpu_seconds(command), cpu_seconds([*command, "--fresh"])
    imports = cpu_seconds([sys.executable, "-c", "import pandas, pyarrow.parquet, rich, typer"])
    benchmark.extra_info |= {"baseline: imports, s": imports, "kept, s": kept, "computed, s": computed}
    print(f"\na stored answer: {kept:.2f} s of CPU time; computed: {computed:.1f} s; imports alone: {imports:.2f} s")
    assert kept < 1.5
