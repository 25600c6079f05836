"""RemoteFile: a file on the Hub as a ByteSource, by requests of ranges: only the bytes that are asked for.

The Hub answers a request for a file with the address of the server that has it, signed for some time. It is asked once
for each file, and again when the address has expired. A token is sent to the Hub's host only. Each answer is checked:
its range, its length and the size of the whole file. What a network breaks is asked for again, with growing waits.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Event, Lock
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx2
import torch
from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError
from torch import Tensor

from attngeo.bounds.memory import require_memory
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.downloads import BUSY, ServerRules, longest_timeout, read_wait, set_own_rules
from attngeo.checkpoints.source import Extent
from attngeo.errors import CorruptCheckpointError, NetworkError, first_line

log = logging.getLogger(__name__)

# Requests in flight, of all files together, and bytes of one of them: more than enough to fill a line.
CONNECTIONS = 4
PART = 16 * 2**20
# Ranges are merged if the bytes between them are at most this share of theirs.
GAP = 0.01
# The first wait in seconds before what is broken is asked for again; each next one is twice as long.
FIRST_WAIT, LONGEST_PAUSE = 0.5, 8
MOST_REDIRECTS = 5
EXPIRED = (401, 403, 404, 410)
PARTIAL, WHOLE = 206, 200
RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
# So many bytes are progress: failures before them do not count.
PROGRESS = 2**20


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


class _RefusedError(Exception):
    """An answer that will not be better the next time."""


# What is asked for again. A RuntimeError is that of a client which huggingface_hub has closed, after an error of
# another request.
REPEATED = (_BrokenError, httpx2.RequestError, httpx2.InvalidURL, RuntimeError)


class RemoteFile:
    """A file on the Hub; see `ByteSource`. Each request is of the content that the Hub named first.

    ref, file: its names. look_up: asks the Hub for its address. retries: how often a range is asked for again.

    Raises NetworkError if the server does not serve ranges, or not in the end.
    """

    lanes = CONNECTIONS

    def __init__(self, ref: str, file: str, look_up: Callable[[], Address], retries: int = HubAccess().retries) -> None:
        self.where = f"{ref}: {file}"
        self._look_up, self._retries = look_up, retries
        self._address, self._closed = look_up(), Event()
        self._lock, self._renewing = Lock(), Lock()
        self.size, self.requests = self._address.size, 0
        self._held: list[tuple[int, Tensor]] = []

    def read(self, offset: int, count: int, name: str) -> Tensor:
        """Bytes, uint8 [count], in new memory; see `ByteSource`."""
        if offset < 0 or offset + count > self.size:
            raise CorruptCheckpointError(f"{self.where}: ends inside tensor {name!r}")
        with self._lock:
            held = next((each for each in self._held if _contains(each, offset, count)), None)
            if held is not None and len(held[1]) == count:  # large tensors are handed over, not copied
                self._held = [each for each in self._held if each is not held]
                return held[1]
        require_memory(count, f"{self.where}: tensor {name!r}")
        if held is None:
            return self._load([Extent(offset, count)])[0][1]
        start, block = held
        return block[offset - start : offset - start + count].clone()

    @contextmanager
    def hold(self, extents: Iterable[Extent]) -> Iterator[None]:
        """Inside the block, these bytes are in memory, by as few requests as the ranges allow; see `ByteSource`."""
        merged = self._merge(extents)
        require_memory(sum(extent.nbytes for extent in merged), self.where)
        blocks = self._load(merged)
        with self._lock:
            self._held = [*self._held, *blocks]
        try:
            yield
        finally:
            with self._lock:
                self._held = [held for held in self._held if not any(held is block for block in blocks)]

    def count_requests(self, extents: Iterable[Extent]) -> int:
        """How many requests `hold` sends for these bytes; see `ByteSource`."""
        return sum(len(_cut(extent)) for extent in self._merge(extents))

    def close(self) -> None:
        """Forget what is held, and end requests that wait."""
        self._held = []
        self._closed.set()

    def _merge(self, extents: Iterable[Extent]) -> list[Extent]:
        return merge(self._clip(extent) for extent in extents)

    def _clip(self, extent: Extent) -> Extent:
        offset = min(max(extent.offset, 0), self.size)
        return Extent(offset, max(min(extent.nbytes, self.size - offset), 0))

    def _load(self, extents: list[Extent]) -> list[tuple[int, Tensor]]:
        """The bytes of each range with its offset; parts of them are asked for at once."""
        blocks = [(offset, torch.empty(count, dtype=torch.uint8)) for offset, count in extents]
        waiting: list[Future[None]] = []
        for extent, (offset, block) in zip(extents, blocks, strict=True):
            view = memoryview(block.numpy().data)
            waiting += [_connections().submit(self._receive, offset + at, view[at : at + PART]) for at in _cut(extent)]
        with self._lock:
            self.requests += len(waiting)
        try:
            for part in waiting:
                part.result()
        finally:
            for part in waiting:
                part.cancel()
        return blocks

    def _receive(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes from `offset`. What has come is kept when the rest is asked for again."""
        rules, done, failures, renewed = ServerRules(self.where), 0, 0, False
        while done < len(view):
            address, begun = self._address, done
            try:
                for part in _stream(address, Extent(offset + done, len(view) - done), self.size, rules):
                    self._require_open()
                    if len(part) > len(view) - done:
                        done = begun  # nothing of an answer that is longer than the range is kept
                        raise _BrokenError("more bytes came than were asked for")
                    view[done : done + len(part)] = part
                    done += len(part)
                if done < len(view):
                    raise _BrokenError(f"{done:,} bytes came, expected {len(view):,}")
            except _RefusedError as error:
                raise NetworkError(f"{self.where}: {error}") from None
            except REPEATED as error:
                # That an address expires once is no failure, and bytes that came are progress.
                expired_first = isinstance(error, _ExpiredError) and not renewed
                renewed = renewed or expired_first
                failures = (0 if done - begun >= PROGRESS else failures) + (not expired_first)
                if failures > self._retries:
                    raise NetworkError(
                        f"{self.where}: {urlsplit(address.url).hostname} has failed {failures} times "
                        f"({first_line(error)}); try again later, or with --download"
                    ) from None
                self._recover(error, address, failures)

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise NetworkError(f"{self.where}: closed while it was read")

    def _recover(self, error: Exception, failed: Address, failures: int) -> None:
        """Wait, and renew an address that has expired, unless another request has renewed it already."""
        log.info("%s: %s; asked again", self.where, first_line(error))
        if failures:
            asked = getattr(error, "wait", None) or 0
            self._closed.wait(max(asked, min(FIRST_WAIT * 2 ** (failures - 1), LONGEST_PAUSE)))
        self._require_open()
        if not isinstance(error, _ExpiredError):
            return
        with self._renewing:
            if self._address is failed:
                try:
                    renewed = self._look_up()
                except RuntimeError as closed:  # see REPEATED
                    raise NetworkError(f"{self.where}: {first_line(closed)}; try again") from None
                if (renewed.size, renewed.etag) != (failed.size, failed.etag):
                    raise NetworkError(f"{self.where} has changed while it was read; try again")
                self._address = renewed


