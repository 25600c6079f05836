"""RemoteFile: a file on the Hub of which only ranges are read.

The Hub answers a request for a file with the address of the server that has it, signed for some time. It is asked once
for each file, and again when the address has expired. A token is sent to the Hub's host only. Each answer is checked:
its range, its length and the size of the whole file. What a network breaks is asked for again, with growing waits.
Imports no torch.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # re-exported

from attngeo.bounds.machine import require_memory
from attngeo.checkpoints.patience import BUSY, ServerRules, apply_rules, read_wait, watch_clients
from attngeo.checkpoints.speed import PROGRESS, Speed, speeds
from attngeo.errors import CorruptCheckpointError, NetworkError, first_line

if TYPE_CHECKING:
    from torch import Tensor

    from attngeo.checkpoints.store import Extent

log = logging.getLogger(__name__)

# Requests for ranges in flight, of all files together, and bytes of one of them: more than enough to fill a line.
CONNECTIONS = 4
PART = 16 * 2**20
# Ranges are merged if the bytes between them are at most this share of theirs.
GAP = 0.01
# The first wait in seconds before what is broken is asked for again; each next one is twice as long.
FIRST_WAIT = 0.5
LONGEST_PAUSE = 8
# The statuses of answers: an address has expired, a range comes, the whole file comes.
EXPIRED = (401, 403, 404, 410)
PARTIAL = 206
WHOLE = 200
RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
# The most connections that are dropped for their speed, for one range.
MOST_DROPS = 8


@dataclass(frozen=True)
class Address:
    """Where a file is served. url: for some time. etag: of its content. headers: of each request for it."""

    url: str
    size: int
    etag: str
    headers: Mapping[str, str]


class _BrokenError(Exception):
    """An answer that may be right the next time. wait: the seconds that the server asks for, if it does."""

    def __init__(self, why: str, wait: int | None = None) -> None:
        super().__init__(why)
        self.wait = wait


class _ExpiredError(_BrokenError):
    """The address is not served any more."""


class _SlowError(_BrokenError):
    """The answer comes much more slowly than others."""


class _RefusedError(Exception):
    """An answer that will not be better the next time."""


@dataclass
class _Download:
    """A range that is being downloaded.

    offset: its first byte in the file. view: memory for all of it. rules: of its requests. done: bytes that have come.
    drops: connections that were given up for their speed.
    """

    offset: int
    view: memoryview
    rules: ServerRules
    done: int = 0
    drops: int = 0


# What is asked for again. A RuntimeError is that of a client which huggingface_hub has closed, after an error of
# another request.
REPEATED = (_BrokenError, httpx.RequestError, httpx.InvalidURL, RuntimeError)


class RemoteFile:
    """A file on the Hub; see `ByteSource`. Each request is of the content that the Hub named first.

    Args:
        where: the file, for errors and the log.
        look_up: asks the Hub for the file's address.
        retries: how often a range is asked for again.

    Raises:
        NetworkError: The server does not serve ranges, or not in the end.
    """

    lanes = CONNECTIONS

    def __init__(self, where: str, look_up: Callable[[], Address], retries: int) -> None:
        self.where = where
        self._look_up = look_up
        self._retries = retries
        self._address = look_up()
        self.size = self._address.size
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._renewing = threading.Lock()
        self._held: list[tuple[int, Tensor]] = []  # offset, bytes
        watch_clients()

    def read(self, offset: int, count: int, name: str) -> Tensor:
        """Bytes, uint8 [count], in new memory; see `ByteSource`."""
        if offset < 0 or offset + count > self.size:
            raise CorruptCheckpointError(f"ends inside tensor {name!r}")
        with self._lock:
            held = self._find_held(offset, count)
            if held is not None and len(held[1]) == count:  # large tensors are handed over, not copied
                self._held = [block for block in self._held if block is not held]
                return held[1]
        require_memory(count, f"tensor {name!r}")
        if held is None:
            return self._load([(offset, count)])[0][1]
        start, block = held
        return block[offset - start : offset - start + count].clone()

    def _find_held(self, offset: int, count: int) -> tuple[int, Tensor] | None:
        """The block in memory that has all bytes of a range."""
        for start, block in self._held:
            if start <= offset and offset + count <= start + len(block):
                return start, block
        return None

    @contextmanager
    def hold(self, extents: Iterable[Extent]) -> Iterator[None]:
        """Inside the block, these bytes are in memory, by as few requests as the ranges allow; see `ByteSource`."""
        merged = merge(self._clip(extent) for extent in extents)
        require_memory(sum(nbytes for _, nbytes in merged), "what is read at once")
        blocks = self._load(merged)
        with self._lock:
            self._held = [*self._held, *blocks]
        try:
            yield
        finally:
            with self._lock:
                self._held = [held for held in self._held if not any(held is block for block in blocks)]

    def _clip(self, extent: Extent) -> tuple[int, int]:
        """The part of a range that is inside the file."""
        offset = min(max(extent.offset, 0), self.size)
        return offset, max(min(extent.nbytes, self.size - offset), 0)

    def close(self) -> None:
        """Forget what is held, and end requests that wait."""
        self._held = []
        self._closed.set()

    def _load(self, extents: list[tuple[int, int]]) -> list[tuple[int, Tensor]]:
        """The bytes of each range with its offset; parts of them are asked for at once."""
        import torch

        blocks = [(offset, torch.empty(count, dtype=torch.uint8)) for offset, count in extents]
        waiting: list[Future[None]] = []
        for offset, block in blocks:
            view = memoryview(block.numpy().data)
            waiting += [
                _connections().submit(self._receive, offset + start, view[start : start + PART])
                for start in range(0, len(view), PART)
            ]
        try:
            for request in waiting:
                request.result()
        finally:
            for request in waiting:
                request.cancel()
        return blocks

    def _receive(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes from `offset`. What has come is kept when the rest is asked for again.

        That an address expires once is no failure, nor is a slow server, and bytes that came are progress.
        """
        download = _Download(offset, view, ServerRules(self.where, counts_failures=True))
        failures = 0
        renewed = False
        while download.done < len(view):
            address = self._address
            begun = download.done
            try:
                self._stream_into(download, address)
            except _RefusedError as error:
                raise NetworkError(str(error), "download") from None
            except REPEATED as error:
                if download.done - begun >= PROGRESS:
                    failures = 0
                if isinstance(error, _SlowError):
                    download.drops += 1
                elif isinstance(error, _ExpiredError) and not renewed:
                    renewed = True
                else:
                    failures += 1
                if failures > self._retries:
                    raise NetworkError(
                        f"{urlsplit(address.url).hostname} has failed {failures} times ({first_line(error)}); try "
                        "again later, or with $download",
                        "download",
                    ) from None
                self._recover(error, address, failures)

    def _stream_into(self, download: _Download, address: Address) -> None:
        """Ask once for the bytes that are still to come. Raises what `_receive` recovers from."""
        begun = download.done
        view = download.view
        speed: Speed | None = None
        for block in _stream(address, download.offset + begun, len(view) - begun, download.rules):
            self._require_open()
            end = download.done + len(block)
            if end > len(view):
                download.done = begun  # nothing of an answer that is longer than the range is kept
                raise _BrokenError("more bytes came than were asked for")
            view[download.done : end] = block
            download.done = end
            now = time.monotonic()
            if speed is None:  # what comes first has waited for the answer of the server, and for this thread
                speed = Speed(speeds, threading.get_ident(), now)
            if speed.is_slow(len(block), len(view) - end, now) and download.drops < MOST_DROPS:
                raise _SlowError("much slower than others")
        if download.done < len(view):
            raise _BrokenError(f"{download.done:,} bytes came, expected {len(view):,}")

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise NetworkError("closed while it was read")

    def _recover(self, error: Exception, failed: Address, failures: int) -> None:
        """Wait, and renew an address that has expired, unless another request has renewed it already."""
        log.info("%s: %s; asked again", self.where, first_line(error))
        if failures:
            stated = getattr(error, "wait", None) or 0
            pause = min(FIRST_WAIT * 2 ** (failures - 1), LONGEST_PAUSE)
            self._closed.wait(max(stated, pause))
        self._require_open()
        if not isinstance(error, _ExpiredError):
            return
        with self._renewing:
            if self._address is not failed:
                return
            try:
                renewed = self._look_up()
            except RuntimeError as closed:  # see REPEATED
                raise NetworkError(f"{first_line(closed)}; try again") from None
            if (renewed.size, renewed.etag) != (failed.size, failed.etag):
                raise NetworkError("it has changed while it was read; try again")
            self._address = renewed


