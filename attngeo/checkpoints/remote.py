"""Servers of the Hub: how long they are waited for, and RemoteFile, a file of which only ranges are read.

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from huggingface_hub import constants, get_session, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import _http as hub_http, httpx, parse_ratelimit_headers  # type: ignore[attr-defined]  # re-exported

from attngeo.bounds.machine import require_memory
from attngeo.bounds.small_files import MOST_BYTES, MOST_INDEX_BYTES
from attngeo.checkpoints.files import limit_of
from attngeo.errors import CorruptCheckpointError, NetworkError, first_line, hide_secrets

if TYPE_CHECKING:
    from torch import Tensor

    from attngeo.checkpoints.store import Extent

log = logging.getLogger(__name__)

# Seconds that a server may ask to wait, in total before it answers; the Hub counts requests over five minutes.
LONGEST_WAIT = 300
# Stands for a number of seconds that is none.
NEVER = 10**9
# A server that has answered nothing for so many time-outs in a row is given up, and so is one that then has sent less
# than so many bytes for each second of them.
MOST_TIMEOUTS = 6
SLOWEST = 1000
# So many connections that fail at once, one after another with longer and longer waits: there is no network.
MOST_CONNECTIONS = 3
# The statuses for which huggingface_hub tries again.
TOO_MANY_REQUESTS = 429
BUSY = (408, TOO_MANY_REQUESTS, 500, 502, 503, 504)
COMMIT = re.compile("[0-9a-f]{40}")
# The path of the address of a file of a model; data sets have files of any length.
FILE = re.compile(r"(?!.*/datasets/)/.+/resolve/[^/]+/(?P<file>.+)")
# A hash becomes the name of a file in the cache.
ETAG = re.compile(r'(?:W/)?"?[\w.:+=-]{1,200}"?', re.ASCII)

# Requests for ranges in flight, of all files together, and bytes of one of them: more than enough to fill a line.
CONNECTIONS = 4
PART = 16 * 2**20
# Ranges are merged if the bytes between them are at most this share of theirs.
GAP = 0.01
# The first wait in seconds before what is broken is asked for again; each next one is twice as long.
FIRST_WAIT, LONGEST_PAUSE = 0.5, 8
EXPIRED = (401, 403, 404, 410)
PARTIAL, WHOLE = 206, 200
RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
# So many bytes are progress: failures before them do not count.
PROGRESS = 2**20
# A stream is dropped if its speed in a window of WINDOW seconds is less than this share of that of the fastest other
# one in the last RECENT seconds, and has not grown by this factor since the window before, as that of a new connection
# does. The rest is asked for on a new connection, at most MOST_DROPS times for one range.
WINDOW, TOO_SLOW, RECENT, FASTER, MOST_DROPS = 0.25, 0.2, 10, 1.5, 8


@contextmanager
def require_answers(ref: str) -> Iterator[ServerRules]:
    """Inside the block, huggingface_hub waits for no server for long, and takes no more bytes than a file may have.

    Logs a warning for each wait that a server asks for. Raises NetworkError if it asks for more than LONGEST_WAIT
    seconds, if it does not answer or sends almost nothing, or more than it has announced, and if it names a commit or
    hash that is none; CorruptCheckpointError for a file that is longer than `limit_of` allows. If the file is in the
    cache, huggingface_hub takes that instead.
    """
    _watch_clients()
    rules, outer = ServerRules(ref), getattr(_thread, "rules", None)
    _active.append(rules)
    _thread.rules = [*(outer or []), rules]
    try:
        yield rules
    except (HfHubHTTPError, OSError) as error:
        if rules.refusal is not None:
            raise NetworkError(rules.refusal) from error
        raise
    finally:
        _thread.rules = outer
        _active.remove(rules)


def longest_timeout() -> float:
    """The time-out that the user has set, in seconds."""
    return max(constants.HF_HUB_ETAG_TIMEOUT, constants.HF_HUB_DOWNLOAD_TIMEOUT)


def longest_silence() -> float:
    """The seconds after which a server that sends almost nothing is given up."""
    return MOST_TIMEOUTS * longest_timeout()


# The rules of the blocks that are running in all threads, and in this one. Those of all are for threads of libraries.
_active: list[ServerRules] = []
_thread = threading.local()


def _current_rules() -> list[ServerRules]:
    rules = getattr(_thread, "rules", None)
    return [*_active] if rules is None else rules


@dataclass(frozen=True)
class _WatchedFactory:
    """Makes the HTTP clients of huggingface_hub, which makes a new one after each connection that has failed."""

    factory: Callable[[], Any]

    def __call__(self) -> Any:
        client = self.factory()
        checks: dict[str, Callable[..., None]] = {"request": _check_request, "response": _check_response}
        client.event_hooks = {name: [*hooks, checks[name]] for name, hooks in client.event_hooks.items()}
        for transport in (client._transport, *client._mounts.values()):
            # There is no public way to see what comes before the end of the headers. Other transports have no pool.
            if (pool := getattr(transport, "_pool", None)) is not None:
                pool._network_backend = _PacedConnections(pool._network_backend)
        return client


def _watch_clients() -> None:
    factory = hub_http._GLOBAL_CLIENT_FACTORY  # there is no public way to keep the one that a user has set
    if not isinstance(factory, _WatchedFactory):
        set_client_factory(_WatchedFactory(factory))
        logging.getLogger("huggingface_hub.file_download").addFilter(_hide_secrets)


def _hide_secrets(record: logging.LogRecord) -> bool:
    """Let a record of the log through, without signatures in addresses."""
    record.msg, record.args = hide_secrets(record.getMessage()), ()
    return True


def _check_request(request: Any) -> None:
    for rules in _current_rules():
        rules.check_request(request)


def _check_response(response: Any) -> None:
    for rules in _current_rules():
        rules.check_response(response)


class Limit(NamedTuple):
    """How many bytes the content of an answer may have.

    what: the file, for errors; "" for an answer without limits. most: bytes that such a file may have. announced: bytes
    of weights, as the Hub has stated them.
    """

    what: str = ""
    most: int | None = None
    announced: int | None = None

    def check(self, received: int) -> None:
        """Raise CorruptCheckpointError or NetworkError if so many bytes are too many."""
        if self.most is not None and received > self.most:
            raise CorruptCheckpointError(
                f"{self.what} has more than {self.most:,} bytes; give another revision, or a folder"
            )
        if self.announced is not None and received > self.announced:
            raise NetworkError(
                f"{self.what} has more than the {self.announced:,} bytes that the Hub has stated; try again"
            )


def _read_size(response: Any) -> int | None:
    """The bytes of a file that an answer states; None if it states none."""
    stated = response.headers.get("X-Linked-Size") or response.headers.get("Content-Length") or ""
    return int(stated[:20]) if stated.isascii() and stated.isdigit() else None


class ServerRules:
    """The hooks of huggingface_hub's HTTP client, and what they have seen.

    ref: the model, for messages. counts_failures: whether the caller itself gives up after some failures, and counts
    the bytes. refusal: why the server is given up, if it is. announced: the hash of the last file that the Hub answered
    about.
    """

    def __init__(self, ref: str, *, counts_failures: bool = False) -> None:
        self.refusal: str | None = None
        self.announced: str | None = None
        # Address, that of a file or another one to which the Hub redirects from it → the limit of the content.
        self._limits: dict[str, Limit] = {}
        self.ref, self._counts_failures, self._waited = ref, counts_failures, 0
        self._unanswered_since: float | None = None
        self._unanswered = 0

    def check_request(self, request: Any) -> None:
        """Give every request a time-out.

        Raises NetworkError if the server has answered nothing for long; OfflineModeIsEnabled, after which other
        libraries look into their caches, if connections fail at once, so that another one would, too.
        """
        limit = longest_timeout()
        if FILE.fullmatch(request.url.path):
            request.headers["Accept-Encoding"] = "identity"  # the bytes that are counted are those that are written
        if not self._counts_failures:
            self._check_silence(time.monotonic(), limit)
        stated = request.extensions.get("timeout") or {}
        request.extensions["timeout"] = {
            name: min(stated.get(name) or limit, limit) for name in ("connect", "read", "write", "pool")
        }

    def _check_silence(self, now: float, limit: float) -> None:
        self._unanswered_since = self._unanswered_since or now
        self._unanswered += 1
        if self._unanswered > MOST_CONNECTIONS and now - self._unanswered_since < limit:
            raise OfflineModeIsEnabled(f"{MOST_CONNECTIONS} connections have failed")
        if now - self._unanswered_since > MOST_TIMEOUTS * limit:
            raise NetworkError(
                f"{self.ref}: {constants.ENDPOINT} has not answered for {now - self._unanswered_since:.0f} seconds; "
                "check the connection, HF_ENDPOINT and proxies, or give a folder"
            )

    def check_response(self, response: Any) -> None:
        """Announce a wait, and let the content come in time.

        Raises HfHubHTTPError for a wait that is too long, NetworkError for a name that is none.
        """
        self._unanswered_since, self._unanswered = None, 0
        server = str(response.url.join("/")).rstrip("/")  # the Hub, or one that has its files
        who = f"{self.ref}: {server}"
        response.stream = _PacedStream(response.stream, longest_silence(), who, self._find_limit(response, server))
        if response.status_code in BUSY:
            self._check_wait(response, who)
        else:
            self._waited, self.refusal = 0, None
        commit, etag = (response.headers.get(name) for name in ("X-Repo-Commit", "ETag"))
        linked = response.headers.get("X-Linked-Etag")
        if commit is None:  # no server of a Hub, but of its files
            return
        for name, value, form in (("commit", commit, COMMIT), ("hash", etag, ETAG), ("hash", linked, ETAG)):
            if value is not None and not form.fullmatch(value):
                raise NetworkError(
                    f"{self.ref}: {constants.ENDPOINT} answers with the {name} {value!r:.100}, which is none; check "
                    "HF_ENDPOINT"
                )
        if etag or linked:
            self.announced = (linked or etag).removeprefix("W/").strip('"')

    def _find_limit(self, response: Any, server: str) -> Limit:
        """What the content of an answer may have. Raises if the answer states that it has more, or is compressed."""
        if self._counts_failures:
            return Limit()
        url, size = response.request.url, _read_size(response)
        limit = self._limits.get(str(url), Limit())
        if address := FILE.fullmatch(url.path):
            limit = limit._replace(what=f"{self.ref}: {address['file']}", most=limit_of(address["file"]))
        elif "/api/" in url.path:
            limit = Limit(f"{self.ref}: the answer of {server}", MOST_INDEX_BYTES)
        if response.is_error:
            return Limit(f"{self.ref}: the refusal of {server}", MOST_BYTES)
        is_head = response.request.method == "HEAD"
        if is_head or response.is_redirect:
            if is_head and address and limit.most is None:
                limit = limit._replace(announced=size)
            with suppress(httpx.InvalidURL):  # which huggingface_hub will say
                for place in (url, url.join(response.headers.get("Location", ""))):
                    self._limits[str(place)] = limit
            return Limit()
        if address and response.headers.get("Content-Encoding", "identity") != "identity":
            raise NetworkError(f"{limit.what} comes compressed from {server}, expected plain bytes; check HF_ENDPOINT")
        limit.check(size or 0)
        return limit

    def _check_wait(self, response: Any, who: str) -> None:
        seconds = read_wait(response)
        if seconds is None:
            return
        self._waited += seconds
        if self._waited <= LONGEST_WAIT:
            log.warning("%s asks to wait %d s", who, seconds)
            return
        self.refusal = (
            f"{who} asks to wait {seconds:,} seconds, expected at most {LONGEST_WAIT} in total; try again later"
        )
        raise HfHubHTTPError(self.refusal, response=response)  # which lets huggingface_hub look into its cache


class _PacedStream(httpx.SyncByteStream):
    """The content of an answer. Raises NetworkError if, in `seconds` seconds, almost none of it has come.

    limit: of its bytes.
    """

    def __init__(self, stream: Any, seconds: float, who: str, limit: Limit) -> None:
        self._stream, self._pace, self._limit = stream, Pace(seconds, who), limit

    def __iter__(self) -> Iterator[bytes]:
        received = 0
        for part in self._stream:
            received += len(part)
            self._limit.check(received)
            yield part
            self._pace.count(len(part))

    def close(self) -> None:
        self._stream.close()


class Pace:
    """The bytes that a server sends. Raises NetworkError if, in `seconds` seconds, almost none have come.

    who: the server, for errors.
    """

    def __init__(self, seconds: float, who: str) -> None:
        self._seconds, self._who = seconds, who
        self._since, self._received = time.monotonic(), 0

    def count(self, nbytes: int) -> None:
        """Count bytes that have come now."""
        self._received += nbytes
        elapsed = time.monotonic() - self._since
        if elapsed <= self._seconds:
            return
        if self._received < SLOWEST * elapsed:
            raise NetworkError(
                f"{self._who} has sent {self._received:,} bytes in {elapsed:.0f} seconds; "
                "check the connection, or try again later"
            )
        self._since, self._received = time.monotonic(), 0


class _PacedConnections:
    """The network of an HTTP client. What a server sends before the content of its answer has a pace, too.

    A time-out is that of one read: headers that come byte by byte would never end.
    """

    def __init__(self, network: Any) -> None:
        self._network = network

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def connect_tcp(self, host: str, port: int, **options: Any) -> Any:
        return _PacedConnection(self._network.connect_tcp(host, port, **options), f"{host}:{port}")


class _PacedConnection:
    """One connection. The time of a request begins with the first read after it was written."""

    def __init__(self, stream: Any, server: str, scheme: str = "http") -> None:
        self._stream, self._server, self._scheme = stream, server, scheme
        self._pace: Pace | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def start_tls(self, *arguments: Any, **options: Any) -> Any:
        return _PacedConnection(self._stream.start_tls(*arguments, **options), self._server, "https")

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._pace = None
        self._stream.write(buffer, timeout)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._pace is None:
            about = "".join(f"{rules.ref}: " for rules in _current_rules()[-1:])
            self._pace = Pace(longest_silence(), f"{about}{self._scheme}://{self._server}")
        part: bytes = self._stream.read(max_bytes, timeout)
        self._pace.count(len(part))
        return part


def read_wait(response: Any) -> int | None:
    """The seconds that a busy server asks to wait, as huggingface_hub reads them; None if it does not say."""
    stated = response.headers.get("Retry-After", "").strip()
    try:
        limits = parse_ratelimit_headers(response.headers) if response.status_code == TOO_MANY_REQUESTS else None
        if limits is not None and limits.remaining == 0:
            return limits.reset_in_seconds
        return int(stated[:20]) if stated.isdigit() else None
    except ValueError:  # thousands of digits, or such as ²: huggingface_hub would fail
        return NEVER


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


# What is asked for again. A RuntimeError is that of a client which huggingface_hub has closed, after an error of
# another request.
REPEATED = (_BrokenError, httpx.RequestError, httpx.InvalidURL, RuntimeError)


class Speed:
    """The bytes per second of one stream, beside those of the other streams of a process.

    Single servers behind one address may be capped, and a new connection reaches another one.

    others: thread → the last speed of its streams, and when that was. lane: the thread of this stream. now: in seconds.
    """

    def __init__(self, others: dict[int, tuple[float, float]], lane: int, now: float) -> None:
        self._others, self._lane, self._begun, self._since = others, lane, now, now
        self._total = self._received = 0
        self._before: float | None = None

    def is_slow(self, nbytes: int, left: int, now: float) -> bool:
        """Whether the stream should be dropped, after it has sent `nbytes` more. left: the bytes still to come."""
        self._total, self._received = self._total + nbytes, self._received + nbytes
        seconds = now - self._since
        if not left and self._total >= PROGRESS and now > self._begun:
            self._others[self._lane] = self._total / (now - self._begun), now
        if not left or seconds < WINDOW:
            return False
        speed, before = self._received / seconds, self._before
        self._before, self._since, self._received = speed, now, 0
        self._others[self._lane] = speed, now
        recent = [other for lane, (other, at) in [*self._others.items()] if lane != self._lane and now - at <= RECENT]
        is_slower = speed < TOO_SLOW * max(recent, default=0) and left > speed * WINDOW
        return is_slower and before is not None and speed < FASTER * before


# See `Speed`.
_speeds: dict[int, tuple[float, float]] = {}


class RemoteFile:
    """A file on the Hub; see `ByteSource`. Each request is of the content that the Hub named first.

    ref, file: its names. look_up: asks the Hub for its address. retries: how often a range is asked for again.

    Raises NetworkError if the server does not serve ranges, or not in the end.
    """

    lanes = CONNECTIONS

    def __init__(self, ref: str, file: str, look_up: Callable[[], Address], retries: int) -> None:
        self.where = f"{ref}: {file}"
        self._look_up, self._retries = look_up, retries
        self._address, self._closed = look_up(), threading.Event()
        self._lock, self._renewing = threading.Lock(), threading.Lock()
        self.size = self._address.size
        self._held: list[tuple[int, Tensor]] = []
        _watch_clients()

    def read(self, offset: int, count: int, name: str) -> Tensor:
        """Bytes, uint8 [count], in new memory; see `ByteSource`."""
        if offset < 0 or offset + count > self.size:
            raise CorruptCheckpointError(f"{self.where}: ends inside tensor {name!r}")
        with self._lock:
            held = next((h for h in self._held if h[0] <= offset and offset + count <= h[0] + len(h[1])), None)
            if held is not None and len(held[1]) == count:  # large tensors are handed over, not copied
                self._held = [block for block in self._held if block is not held]
                return held[1]
        require_memory(count, f"{self.where}: tensor {name!r}")
        if held is None:
            return self._load([(offset, count)])[0][1]
        start, block = held
        return block[offset - start : offset - start + count].clone()

    @contextmanager
    def hold(self, extents: Iterable[Extent]) -> Iterator[None]:
        """Inside the block, these bytes are in memory, by as few requests as the ranges allow; see `ByteSource`."""
        clipped = ((min(max(offset, 0), self.size), nbytes) for offset, nbytes in extents)
        merged = merge((offset, max(min(nbytes, self.size - offset), 0)) for offset, nbytes in clipped)
        require_memory(sum(nbytes for _, nbytes in merged), self.where)
        blocks = self._load(merged)
        with self._lock:
            self._held = [*self._held, *blocks]
        try:
            yield
        finally:
            with self._lock:
                self._held = [held for held in self._held if not any(held is block for block in blocks)]

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
            places = range(0, len(view), PART)
            waiting += [_connections().submit(self._receive, offset + at, view[at : at + PART]) for at in places]
        try:
            for part in waiting:
                part.result()
        finally:
            for part in waiting:
                part.cancel()
        return blocks

    def _receive(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes from `offset`. What has come is kept when the rest is asked for again."""
        rules, done, failures, renewed = ServerRules(self.where, counts_failures=True), 0, 0, False
        drops = 0
        while done < len(view):
            address, begun, speed = self._address, done, None
            try:
                for part in _stream(address, offset + done, len(view) - done, rules):
                    self._require_open()
                    if len(part) > len(view) - done:
                        done = begun  # nothing of an answer that is longer than the range is kept
                        raise _BrokenError("more bytes came than were asked for")
                    view[done : done + len(part)] = part
                    done += len(part)
                    # What comes first has waited for the answer of the server, and for this thread.
                    speed, now = speed or Speed(_speeds, threading.get_ident(), time.monotonic()), time.monotonic()
                    if speed.is_slow(len(part), len(view) - done, now) and drops < MOST_DROPS:
                        raise _SlowError("much slower than others")
                if done < len(view):
                    raise _BrokenError(f"{done:,} bytes came, expected {len(view):,}")
            except _RefusedError as error:
                raise NetworkError(f"{self.where}: {error}", "download") from None
            except REPEATED as error:
                # That an address expires once is no failure, nor is a slow server, and bytes that came are progress.
                is_slow, expired_first = isinstance(error, _SlowError), isinstance(error, _ExpiredError) and not renewed
                drops, renewed = drops + is_slow, renewed or expired_first
                failures = (0 if done - begun >= PROGRESS else failures) + (not expired_first and not is_slow)
                if failures > self._retries:
                    raise NetworkError(
                        f"{self.where}: {urlsplit(address.url).hostname} has failed {failures} times "
                        f"({first_line(error)}); try again later, or with $download",
                        "download",
                    ) from None
                self._recover(error, address, failures)

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise NetworkError(f"{self.where}: closed while it was read")

    def _recover(self, error: Exception, failed: Address, failures: int) -> None:
        """Wait, and renew an address that has expired, unless another request has renewed it already."""
        log.info("%s: %s; asked again", self.where, first_line(error))
        if failures:
            wait = getattr(error, "wait", None) or 0
            self._closed.wait(max(wait, min(FIRST_WAIT * 2 ** (failures - 1), LONGEST_PAUSE)))
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
        end = offset + count
        if merged:
            start, last = merged[-1][0], sum(merged[-1])
            more = wanted + max(end - max(offset, last), 0)
            if max(end, last) - start - more <= GAP * more:
                merged[-1], wanted = (start, max(end, last) - start), more
                continue
        merged.append((offset, count))
        wanted = count
    return merged


