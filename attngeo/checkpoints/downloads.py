"""What is required of a server of the Hub: that it answers in time, and that a file has the announced hash."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import constants, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import _http as hub_http
from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]  # re-exported

from attngeo.errors import NetworkError

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
# A hash becomes the name of a file in the cache.
ETAG = re.compile(r'(?:W/)?"?[\w.:+=-]{1,200}"?', re.ASCII)


@contextmanager
def require_answers(ref: str) -> Iterator[ServerRules]:
    """Inside the block, huggingface_hub waits for no server for long.

    Logs a warning for each wait that a server asks for. Raises NetworkError if it asks for more than LONGEST_WAIT
    seconds, if it does not answer or sends almost nothing, and if it names a commit or hash that is none. If the file
    is in the cache, huggingface_hub takes that instead.
    """
    _watch_clients()
    rules, outer = ServerRules(ref), getattr(_own, "rules", None)
    _active.append(rules)
    _own.rules = [*(outer or []), rules]
    try:
        yield rules
    except (HfHubHTTPError, OSError) as error:
        if rules.refusal is not None:
            raise NetworkError(rules.refusal) from error
        raise
    finally:
        _own.rules = outer
        _active.remove(rules)


def longest_timeout() -> float:
    """The time-out that the user has set, in seconds."""
    return max(constants.HF_HUB_ETAG_TIMEOUT, constants.HF_HUB_DOWNLOAD_TIMEOUT)


# The rules of the blocks that are running in all threads, and in this one. Those of all are for threads of libraries.
_active: list[ServerRules] = []
_own = threading.local()


def set_own_rules() -> None:
    """Let this thread judge its answers itself: it sends requests for one file, beside those of other threads."""
    _own.rules = []


def _current_rules() -> list[ServerRules]:
    own = getattr(_own, "rules", None)
    return [*_active] if own is None else own


@dataclass(frozen=True)
class _WatchedFactory:
    """Makes the HTTP clients of huggingface_hub, which makes a new one after each connection that has failed."""

    factory: Callable[[], Any]

    def __call__(self) -> Any:
        client = self.factory()
        own: dict[str, Callable[..., None]] = {"request": _check_request, "response": _check_response}
        client.event_hooks = {name: [*hooks, own[name]] for name, hooks in client.event_hooks.items()}
        return client


def _watch_clients() -> None:
    factory = hub_http._GLOBAL_CLIENT_FACTORY  # there is no public way to keep the one that a user has set
    if not isinstance(factory, _WatchedFactory):
        set_client_factory(_WatchedFactory(factory))


def _check_request(request: Any) -> None:
    for rules in _current_rules():
        rules.check_request(request)


def _check_response(response: Any) -> None:
    for rules in _current_rules():
        rules.check_response(response)


class ServerRules:
    """The hooks of huggingface_hub's HTTP client, httpx2, and what they have seen.

    refusal: why the server is given up, if it is. announced: the hash of the last file that the Hub answered about.
    """

    def __init__(self, ref: str) -> None:
        self.refusal: str | None = None
        self.announced: str | None = None
        self._ref, self._waited = ref, 0
        self._unanswered_since: float | None = None
        self._unanswered = 0

    def check_request(self, request: Any) -> None:
        """Give every request a time-out.

        Raises NetworkError if the server has answered nothing for long; OfflineModeIsEnabled, after which other
        libraries look into their caches, if connections fail at once, so that another one would, too.
        """
        now, limit = time.monotonic(), longest_timeout()
        self._unanswered_since = self._unanswered_since or now
        self._unanswered += 1
        if self._unanswered > MOST_CONNECTIONS and now - self._unanswered_since < limit:
            raise OfflineModeIsEnabled(f"{MOST_CONNECTIONS} connections have failed")
        if now - self._unanswered_since > MOST_TIMEOUTS * limit:
            raise NetworkError(
                f"{self._ref}: {constants.ENDPOINT} has not answered for {now - self._unanswered_since:.0f} seconds; "
                "check the connection, HF_ENDPOINT and proxies, or give a folder"
            )
        given = request.extensions.get("timeout") or {}
        request.extensions["timeout"] = {
            name: min(given.get(name) or limit, limit) for name in ("connect", "read", "write", "pool")
        }

    def check_response(self, response: Any) -> None:
        """Announce a wait, and let the content come in time.

        Raises HfHubHTTPError for a wait that is too long, NetworkError for a name that is none.
        """
        self._unanswered_since, self._unanswered = None, 0
        who = f"{self._ref}: {_server_of(response)}"
        response.stream = _PacedStream(response.stream, MOST_TIMEOUTS * longest_timeout(), who)
        if response.status_code in BUSY:
            self._check_wait(response)
        else:
            self._waited, self.refusal = 0, None
        commit, etag = (response.headers.get(name) for name in ("X-Repo-Commit", "ETag"))
        linked = response.headers.get("X-Linked-Etag")
        if commit is None:  # no server of a Hub, but of its files
            return
        for name, value, form in (("commit", commit, COMMIT), ("hash", etag, ETAG), ("hash", linked, ETAG)):
            if value is not None and not form.fullmatch(value):
                raise NetworkError(
                    f"{self._ref}: {constants.ENDPOINT} answers with the {name} {value!r:.100}, which is none; check "
                    "HF_ENDPOINT"
                )
        if etag or linked:
            self.announced = (linked or etag).removeprefix("W/").strip('"')

    def _check_wait(self, response: Any) -> None:
        asked = read_wait(response)
        if asked is None:
            return
        self._waited += asked
        if self._waited <= LONGEST_WAIT:
            log.warning("%s: %s asks to wait %d s", self._ref, _server_of(response), asked)
            return
        self.refusal = (
            f"{self._ref}: {_server_of(response)} asks to wait {asked:,} seconds, expected at most {LONGEST_WAIT} in "
            "total; try again later"
        )
        raise HfHubHTTPError(self.refusal, response=response)  # which lets huggingface_hub look into its cache


def _server_of(response: Any) -> str:
    """Scheme, host and port of the server that answered: the Hub, or one that has its files."""
    return str(response.url.join("/")).rstrip("/")


class _PacedStream(httpx2.SyncByteStream):
    """The content of an answer. Raises NetworkError if, in `seconds` seconds, almost none of it has come."""

    def __init__(self, stream: Any, seconds: float, who: str) -> None:
        self._stream, self._seconds, self._who = stream, seconds, who

    def __iter__(self) -> Iterator[bytes]:
        since, received = time.monotonic(), 0
        for part in self._stream:
            yield part
            received += len(part)
            if (now := time.monotonic()) - since > self._seconds:
                if received < SLOWEST * (now - since):
                    raise NetworkError(
                        f"{self._who} has sent {received:,} bytes in {now - since:.0f} seconds; "
                        "check the connection, or try again later"
                    )
                since, received = now, 0

    def close(self) -> None:
        self._stream.close()


def read_wait(response: Any) -> int | None:
    """The seconds that a busy server asks to wait, as huggingface_hub reads them; None if it does not say."""
    asked = response.headers.get("Retry-After", "").strip()
    try:
        limits = parse_ratelimit_headers(response.headers) if response.status_code == TOO_MANY_REQUESTS else None
        if limits is not None and limits.remaining == 0:
            return limits.reset_in_seconds
        return int(asked[:20]) if asked.isdigit() else None
    except ValueError:  # thousands of digits, or such as ²: huggingface_hub would fail
        return NEVER


@contextmanager
def note_unverified(model: str, file: str, *, cached: bool) -> Iterator[bool]:
    """Whether a file has to be verified: it is not in the cache yet, or a process died before it had verified it.

    Inside the block, a note in the cache says so, between the locks of huggingface_hub.
    """
    folder = Path(constants.HF_HUB_CACHE, ".locks", repo_folder_name(repo_id=model, repo_type="model"))
    note = folder / f"{hashlib.sha1(file.encode()).hexdigest()}.unverified"
    if cached and not note.exists():
        yield False
        return
    with suppress(OSError):  # a cache that cannot be written does not change, either
        folder.mkdir(parents=True, exist_ok=True)
        note.touch()
    try:
        yield True
    finally:
        with suppress(OSError):
            note.unlink(missing_ok=True)


def verify_download(path: Path, ref: str, announced: str | None) -> None:
    """Compare a file that was downloaded into the cache with the hash that the server announced.

    That is the name of its blob, or `announced` in a cache without links. It is the SHA-256 of a large file and the
    hash of git of a small one; other servers may announce the SHA-1, or what is no hash, which is not checked. A file
    that differs, or whose check is interrupted, is removed from the cache. Raises NetworkError.
    """
    blob = path.parent / path.readlink() if path.is_symlink() else path
    announced = blob.name if path.is_symlink() else announced or ""
    try:
        found = _hash_file(path, announced)
        if announced in found or not found:
            return
    except BaseException:
        _remove(path, blob)
        raise
    _remove(path, blob)
    raise NetworkError(
        f"{ref}: {path.name} is damaged: its hash is {found[0]}, expected {announced}, which {constants.ENDPOINT} "
        "announced; it is removed from the cache; try again"
    )


def _hash_file(path: Path, announced: str) -> list[str]:
    """The hashes of a file of the kinds that an announced hash may be; none if it is no hash."""
    if re.fullmatch("[0-9a-f]{64}", announced):
        kinds: list[Callable[[], hashlib._Hash]] = [hashlib.sha256]
    elif re.fullmatch("[0-9a-f]{40}", announced):
        size = path.stat().st_size
        kinds = [lambda: hashlib.sha1(b"blob %d\0" % size), hashlib.sha1]
    else:
        return []
    found = []
    for kind in kinds:
        with path.open("rb") as file:
            found.append(hashlib.file_digest(file, kind).hexdigest())
    return found


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
