"""RemoteFile: a file on the Hub, read by ranges of bytes instead of as a whole.

The Hub answers a request for a file with the address of a server that has it; the address is valid for a limited time.
The Hub is asked once for each file, and again if the address has expired. A token is sent to the Hub's host only. Each
answer is checked: its range, its length and the size of the whole file. Requests that fail for a passing reason are
repeated, with growing pauses. The import of this module does not import torch.
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

    from attngeo.checkpoints.extent import Extent

log = logging.getLogger(__name__)

# Requests at the same time, for all files together, and the most bytes of one: enough to use the whole bandwidth.
CONNECTIONS = 4
PART_BYTES = 16 * 2**20
# Ranges are merged if the bytes between them are at most this share of the bytes in them.
MOST_GAP_SHARE = 0.01
# Seconds before a failed request is repeated: the first pause, and the longest. Each pause is twice the one before.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 8
# HTTP statuses: the address has expired, the answer is a range, the answer is the whole file.
EXPIRED = (401, 403, 404, 410)
PARTIAL = 206
WHOLE = 200
# The header Content-Range: first byte, last byte (inclusive), and size of the file.
CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
# The most connections that are given up because they are slow, for one part of a range.
MOST_DROPPED_CONNECTIONS = 8


@dataclass(frozen=True)
class Address:
    """The address of a file on a server.

    Attributes:
        url: the address, valid for a limited time.
        size: size of the file in bytes.
        etag: hash of the content, "" if the Hub states none.
        headers: headers that each request for the file needs.
    """

    url: str
    size: int
    etag: str
    headers: Mapping[str, str]


class _BrokenError(Exception):
    """A request failed, and may succeed if it is repeated.

    Args:
        reason: what failed.
        wait: the seconds that the server asks to wait, or None.
    """

    def __init__(self, reason: str, wait: int | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class _ExpiredError(_BrokenError):
    """The address has expired. The Hub knows a new one."""


class _SlowError(_BrokenError):
    """The connection is much slower than the others."""


class _RefusedError(Exception):
    """A request failed, and would fail again."""


@dataclass
class _Download:
    """The part of a range that one thread downloads.

    Attributes:
        offset: of its first byte in the file.
        view: memory for all of its bytes.
        rules: the limits of its requests.
        received: the number of bytes in `view` so far.
        drops: the number of connections that were given up because they were slow.
    """

    offset: int
    view: memoryview
    rules: ServerRules
    received: int = 0
    drops: int = 0


# Errors after which a request is repeated. The RuntimeError is that of a client which huggingface_hub has closed, after
# an error of another request.
PASSING_ERRORS = (_BrokenError, httpx.RequestError, httpx.InvalidURL, RuntimeError)


class RemoteFile:
    """A file on the Hub, with the attributes and methods of a `RegularFile`.

    All requests get the same content: `read` and `hold` fail if the file has changed on the Hub since it was opened.

    Args:
        where: the name of the file, for errors and the log.
        look_up: asks the Hub for the file's address.
        retries: how many times in a row a range request may be repeated without PROGRESS bytes in between.

    Raises:
        NetworkError: From `read` and `hold`: the server does not send ranges, has failed more than `retries` times, or
            the file has changed.
    """

    lanes = CONNECTIONS

    def __init__(self, where: str, look_up: Callable[[], Address], retries: int) -> None:
        self.where = where
        self._look_up = look_up
        self._retries = retries
        self._address = look_up()
        self.size = self._address.size
        self._closed = threading.Event()
        self._held_lock = threading.Lock()
        self._address_lock = threading.Lock()
        # The blocks in memory: the offset of the first byte in the file, and the bytes, uint8 [n].
        self._held: list[tuple[int, Tensor]] = []
        watch_clients()

    def read(self, offset: int, count: int, name: str) -> Tensor:
        """The `count` bytes from `offset` on, uint8 [count], in new memory; held bytes need no request."""
        if offset < 0 or offset + count > self.size:
            raise CorruptCheckpointError(f"ends inside tensor {name!r}")
        with self._held_lock:
            for held in self._held:
                start, block = held
                if not start <= offset <= offset + count <= start + len(block):
                    continue
                if len(block) == count:  # large tensors are handed over, not copied
                    self._held = [other for other in self._held if other is not held]
                    return block
                require_memory(count, f"tensor {name!r}")
                return block[offset - start : offset - start + count].clone()
        require_memory(count, f"tensor {name!r}")
        ((_, content),) = self._load([(offset, count)])
        return content

    @contextmanager
    def hold(self, extents: Iterable[Extent]) -> Iterator[None]:
        """Context manager: downloads the bytes of `extents` with few requests and keeps them in memory."""
        merged = merge((max(offset, 0), min(offset + nbytes, self.size) - max(offset, 0)) for offset, nbytes in extents)
        require_memory(sum(nbytes for _, nbytes in merged), "this read")
        blocks = self._load(merged)
        with self._held_lock:
            self._held = [*self._held, *blocks]
        try:
            yield
        finally:
            with self._held_lock:
                self._held = [held for held in self._held if not any(held is block for block in blocks)]

    def close(self) -> None:
        """Free the memory of held bytes; stop pauses and downloads."""
        self._held = []
        self._closed.set()

    def _load(self, extents: list[tuple[int, int]]) -> list[tuple[int, Tensor]]:
        """Download ranges, in parts of PART_BYTES by several threads.

        Args:
            extents: offset and number of bytes of each range.

        Returns:
            Offset and bytes, uint8 [count], of each range, in the same order.
        """
        import torch

        blocks = [(offset, torch.empty(count, dtype=torch.uint8)) for offset, count in extents]
        downloads: list[Future[None]] = []
        for offset, block in blocks:
            view = memoryview(block.numpy().data)
            for start in range(0, len(view), PART_BYTES):
                part = view[start : start + PART_BYTES]
                downloads.append(_connection_pool().submit(self._receive, offset + start, part))
        try:
            for download in downloads:
                download.result()
        finally:
            for download in downloads:
                download.cancel()
        return blocks

    def _receive(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes of the file from `offset` on. A repeated request is for the missing bytes only.

        Failures are counted against `retries`. The count starts again after PROGRESS bytes in one request. A slow
        connection is no failure, and neither is the first time that the address has expired.
        """
        download = _Download(offset, view, ServerRules(self.where, counts_failures=True))
        failures = 0
        has_expired = False
        while download.received < len(view):
            address = self._address
            received_before = download.received
            try:
                self._stream_into(download, address)
            except _RefusedError as error:
                raise NetworkError(str(error), "download") from None
            except PASSING_ERRORS as error:
                if download.received - received_before >= PROGRESS:
                    failures = 0
                if isinstance(error, _SlowError):
                    download.drops += 1
                elif isinstance(error, _ExpiredError) and not has_expired:
                    has_expired = True
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
        """Send one request, for the missing bytes of a part, and write them to its memory.

        Raises _RefusedError, NetworkError, or one of PASSING_ERRORS, as `_receive` expects.
        """
        received_before = download.received
        view = download.view
        missing = len(view) - received_before
        speed: Speed | None = None
        for block in _stream(address, download.offset + received_before, missing, download.rules):
            self._require_open()
            end = download.received + len(block)
            if end > len(view):
                download.received = received_before  # no byte of an answer that is too long is kept
                raise _BrokenError("the server sent more bytes than requested")
            view[download.received : end] = block
            download.received = end
            now = time.monotonic()
            if speed is None:  # time starts at the first block, without the wait for the server and for this thread
                speed = Speed(speeds, threading.get_ident(), now)
            if speed.is_slow(len(block), len(view) - end, now) and download.drops < MOST_DROPPED_CONNECTIONS:
                raise _SlowError("much slower than other connections")
        if download.received < len(view):
            raise _BrokenError(f"got {download.received:,} bytes, expected {len(view):,}")

    def _require_open(self) -> None:
        """Raise NetworkError if the file is closed."""
        if self._closed.is_set():
            raise NetworkError("closed during a read")

    def _recover(self, error: Exception, address: Address, failures: int) -> None:
        """Pause after a failure, and look up the address again if it has expired and no other thread has done so.

        Args:
            error: one of PASSING_ERRORS.
            address: the address that the failed request used.
            failures: their number so far; no pause if it is 0.

        Raises:
            NetworkError: The file is closed, has changed on the Hub, or its address cannot be looked up.
        """
        log.info("%s: %s; retrying", self.where, first_line(error))
        if failures:
            requested_wait = getattr(error, "wait", None) or 0
            pause = min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)
            self._closed.wait(max(requested_wait, pause))
        self._require_open()
        if not isinstance(error, _ExpiredError):
            return
        with self._address_lock:
            if self._address is not address:
                return
            try:
                new_address = self._look_up()
            except RuntimeError as closed_client:  # see PASSING_ERRORS
                raise NetworkError(f"{first_line(closed_client)}; try again") from None
            if (new_address.size, new_address.etag) != (address.size, address.etag):
                raise NetworkError("it changed on the Hub during the read; try again")
            self._address = new_address


