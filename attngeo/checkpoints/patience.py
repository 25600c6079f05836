"""Patience with servers of the Hub: how long attngeo waits for them, and how many bytes they may send.

huggingface_hub reads until a server ends its answer, and waits as long as one asks it to. The hooks and streams here
give every request a time-out, every answer a pace and a limit of bytes, which are counted unpacked. Imports no torch.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

from huggingface_hub import constants, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import _http as hub_http, httpx, parse_ratelimit_headers  # type: ignore[attr-defined]  # re-exported

from attngeo.bounds.small_files import MOST_CONFIG_BYTES, MOST_INDEX_BYTES
from attngeo.checkpoints.files import limit_of
from attngeo.errors import CorruptCheckpointError, NetworkError, about, first_line, hide_secrets

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
MOST_FAILED_CONNECTIONS = 3
# The statuses for which huggingface_hub tries again.
TOO_MANY_REQUESTS = 429
BUSY = (408, TOO_MANY_REQUESTS, 500, 502, 503, 504)
# Bytes of all pages of a list of branches, tags or files: ten times those of 8,000 files. In memory, it is up to twenty
# times as long. A data set may have more files.
MOST_LISTING_BYTES = 8 << 20
# Pages of such a list; the Hub puts a thousand files on each.
MOST_LISTING_PAGES = 100
# How an answer may be packed although plain bytes are asked for, and the bytes of it that are unpacked at once.
PACKINGS = ("gzip", "x-gzip", "deflate")
UNPACKED_AT_ONCE = 1 << 16
# The variable that names the certificates of servers whose own no usual authority has signed.
CERTIFICATES = "SSL_CERT_FILE"
COMMIT = re.compile("[0-9a-f]{40}")
# The path of the address of a file of a model; data sets have files of any length.
FILE = re.compile(r"(?!.*/datasets/)/.+/resolve/[^/]+/(?P<file>.+)")
# A hash becomes the name of a file in the cache.
ETAG = re.compile(r'(?:W/)?"?[\w.:+=-]{1,200}"?', re.ASCII)


@contextmanager
def require_answers(subject: str) -> Iterator[ServerRules]:
    """Inside the block, limit how long huggingface_hub waits for a server, and how many bytes it accepts.

    Logs a warning for each wait that a server asks for. If a server refuses a file that is in the cache,
    huggingface_hub uses the cached one.

    Args:
        subject: the subject of errors and warnings, such as the reference of a model.

    Raises:
        NetworkError: A server asks for a wait of more than LONGEST_WAIT seconds, does not answer, sends almost nothing,
            more than it announced, a list of more than MOST_LISTING_PAGES pages, packed bytes without being asked, or
            an invalid commit or hash; or SSL_CERT_FILE has no certificates.
        CorruptCheckpointError: A file is larger than `limit_of` allows.
    """
    watch_clients()
    rules = ServerRules(subject)
    with about(subject):
        if not constants.is_offline_mode():
            require_certificates(os.environ.get(CERTIFICATES))
        _active.append(rules)
        try:
            with apply_rules([*(getattr(_thread, "rules", None) or []), rules]):
                yield rules
        except (HfHubHTTPError, OSError) as error:
            if rules.refusal is not None:
                raise NetworkError(rules.refusal) from error
            raise
        finally:
            _active.remove(rules)


@cache
def require_certificates(file: str | None) -> None:
    """Raise NetworkError, with the file's name, for a certificate file that the HTTP client cannot load.

    file: the value of SSL_CERT_FILE; None or "" if it is not set.
    """
    if not file:
        return
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        raise NetworkError(
            f"{CERTIFICATES} is {file!r:.200}, expected a certificate file ({first_line(error)}); correct it, or "
            "unset it"
        ) from None


def longest_timeout() -> float:
    """The user's time-out in seconds."""
    return max(constants.HF_HUB_ETAG_TIMEOUT, constants.HF_HUB_DOWNLOAD_TIMEOUT)


def longest_silence() -> float:
    """Seconds until the client gives up on a server that sends almost nothing."""
    return MOST_TIMEOUTS * longest_timeout()


# The rules of the blocks that are running in all threads, and in this one. Those of all are for threads of libraries.
_active: list[ServerRules] = []
_thread = threading.local()


