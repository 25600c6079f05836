"""Weights on the Hub, read by ranges: no more bytes than are needed, and never others than are asked for."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import Command
from hypothesis import given, strategies as st
from safetensors.torch import save_file
from support.checkpoints import weights, write_config, write_index, write_sharded, write_single
from support.damage import pickle_state, write_pickled
from support.hub_server import COMMIT, V1_COMMIT, Fault, Hub
from support.messages import refuses
from torch.utils.serialization import config as serialization

import attngeo
from attngeo.attention.finding import sites_of
from attngeo.checkpoints import remote, speed
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.extent import Extent
from attngeo.checkpoints.hub import Repository, origin
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.patience import require_answers
from attngeo.checkpoints.reference import ModelRef
from attngeo.checkpoints.remote import merge
from attngeo.errors import CorruptCheckpointError, NetworkError, UnsafeCheckpointError, UnsupportedModelError

Mistral = Callable[[str], Path]
FILE = "model.safetensors"
# Mistral's: four query heads for each key head, and three matrices of an MLP that are never read.
WIDTH, HEADS, KEY_HEADS, LAYERS, SHARDS = 320, 8, 2, 4, 2
INNER = 640
CONFIG = {
    "model_type": "mistral", "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
    "num_hidden_layers": LAYERS, "intermediate_size": INNER,
}  # fmt: skip
KEYS = WIDTH * KEY_HEADS // HEADS
SHAPES = {
    "input_layernorm.weight": (WIDTH,), "mlp.down_proj.weight": (WIDTH, INNER), "mlp.gate_proj.weight": (INNER, WIDTH),
    "mlp.up_proj.weight": (INNER, WIDTH), "self_attn.k_proj.weight": (KEYS, WIDTH),
    "self_attn.o_proj.weight": (WIDTH, WIDTH), "self_attn.q_proj.weight": (WIDTH, WIDTH),
    "self_attn.v_proj.weight": (KEYS, WIDTH),
}  # fmt: skip


def write_mistral(folder: Path, suffix: str) -> Path:
    """A sharded checkpoint of 14 MB; its queries and keys are 2 MB."""
    write_config(folder, CONFIG)
    stem = {"safetensors": "model", "bin": "pytorch_model"}[suffix]
    generator, weight_map = torch.Generator().manual_seed(0), {}
    for shard in range(SHARDS):
        tensors = {
            f"model.layers.{layer}.{name}": torch.randn(shape, generator=generator)
            for layer in range(shard * LAYERS // SHARDS, (shard + 1) * LAYERS // SHARDS)
            for name, shape in SHAPES.items()
        }
        file = f"{stem}-{shard + 1:05}-of-{SHARDS:05}.{suffix}"
        save_file(tensors, folder / file) if suffix == "safetensors" else torch.save(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    write_index(folder, weight_map, stem, suffix)
    return folder


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of `write_mistral`; made once for each suffix."""

    @cache
    def write(suffix: str) -> Path:
        return write_mistral(tmp_path_factory.mktemp("mistral"), suffix)

    return write


# The note about the files of the Hub that were compared with their index, which a folder does not have.
COMPARED = r"\d+ of \d+ weight files compared with their index[^;]*(?:; )?"


def assert_same_scores(model: str, folder: Path, **options: Any) -> None:
    """The scores of a model on the Hub are those of the same files on this machine."""
    columns = ["model", "revision"]
    expected = attngeo.score(folder, **options).drop(columns=columns)
    remote = attngeo.score(model, **options).drop(columns=columns)
    remote["note"] = remote["note"].str.replace(COMPARED, "", regex=True)
    pd.testing.assert_frame_equal(remote, expected)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_a_model_is_read_by_little_more_than_its_queries_and_keys(suffix: str, here: Hub, mistral: Mistral) -> None:
    folder = here.repositories["org/name"] = mistral(suffix)
    assert_same_scores("org/name", folder, per_head=True)
    needed = 4 * LAYERS * WIDTH * (WIDTH + KEYS)
    if suffix == "safetensors":
        needed += sum(8 + int.from_bytes(path.read_bytes()[:8], "little") for path in folder.glob("*.safetensors"))
    assert needed <= here.sent.total() <= 1.02 * needed
    requests = [request for request in here.stored if request.method == "GET"]
    assert len(requests) <= SHARDS * 4 + 2 * LAYERS  # the tables of contents, and each query and key weight
    assert [request for request in here.requests if request.part is not None] == []