def merge(extents: Iterable[Extent]) -> list[Extent]:
    """The ranges in order, with those merged that overlap or are close.

    >>> merge([Extent(300, 100), Extent(0, 100), Extent(101, 100), Extent(350, 10)])
    [Extent(offset=0, nbytes=201), Extent(offset=300, nbytes=100)]
    """
    merged: list[Extent] = []
    wanted = 0  # bytes of the last one that were given
    for offset, count in sorted(extents):
        if not count:
            continue
        end = offset + count
        if merged:
            start, last = merged[-1].offset, sum(merged[-1])
            more = wanted + max(end - max(offset, last), 0)
            if max(end, last) - start - more <= GAP * more:
                merged[-1], wanted = Extent(start, max(end, last) - start), more
                continue
        merged.append(Extent(offset, count))
        wanted = count
    return merged


def _contains(held: tuple[int, Tensor], offset: int, count: int) -> bool:
    start, block = held
    return start <= offset and offset + count <= start + len(block)


def _cut(extent: Extent) -> range:
    """Where each request for a part of the range starts in it."""
    return range(0, extent.nbytes, PART)


def _stream(address: Address, extent: Extent, size: int, rules: ServerRules) -> Iterator[bytes]:
    """The bytes of a range as they come. Raises _BrokenError, _RefusedError, NetworkError, or an error of httpx2."""
    set_own_rules()  # `rules` are those of this request
    url, headers = address.url, dict(address.headers)
    headers |= {"Range": f"bytes={extent.offset}-{sum(extent) - 1}", "Accept-Encoding": "identity"}
    for _ in range(MOST_REDIRECTS + 1):
        with get_session().stream(
            "GET", url, headers=headers, follow_redirects=False, timeout=longest_timeout()
        ) as response:
            try:
                rules.check_response(response)
            except HfHubHTTPError:
                raise NetworkError(str(rules.refusal)) from None
            if not response.has_redirect_location:
                _check_answer(response, extent, size)
                yield from response.iter_raw()
                return
            try:
                following = urljoin(url, response.headers["Location"])
                moved = origin(following) != origin(url)
            except ValueError as error:  # an address that is none
                raise _BrokenError(f"a redirect to no address ({error})") from None
            if moved:
                headers.pop("authorization", None)
            url = following
    raise _ExpiredError(f"more than {MOST_REDIRECTS} redirects")


def _check_answer(response: Any, extent: Extent, size: int) -> None:
    """Raise _BrokenError or _RefusedError unless the answer is this range of a file of `size` bytes."""
    status, host = response.status_code, response.url.host
    if status in BUSY:
        raise _BrokenError(f"HTTP status {status}", read_wait(response))
    if status in EXPIRED:
        raise _ExpiredError(f"HTTP status {status}")
    if status == WHOLE:
        raise _RefusedError(f"{host} sends whole files only; read the model with --download")
    if status != PARTIAL:
        raise _RefusedError(f"{host} answers with HTTP status {status} to the request of a range; try --download")
    stated = response.headers.get("Content-Range", "")
    expected = (extent.offset, sum(extent) - 1, size)
    if (found := RANGE.fullmatch(stated)) is None or tuple(map(int, found.groups())) != expected:
        raise _BrokenError(f"the range {stated!r:.60} came, expected {expected[0]}-{expected[1]} of {size:,} bytes")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise _BrokenError("the answer is compressed")
    if response.headers.get("Content-Length", str(extent.nbytes)) != str(extent.nbytes):
        raise _BrokenError(f"{response.headers['Content-Length']:.20} bytes are announced, expected {extent.nbytes:,}")


def origin(url: str) -> tuple[str, str]:
    """The scheme and the host with its port: what a token is for."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


@cache
def _connections() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="attngeo-range")


if hasattr(os, "register_at_fork"):  # a child has no threads, and makes its own
    os.register_at_fork(after_in_child=_connections.cache_clear)
