"""The bar for reading from the Hub: a line with a known latency and bandwidth is kept full."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from support.hub_client import reach_hub
from support.measure import timed
from support.mistral import write_mistral

import attngeo
from attngeo.checkpoints.remote import CONNECTIONS

LATENCY, BANDWIDTH = 0.05, 200e6 / 8
# Of each four connections in turn, three have a tenth of the bandwidth.
CAPPED = 3
SERVER = """
import json, sys, time
from pathlib import Path
from support.hub_server import hash_large, serve
with serve() as hub:
    hub.latency, hub.bandwidth, capped = map(float, sys.argv[2:])
    hub.capped = lambda number: number % 4 >= 4 - capped
    hub.repositories["org/name"] = Path(sys.argv[1])
    for path in Path(sys.argv[1]).glob("*.safetensors"):
        hash_large(path, path.stat().st_mtime_ns)
    print(hub.url, flush=True)
    sys.stdin.read()
    print(hub.sent.total(), len(hub.stored), flush=True)
"""


class Reading(NamedTuple):
    """wall: seconds. sent, requests: bytes that a server has sent, and how often it was asked."""

    wall: float
    sent: int
    requests: int


@pytest.fixture
def read_far_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Reading]:
    """Scores the queries and keys of Mistral-7B, from a server in a process of its own."""
    folder = write_mistral(tmp_path / "remote", layers=32)
    environment = {"PYTHONPATH": str(Path(__file__).parents[1])}

    def measure(capped: int) -> Reading:
        command = [sys.executable, "-c", SERVER, *map(str, (folder, LATENCY, BANDWIDTH, capped))]
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment) as server:
            assert server.stdout is not None
            reach_hub(server.stdout.readline().strip(), tmp_path / f"home-{capped}", monkeypatch)
            wall = timed(lambda: attngeo.score("org/name", fresh=True))
            return Reading(wall, *map(int, server.communicate()[0].split()))

    return measure


def test_a_line_is_kept_full(read_far_away: Callable[[int], Reading], benchmark: BenchmarkFixture) -> None:
    """Within 1.3 times of the bytes over the bandwidth of four connections, with 50 ms and 200 Mbit/s for each."""
    benchmark.pedantic(lambda: None)
    wall, sent, requests = read_far_away(0)
    line = sent / (CONNECTIONS * BANDWIDTH)
    benchmark.extra_info |= {"baseline: bytes over bandwidth, s": line, "whole, s": wall, "times": wall / line}
    print(f"\nfrom the Hub: {sent / 1e6:,.0f} MB by {requests} requests in {wall:.1f} s ({wall / line:.2f} times)")
    assert wall / line < 1.3


def test_slow_servers_are_left(read_far_away: Callable[[int], Reading], benchmark: BenchmarkFixture) -> None:
    """Within 1.5 times of the time without them, if three of four connections have a tenth of the bandwidth."""
    benchmark.pedantic(lambda: None)
    usual, capped = read_far_away(0), read_far_away(CAPPED)
    times = capped.wall / usual.wall
    benchmark.extra_info |= {"baseline: no caps, s": usual.wall, "whole, s": capped.wall, "times": times}
    print(f"\nthree of four capped: {capped.wall:.1f} s by {capped.requests} requests, {times:.2f} times as long")
    assert times < 1.5
