"""Lists of branches and files, as a server that is no Hub may answer: folded, endless, or of another form."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkpoints import write_single
from support.hub_client import reach_hub
from support.hub_server import COMMIT, Hub, HubHandler, serve
from support.messages import refuses

import attngeo as library
from attngeo.checkpoints import patience
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.hub import Repository
from attngeo.checkpoints.patience import MOST_LISTING_BYTES, MOST_LISTING_PAGES
from attngeo.checkpoints.reference import ModelRef
from attngeo.errors import CorruptCheckpointError, NetworkError, UsageError
from attngeo.studies.models import list_models
from attngeo.studies.revisions import MOST_REVISIONS, RevisionOptions, refuse_repeated_revisions

NAME = "org/name"
REFS = f"/api/models/{NAME}/refs"
TREE = f"/api/models/{NAME}/tree/main"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server with one repository, which this process uses."""
    with serve() as running:
        running.repositories[NAME] = write_single(tmp_path / "remote")
        reach_hub(running.url, tmp_path, monkeypatch)
        yield running


def open_repository() -> Repository:
    return Repository(ModelRef.parse(NAME), HubAccess())


def state_branches(*names: object) -> bytes:
    """The answer about branches of these names."""
    branches = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": COMMIT} for name in names]
    return json.dumps({"branches": branches, "tags": [], "converts": []}).encode()


def test_an_answer_is_counted_unpacked(hub: Hub) -> None:
    packed = gzip.compress(b" " * 64_000_000)
    hub.answers[REFS] = JSON | {"Content-Encoding": "gzip"}, packed
    hub.answers[TREE] = JSON | {"Content-Encoding": "deflate"}, zlib.compress(b" " * 64_000_000)
    tracemalloc.start()
    with refuses(CorruptCheckpointError, NAME, f"{MOST_LISTING_BYTES:,} bytes"):
        open_repository().list_revisions()
    with refuses(CorruptCheckpointError, NAME, f"{MOST_LISTING_BYTES:,} bytes"):
        open_repository().list_hashes()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(packed) < 100_000
    assert most < 5 * MOST_LISTING_BYTES


def test_a_packed_answer_that_is_short_is_read(hub: Hub) -> None:
    """Plain bytes were asked for; some servers do not care."""
    for packing, pack in (("gzip", gzip.compress), ("deflate", zlib.compress)):
        hub.answers[REFS] = JSON | {"Content-Encoding": packing}, pack(state_branches("main", "step1"))
        assert open_repository().list_revisions() == ["main", "step1"]


@pytest.mark.parametrize(("packing", "fact"), [("br", "compressed"), ("zstd", "compressed"), ("gzip", "gzip")])
def test_another_packing_is_refused(packing: str, fact: str, hub: Hub) -> None:
    hub.answers[REFS] = JSON | {"Content-Encoding": packing}, state_branches("main")
    with refuses(NetworkError, NAME, hub.url, fact):
        open_repository().list_revisions()


def test_every_request_asks_for_plain_bytes(hub: Hub) -> None:
    open_repository().list_revisions()
    open_repository().list_hashes()
    open_repository().pin()
    library.score(NAME)
    assert hub.accepted == {"identity"}


def test_a_list_of_300000_branches_is_too_long(hub: Hub) -> None:
    hub.answers[REFS] = JSON, state_branches(*range(300_000))
    with refuses(CorruptCheckpointError, NAME, f"{MOST_LISTING_BYTES:,} bytes"):
        open_repository().list_revisions()


@pytest.mark.parametrize("following", ["?cursor=2", "", "/api/models/org/name/tree/main?cursor=2"])
def test_pages_come_to_an_end(following: str, hub: Hub) -> None:
    hub.answers[TREE] = JSON | {"Link": f'<{hub.url}{TREE}{following.removeprefix(TREE)}>; rel="next"'}, b"[]"
    with refuses(NetworkError, NAME, hub.url, f"{MOST_LISTING_PAGES} pages"):
        open_repository().list_hashes()
    assert hub.asked[TREE] == MOST_LISTING_PAGES


