"""Time of one layer on a CUDA device: its parts, against reading it and against the CPU (`make bench-gpu`).

The table is written to reports/gpu.md, with the devices, the versions and the date.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
import torch
from support.measure import by_turns, forget, timed
from support.mistral import DH, K, write_mistral
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import attngeo
from attngeo.attention.finding import sites_of
from attngeo.attention.projections import projections
from attngeo.checkpoints.opening import open_store
from attngeo.layouts.layout import AttentionSite
from attngeo.provenance import machine, software
from attngeo.scores.computing import score_site
from attngeo.scores.options import ScoreOptions

pytestmark = pytest.mark.gpu

REPORT = Path(__file__).parents[2] / "reports" / "gpu.md"
WIDTHS = (4096, 8192, 16384)
LAYERS = 8
# Seconds of computing at the first width.
COMPUTING = 0.004
HEAD = """# Time per layer on a GPU

Seconds for one layer with all its heads: d/{head_dim} heads and {key_heads} key heads of {head_dim} dimensions.
Weights are random and in bfloat16, products in float32. `make bench-gpu` writes this file.

- `reading`: from the disk, without the operating system's cache
- `CPU`, `GPU`: computing alone, with the weights on the device
- `busy`: of `GPU`, what the device works; it waits for the host in the rest
- `whole`: `attngeo.score` from the disk on the GPU, over {layers} layers

"""


class Row(NamedTuple):
    """Seconds of one layer of width `d`, and the bytes that are read for it."""

    d: int
    megabytes: float
    reading: float
    cpu: float
    gpu: float
    busy: float
    whole: float


def compute(site: AttentionSite, tensors: dict[str, Tensor], device: torch.device) -> list[dict[str, object]]:
    """All rows of one layer. The last of them is on the CPU, so that the device has finished."""
    q, k, notes = projections(site, tensors, dtype=torch.float32, device=device)
    return list(score_site(site, q, k, notes, ScoreOptions()))


def device_seconds(run: Callable[[], object]) -> float:
    """Seconds that the kernels and copies of one call take on the device. Prints the longest of them."""
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as recorded:
        run()
        torch.cuda.synchronize()
    events = [event for event in recorded.key_averages() if event.device_type.name == "CUDA"]
    calls = {event.key: event.count for event in recorded.key_averages() if event.device_type.name == "CPU"}
    syncs = sum(count for name, count in calls.items() if "Synchronize" in name)
    launches = sum(count for name, count in calls.items() if "LaunchKernel" in name)
    print(f"\n{launches} launches, {syncs} synchronisations")
    for event in sorted(events, key=lambda event: -event.self_device_time_total)[:8]:
        print(f"{event.self_device_time_total:8.0f} µs {event.count:4} × {event.key:.90}")
    return sum(event.self_device_time_total for event in events) / 1e6


def event_seconds(run: Callable[[], object]) -> float:
    """Seconds between two events of the device, before and after one call."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    run()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3


def measure(folder: Path, width: int, device: torch.device) -> Row:
    """One row of the table, and a check that both devices give the same scores."""
    path = folder / "model.safetensors"
    with closing(open_store(folder)) as store, torch.inference_mode():
        sites, _ = sites_of(store)

        def read_all() -> None:
            forget(path)
            for site in sites:
                store.read_all(site.reads)

        def whole() -> None:
            forget(path)
            attngeo.score(folder, per_head=True, device=str(device), fresh=True)

        on_cpu = store.read_all(sites[0].reads)
        on_gpu = {name: tensor.to(device) for name, tensor in on_cpu.items()}

        def compute_layer() -> None:
            compute(sites[0], on_gpu, device)

        reading, pipeline = by_turns(3, read_all, whole)
        (gpu,) = by_turns(11, compute_layer)
        busy = device_seconds(compute_layer)
        span = event_seconds(compute_layer)
        print(f"width {width}: {gpu:.2g} s a layer, {span:.2g} s between events, busy for {busy:.2g} s")
        cpu = timed(lambda: compute(sites[0], on_cpu, torch.device("cpu")))
        rows = compute(sites[0], on_gpu, device), compute(sites[0], on_cpu, torch.device("cpu"))
    for found, expected in zip(*rows, strict=True):
        for name in ("symmetry", "directionality"):
            assert found[name] == pytest.approx(expected[name], abs=1e-5)
    megabytes = sum(tensor.nbytes for tensor in on_cpu.values()) / 1e6
    return Row(width, megabytes, reading / len(sites), cpu, gpu, busy, pipeline / len(sites))


def write_report(rows: list[Row], device: torch.device, path: Path) -> str:
    """The table with what it was measured on."""
    about = {"GPU": torch.cuda.get_device_name(device), "CUDA": torch.version.cuda, **software(), **machine()}
    frame = pd.DataFrame(rows).rename(columns={"megabytes": "MB", "cpu": "CPU", "gpu": "GPU"})
    frame["whole / reading"] = frame["whole"] / frame["reading"]
    frame["CPU / GPU"] = frame["CPU"] / frame["GPU"]
    table = frame.astype({"d": object}).to_markdown(index=False, floatfmt=".3g")
    lines = [f"- {name}: {value}" for name, value in about.items()]
    date = f"- date: {datetime.now(UTC):%Y-%m-%d}"
    head = HEAD.format(head_dim=DH, key_heads=K, layers=LAYERS)
    path.write_text(head + "\n".join([*lines, date, "", table, ""]), "utf-8")
    return table


def test_a_layer_on_the_device(tmp_path: Path) -> None:
    """Writes the table. The whole takes at most 1.3 times the larger of reading and computing, which takes 4 ms."""
    device, rows = torch.device("cuda"), []
    for width in WIDTHS:
        folder = write_mistral(tmp_path / str(width), layers=LAYERS, width=width)
        rows.append(measure(folder, width, device))
        (folder / "model.safetensors").unlink()
    print("\n" + write_report(rows, device, REPORT))
    assert rows[0].gpu <= COMPUTING
    for row in rows:
        assert row.whole <= 1.3 * max(row.reading, row.gpu)
