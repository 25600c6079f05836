"""A stand-in for the Hugging Face Hub on 127.0.0.1: enough of its protocol for huggingface_hub to download a model."""

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

COMMIT = "0123456789abcdef0123456789abcdef01234567"
RESOLVE = re.compile(r"/(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


@dataclass
class Hub:
    """What the server has, and what was asked of it: `requests` are (method, file, range, authorization)."""

    url: str = ""
    repositories: dict[str, Path] = field(default_factory=dict)
    gated: dict[str, str] = field(default_factory=dict)
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

        def do_HEAD(self) -> None:
            self.answer(send_body=False)

        def do_GET(self) -> None:
            self.answer(send_body=True)

        def answer(self, *, send_body: bool) -> None:
            found = RESOLVE.fullmatch(self.path.partition("?")[0])
            if found is None:
                return self.refuse(404, "RepoNotFound")
            repo, file = found["repo"], found["file"]
            part, token = self.headers.get("Range"), self.headers.get("Authorization")
            hub.requests.append((self.command, file, part, token))
            if repo not in hub.repositories:
                return self.refuse(401, "RepoNotFound")
            if repo in hub.gated and token != f"Bearer {hub.gated[repo]}":
                return self.refuse(401 if token is None else 403, "GatedRepo")
            if found["revision"] not in ("main", "v1", COMMIT):
                return self.refuse(404, "RevisionNotFound")
            path = hub.repositories[repo] / file
            if not path.is_file():
                return self.refuse(404, "EntryNotFound")
            return self.send(path.read_bytes(), part, send_body=send_body)

        def send(self, body: bytes, part: str | None, *, send_body: bool) -> None:
            self.send_response(206 if part else 200)
            if part:
                first, last = (int(n) for n in part.removeprefix("bytes=").split("-"))
                self.send_header("Content-Range", f"bytes {first}-{min(last, len(body) - 1)}/{len(body)}")
                body = body[first : last + 1]
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if send_body:
                self.wfile.write(body)

        def refuse(self, status: int, code: str) -> None:
            body = json.dumps({"error": code}).encode()
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Repo-Commit", COMMIT)
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