def test_the_pages_of_a_list_are_counted_together(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "MOST_LISTING_BYTES", 50_000)
    hub.answers[TREE] = JSON | {"Link": f'<{hub.url}{TREE}?cursor=2>; rel="next"'}, b"[]" + b" " * 9_998
    with refuses(CorruptCheckpointError, NAME, "50,000 bytes"):
        open_repository().list_hashes()
    assert hub.asked[TREE] == 6
    hub.answers[TREE] = JSON, b"[]" + b" " * 9_998
    for _ in range(9):  # each is a list of its own
        assert open_repository().list_hashes() == {}


def test_a_redirection_has_a_budget(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "MOST_CONFIG_BYTES", 10_000)
    headers = {"Location": f"{hub.url}/elsewhere"}
    monkeypatch.setattr(HubHandler, "list_refs", lambda self, _: self.write_endlessly(headers, 302))
    with refuses(CorruptCheckpointError, NAME, hub.url, "10,000 bytes"):
        open_repository().list_revisions()
    assert hub.sent["endless"] <= 50_000_000


# Bodies that are JSON, and no answer of the Hub.
BODIES = [
    b"[]", b"null", b'"text"', b"1", b"{}", b'{"branches": null}', b'{"branches": {"a": 1}, "tags": []}',
    b'{"branches": [null], "tags": []}', b'{"branches": ["main"], "tags": []}', b'{"branches": [{}], "tags": []}',
    b"[" * 100_000, b"", b"\xff", b"<html>", state_branches(5), state_branches(None), state_branches(["main"]),
    state_branches("main", 1.5),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BODIES)))
def test_branches_of_another_form(number: int, hub: Hub) -> None:
    hub.answers[REFS] = JSON, BODIES[number]
    with refuses(NetworkError, NAME, hub.url, "does not answer like the Hub"):
        open_repository().list_revisions()


@pytest.mark.parametrize(
    "entry",
    [
        None, "text", 1, [], {"type": "file"}, {"type": "file", "path": 1, "oid": "0", "size": 1},
        {"type": "file", "path": "a", "oid": 1, "size": 1}, {"type": "file", "path": None, "oid": "0", "size": 1},
        {"type": "file", "path": "a", "oid": "0", "size": 1, "lfs": [1]},
        {"type": "file", "path": "a", "oid": "0", "size": 1, "lfs": {"size": 1, "oid": {}, "pointerSize": 1}},
    ],
)  # fmt: skip
def test_files_of_another_form(entry: object, hub: Hub) -> None:
    hub.answers[TREE] = JSON, json.dumps([entry]).encode()
    with refuses(NetworkError, NAME, hub.url, "does not answer like the Hub"):
        open_repository().list_hashes()


@pytest.mark.parametrize("body", [b"null", b"1", b'"text"', b'{"error": 1}', b"[" * 100_000])
def test_a_list_of_files_of_another_form(body: bytes, hub: Hub) -> None:
    hub.answers[TREE] = JSON, body
    with refuses(NetworkError, NAME, hub.url, "does not answer like the Hub"):
        open_repository().list_hashes()


def test_branches_with_5000_digits_are_sorted(hub: Hub) -> None:
    long = "step1" + "0" * 5000
    hub.answers[REFS] = JSON, state_branches("step12", long, "step3", "step03", "step1000", f"{long}0")
    expected = ["step03", "step3", "step12", "step1000", long, f"{long}0"]
    assert list_models([f"{NAME}@step*"]) == [f"{NAME}@{step}" for step in expected]


def test_more_revisions_are_asked_for_one_by_one_only_if_the_user_says_so(hub: Hub) -> None:
    hub.answers[REFS] = JSON, state_branches(*(f"step{number}" for number in range(MOST_REVISIONS + 1)))
    models = list_models([f"{NAME}@step*"])
    asked = hub.asked.total()
    with refuses(UsageError, NAME, "501 revisions", MOST_REVISIONS, "allow_repeats"):
        refuse_repeated_revisions(models, RevisionOptions())
    refuse_repeated_revisions(models, RevisionOptions(allow_repeats=True))
    assert hub.asked.total() == asked
    refuse_repeated_revisions(list_models([f"{NAME}@step1?"]), RevisionOptions())
    assert {path for path in hub.asked if "tree" in path} == {
        f"/api/models/{NAME}/tree/step1{digit}" for digit in range(10)
    }
