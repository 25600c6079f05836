"""The Hub, through the command and a stand-in server, to which HF_ENDPOINT points in processes of their own."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import huggingface_hub
import pandas as pd
import pytest
import torch
from conftest import Command
from huggingface_hub.utils import httpx
from huggingface_hub.utils._http import default_client_factory
from safetensors.torch import load_file, save_file
from support.checkpoints import CONFIG, write_config, write_header, write_sharded, write_single
from support.hub_client import connect
from support.hub_server import COMMIT, V1_COMMIT, Fault, Hub, HubHandler, StorageHandler, sha256
from support.messages import assert_fails, assert_states, refuses
from support.vectors import word_piece, write_questions

import attngeo as library
from attngeo.checkpoints import files, patience
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.hub import Repository, verify_download
from attngeo.checkpoints.reference import ModelRef
from attngeo.errors import (
    AccessError,
    AttnGeoError,
    CorruptCheckpointError,
    ModelNotFoundError,
    ModelUnavailableError,
    NetworkError,
    NotEnoughMemoryError,
    OutputError,
    UnsupportedModelError,
)
from attngeo.verification import loading


def git_hash(content: bytes) -> str:
    """The hash that the Hub announces for a small file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.mark.slow
def test_a_sharded_model_downloads_what_it_needs_and_stays_in_the_cache(
    hub: Hub, connected: Command, tmp_path: Path
) -> None:
    hub.repositories["org/name"] = write_sharded(tmp_path / "remote")
    first = connected("score", "org/name", "--download", "--format", "json")
    assert first.returncode == 0, first.stderr
    rows = json.loads(first.stdout)
    assert [row["layer"] for row in rows] == [0, 1]
    assert {(row["model"], row["revision"]) for row in rows} == {("org/name", COMMIT)}
    shards = {file for file in hub.downloaded if file.endswith(".safetensors")}
    assert shards == {"model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"}
    hub.requests.clear()
    again = connected("score", "org/name", "--format", "json", "--offline")
    assert (again.returncode, again.stdout, hub.requests) == (0, first.stdout, [])
    by_environment = connected("score", "org/name", "--format", "json", HF_HUB_OFFLINE="1")
    assert (by_environment.stdout, hub.requests) == (first.stdout, [])


def test_one_layer_of_a_sharded_model_reads_weights_of_one_shard(hub: Hub, connected: Command, tmp_path: Path) -> None:
    hub.repositories["org/name"] = write_sharded(tmp_path / "remote")
    assert connected("score", "org/name", "--layers", "1").returncode == 0
    asked = Counter(request.file for request in hub.stored)
    assert asked == {"model-00002-of-00003.safetensors": 1, "model-00003-of-00003.safetensors": 2}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_a_shard_with_nothing_but_norms_is_left_where_it_is(
    suffix: str, hub: Hub, connected: Command, tmp_path: Path
) -> None:
    """Unless the variant asks for the gain in front of attention."""
    folder = hub.repositories["org/name"] = write_sharded(tmp_path / "remote", suffix=suffix, norms=True)
    first = next(path.name for path in folder.glob(f"*-00001-of-00003.{suffix}"))
    assert connected("score", "org/name", "--download").returncode == 0
    assert first not in hub.downloaded
    assert connected("score", "org/name", "--download", "--fold-norm").returncode == 0
    assert first in hub.downloaded


@pytest.mark.parametrize("revision", ["v1", COMMIT])
def test_a_single_file_and_a_revision(revision: str, hub: Hub, connected: Command, tmp_path: Path) -> None:
    hub.repositories["org/name"] = write_single(tmp_path / "remote")
    run = connected("score", f"org/name@{revision}", "--format", "csv")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count(f",{COMMIT},llama,") == 2


def test_a_pickled_model(hub: Hub, connected: Command, tmp_path: Path) -> None:
    hub.repositories["old"] = write_sharded(tmp_path / "remote", suffix="bin")
    run = connected("score", "old", "--format", "csv")
    assert run.returncode == 0, run.stderr
    assert "pytorch_model-00001-of-00003.bin" not in hub.downloaded