def merge(extents: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in ascending order, merged if they overlap or the gap between them is small.

    A gap is small if all gaps in the merged range add up to at most MOST_GAP_SHARE of its requested bytes. Ranges of
    zero or negative length are left out.

    Args:
        extents: offset and number of bytes of each range, in any order.

    Returns:
        Offset and number of bytes of each merged range.

    >>> merge([(300, 100), (0, 100), (101, 100), (350, 10)])
    [(0, 201), (300, 100)]
    """
    merged: list[tuple[int, int]] = []
    requested = 0  # bytes of the last merged range that are in `extents`
    for offset, count in sorted(extents):
        if count <= 0:
            continue
        if merged:
            start, length = merged[-1]
            previous_end = start + length  # exclusive
            end = max(offset + count, previous_end)
            new_bytes = end - max(offset, previous_end)
            requested_of_both = requested + new_bytes
            gaps = end - start - requested_of_both
            if gaps <= MOST_GAP_SHARE * requested_of_both:
                merged[-1] = (start, end - start)
                requested = requested_of_both
                continue
        merged.append((offset, count))
        requested = count
    return merged


def _stream(address: Address, offset: int, count: int, rules: ServerRules) -> Iterator[bytes]:
    """Send one request for a range, and yield its bytes in blocks as they arrive.

    Args:
        address: the address of the file.
        offset: of the first byte.
        count: the number of bytes, at least 1.
        rules: the limits of this request.

    Raises:
        _RefusedError: The server does not send ranges.
        NetworkError: The server asks to wait too long.
        _BrokenError, httpx.RequestError, httpx.InvalidURL, RuntimeError: See PASSING_ERRORS.
    """
    last = offset + count - 1  # inclusive, as in HTTP
    headers = {**address.headers, "Range": f"bytes={offset}-{last}", "Accept-Encoding": "identity"}
    try:
        with (
            apply_rules([rules]),  # for this thread only: other threads send requests at the same time
            get_session().stream("GET", address.url, headers=headers, follow_redirects=True) as response,
        ):
            _check_response(response, (offset, last, address.size))
            yield from response.iter_raw()
    except HfHubHTTPError:
        raise NetworkError(str(rules.refusal)) from None


def _check_response(response: Any, expected_range: tuple[int, int, int]) -> None:
    """Check that the answer to a request for a range has its bytes, as they are.

    Args:
        response: an answer of httpx.
        expected_range: first byte, last byte (inclusive) and size of the file.

    Raises:
        _BrokenError: The server is busy, the address has expired, or the answer is another range or compressed.
        _RefusedError: The server sends whole files only, or answers with another status.
    """
    status = response.status_code
    host = response.url.host
    if status in BUSY:
        raise _BrokenError(f"HTTP status {status}", read_wait(response))
    if status in EXPIRED:
        raise _ExpiredError(f"HTTP status {status}")
    if status == WHOLE:
        raise _RefusedError(f"{host} sends only whole files; read the model with $download")
    if status != PARTIAL:
        raise _RefusedError(f"{host} answered a range request with HTTP status {status}; try $download")
    stated_range = response.headers.get("Content-Range", "")
    match = CONTENT_RANGE.fullmatch(stated_range)
    if match is None or tuple(map(int, match.groups())) != expected_range:
        first, last, size = expected_range
        raise _BrokenError(f"got the range {stated_range!r:.60}, expected {first}-{last} of {size:,} bytes")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise _BrokenError("the response is compressed")


@cache
def _connection_pool() -> ThreadPoolExecutor:
    """The threads that download parts, for all files of the process."""
    return ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="attngeo-range")


if hasattr(os, "register_at_fork"):  # a forked process does not have these threads, and starts its own
    os.register_at_fork(after_in_child=_connection_pool.cache_clear)