@pytest.mark.parametrize(
    ("circuit", "width"), [("qk", WIDTH + KEYS), ("ov", WIDTH + KEYS), ("both", 2 * (WIDTH + KEYS))]
)
def test_only_the_parts_that_are_asked_for_are_read(circuit: Any, width: int, here: Hub, mistral: Mistral) -> None:
    folder = here.repositories["org/name"] = mistral("safetensors")
    sites = attngeo.attention_sites("org/name", circuit=circuit)
    for found, expected in zip(sites, attngeo.attention_sites(folder, circuit=circuit), strict=True):
        assert torch.equal(found.wq, expected.wq)
        assert torch.equal(found.wv, expected.wv)
        assert torch.equal(found.wo, expected.wo)
    needed = 4 * LAYERS * WIDTH * width
    needed += sum(8 + int.from_bytes(path.read_bytes()[:8], "little") for path in folder.glob("*.safetensors"))
    assert needed <= here.sent.total() <= 1.02 * needed


def test_rows_of_a_fused_tensor_are_read_alone(here: Hub, tmp_path: Path) -> None:
    """Those of the values come last."""
    config = {"model_type": "phi3", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 1}
    tensors = {"model.layers.0.self_attn.qkv_proj.weight": torch.randn(3 * 512, 512)}
    folder = here.repositories["org/name"] = write_single(tmp_path / "remote", tensors, config)
    assert_same_scores("org/name", folder)
    assert here.sent.total() < 1.02 * 4 * 2 * 512 * 512 + 10_000
    here.sent.clear()
    with pytest.raises(UnsupportedModelError, match="its output projection is unknown"):
        list(attngeo.attention_sites("org/name", circuit="ov"))
    assert here.sent.total() <= 10_000


def test_values_of_a_fused_tensor_are_read_alone(here: Hub, tmp_path: Path) -> None:
    """They come last, after the queries and keys."""
    config = {"model_type": "phi3", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 1}
    attention = "model.layers.0.self_attn"
    tensors = {f"{attention}.qkv_proj.weight": torch.randn(3 * 512, 512), f"{attention}.o_proj.weight": torch.eye(512)}
    here.repositories["org/name"] = write_single(tmp_path / "remote", tensors, config)
    (weights,) = attngeo.attention_sites("org/name", circuit="ov")
    assert torch.equal(weights.wv.mT.flatten(0, 1), tensors[f"{attention}.qkv_proj.weight"][2 * 512 :])
    assert here.sent.total() < 1.02 * 4 * 2 * 512 * 512 + 10_000


def test_headers_of_several_files_are_read_at_once(here: Hub, mistral: Mistral) -> None:
    here.repositories["org/name"] = mistral("safetensors")
    here.latency = 0.1
    with closing(open_store("org/name")) as store:
        assert here.busiest == 1
        sites_of(store)
        assert 1 < here.busiest <= remote.CONNECTIONS