def test_inspect_reads_headers_only(hub: Hub, connected: Command, tmp_path: Path) -> None:
    hub.repositories["org/name"] = write_sharded(tmp_path / "remote")
    run = connected("inspect", "org/name", "--format", "json")
    assert run.returncode == 0, run.stderr
    assert [site["key_heads"] for site in json.loads(run.stdout)["sites"]] == [2, 2]
    assert not [file for file in hub.downloaded if file.endswith(".safetensors")]


ENTRY = {"dtype": "F32", "shape": [24, 24], "data_offsets": [0, 2304]}
BAD_HEADERS: dict[str, object] = {
    "an unknown dtype": {"own.weight": ENTRY | {"dtype": "F31"}},
    "offsets that do not fit": {"own.weight": ENTRY | {"data_offsets": [0, 99]}},
    "null for offsets": {"own.weight": ENTRY | {"data_offsets": None}},
    "a list": ["own.weight"],
    "nested too deep": b'{"own.weight":' * 20_000,
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_a_header_that_is_read_remotely_is_checked(case: str, hub: Hub, connected: Command, tmp_path: Path) -> None:
    folder = hub.repositories["org/name"] = write_config(tmp_path / "remote")
    write_header(folder / "model.safetensors", BAD_HEADERS[case], b"\0" * 2304)
    facts = ["org/name: ", "model.safetensors", *(["'own.weight'"] if "dtype" in case or "fit" in case else [])]
    assert_one_line(connected("inspect", "org/name"), CorruptCheckpointError, facts)
    assert "model.safetensors" not in hub.downloaded


def test_a_token_opens_a_gated_model(hub: Hub, connected: Command, tmp_path: Path) -> None:
    hub.repositories["org/gated"] = write_single(tmp_path / "remote")
    hub.gated["org/gated"] = "hf_secret"
    refused = connected("score", "org/gated")
    assert_one_line(refused, AccessError, ["org/gated: ", "gated", f"{hub.url}/org/gated", "HF_TOKEN"])
    stranger = connected("score", "org/gated", HF_TOKEN="hf_other")
    assert_one_line(stranger, AccessError, ["org/gated: ", "gated", f"{hub.url}/org/gated", "HF_TOKEN"])
    assert "hf_other" not in stranger.stderr
    assert connected("score", "org/gated", HF_TOKEN="hf_secret").returncode == 0


def test_what_is_not_there(hub: Hub, connected: Command, tmp_path: Path) -> None:
    hub.repositories["org/name"] = write_single(tmp_path / "remote")
    hub.repositories["org/adapter"] = tmp_path / "adapter"
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    hub.repositories["org/weightless"] = write_config(tmp_path / "weightless", CONFIG)
    cases: list[tuple[str, type[AttnGeoError], list[str]]] = [
        ("org/other", ModelNotFoundError, ["org/other", hub.url, "HF_TOKEN"]),
        ("org/name@v9", ModelNotFoundError, ["org/name@v9", "'v9'"]),
        ("org/adapter", UnsupportedModelError, ["org/adapter", "adapter_model.safetensors"]),
        (
            "org/weightless",
            UnsupportedModelError,
            ["org/weightless", "model.safetensors, model.safetensors.index.json, pytorch_model.bin"],
        ),
    ]
    for model, error, facts in cases:
        assert_one_line(connected("score", model), error, facts)


def assert_one_line(run: CompletedProcess[str], error: int | type[AttnGeoError], facts: list[str]) -> None:
    """The command failed with this exit code or error, and with one line that states the facts."""
    assert_fails(run, error)
    for fact in facts:
        assert fact in run.stderr


@pytest.fixture
def nobody(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that reaches no server."""
    return {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}


def test_no_network(inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    run = connect(inside, "http://127.0.0.1:9", tmp_path, monkeypatch)("score", "org/name")
    assert_one_line(run, NetworkError, ["org/name: ", "http://127.0.0.1:9", "HF_ENDPOINT"])


def test_a_client_that_a_user_has_set_is_used(here: Hub, tmp_path: Path) -> None:
    """Its factory has a private name, _GLOBAL_CLIENT_FACTORY, in huggingface_hub 2."""
    assert huggingface_hub.__version__.startswith("2.")
    made = []

    def make_client() -> httpx.Client:
        made.append(1)
        return httpx.Client(headers={"X-Own": "1"}, follow_redirects=True)

    here.repositories["org/name"] = write_single(tmp_path / "remote")
    huggingface_hub.set_client_factory(make_client)
    try:
        assert len(library.score("org/name")) == 2
        assert made
    finally:
        huggingface_hub.set_client_factory(default_client_factory)


def test_offline(nobody: dict[str, str], attngeo: Command) -> None:
    assert_one_line(attngeo("score", "org/name", "--offline", **nobody), 3, ["org/name: ", "offline", "cache"])


def test_offline_a_line_end_after_the_commit_of_a_branch_is_named(here: Hub, tmp_path: Path) -> None:
    """huggingface_hub finds no file then; it writes the commit alone when it is online again."""
    here.repositories["org/name"] = write_single(tmp_path / "remote")
    library.score("org/name", hub=HubAccess(download=True))
    note = Path(huggingface_hub.constants.HF_HUB_CACHE, "models--org--name", "refs", "main")
    commit = note.read_text()
    note.write_text(f"{commit}\n")
    assert huggingface_hub.try_to_load_from_cache("org/name", "config.json") is None
    with refuses(NetworkError, "org/name", "refs/main", "line end"):
        library.score("org/name", hub=HubAccess(offline=True), fresh=True)
    library.score("org/name", hub=HubAccess(download=True), fresh=True)
    assert note.read_text() == commit
    library.score("org/name", hub=HubAccess(offline=True), fresh=True)


def test_an_index_in_whose_folder_are_folders(here: Hub, tmp_path: Path) -> None:
    """Here and on the Hub, as transformers reads them."""
    folder = here.repositories["org/name"] = write_sharded(tmp_path / "remote")
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-0000", "parts/model-0000"))
    (folder / "parts").mkdir()
    for shard in folder.glob("model-0000*"):
        shard.rename(folder / "parts" / shard.name)
    expected = library.score(write_sharded(tmp_path / "plain"))["symmetry"].tolist()
    assert library.score(folder)["symmetry"].tolist() == expected
    assert library.score("org/name")["symmetry"].tolist() == expected
    assert library.score("org/name", hub=HubAccess(download=True), fresh=True)["symmetry"].tolist() == expected


def test_an_index_that_points_elsewhere_downloads_nothing(hub: Hub, connected: Command, tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "remote")
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00002", "../../model-00002"))
    hub.repositories["org/name"] = folder
    run = connected("score", "org/name")
    assert_one_line(
        run, CorruptCheckpointError, ["model.safetensors.index.json", "'../../model-00002-of-00003.safetensors'"]
    )
    assert not [file for file in hub.downloaded if file.endswith(".safetensors")]


@pytest.mark.slow
def test_word_analogies_download_the_embeddings_and_the_tokeniser(hub: Hub, connected: Command, tmp_path: Path) -> None:
    folder = hub.repositories["org/name"] = write_sharded(tmp_path / "remote")
    words = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(48)]
    word_piece(folder / "tokenizer.json", ["[PAD]", "[UNK]", *words])
    questions = write_questions(tmp_path / "q.txt", {"own": [" ".join(words[i : i + 4]) for i in range(40)]})
    first = connected("analogy", "org/name", "--download", "--questions", questions, "--format", "json")
    assert first.returncode == 0, first.stderr
    rows = json.loads(first.stdout)
    assert (rows[-1]["model"], rows[-1]["known"]) == ("org/name", 40)
    sent = [file for file in hub.downloaded if file.endswith((".safetensors", "tokenizer.json"))]
    assert sorted(sent) == ["model-00001-of-00003.safetensors", "tokenizer.json"]
    hub.requests.clear()
    again = connected("analogy", "org/name", "--questions", questions, "--format", "json", "--offline")
    assert (again.returncode, again.stdout, hub.requests) == (0, first.stdout, [])


def test_a_repository_without_a_tokeniser(hub: Hub, connected: Command, tmp_path: Path) -> None:
    hub.repositories["org/name"] = write_sharded(tmp_path / "remote")
    run = connected("analogy", "org/name")
    assert_one_line(run, UnsupportedModelError, ["org/name: ", "tokenizer.json"])
    assert [file for file in hub.downloaded if file.endswith(".safetensors")] == []


@pytest.mark.slow
def test_offline_a_tokeniser_may_be_missing_from_the_cache(hub: Hub, connected: Command, tmp_path: Path) -> None:
    hub.repositories["org/name"] = write_single(tmp_path / "remote")
    assert connected("score", "org/name", "--download").returncode == 0
    run = connected("analogy", "org/name", "--offline")
    assert_one_line(run, NetworkError, ["org/name: ", "tokeniser", "offline"])


@pytest.mark.slow
def test_a_model_of_the_hub_is_verified(hub: Hub, connected: Command, saved: Callable[[str], Path]) -> None:
    hub.repositories["org/name"] = saved("bert")
    run = connected("score", "org/name", "--verify", "--format", "json")
    assert run.returncode == 0, run.stderr
    assert_states(run.stderr, "org/name", "all 2 sites agree")
    offline = connected("score", "org/name", "--verify", "--offline", "--format", "json")
    assert (offline.returncode, offline.stdout, offline.stderr) == (0, run.stdout, run.stderr)


def test_a_model_that_does_not_fit_in_memory_is_not_downloaded(
    here: Hub, saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here.repositories["org/name"] = saved("bert")
    monkeypatch.setattr(loading, "available_memory", lambda: 1)
    with refuses(NotEnoughMemoryError, "org/name"):
        library.verify("org/name")
    assert not [file for file in here.downloaded if file.endswith(".safetensors")]


def flip(content: bytes) -> bytes:
    """The content with its last byte changed."""
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "change", "announce"),
    [
        ("config.json", flip, git_hash),
        ("config.json", flip, lambda content: hashlib.sha1(content).hexdigest()),
        ("model.safetensors", flip, sha256),
        ("model.safetensors", lambda content: content[:-8], sha256),
        ("model.safetensors", lambda content: content + bytes(8), sha256),
    ],
    ids=["small", "SHA-1", "large", "truncated", "overlong"],
)
def test_a_file_that_is_not_the_announced_one_is_refused_and_removed(
    file: str, change: Callable[[bytes], bytes], announce: Callable[[bytes], str],
    hub: Hub, connected: Command, tmp_path: Path,
) -> None:  # fmt: skip
    hub.repositories["org/name"] = write_single(tmp_path / "remote")
    hub.faults[file] = Fault(change=change, announce=announce)
    announced = announce((tmp_path / "remote" / file).read_bytes())
    assert_one_line(connected("score", "org/name", "--download"), NetworkError, ["org/name: ", file, announced])
    assert not list((tmp_path / "home").rglob(file)) + list((tmp_path / "home").rglob(announced))
    hub.faults[file] = Fault(announce=announce)
    repaired = connected("score", "org/name", "--download")
    assert repaired.returncode == 0, repaired.stderr


@pytest.mark.slow
def test_a_file_is_verified_in_a_cache_without_links(
    hub: Hub, online: dict[str, str], attngeo: Command, tmp_path: Path
) -> None:
    hub.repositories["org/name"] = write_single(tmp_path / "remote")
    hub.faults["model.safetensors"] = Fault(change=flip)
    plain = online | {"HF_HUB_DISABLE_SYMLINKS": "1", "HF_HUB_DISABLE_SYMLINKS_WARNING": "1"}
    refused = attngeo("score", "org/name", "--download", **plain)
    assert_one_line(refused, 3, ["org/name: ", "model.safetensors is damaged"])
    assert not list((tmp_path / "home").rglob("model.safetensors"))
    del hub.faults["model.safetensors"]
    assert attngeo("score", "org/name", "--download", **plain).returncode == 0


@pytest.mark.slow
def test_a_file_is_verified_by_the_next_run_if_the_first_one_was_killed(
    hub: Hub, online: dict[str, str], attngeo: Command, tmp_path: Path
) -> None:
    hub.repositories["org/name"] = write_single(tmp_path / "remote")
    hub.faults["model.safetensors"] = Fault(change=flip)
    code = (
        "import attngeo, os, signal\nfrom attngeo.checkpoints import hub\nreal = hub.verify_download\n"
        "def verify(path, *rest):\n"
        "    os.kill(os.getpid(), signal.SIGKILL) if path.name == 'model.safetensors' else real(path, *rest)\n"
        "hub.verify_download = verify\nattngeo.score('org/name', download=True)"
    )
    killed = subprocess.run([sys.executable, "-c", code], env=os.environ | online, capture_output=True, check=False)
    assert (killed.returncode, len(list((tmp_path / "home").rglob("model.safetensors")))) == (-signal.SIGKILL, 1)
    refused = attngeo("score", "org/name", "--download", **online)
    assert_one_line(refused, 3, ["org/name: ", "model.safetensors is damaged"])
    assert not list((tmp_path / "home").rglob("*.unverified"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_cache_that_cannot_be_written_is_named(
    number: int, hub: Hub, connected: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk. It is no fault of the connection, and trying again does not help."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    hub.repositories["org/name"] = write_single(tmp_path / "remote")
    monkeypatch.setattr("huggingface_hub.file_download.http_get", fail)
    done = connected("score", "org/name", "--download")
    assert_fails(done, OutputError.exit_code, tmp_path / "home/hub", os.strerror(number), "HF_HOME")


def test_a_file_whose_check_is_interrupted_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next command downloads and checks it again."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / ("0" * 64)).touch()
    (tmp_path / "model.safetensors").symlink_to("0" * 64)
    monkeypatch.setattr("hashlib.file_digest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        verify_download(tmp_path / "model.safetensors", None)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_verified_once(here: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not each time it is opened; what is no hash is not compared."""
    here.repositories["org/name"] = write_single(tmp_path / "remote")
    here.faults["model.safetensors"] = Fault(announce=lambda _: "5d41402abc4b2a76b9719d911017c592-3")
    verified: list[str] = []

    def note(path: Path, *rest: Any) -> None:
        verified.append(path.name)
        verify_download(path, *rest)

    monkeypatch.setattr("attngeo.checkpoints.hub.verify_download", note)
    for _ in range(2):
        library.score("org/name", download=True)
        assert verified == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (503, {"Retry-After": "99999999"}),
        (429, {"RateLimit": f'"api";r=0;t={"9" * 5000}'}),
        (429, {"RateLimit": '"api";r=0;t=99999999', "Retry-After": "1"}),
    ],
    ids=["busy", "digits", "limit"],
)
def test_a_server_that_asks_to_wait_for_years_is_not_waited_for(
    status: int, headers: dict[str, str], hub: Hub, impatient: Command, tmp_path: Path
) -> None:
    hub.repositories["org/name"] = write_single(tmp_path / "remote")
    hub.faults["config.json"] = Fault(status=status, headers=headers)
    run = impatient("score", "org/name")
    assert_one_line(run, NetworkError, ["org/name: ", hub.url, "asks clients to wait"])