def merge(extents: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges, offset and number of bytes, in order, with those merged that overlap or are close.

    >>> merge([(300, 100), (0, 100), (101, 100), (350, 10)])
    [(0, 201), (300, 100)]
    """
    merged: list[tuple[int, int]] = []
    wanted = 0  # bytes of the last one that were given
    for offset, count in sorted(extents):
        if not count:
            continue
        if merged:
            start, length = merged[-1]
            last = start + length
            end = max(offset + count, last)
            wanted_of_both = wanted + end - max(offset, last)
            gaps = end - start - wanted_of_both
            if gaps <= GAP * wanted_of_both:
                merged[-1] = (start, end - start)
                wanted = wanted_of_both
                continue
        merged.append((offset, count))
        wanted = count
    return merged


def _stream(address: Address, offset: int, count: int, rules: ServerRules) -> Iterator[bytes]:
    """The bytes of a range as they come. Raises _BrokenError, _RefusedError, NetworkError, or an error of httpx."""
    last = offset + count - 1
    headers = {**address.headers, "Range": f"bytes={offset}-{last}", "Accept-Encoding": "identity"}
    try:
        with (
            apply_rules([rules]),  # of this request only: other threads send some beside it
            get_session().stream("GET", address.url, headers=headers, follow_redirects=True) as response,
        ):
            _check_answer(response, (offset, last, address.size))
            yield from response.iter_raw()
    except HfHubHTTPError:
        raise NetworkError(str(rules.refusal)) from None


def _check_answer(response: Any, expected: tuple[int, int, int]) -> None:
    """Raise _BrokenError or _RefusedError unless the answer is this range: first byte, last byte, size of the file."""
    status = response.status_code
    host = response.url.host
    first, last, size = expected
    if status in BUSY:
        raise _BrokenError(f"HTTP status {status}", read_wait(response))
    if status in EXPIRED:
        raise _ExpiredError(f"HTTP status {status}")
    if status == WHOLE:
        raise _RefusedError(f"{host} sends whole files only; read the model with $download")
    if status != PARTIAL:
        raise _RefusedError(f"{host} answers with HTTP status {status} to the request of a range; try $download")
    stated = response.headers.get("Content-Range", "")
    numbers = RANGE.fullmatch(stated)
    if numbers is None or tuple(map(int, numbers.groups())) != expected:
        raise _BrokenError(f"the range {stated!r:.60} came, expected {first}-{last} of {size:,} bytes")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise _BrokenError("the answer is compressed")


@cache
def _connections() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="attngeo-range")


if hasattr(os, "register_at_fork"):  # a child has no threads, and makes its own
    os.register_at_fork(after_in_child=_connections.cache_clear)