def test_a_wait_names_the_server_that_asks_for_it(
    here: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is as long as it asks."""
    waits: list[float] = []

    class Impatient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            return False

    monkeypatch.setattr(remote, "threading", SimpleNamespace(**vars(threading) | {"Event": Impatient}))
    folder = here.repositories["org/name"] = write_single(tmp_path / "remote")
    here.faults[FILE] = Fault(storage="busy", times=1, headers={"Retry-After": "70"})
    caplog.set_level("WARNING", logger="attngeo")
    assert_same_scores("org/name", folder)
    assert here.faults[FILE].times == 0
    assert waits == [70]
    assert [record.getMessage() for record in caplog.records if "wait" in record.getMessage()] == [
        f"org/name: {FILE}: {here.storage_url} asks clients to wait 70 s"
    ]


def test_neighbours_are_read_by_one_request(here: Hub, tmp_path: Path) -> None:
    config = {"model_type": "bert", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
    names = [f"encoder.layer.0.attention.self.{name}.weight" for name in ("key", "query", "value")]
    folder = write_single(tmp_path / "remote", {name: torch.randn(64, 64) for name in names}, config)
    here.repositories["org/name"] = folder
    assert_same_scores("org/name", folder)
    assert len(here.stored) == 2


def test_bytes_that_are_held_are_handed_over_once(here: Hub, tmp_path: Path) -> None:
    """A large tensor is not copied, and its memory is the reader's: another reader gets other memory."""
    here.repositories["org/name"] = write_single(tmp_path / "remote", {"x": torch.arange(50.0)}, {})
    repository = Repository(ModelRef.parse("org/name"), HubAccess())
    repository.pin()
    source = repository.open(FILE)
    assert isinstance(source, remote.RemoteFile)
    with closing(source), source.hold([Extent(0, 100)]):
        part, first, second = (source.read(0, count, "x") for count in (40, 100, 100))
    assert torch.equal(first, second)
    assert torch.equal(first[:40], part)
    assert len({tensor.data_ptr() for tensor in (part, first, second)}) == 3


# What the server of the files does once → with right scores afterwards.
@pytest.mark.parametrize(
    "misdeed", ["drop", "stall", "short", "long", "shifted", "unnamed", "gone", "busy", "loop", "lost"]
)
def test_what_a_network_breaks_is_asked_for_again(misdeed: Any, here: Hub, tmp_path: Path) -> None:
    folder = here.repositories["org/name"] = write_single(tmp_path / "remote")
    times = 1 if misdeed == "stall" else 2  # each lasts until a time-out
    here.faults[FILE] = Fault(storage=misdeed, times=times, headers={"Retry-After": "0"})
    assert_same_scores("org/name", folder)
    assert here.faults[FILE].times == 0


@pytest.mark.parametrize(
    ("misdeed", "fact"),
    [
        ("drop", "failed"), ("short", "failed"), ("shifted", "range"), ("unnamed", "range"), ("gone", "403"),
        ("loop", "redirects"), ("busy", "503"), ("whole", "with download"), ("long", "bytes"), ("lost", "failed"),
    ],
)  # fmt: skip
def test_what_stays_broken_is_an_error(misdeed: Any, fact: str, here: Hub, tmp_path: Path) -> None:
    here.repositories["org/name"] = write_single(tmp_path / "remote")
    here.faults[FILE] = Fault(storage=misdeed)
    with refuses(NetworkError, "org/name", fact):
        attngeo.score("org/name")
    # A loop of redirects is followed 20 times for each request; that an address expires once is no failure.
    assert 1 <= len(here.stored) <= (HubAccess().retries + 2) * 21


def read_remotely(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read 2 MB in 8 parts, of a server whose connections send 2 MB in a second, and check the bytes."""
    monkeypatch.setattr(remote, "PART_BYTES", 1 << 18)
    monkeypatch.setattr(speed, "WINDOW", 0.02)
    monkeypatch.setattr(remote, "PROGRESS", 1 << 16)
    monkeypatch.setattr(speed, "PROGRESS", 1 << 16)
    speed.speeds.clear()
    tensors = {"a": torch.arange(1 << 19, dtype=torch.int32)}
    hub.repositories["org/name"] = write_single(folder / "remote", tensors, CONFIG)
    hub.bandwidth = 2e6
    with closing(open_store("org/name")) as store:
        assert torch.equal(store.read("a"), tensors["a"])


def test_a_slow_stream_is_dropped_and_its_rest_is_read_on_another_connection(
    here: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.capped = lambda number: number in (1, 2, 3)
    read_remotely(here, tmp_path, monkeypatch)
    assert len(here.stored) > len({request.part.rpartition("-")[2] for request in here.stored})


def test_slow_streams_are_dropped_a_few_times_only(here: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All connections but the first one are slow for good."""
    monkeypatch.setattr(remote, "MOST_DROPPED_CONNECTIONS", 2)
    here.capped = bool
    read_remotely(here, tmp_path, monkeypatch)
    ends = Counter(request.part.rpartition("-")[2] for request in here.stored)
    assert 1 < max(ends.values()) <= 3


# Speeds in each window, of another stream and of this one → the windows after which this one is dropped.
SPEEDS: dict[str, tuple[list[float], list[float], list[int]]] = {
    "a tenth": ([100] * 4, [10] * 4, [1, 2, 3]),
    "half": ([100] * 4, [50] * 4, []),
    "both slow": ([10] * 4, [10] * 4, []),
    "a new connection": ([100] * 4, [2, 5, 12, 30], []),
    "a sudden stop": ([100] * 4, [100, 100, 5, 5], [2, 3]),
    "nothing beside it": ([], [10] * 4, []),
}


@pytest.mark.parametrize("case", SPEEDS)
def test_a_stream_is_slow_beside_others_only(case: str) -> None:
    other, this, expected = SPEEDS[case]
    speeds: dict[int, tuple[float, float]] = {}
    streams = [speed.Speed(speeds, lane, 0.0) for lane in (1, 2)]
    dropped = []
    for window, nbytes in enumerate(this):
        now = (window + 1) * speed.WINDOW
        if other:
            assert not streams[0].is_slow(int(other[window] * 1000), 10**9, now)
        if streams[1].is_slow(int(nbytes * 1000), 10**9, now):
            dropped.append(window)
    assert dropped == expected


def test_a_stream_that_is_nearly_done_or_compared_with_an_old_speed_is_kept() -> None:
    speeds = {1: (1e9, 0.0)}
    for left, begun, slow in ((10**9, 0.0, True), (10, 0.0, False), (10**9, speed.RECENT + 1, False)):
        stream = speed.Speed(speeds, 2, begun)
        stream.is_slow(1000, 10**9, begun + speed.WINDOW)
        assert stream.is_slow(1000, left, begun + 2 * speed.WINDOW) is slow


def test_an_address_is_renewed_whenever_it_has_expired(here: Hub, tmp_path: Path) -> None:
    folder = here.repositories["org/name"] = write_sharded(tmp_path / "remote")
    here.uses = 1
    assert_same_scores("org/name", folder)
    assert here.addresses["issued"] == 4  # each of two files: for its table of contents, and for its weights


def test_a_wait_that_the_server_asks_for_is_bounded(here: Hub, tmp_path: Path) -> None:
    here.repositories["org/name"] = write_single(tmp_path / "remote")
    here.faults[FILE] = Fault(storage="busy", headers={"Retry-After": "99999999"})
    with refuses(NetworkError, "org/name", "asks clients to wait", "99,999,999"):
        attngeo.score("org/name")
    assert len(here.stored) == 1


def test_other_threads_have_rules_of_their_own(here: Hub, mistral: Mistral) -> None:
    """Requests in flight are no connections of another one that fail."""
    folder = here.repositories["org/name"] = mistral("safetensors")
    here.latency = 0.1
    with require_answers("org/other"):
        assert_same_scores("org/name", folder)


def test_a_forked_process_reads_too(here: Hub, tmp_path: Path) -> None:
    here.repositories["org/name"] = write_single(tmp_path / "remote")
    store = open_store("org/name")
    store.read(store_name := min(store.names))
    child = multiprocessing.get_context("fork").Process(target=store.read, args=(store_name,))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_a_store_that_is_closed_reads_nothing(here: Hub, tmp_path: Path) -> None:
    here.repositories["org/name"] = write_sharded(tmp_path / "remote")
    store = open_store("org/name")
    store.close()
    with refuses(CorruptCheckpointError, "org/name", "closed"):
        store.read("model.layers.1.self_attn.q_proj.weight")
    assert here.stored == []


def test_records_that_are_far_apart_are_read_by_one_request_each(here: Hub, tmp_path: Path) -> None:
    """torch.save may align numbers to pages."""
    folder = here.repositories["org/name"] = write_config(tmp_path / "remote")
    serialization.save.storage_alignment = 4096
    try:
        torch.save(weights(), folder / "pytorch_model.bin")
    finally:
        serialization.save.storage_alignment = 64
    assert_same_scores("org/name", folder)
    assert len(here.stored) <= 3 + 2 * 2


def test_a_program_is_refused_before_it_is_downloaded(here: Hub, tmp_path: Path) -> None:
    folder = here.repositories["org/name"] = write_config(tmp_path / "remote")
    write_pickled(folder / "pytorch_model.bin", pickle_state({}), {"constants.pkl": bytes(10**6)})
    with refuses(UnsafeCheckpointError, "org/name", "TorchScript"):
        attngeo.score("org/name")
    assert here.sent.total() < 50_000


def test_a_token_is_for_one_scheme_host_and_port() -> None:
    assert origin("https://a.b/c") == origin("https://a.b/d?e")
    others = ("http://a.b/c", "https://a.b:1/c", "https://a/c", "https://u@a.b/c")
    assert origin("https://a.b/c") not in {origin(other) for other in others}


def test_a_revision_that_moves_is_refused(here: Hub, tmp_path: Path) -> None:
    here.repositories["org/name"] = write_single(tmp_path / "remote")
    here.faults[FILE] = Fault(commit=V1_COMMIT)
    with refuses(NetworkError, "org/name", V1_COMMIT, COMMIT):
        attngeo.score("org/name")
    assert here.stored == []


def test_a_file_that_changes_while_it_is_read_is_refused(here: Hub, tmp_path: Path) -> None:
    here.repositories["org/name"] = write_single(tmp_path / "remote")
    hashes = iter(range(100))
    here.faults[FILE], here.uses = Fault(announce=lambda _: f"{next(hashes):064}"), 1
    with refuses(NetworkError, "org/name", FILE, "changed"):
        attngeo.score("org/name")


def test_the_token_is_sent_to_the_hub_only(here: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    folder = here.repositories["org/gated"] = write_sharded(tmp_path / "remote")
    here.gated["org/gated"], here.uses = "hf_secret", 2
    assert_same_scores("org/gated", folder)
    assert {request.token for request in here.requests} == {"Bearer hf_secret"}
    assert {request.token for request in here.stored} == {None}


def test_a_truncated_file_is_refused(here: Hub, tmp_path: Path) -> None:
    here.repositories["org/name"] = write_single(tmp_path / "remote")
    here.faults[FILE] = Fault(change=lambda content: content[:-8])
    with refuses(CorruptCheckpointError, "org/name", FILE):
        attngeo.score("org/name")


def test_what_is_no_pytorch_file_is_not_downloaded(here: Hub, tmp_path: Path) -> None:
    folder = here.repositories["org/name"] = write_config(tmp_path / "remote")
    (folder / "pytorch_model.bin").write_bytes(bytes(10**6))
    with refuses(CorruptCheckpointError, "org/name", "pytorch_model.bin", "safetensors"):
        attngeo.score("org/name")
    assert here.sent.total() < 50_000


@pytest.mark.slow
def test_a_file_in_the_cache_is_read_from_there(
    hub: Hub, online: dict[str, str], attngeo: Command, tmp_path: Path
) -> None:
    hub.repositories["org/name"] = write_sharded(tmp_path / "remote")
    by_ranges = attngeo("score", "org/name", "--format", "json", **online)
    assert (by_ranges.returncode, hub.downloaded.count("config.json")) == (0, 1), by_ranges.stderr
    assert not [file for file in hub.downloaded if file.endswith(".safetensors")]
    whole = attngeo("score", "org/name", "--download", "--format", "json", **online)
    assert sorted(file for file in hub.downloaded if file.endswith(".safetensors")) == [
        "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
    ]  # fmt: skip
    hub.stored.clear()
    again = attngeo("score", "org/name", "--format", "json", **online)
    assert by_ranges.stdout == whole.stdout == again.stdout
    assert hub.stored == []
    assert [row["layer"] for row in json.loads(again.stdout)] == [0, 1]


extents = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 1000)), max_size=20)


def test_merging_many_times_wastes_no_more_than_once() -> None:
    """One long range and many short ones with gaps that are short against the long one only."""
    ranges = [(0, 10**8), *((10**8 + 10**6 * number, 8) for number in range(1, 50))]
    assert sum(nbytes for _, nbytes in merge(ranges)) <= 1.011 * (10**8 + 8 * 49)


@given(extents)
def test_merged_ranges_cover_the_given_ones_in_order(ranges: list[tuple[int, int]]) -> None:
    merged = merge(ranges)
    for offset, nbytes in ranges:
        assert not nbytes or any(start <= offset and offset + nbytes <= start + size for start, size in merged)
    ends = [sum(extent) for extent in merged]
    assert all(end < start for end, (start, _) in zip(ends, merged[1:], strict=False))
    wanted = {byte for offset, nbytes in ranges for byte in range(offset, offset + nbytes)}
    assert sum(nbytes for _, nbytes in merged) <= 1.02 * len(wanted) + 1