def test_a_cached_model_needs_no_server_that_is_busy(hub: Hub, impatient: Command, tmp_path: Path) -> None:
    hub.repositories["org/name"] = write_single(tmp_path / "remote")
    first = impatient("score", "org/name", "--format", "csv")
    hub.faults["config.json"] = Fault(status=429, headers={"Retry-After": "99999999"})
    again = impatient("score", "org/name", "--format", "csv")
    assert (again.returncode, again.stdout) == (0, first.stdout)


@pytest.mark.parametrize("options", [(), ("--quiet",)])
def test_a_short_wait_is_announced(options: tuple[str, ...], hub: Hub, impatient: Command, tmp_path: Path) -> None:
    hub.repositories["org/name"] = write_single(tmp_path / "remote")
    hub.faults["config.json"] = Fault(status=429, headers={"Retry-After": "1"}, times=2)
    run = impatient("score", "org/name", *options)
    assert run.returncode == 0, run.stderr
    assert hub.faults["config.json"].times == 0
    if options:
        assert run.stderr == ""
    else:
        assert_states(run.stderr.splitlines()[0], "org/name", hub.url, "wait 1 s")


@pytest.mark.slow  # it waits
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("fault", [Fault(silent=True), Fault(slow=True)], ids=["silent", "slow"])
def test_a_server_that_never_answers_is_given_up(
    fault: Fault, file: str, hub: Hub, impatient: Command, tmp_path: Path
) -> None:
    """After six time-outs in a row; huggingface_hub downloads a file of weights only once."""
    hub.repositories["org/name"] = write_single(tmp_path / "remote")
    hub.faults[file] = fault
    run = impatient("score", "org/name")
    silent = hub.storage_url if fault.slow and file == "model.safetensors" else hub.url
    assert_one_line(run, NetworkError, ["org/name: ", silent])
    if file == "config.json" and fault.silent:
        waited = re.search(r"not answered for (\d+) seconds", run.stderr)
        assert waited is not None
        assert 3 <= int(waited[1]) < 10


