"""The bar for reading from the Hub: a line with a known latency and bandwidth is kept full."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from support.hub_client import reach_hub
from support.measure import timed
from support.mistral import write_mistral

import attngeo
from attngeo.checkpoints.remote import CONNECTIONS

LATENCY, BANDWIDTH = 0.05, 200e6 / 8
SERVER = """
import json, sys, time
from pathlib import Path
from support.hub_server import hash_large, serve
with serve() as hub:
    hub.latency, hub.bandwidth = float(sys.argv[2]), float(sys.argv[3])
    hub.repositories["org/name"] = Path(sys.argv[1])
    for path in Path(sys.argv[1]).glob("*.safetensors"):
        hash_large(path, path.stat().st_mtime_ns)
    print(hub.url, flush=True)
    sys.stdin.read()
    print(hub.sent.total(), len(hub.stored), flush=True)
"""


@pytest.fixture
def far_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A server in a process of its own, with the queries and keys of Mistral-7B."""
    folder = write_mistral(tmp_path / "remote", layers=32)
    command = [sys.executable, "-c", SERVER, str(folder), str(LATENCY), str(BANDWIDTH)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        reach_hub(server.stdout.readline().strip(), tmp_path, monkeypatch)
        yield server


def test_a_line_is_kept_full(far_away: subprocess.Popen[str], benchmark: BenchmarkFixture) -> None:
    """Within 1.3 times of the bytes over the bandwidth of four connections, with 50 ms and 200 Mbit/s for each."""
    benchmark.pedantic(lambda: None)
    wall = timed(lambda: attngeo.score("org/name", fresh=True))
    sent, requests = far_away.communicate()[0].split()
    line = int(sent) / (CONNECTIONS * BANDWIDTH)
    benchmark.extra_info |= {"baseline: bytes over bandwidth, s": line, "whole, s": wall, "times": wall / line}
    print(f"\nfrom the Hub: {int(sent) / 1e6:,.0f} MB by {requests} requests in {wall:.1f} s ({wall / line:.2f} times)")
    assert wall / line < 1.3