def _stream(address: Address, offset: int, count: int, rules: ServerRules) -> Iterator[bytes]:
    """The bytes of a range as they come. Raises _BrokenError, _RefusedError, NetworkError, or an error of httpx."""
    last = offset + count - 1
    headers = {**address.headers, "Range": f"bytes={offset}-{last}", "Accept-Encoding": "identity"}
    _thread.rules = [rules]  # of this request only: other threads send some beside it
    try:
        with get_session().stream("GET", address.url, headers=headers, follow_redirects=True) as response:
            _check_answer(response, (offset, last, address.size))
            yield from response.iter_raw()
    except HfHubHTTPError:
        raise NetworkError(str(rules.refusal)) from None
    finally:
        _thread.rules = []


def _check_answer(response: Any, expected: tuple[int, int, int]) -> None:
    """Raise _BrokenError or _RefusedError unless the answer is this range: first byte, last byte, size of the file."""
    status, host = response.status_code, response.url.host
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
    if (numbers := RANGE.fullmatch(stated)) is None or tuple(map(int, numbers.groups())) != expected:
        raise _BrokenError(f"the range {stated!r:.60} came, expected {first}-{last} of {size:,} bytes")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise _BrokenError("the answer is compressed")


@cache
def _connections() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="attngeo-range")


if hasattr(os, "register_at_fork"):  # a child has no threads, and makes its own
    os.register_at_fork(after_in_child=_connections.cache_clear)
