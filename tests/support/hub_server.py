"""A stand-in for the Hugging Face Hub on 127.0.0.1: enough of its protocol to download models and data sets.

A data set is a repository named `datasets/org/name`; another one at its tag v1 may be given as `datasets/org/name@v1`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
V1_COMMIT = COMMIT[::-1]
RESOLVE = re.compile(r"/(?P<repo>(?:datasets/)?[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
LIST = re.compile(
    r"/api/(?:models/)?(?P<repo>(?:datasets/)?[^/]+/[^/]+)(?:/(?P<what>revision|tree)/(?P<revision>[^/]+)(?:/(?P<folder>.+))?)?"
)


@dataclass
class Hub:
    """What the server offers, and the requests it got, as (method, file, range, authorization)."""

    url: str = ""
    repositories: dict[str, Path] = field(default_factory=dict)
    gated: dict[str, str] = field(default_factory=dict)
    commit: str | None = None  # what it states instead of its commit
    requests: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)

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
            return self.send(path.read_bytes(), part, send_body=send_body)

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

        def send(self, body: bytes, part: str | None, *, send_body: bool) -> None:
            self.send_response(206 if part else 200)
            if part:
                first, last = (int(n or len(body)) for n in part.removeprefix("bytes=").split("-"))
                self.send_header("Content-Range", f"bytes {first}-{min(last, len(body) - 1)}/{len(body)}")
                body = body[first : last + 1]
            self.send_header("X-Repo-Commit", hub.commit or self.commit)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if send_body:
                self.wfile.write(body)

        def refuse(self, status: int, code: str) -> None:
            body = json.dumps({"error": code}).encode()
            self.send_response(status)
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
        server.shutdown()
        server.server_close()
        thread.join()