@contextmanager
def apply_rules(rules: list[ServerRules]) -> Iterator[None]:
    """Inside the block, requests of this thread follow only these rules."""
    outer = getattr(_thread, "rules", None)
    _thread.rules = rules
    try:
        yield
    finally:
        _thread.rules = outer


@dataclass(frozen=True)
class _WatchedFactory:
    """Makes the HTTP clients of huggingface_hub, which makes a new one after each connection that has failed."""

    factory: Callable[[], Any]

    def __call__(self) -> Any:
        client = self.factory()
        checks = {"request": ServerRules.check_request, "response": ServerRules.check_response}
        client.event_hooks = {
            name: [*hooks, partial(_check, checks[name])] for name, hooks in client.event_hooks.items()
        }
        for transport in (client._transport, *client._mounts.values()):
            # There is no public way to see what comes before the end of the headers. Other transports have no pool.
            pool = getattr(transport, "_pool", None)
            if pool is not None:
                _pace_connections(pool._network_backend)
        return client


def watch_clients() -> None:
    """Make every HTTP client of huggingface_hub follow the rules; once per process."""
    factory = hub_http._GLOBAL_CLIENT_FACTORY  # there is no public way to keep the one that a user has set
    if not isinstance(factory, _WatchedFactory):
        set_client_factory(_WatchedFactory(factory))
        logging.getLogger("huggingface_hub.file_download").addFilter(_hide_secrets)


def _hide_secrets(record: logging.LogRecord) -> bool:
    """Let a record of the log through, without signatures in addresses."""
    record.msg = hide_secrets(record.getMessage())
    record.args = ()
    return True


def _check(check: Callable[[ServerRules, Any], None], message: Any) -> None:
    """Let all rules of this thread check a request or a response."""
    rules = getattr(_thread, "rules", None)
    for one in [*_active] if rules is None else rules:
        check(one, message)


class Limit(NamedTuple):
    """Limits on the content of a response.

    Attributes:
        what: the file or response, for errors; "" for a response without limits.
        most: maximum bytes of such a file.
        announced: bytes of the weight file, as the Hub announced them.
    """

    what: str = ""
    most: int | None = None
    announced: int | None = None

    def check(self, received: int) -> None:
        """Raise CorruptCheckpointError or NetworkError if this number of bytes exceeds a limit."""
        if self.most is not None and received > self.most:
            raise CorruptCheckpointError(
                f"{self.what} has more than {self.most:,} bytes; give another revision, or a folder"
            )
        if self.announced is not None and received > self.announced:
            raise NetworkError(
                f"{self.what} has more than the {self.announced:,} bytes that the Hub announced; try again"
            )


@dataclass
class Count:
    """Progress of a response, or of a list on several pages. received: its bytes, unpacked."""

    pages: int = 1
    received: int = 0


def _read_size(response: Any) -> int | None:
    """The bytes of a file that an answer states; None if it states none."""
    stated = response.headers.get("X-Linked-Size") or response.headers.get("Content-Length") or ""
    return int(stated[:20]) if stated.isascii() and stated.isdigit() else None


