"""A stand-in for the Hugging Face Hub on 127.0.0.1: enough of its protocol to read models and data sets.

Branches of a repository are repositories named `org/name@branch`, whose commits `branches` lists.

As on the Hub, large files are on a second server, to which the first one redirects with an address that is signed for
some time. A data set is a repository named `datasets/org/name`; another one at its tag v1 may be given as
`datasets/org/name@v1`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
V1_COMMIT = COMMIT[::-1]
RESOLVE = re.compile(r"/(?P<repo>(?:datasets/)?[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
LIST = re.compile(
    r"/api/(?:models/)?(?P<repo>(?:datasets/)?[^/]+/[^/]+)(?:/(?P<what>revision|tree)/(?P<revision>[^/]+)(?:/(?P<folder>.+))?)?"
)
REFS = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/refs")
# The names of files that git-LFS keeps.
LARGE = (".safetensors", ".bin", ".gguf")
CHUNK = 1 << 16
ENDLESS = 100_000_000

# What the server of large files may do. drop: close the connection after half of the content. stall: stop there. short:
# announce and send half. long: send more. whole: send all of the file. shifted: send the bytes that come next, and say
# so. unnamed: do not say which. gone: refuse the address. loop: redirect to itself. lost: redirect to no address. busy:
# refuse with status 503.
Misdeed = Literal["", "drop", "stall", "short", "long", "whole", "shifted", "unnamed", "gone", "loop", "lost", "busy"]


def sha256(content: bytes) -> str:
    """The hash that the Hub announces for a large file."""
    return hashlib.sha256(content).hexdigest()


@dataclass
class Fault:
    """What is wrong with the answers for one file, for the first `times` requests, or for all if that is None.

    silent: there is none. slow: it is sent byte by byte. drip: so are its headers. endless: its content has no end, and
    no stated length. encoding: that is stated. status, headers: of a refusal by the Hub. change: of the
    content. announce: the ETag of the unchanged content. linked: that of a file in another place. commit: that is named
    instead. storage: what the server of large files does; `headers` are those of its status 503, too.
    """

    silent: bool = False
    slow: bool = False
    drip: bool = False
    endless: bool = False
    encoding: str = ""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    times: int | None = None
    change: Callable[[bytes], bytes] = bytes
    announce: Callable[[bytes], str] = sha256
    linked: str = ""
    commit: str = ""
    storage: Misdeed = ""

    def take(self) -> bool:
        """Whether this request is one of those that are answered wrong."""
        if self.times is None or self.times == 0:
            return self.times is None
        self.times -= 1
        return True


class Request(NamedTuple):
    """A request: its method, the file that it is for, its range and its authorization."""

    method: str
    file: str
    part: str | None
    token: str | None


@dataclass
class Hub:
    """What the servers offer, and what they have been asked.

    requests, stored: of the Hub, and of the server of large files. listed: revisions whose files the Hub has listed.
    sent: file → its bytes, if large. uses: how many requests the address of a large file is good for, None for any
    number. latency: seconds before each
    answer. bandwidth: bytes per second and connection of the server of large files, 0 for any. capped: which of its
    connections, by number, have a tenth of that. busy, busiest: how many requests are being answered, and the most that
    there were. held: which requests for a large file have no answer.
    """

    url: str = ""
    storage_url: str = ""
    repositories: dict[str, Path] = field(default_factory=dict)
    gated: dict[str, str] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    stored: list[Request] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    # File → the fault of its answer, if it has one.
    faults: dict[str, Fault] = field(default_factory=dict)
    uses: int | None = None
    latency: float = 0
    bandwidth: float = 0
    capped: Callable[[int], bool] = lambda _: False
    connections: Iterator[int] = field(default_factory=count)
    busy: int = 0
    busiest: int = 0
    addresses: Counter[str] = field(default_factory=Counter)
    held: Callable[[Request], bool] = lambda _: False
    closing: threading.Event = field(default_factory=threading.Event)
    # Path → headers and body of an answer in place of the right one, and how often each path of the API was asked for.
    answers: dict[str, tuple[dict[str, str], bytes]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    # The packings that requests accept.
    accepted: set[str | None] = field(default_factory=set)
    # Repository → the name that it has now, and the status by which the Hub says so.
    renamed: dict[str, tuple[str, int]] = field(default_factory=dict)
    # Repository → branch → its commit, beside main.
    branches: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def downloaded(self) -> list[str]:
        """The files whose whole content was sent."""
        small = [each for each in self.requests if not each.file.endswith(LARGE)]
        return [file for method, file, part, _ in (*small, *self.stored) if method == "GET" and part is None]


@contextmanager
def serve() -> Iterator[Hub]:
    """Two running servers; they stop when the block ends."""
    hub = Hub()
    handlers = [type(each.__name__, (each,), {"hub": hub}) for each in (HubHandler, StorageHandler)]
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in handlers]
    hub.url, hub.storage_url = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


class Handler(BaseHTTPRequestHandler):
    """What both servers do."""

    protocol_version = "HTTP/1.1"
    # Else a small answer, whose headers and content are written apart, waits 40 ms for the client's acknowledgement.
    disable_nagle_algorithm = True
    hub: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.hub.accepted.add(self.headers.get("Accept-Encoding"))
        self.hub.busy += 1
        self.hub.busiest = max(self.hub.busiest, self.hub.busy)
        try:
            time.sleep(self.hub.latency)
            self.answer()
        finally:
            self.hub.busy -= 1

    def answer(self) -> None:
        raise NotImplementedError

    def reply(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        """One answer; Content-Length is that of the body unless it is given."""
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def cut(self, content: bytes | mmap) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the range that is asked for."""
        part = self.headers.get("Range")
        if part is None:
            return 200, {}, content[:]
        first, last = (int(n or len(content)) for n in part.removeprefix("bytes=").split("-"))
        stated = f"bytes {first}-{min(last, len(content) - 1)}/{len(content)}"
        return 206, {"Content-Range": stated}, content[first : last + 1]

    def request_for(self, file: str) -> Request:
        return Request(self.command, file, self.headers.get("Range"), self.headers.get("Authorization"))

    def write_slowly(self, body: bytes) -> None:
        for byte in body:
            if self.hub.closing.wait(0.1):
                return
            self.wfile.write(bytes([byte]))

    def write_endlessly(self, headers: Mapping[str, str], status: int = 200) -> None:
        """Chunks until the client is gone, or a hundred megabytes: `sent` counts them as "endless"."""
        self.send_response(status)
        for name, value in (headers | {"Transfer-Encoding": "chunked"}).items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        with suppress(ConnectionError):
            while self.hub.sent["endless"] < ENDLESS:
                self.wfile.write(b"%x\r\n%s\r\n" % (CHUNK, b" " * CHUNK))
                self.hub.sent["endless"] += CHUNK

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class HubHandler(Handler):
    """The Hub: repositories, lists of files, small files, and the addresses of large ones."""

    commit = COMMIT

    def answer(self) -> None:
        address = unquote(self.path.partition("?")[0])
        self.hub.asked[address] += 1
        if address in self.hub.answers:
            return self.reply(200, *self.hub.answers[address])
        for old, (name, status) in self.hub.renamed.items():
            if f"/{old}/" in address:
                return self.reply(status, {"Location": self.path.replace(old, name, 1)})
        return self.answer_for(address)

    def answer_for(self, address: str) -> None:
        self.commit, hub = COMMIT, self.hub
        found = RESOLVE.fullmatch(address)
        if refs := REFS.fullmatch(address):
            return self.list_refs(refs["repo"])
        listed = None if found else LIST.fullmatch(address)
        if found is None and listed is None:
            return self.refuse(404, "RepoNotFound")
        repo, revision = (found or listed).group("repo", "revision")  # type: ignore[union-attr]
        revision = revision or "main"
        token = self.headers.get("Authorization")
        if found is not None:
            hub.requests.append(self.request_for(found["file"]))
        if repo not in hub.repositories:
            return self.refuse(401, "RepoNotFound")
        if repo in hub.gated and token != f"Bearer {hub.gated[repo]}":
            return self.refuse(401 if token is None else 403, "GatedRepo")
        branches = hub.branches.get(repo, {})
        if revision not in ("main", "v1", COMMIT, V1_COMMIT, *branches, *branches.values()):
            return self.refuse(404, "RevisionNotFound")
        tagged = revision in ("v1", V1_COMMIT) and f"{repo}@v1" in hub.repositories
        self.commit = V1_COMMIT if tagged else COMMIT
        key = f"{repo}@v1" if tagged else repo
        for branch, commit in branches.items():
            if revision in (branch, commit):
                self.commit, key = commit, f"{repo}@{branch}"
        if listed is not None:
            hub.listed.append(f"{repo}@{revision}")
            return self.list(hub.repositories[key], listed["what"], listed["folder"] or "", repo)
        return self.resolve(key, found["file"])  # type: ignore[index]

    def list_refs(self, repo: str) -> None:
        """The answer for HfApi.list_repo_refs."""
        if repo not in self.hub.repositories:
            return self.refuse(401, "RepoNotFound")
        branches = {"main": COMMIT} | self.hub.branches.get(repo, {})
        tags = {"v1": V1_COMMIT} if f"{repo}@v1" in self.hub.repositories else {}
        answer = {
            key: [{"name": name, "ref": f"refs/{what}/{name}", "targetCommit": commit} for name, commit in of.items()]
            for key, what, of in (("branches", "heads", branches), ("tags", "tags", tags))
        } | {"converts": [{"name": "parquet", "ref": "refs/convert/parquet", "targetCommit": COMMIT}]}
        return self.reply(200, {}, json.dumps(answer).encode())

    def resolve(self, key: str, file: str) -> None:
        """A small file, or the address of a large one."""
        path, fault = self.hub.repositories[key] / file, self.hub.faults.get(file, Fault())
        if not path.is_file():
            return self.refuse(404, "EntryNotFound")
        if fault.silent:
            self.hub.closing.wait()
            return None
        if fault.status and fault.take():
            return self.refuse(fault.status, "Busy", fault.headers)
        self.commit = fault.commit or self.commit
        content = read_content(path, fault)
        known = fault.announce is sha256
        etag = hash_large(path, path.stat().st_mtime_ns) if known else fault.announce(path.read_bytes())
        if not file.endswith(LARGE):
            status, headers, body = self.cut(content)
            headers |= {"X-Repo-Commit": self.commit, "ETag": f'"{etag}"'}
            if fault.linked:
                headers["X-Linked-Etag"] = f'"{fault.linked}"'
            if fault.encoding and self.command == "GET":
                headers["Content-Encoding"] = fault.encoding
            if fault.drip:
                return self.write_slowly(b"HTTP/1.1 200 OK\r\nX-Padding: " + b"x" * 10_000)
            if fault.endless and self.command == "GET":
                return self.write_endlessly(headers)
            if not fault.slow:
                return self.reply(status, headers, body)
            self.reply(status, headers | {"Content-Length": str(len(body))})
            return self.write_slowly(body if self.command == "GET" else b"")
        self.hub.addresses["issued"] += 1
        number = self.hub.addresses["issued"]
        return self.reply(
            302,
            {
                "X-Repo-Commit": self.commit, "ETag": '"0123"', "X-Linked-Etag": f'"{fault.linked or etag}"',
                "X-Linked-Size": str(len(content)),
                "Location": f"{self.hub.storage_url}/{quote(key)}/{quote(file, safe='')}?signed={number}",
            },
            b"Found",
        )  # fmt: skip

    def list(self, root: Path, what: str | None, folder: str, repo: str) -> None:
        """The answers for HfApi.model_info, HfApi.dataset_info and HfApi.list_repo_tree."""
        paths = sorted((root / folder).rglob("*"))
        if what != "tree":
            siblings = [{"rfilename": path.relative_to(root).as_posix()} for path in paths if path.is_file()]
            answer: object = {"id": repo.removeprefix("datasets/"), "sha": self.commit, "siblings": siblings}
        elif not paths:
            return self.refuse(404, "EntryNotFound")
        else:
            deep = "recursive=true" in self.path.lower()
            answer = [describe(path, root) for path in paths if deep or path.parent == root / folder]
        return self.reply(200, {"X-Repo-Commit": self.commit}, json.dumps(answer).encode())

    def refuse(self, status: int, code: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        own = {"X-Error-Code": code, "X-Repo-Commit": self.commit}
        self.reply(status, own | dict(headers), json.dumps({"error": code}).encode())


def describe(path: Path, root: Path) -> dict[str, object]:
    """One entry of the tree of a repository."""
    entry: dict[str, object] = {"path": path.relative_to(root).as_posix(), "type": "directory", "oid": "0" * 40}
    if path.is_dir():
        return entry | {"size": 0}
    content = path.read_bytes()
    of_git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry |= {"type": "file", "size": len(content), "oid": of_git}
    if path.name.endswith(LARGE):
        entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 130}
    return entry


