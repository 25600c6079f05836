"""Reading ahead: whatever is in flight, the scores, their order and the errors are the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.checkpoints import weights, write_single
from support.messages import assert_fails, refuses

import attngeo
from attngeo.attention.finding import sites_of
from attngeo.attention.read_ahead import read_ahead
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.store import TensorStore
from attngeo.errors import CorruptCheckpointError, UsageError
from attngeo.progress import Progress
from attngeo.scores.options import ScoreOptions

CPU = torch.device("cpu")
LAYERS = 8
# Bytes that hold all layers.
PLENTY = 2**30


class Watched:
    """A store that counts the sites whose read has begun.

    lanes: as of a store far away, if more than one. broken: the number of the site whose read fails. gate: while it is
    closed, reads of all sites but the first one hang.
    """

    def __init__(self, store: TensorStore, *, lanes: int = 1, broken: int | None = None) -> None:
        self._store, self.lanes, self._broken = store, lanes, broken
        self.sites, self.reads, self.lock = sites_of(store)[0], 0, threading.Lock()
        self.gate = threading.Event()
        self.gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, torch.Tensor]:
        with self.lock:
            self.reads += 1
        if reads != self.sites[0].reads:
            self.gate.wait(60)
        if self._broken is not None and reads == self.sites[self._broken].reads:
            raise CorruptCheckpointError("this layer is broken")
        return self._store.read_all(reads)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_single(tmp_path, weights(layers=LAYERS))


@pytest.fixture
def store(folder: Path) -> Iterator[TensorStore]:
    opened = open_store(folder)
    yield opened
    opened.close()


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("attngeo-read")]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what other threads do; ten seconds at most."""
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)


def end_readers() -> None:
    """Every reader ends by itself."""
    for thread in readers():
        thread.join(10)
    assert not readers()


@pytest.mark.parametrize("memory", [1, "6kB", "1GiB", None])
def test_scores_do_not_depend_on_what_is_in_flight(folder: Path, memory: Any) -> None:
    expected = attngeo.score(folder, per_head=True)
    assert expected[expected["head"].isna()]["layer"].tolist() == list(range(LAYERS))
    pd.testing.assert_frame_equal(attngeo.score(folder, per_head=True, memory=memory), expected, check_exact=True)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("layers", [0.5, 1, 2, 3.5, 100])
def test_memory_bounds_the_layers_in_flight(store: TensorStore, lanes: int, layers: float) -> None:
    """As many as fit, at least one, and at most those that are worked on: one for each lane, and the caller's."""
    watched = Watched(store, lanes=lanes)
    memory = int(layers * store.count_nbytes(watched.sites[0].reads))
    allowed = min(max(int(layers), 1), lanes + 1)
    for done, (site, _) in enumerate(read_ahead(watched, watched.sites, device=CPU, memory=memory)):
        assert site.layer == done
        expected = min(done + allowed, LAYERS)
        wait_until(lambda expected=expected: watched.reads >= expected)  # type: ignore[misc]
        time.sleep(0.02)  # in which no further read begins
        assert watched.reads == expected


def test_layers_come_in_order_when_later_reads_end_first(store: TensorStore) -> None:
    watched = Watched(store, lanes=4)
    slow = watched.sites[0].reads
    quick = watched._store.read_all

    def read_all(reads: Mapping[str, slice]) -> dict[str, torch.Tensor]:
        if reads == slow:
            time.sleep(0.2)
        return quick(reads)

    watched.read_all = read_all  # type: ignore[method-assign]
    layers = read_ahead(watched, watched.sites, device=CPU, memory=PLENTY)
    found = [(site.layer, next(iter(tensors))) for site, tensors in layers]
    assert found == [(i, f"model.layers.{i}.self_attn.q_proj.weight") for i in range(LAYERS)]


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_read_that_fails_is_raised_once_at_its_layer(store: TensorStore, lanes: int) -> None:
    watched, seen = Watched(store, lanes=lanes, broken=3), []
    layers = read_ahead(watched, watched.sites, device=CPU, memory=PLENTY)
    with refuses(CorruptCheckpointError, "this layer is broken"):
        seen.extend(site.layer for site, _ in layers)
    assert seen == [0, 1, 2]
    assert next(layers, None) is None
    assert watched.reads <= 4 + lanes


@pytest.mark.parametrize("lanes", [1, 4])
def test_an_interrupted_run_leaves_no_reader(store: TensorStore, lanes: int) -> None:
    """What has begun ends, what waits is cancelled."""
    watched = Watched(store, lanes=lanes)

    def report(progress: Progress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(read_ahead(watched, watched.sites, device=CPU, memory=PLENTY, report=report))
    end_readers()
    assert watched.reads <= 2 + lanes


def test_a_slow_server_is_not_waited_for(store: TensorStore) -> None:
    """The caller stops while reads of several lanes hang: it goes on at once, and they end when they can."""
    watched = Watched(store, lanes=4)
    watched.gate.clear()
    layers = read_ahead(watched, watched.sites, device=CPU, memory=PLENTY)
    next(layers)
    layers.close()  # type: ignore[attr-defined]
    assert readers()
    watched.gate.set()
    end_readers()
    assert watched.reads <= 5


def test_no_layers(store: TensorStore) -> None:
    reports: list[Progress] = []
    assert not list(read_ahead(store, [], device=CPU, memory=PLENTY, report=reports.append))
    assert [report.what for report in reports] == ["done"]


@pytest.mark.parametrize("value", ["lots", "0", "-1GB", "1 PB", ""])
def test_an_amount_that_is_none_is_wrong_usage(value: str, inside: Any) -> None:
    assert_fails(inside("score", "demo:minilm", f"--memory={value}"), UsageError.exit_code, "memory")


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "x"])
def test_an_amount_that_is_none_is_refused_by_the_library(value: Any) -> None:
    with refuses(UsageError, "memory"):
        ScoreOptions(memory=value)
    assert ScoreOptions(memory="1.5GiB").memory == 3 * 2**29  # type: ignore[arg-type]