class ServerRules:
    """Hooks for huggingface_hub's HTTP client, with the state that they collect.

    subject: the subject of warnings. counts_failures: whether the caller itself counts failures and bytes. refusal: why
    the client gave up on the server, if it did. announced: the hash of the last file in a response of the Hub.
    """

    def __init__(self, subject: str, *, counts_failures: bool = False) -> None:
        self.refusal: str | None = None
        self.announced: str | None = None
        # Address, that of a file or another one to which the Hub redirects from it → the limit of the content.
        self._limits: dict[str, Limit] = {}
        # The address of a further page of a list → what has come of that list.
        self._counts: dict[str, Count] = {}
        self._subject = subject
        self._counts_failures = counts_failures
        self._waited = 0  # seconds
        self._unanswered_since: float | None = None
        self._unanswered = 0

    def check_request(self, request: Any) -> None:
        """Give every request a time-out.

        Raises NetworkError if the server has not answered for a long time. Raises OfflineModeIsEnabled, so that other
        libraries look into their caches, if connections fail immediately, as the next one would.
        """
        limit = longest_timeout()
        request.headers["Accept-Encoding"] = "identity"  # a few packed bytes may stand for gigabytes
        if not self._counts_failures:
            now = time.monotonic()
            self._unanswered_since = self._unanswered_since or now
            self._unanswered += 1
            silence = now - self._unanswered_since
            if self._unanswered > MOST_FAILED_CONNECTIONS and silence < limit:
                raise OfflineModeIsEnabled(f"{MOST_FAILED_CONNECTIONS} connections have failed")
            if silence > MOST_TIMEOUTS * limit:
                raise NetworkError(
                    f"{constants.ENDPOINT} has not answered for {silence:.0f} seconds; check the connection, "
                    "HF_ENDPOINT and proxies, or give a folder"
                )
        stated = request.extensions.get("timeout") or {}
        request.extensions["timeout"] = {
            name: min(stated.get(name) or limit, limit) for name in ("connect", "read", "write", "pool")
        }

    def check_response(self, response: Any) -> None:
        """Warn of a requested wait, and limit the time and size of the content.

        Raises HfHubHTTPError if the wait is too long, NetworkError for an invalid commit or hash.
        """
        self._unanswered_since = None
        self._unanswered = 0
        server = str(response.url.join("/")).rstrip("/")  # the Hub, or one that has its files
        limit = self._find_limit(response, server)
        count = self._count_pages(response, server)
        packing = self._require_unpacked(response, server)
        response.stream = _PacedStream(response.stream, Pace(longest_silence(), server), limit, count, packing)
        if response.status_code in BUSY:
            self._check_wait(response, server)
        else:
            self._waited = 0
            self.refusal = None
        commit = response.headers.get("X-Repo-Commit")
        if commit is None:  # no server of a Hub, but of its files
            return
        etag = response.headers.get("ETag")
        linked = response.headers.get("X-Linked-Etag")
        for name, value, form in (("commit", commit, COMMIT), ("hash", etag, ETAG), ("hash", linked, ETAG)):
            if value is not None and not form.fullmatch(value):
                raise NetworkError(f"{constants.ENDPOINT} sent an invalid {name}, {value!r:.100}; check HF_ENDPOINT")
        if etag or linked:
            self.announced = (linked or etag).removeprefix("W/").strip('"')

    def _find_limit(self, response: Any, server: str) -> Limit:
        """What the content of an answer may have. Raises if the answer states that it has more."""
        if self._counts_failures:
            return Limit()
        if response.is_error:
            return Limit(f"the error response of {server}", MOST_CONFIG_BYTES)
        url = response.request.url
        size = _read_size(response)
        limit = self._limits.get(str(url), Limit())
        address = FILE.fullmatch(url.path)
        if address:
            limit = limit._replace(what=address["file"], most=limit_of(address["file"]))
        elif "/api/" in url.path:
            most = MOST_INDEX_BYTES if "/api/datasets/" in url.path else MOST_LISTING_BYTES
            limit = Limit(f"the response of {server}", most)
        is_head = response.request.method == "HEAD"
        if is_head or response.is_redirect:
            if is_head and address and limit.most is None:
                limit = limit._replace(announced=size)
            with suppress(httpx.InvalidURL):  # which huggingface_hub will say
                target = url.join(response.headers.get("Location", ""))
                self._limits[str(url)] = limit
                self._limits[str(target)] = limit
                if str(url) in self._counts:
                    self._counts[str(target)] = self._counts[str(url)]
            return Limit(f"the redirect from {server}", MOST_CONFIG_BYTES)
        limit.check(size or 0)
        return limit

    def _count_pages(self, response: Any, server: str) -> Count:
        """What has come of the list of which an answer is a page. Raises NetworkError for too many pages."""
        count = self._counts.pop(str(response.request.url), Count())
        following = response.links.get("next", {}).get("url")
        if following is None or self._counts_failures:
            return count
        if count.pages >= MOST_LISTING_PAGES:
            raise NetworkError(
                f"{server} sends a list of more than {MOST_LISTING_PAGES} pages; give another revision, or a folder"
            )
        count.pages += 1
        with suppress(httpx.InvalidURL):  # which huggingface_hub will say
            self._counts[str(response.request.url.join(following))] = count
        return count

    def _require_unpacked(self, response: Any, server: str) -> str:
        """How an answer is packed, "" if it is not. The HTTP client would unpack it, in memory without a limit.

        Raises NetworkError if a file is packed, or another answer in a way that is not known.
        """
        packing = response.headers.get("Content-Encoding", "identity").strip().lower()
        if packing in ("", "identity") or response.request.method == "HEAD":
            return ""
        address = FILE.fullmatch(response.request.url.path)
        is_known = packing in PACKINGS and not self._counts_failures
        if response.is_success and (address or not is_known):
            what = address["file"] if address else "the response"
            raise NetworkError(f"{server} sent {what} compressed, expected plain bytes; check HF_ENDPOINT")
        del response.headers["Content-Encoding"]
        return packing if is_known else ""

    def _check_wait(self, response: Any, server: str) -> None:
        seconds = read_wait(response)
        if seconds is None:
            return
        self._waited += seconds
        if self._waited <= LONGEST_WAIT:
            log.warning("%s: %s asks clients to wait %d s", self._subject, server, seconds)
            return
        self.refusal = (
            f"{server} asks clients to wait {seconds:,} seconds, but attngeo waits at most {LONGEST_WAIT} in total; "
            "try again later"
        )
        raise HfHubHTTPError(self.refusal, response=response)  # which lets huggingface_hub look into its cache