@pytest.mark.parametrize(
    "fault",
    [
        {"commit": "../.."},
        {"commit": "x" * 5000},
        {"commit": COMMIT[:12]},
        {"announce": lambda _: "../../../up"},
        {"linked": "../../../up"},
    ],
)
def test_a_name_that_would_leave_the_cache_is_refused(
    fault: dict[str, Any], hub: Hub, connected: Command, tmp_path: Path
) -> None:
    hub.repositories["org/name"] = write_single(tmp_path / "remote")
    hub.faults["config.json"] = Fault(**fault)
    before = sorted(tmp_path.rglob("*"))
    assert_one_line(connected("score", "org/name"), NetworkError, ["org/name: ", hub.url])
    assert sorted(path for path in tmp_path.rglob("*") if "home" not in path.parts) == before
    assert not list((tmp_path / "home").rglob("up"))


# What is wrong with a small file → the fault, the error, and facts of its message.
EXCESSES: dict[str, tuple[Fault, type[AttnGeoError], tuple[str, ...]]] = {
    "endless": (Fault(endless=True), CorruptCheckpointError, ("config.json", "10,000 bytes")),
    "large": (Fault(change=lambda text: text + b" " * 20_000), CorruptCheckpointError, ("config.json", "10,000 bytes")),
    "compressed": (Fault(encoding="gzip"), NetworkError, ("config.json", "compressed")),
    "headers that drip": (Fault(drip=True), NetworkError, ("bytes in 0 seconds",)),
}


