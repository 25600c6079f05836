"""A stand-in for the Hugging Face Hub on 127.0.0.1: enough of its protocol to download models and data sets.

A data set is a repository named `datasets/org/name`; another one at its tag v1 may be given as `datasets/org/name@v1`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
V1_COMMIT = COMMIT[::-1]
RESOLVE = re.compile(r"/(?P<repo>(?:datasets/)?[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
LIST = re.compile(
    r"/api/(?:models/)?(?P<repo>(?:datasets/)?[^/]+/[^/]+)(?:/(?P<what>revision|tree)/(?P<revision>[^/]+)(?:/(?P<folder>.+))?)?"
)


def sha256(content: bytes) -> str:
    """The hash that the Hub announces for a large file."""
    return hashlib.sha256(content).hexdigest()


def git_hash(content: bytes) -> str:
    """The hash that the Hub announces for a small file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Fault:
    """What is wrong with the answers for one file.

    silent: there is none. slow: it is sent byte by byte. status, headers: of a refusal, for the first `times` requests,
    or for all if that is None. change: of the content. announce: the ETag of the unchanged content. linked: that of a
    file in another place. commit: that is named instead.
    """

    silent: bool = False
    slow: bool = False
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    times: int | None = None
    change: Callable[[bytes], bytes] = bytes
    announce: Callable[[bytes], str] = sha256
    linked: str = ""
    commit: str = ""


@dataclass
class Hub:
    """What the server offers, and the requests it got, as (method, file, range, authorization)."""

    url: str = ""
    repositories: dict[str, Path] = field(default_factory=dict)
    gated: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)
    # File → the fault of its answer, if it has one.
    faults: dict[str, Fault] = field(default_factory=dict)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def downloaded(self) -> list[str]:
        """The files whose whole content was sent."""
        return [file for method, file, part, _ in self.requests if method == "GET" and part is None]


@contextmanager
def serve() -> Iterator[Hub]:  # noqa: C901 - the handler closes over the hub
    """A running server; it stops when the block ends."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        commit = COMMIT

        def do_HEAD(self) -> None:
            self.answer(send_body=False)

        def do_GET(self) -> None:
            self.answer(send_body=True)

        def answer(self, *, send_body: bool) -> None:
            address, self.commit = unquote(self.path.partition("?")[0]), COMMIT
            found = RESOLVE.fullmatch(address)
            listed = None if found else LIST.fullmatch(address)
            if found is None and listed is None:
                return self.refuse(404, "RepoNotFound")
            repo, revision = (found or listed).group("repo", "revision")  # type: ignore[union-attr]
            revision = revision or "main"
            part, token = self.headers.get("Range"), self.headers.get("Authorization")
            if found is not None:
                hub.requests.append((self.command, found["file"], part, token))
            if repo not in hub.repositories:
                return self.refuse(401, "RepoNotFound")
            if repo in hub.gated and token != f"Bearer {hub.gated[repo]}":
                return self.refuse(401 if token is None else 403, "GatedRepo")
            if revision not in ("main", "v1", COMMIT, V1_COMMIT):
                return self.refuse(404, "RevisionNotFound")
            tagged = revision in ("v1", V1_COMMIT) and f"{repo}@v1" in hub.repositories
            folder = hub.repositories[f"{repo}@v1" if tagged else repo]
            self.commit = V1_COMMIT if tagged else COMMIT
            if listed is not None:
                return self.list(folder, listed["what"], listed["folder"] or "", repo)
            path = folder / found["file"]  # type: ignore[index]
            if not path.is_file():
                return self.refuse(404, "EntryNotFound")
            fault = hub.faults.get(found["file"], Fault())  # type: ignore[index]
            if fault.silent:
                hub.closing.wait()
                return None
            if fault.status and (fault.times is None or fault.times > 0):
                fault.times = None if fault.times is None else fault.times - 1
                return self.refuse(fault.status, "Busy", fault.headers)
            self.commit = fault.commit or self.commit
            content = path.read_bytes()
            etag, body = fault.announce(content), fault.change(content)
            return self.send(body, part, send_body=send_body, etag=etag, linked=fault.linked, slow=fault.slow)

        def list(self, root: Path, what: str | None, folder: str, repo: str) -> None:
            """The answers for HfApi.dataset_info and HfApi.list_repo_tree. The tree is always the whole one."""
            if what != "tree":
                answer: object = {"id": repo.removeprefix("datasets/"), "sha": self.commit, "siblings": []}
            else:
                paths = sorted((root / folder).rglob("*"))
                if not paths:
                    return self.refuse(404, "EntryNotFound")
                answer = [
                    {"path": path.relative_to(root).as_posix(), "type": "file" if path.is_file() else "directory",
                     "oid": "0" * 40, "size": path.stat().st_size}
                    for path in paths
                    if "recursive=true" in self.path.lower() or path.parent == root / folder
                ]  # fmt: skip
            return self.send(json.dumps(answer).encode(), None, send_body=True)

        def send(
            self, body: bytes, part: str | None, *, send_body: bool, etag: str = "none", linked: str = "",
            slow: bool = False,
        ) -> None:  # fmt: skip
            self.send_response(206 if part else 200)
            if part:
                first, last = (int(n or len(body)) for n in part.removeprefix("bytes=").split("-"))
                self.send_header("Content-Range", f"bytes {first}-{min(last, len(body) - 1)}/{len(body)}")
                body = body[first : last + 1]
            self.send_header("X-Repo-Commit", self.commit)
            self.send_header("ETag", f'"{etag}"')
            if linked:
                self.send_header("X-Linked-Etag", f'"{linked}"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            while send_body and slow and body and not hub.closing.wait(0.1):
                self.wfile.write(body[:1])
                body = body[1:]
            if send_body:
                self.wfile.write(body)

        def refuse(self, status: int, code: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
            body = json.dumps({"error": code}).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Repo-Commit", self.commit)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