class _PacedStream(httpx.SyncByteStream):
    """The content of an answer, whose bytes have a pace and a limit. packing: one of PACKINGS, or ""."""

    def __init__(self, stream: Any, pace: Pace, limit: Limit, count: Count, packing: str) -> None:
        self._stream = stream
        self._pace = pace
        self._limit = limit
        self._count = count
        self._packing = packing

    def __iter__(self) -> Iterator[bytes]:
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if self._packing else None  # gzip, or zlib, by its header
        for block in self._stream:
            for part in [block] if unpacker is None else _unpack(unpacker, block, self._packing):
                self._count.received += len(part)
                self._limit.check(self._count.received)
                yield part
            self._pace.count(len(block))

    def close(self) -> None:
        self._stream.close()


def _unpack(unpacker: Any, block: bytes, packing: str) -> Iterator[bytes]:
    """The content of some packed bytes, a little at a time. Raises NetworkError if they are not packed so."""
    while block:
        try:
            yield unpacker.decompress(block, UNPACKED_AT_ONCE)
        except zlib.error as error:
            raise NetworkError(
                f"{constants.ENDPOINT} does not answer like the Hub ({packing}: {first_line(error)}); check HF_ENDPOINT"
            ) from None
        block = unpacker.unconsumed_tail


class Pace:
    """The pace of a server. Raises NetworkError if almost no bytes arrive in `seconds` seconds."""

    def __init__(self, seconds: float, server: str) -> None:
        self._seconds = seconds
        self._server = server
        self._since = time.monotonic()
        self._received = 0

    def count(self, nbytes: int) -> None:
        """Count bytes that have just arrived."""
        self._received += nbytes
        elapsed = time.monotonic() - self._since
        if elapsed <= self._seconds:
            return
        if self._received < SLOWEST * elapsed:
            raise NetworkError(
                f"{self._server} has sent only {self._received:,} bytes in {elapsed:.0f} seconds; "
                "check the connection, or try again later"
            )
        self._since = time.monotonic()
        self._received = 0


def _pace_connections(backend: Any) -> None:
    """Give a pace to what a server sends before the content of its answer.

    A time-out is that of one read: headers that come byte by byte would never end.

    Args:
        backend: the network of an HTTP client.
    """
    connect = backend.connect_tcp

    def connect_paced(host: str, port: int, **options: Any) -> _PacedConnection:
        return _PacedConnection(connect(host, port, **options), f"{host}:{port}")

    backend.connect_tcp = connect_paced


class _PacedConnection:
    """One connection. The time of a request begins with the first read after it was written."""

    def __init__(self, stream: Any, server: str, scheme: str = "http") -> None:
        self._stream = stream
        self._server = server
        self._scheme = scheme
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
            self._pace = Pace(longest_silence(), f"{self._scheme}://{self._server}")
        block: bytes = self._stream.read(max_bytes, timeout)
        self._pace.count(len(block))
        return block


def read_wait(response: Any) -> int | None:
    """Seconds that a busy server asks to wait, as huggingface_hub reads them; None if it does not say."""
    stated = response.headers.get("Retry-After", "").strip()
    try:
        if response.status_code == TOO_MANY_REQUESTS:
            limits = parse_ratelimit_headers(response.headers)
            if limits is not None and limits.remaining == 0:
                return limits.reset_in_seconds
        return int(stated[:20]) if stated.isdigit() else None
    except ValueError:  # thousands of digits, or such as ²: huggingface_hub would fail
        return NEVER
