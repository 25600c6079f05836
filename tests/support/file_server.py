"""A server of files on 127.0.0.1, in the place of one that data is downloaded from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple


class Answer(NamedTuple):
    """What the server sends. length: what it announces, if that is not the length of the content."""

    content: bytes
    length: int | None = None


@contextmanager
def serve(answer: Callable[[str], Answer | None]) -> Iterator[str]:
    """The address of a server. answer: is called with the path of each request; None is status 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answer(self.path)
            content, length = found or Answer(b"")
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(content) if length is None else length))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = Thread(target=running.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()