@cache
def hash_large(path: Path, changed: int) -> str:  # noqa: ARG001 - a part of the key
    """The hash that the Hub knows, since it was given the file."""
    return sha256(path.read_bytes())


def read_content(path: Path, fault: Fault) -> bytes | mmap:
    """The content of a file; of one that no fault changes, only the parts that are sent are read."""
    if fault.change is not bytes or not path.stat().st_size:
        return fault.change(path.read_bytes())
    with path.open("rb") as file:
        return mmap(file.fileno(), 0, access=ACCESS_READ)


class StorageHandler(Handler):
    """The server of large files."""

    def setup(self) -> None:
        super().setup()
        self.bandwidth = self.hub.bandwidth * (0.1 if self.hub.capped(next(self.hub.connections)) else 1)

    def answer(self) -> None:
        hub, (address, _, query) = self.hub, self.path.partition("?")
        key, file = map(unquote, address.removeprefix("/").rsplit("/", 1))
        hub.stored.append(self.request_for(file))
        hub.addresses[query] += 1
        if hub.held(hub.stored[-1]):
            hub.closing.wait()
            return None
        fault = hub.faults.get(file, Fault())
        misdeed = fault.storage if fault.storage and fault.take() else ""
        expired = hub.uses is not None and hub.addresses[query] > hub.uses
        if misdeed == "gone" or expired:
            return self.reply(403, {}, b"Request has expired")
        if misdeed == "loop":
            return self.reply(302, {"Location": self.path})
        if misdeed == "lost":
            return self.reply(302, {"Location": "http://[::1"})
        if misdeed == "busy":
            return self.reply(503, fault.headers)
        content = read_content(hub.repositories[key] / file, fault)
        if misdeed == "whole":
            return self.send(file, 200, {}, content[:])
        status, headers, body = self.cut(content)
        if fault.slow:
            self.reply(status, headers | {"Content-Length": str(len(body))})
            return self.write_slowly(body)
        return self.send_part(misdeed, file, status, headers, body)

    def send_part(self, misdeed: str, file: str, status: int, headers: dict[str, str], body: bytes) -> None:
        half = body[: len(body) // 2]
        if misdeed == "unnamed":
            del headers["Content-Range"]
        if misdeed == "shifted":
            headers["Content-Range"] = re.sub(r"\d+", lambda n: str(int(n[0]) + 1), headers["Content-Range"], count=2)
        if misdeed in ("drop", "stall"):
            self.send(file, status, headers | {"Content-Length": str(len(body))}, half)
            if misdeed == "stall":
                self.hub.closing.wait()
            self.close_connection = True
            return
        sent = {"short": half, "long": body + bytes(100)}.get(misdeed, body)
        self.send(file, status, headers, sent)

    def send(self, file: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.reply(status, {"Content-Length": str(len(body))} | dict(headers))
        started = time.monotonic()
        for at in range(0, len(body) if self.command == "GET" else 0, CHUNK):
            chunk = body[at : at + CHUNK]
            if self.bandwidth:
                time.sleep(max(0, started + at / self.bandwidth - time.monotonic()))
            try:
                self.wfile.write(chunk)
            except ConnectionError:  # the client has dropped it
                self.close_connection = True
                return
            self.hub.sent[file] += len(chunk)