@pytest.mark.parametrize("case", EXCESSES)
def test_what_a_server_sends_has_a_budget(
    case: str, here: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of bytes and of time; it is checked while they come, and nothing of them stays in the cache.

    Headers are read below what is public: `_transport`, `_mounts` and `_pool` of httpx2 2, `_network_backend` of
    httpcore2 2.
    """
    fault, error, facts = EXCESSES[case]
    monkeypatch.setattr(files, "MOST_CONFIG_BYTES", 10_000)
    monkeypatch.setattr(patience, "MOST_TIMEOUTS", 0.3)
    here.repositories["org/name"] = write_single(tmp_path / "remote")
    here.faults["config.json"] = fault
    with refuses(error, "org/name", *facts):
        library.score("org/name")
    assert here.sent["endless"] <= 50_000_000
    assert [*(tmp_path / "hub").rglob("config.json"), *(tmp_path / "hub").rglob("blobs/*")] == []


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_weights_that_are_downloaded_have_their_announced_size(
    suffix: str, here: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = here.repositories["org/name"] = write_single(tmp_path / "remote")
    file = f"pytorch_model.{suffix}" if suffix == "bin" else "model.safetensors"
    if suffix == "bin":
        (folder / "model.safetensors").rename(folder / file)
    monkeypatch.setattr(StorageHandler, "answer", lambda self: self.write_endlessly({}))
    with refuses(NetworkError, "org/name", file, f"{(folder / file).stat().st_size:,} bytes"):
        library.score("org/name", download=True)
    assert here.sent["endless"] <= 50_000_000


def test_a_list_of_revisions_has_a_budget(here: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "MOST_LISTING_BYTES", 10_000)
    monkeypatch.setattr(HubHandler, "list_refs", lambda self, _: self.write_endlessly({"X-Repo-Commit": COMMIT}))
    with refuses(CorruptCheckpointError, "org/name", here.url, "10,000 bytes"):
        Repository(ModelRef.parse("org/name"), HubAccess()).list_revisions()


def test_weights_of_another_commit_are_refused_when_they_are_downloaded(here: Hub, tmp_path: Path) -> None:
    here.repositories["org/name"] = write_single(tmp_path / "remote")
    here.faults["model.safetensors"] = Fault(commit=V1_COMMIT)
    with refuses(NetworkError, "org/name", V1_COMMIT, COMMIT):
        library.score("org/name", download=True)


@pytest.mark.parametrize("misdeed", ["busy", "gone", "loop", "drop"])
def test_signed_addresses_are_not_shown(
    misdeed: Any, here: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    here.repositories["org/name"] = write_single(tmp_path / "remote")
    here.faults["model.safetensors"] = Fault(storage=misdeed)
    with pytest.raises(ModelUnavailableError) as refused:
        library.score("org/name", download=True)
    assert "org/name" in str(refused.value)
    assert "signed" not in f"{refused.value} {caplog.text}"
    assert ("downloading from" in caplog.text) == (misdeed == "drop")


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_refused_access_is_no_lack_of_a_network(status: int, file: str, here: Hub, tmp_path: Path) -> None:
    here.repositories["org/name"] = write_single(tmp_path / "remote")
    here.faults[file] = Fault(status=status, headers={"X-Error-Code": "Forbidden"})
    with refuses(AccessError, "org/name", status, "HF_TOKEN"):
        library.score("org/name")


def test_weights_in_a_folder_have_the_configuration_and_the_shards_beside_them(here: Hub, tmp_path: Path) -> None:
    """The shards of the repository itself have the same names, and other weights."""
    folder = here.repositories["org/name"] = write_sharded(tmp_path / "remote")
    part = write_sharded(folder / "part")
    for path in part.glob("*.safetensors"):
        save_file({name: tensor + 1 for name, tensor in load_file(path).items()}, path)
    write_config(part, CONFIG | {"model_type": "mistral"})
    expected = library.score(part)
    frame = library.score("org/name/part/model.safetensors.index.json")
    assert frame["model_type"].unique().tolist() == ["mistral"]
    assert frame["symmetry"].tolist() == pytest.approx(expected["symmetry"].tolist())
    (part / "config.json").unlink()
    here.repositories["org/other"] = folder
    assert library.score("org/other/part/model.safetensors.index.json")["model_type"].unique().tolist() == ["llama"]


def test_the_first_part_of_a_model_by_meta_is_no_whole_one(here: Hub, tmp_path: Path) -> None:
    """One more request tells; the second part says by its own name what it is."""
    state = load_file(write_single(tmp_path / "whole") / "model.safetensors")
    for name, count in (("org/whole", 1), ("org/split", 2)):
        folder = here.repositories[name] = tmp_path / name
        original = write_config(folder / "original")
        for number in range(count):
            torch.save(state, original / f"consolidated.0{number}.pth")
    assert len(library.score("org/whole/original/consolidated.00.pth")) == 2
    facts = ("consolidated.00.pth", "original/consolidated.01.pth", "parts", "joins", "download all parts")
    with refuses(UnsupportedModelError, *facts):
        library.score("org/split/original/consolidated.00.pth")


def test_a_repository_of_sentence_transformers_has_its_model_in_another_folder(here: Hub, tmp_path: Path) -> None:
    folder = here.repositories["org/name"] = tmp_path / "remote"
    write_single(folder / "0_Transformer")
    modules = [
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    with refuses(CorruptCheckpointError, "no config.json", "org/name/0_Transformer/model.safetensors"):
        library.score("org/name")
    assert Counter(request.file for request in here.requests)["modules.json"] <= 2  # its head, and its content
    assert len(library.score("org/name/0_Transformer/model.safetensors")) == 2


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[1]", "[{}]", '[{"type": 1, "path": 2}]', '[{"type": "x.Transformer", "path": ""}]',
     '[{"type": "x.Transformer", "path": "../other"}]', '[{"type": "x.Transformer", "path": ["0"]}]', "[" * 5000],
)  # fmt: skip
def test_modules_of_a_repository_that_say_nothing_change_no_message(content: str, here: Hub, tmp_path: Path) -> None:
    folder = here.repositories["org/name"] = tmp_path / "remote"
    folder.mkdir()
    (folder / "modules.json").write_text(content)
    with refuses(CorruptCheckpointError, "no config.json") as caught:
        library.score("org/name")
    assert "modules" not in str(caught.value)


@pytest.mark.parametrize("status", [301, 307])
def test_a_repository_that_was_renamed_is_read_by_its_old_name(status: int, here: Hub, tmp_path: Path) -> None:
    """The Hub answers with the address under the new name."""
    here.repositories["new/name"] = write_sharded(tmp_path / "remote")
    here.renamed["old/name"] = ("new/name", status)
    renamed = library.score("old/name")
    pd.testing.assert_frame_equal(
        renamed.drop(columns="model"), library.score("new/name", fresh=True).drop(columns="model")
    )
    assert set(renamed["model"]) == {"old/name"}


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_certificates_that_cannot_be_read_are_named(
    content: str | None, hub: Hub, connected: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["org/name"] = write_single(tmp_path / "remote")
    path = tmp_path / "own.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    run = connected("score", "org/name")
    assert_one_line(run, NetworkError, ["org/name: ", "SSL_CERT_FILE", str(path), "correct it"])
    assert "try again" not in run.stderr
    assert not hub.requests
    assert connected("score", "org/name", "--offline").stderr.count("SSL_CERT_FILE") == 0
    monkeypatch.delenv("SSL_CERT_FILE")
    assert connected("score", "org/name").returncode == 0


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("address", ["bogus://user:secret@host:1", "socks5://host:1"])
def test_a_proxy_that_cannot_be_used_is_named(
    variable: str, address: str, hub: Hub, connected: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an unknown kind, or of one that requires a package."""
    if address.startswith("socks5") and find_spec("socksio") is not None:
        pytest.skip("its package is installed")
    monkeypatch.setenv(variable, address)
    huggingface_hub.close_session()  # a client of an earlier test has read the variables of then
    run = connected("score", "org/name")
    assert_one_line(run, NetworkError, ["org/name: ", variable.upper(), "unset it"])
    assert "secret" not in run.stderr
    assert "HF_ENDPOINT" not in run.stderr
    assert not hub.requests


def test_a_note_says_which_files_were_compared_with_their_index(here: Hub, tmp_path: Path) -> None:
    """Only those that hold queries and keys are opened; another one might hold them again."""
    here.repositories["org/name"] = write_sharded(tmp_path / "remote")
    notes = library.score("org/name")["note"]
    assert notes.str.contains("2 of 3 weight files compared with their index").all()
    assert {request.file for request in here.stored} == {
        f"model-0000{number}-of-00003.safetensors" for number in (2, 3)
    }
    assert not library.score(tmp_path / "remote")["note"].fillna("").str.contains("index").any()
