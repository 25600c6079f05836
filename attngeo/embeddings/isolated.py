"""A tokeniser of `tokenizers` in a process of its own, whose memory and time are limited.

Its rules come with the checkpoint: a few of them can make gigabytes of one word, or compare it for hours, inside one
call that nothing interrupts. And the library panics, prints a traceback, and aborts where memory ends. In a process of
its own, each of these is an error of the file.

That process imports this module, `tokenizers` and the standard library only, and looks for modules nowhere else. It
ends with the process that started it. Its memory is limited on Linux, its time wherever Python has `resource`.

    length of tokenizer.json, 8 bytes, and its text →     ← a line of JSON: the tokens, or why there are none
    a line of JSON: a word →                              ← a line of JSON: the ids of its tokens, or why there are none
    a line of JSON: null →                                ← a line of JSON: the special tokens before and after a text
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from tokenizers import Tokenizer

from attngeo.errors import CorruptCheckpointError, NotEnoughMemoryError, about, first_line

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# Bytes that a tokeniser may take beyond what its process has at the start: some, and so many for each byte of its file.
# A vocabulary of 260,000 tokens takes 6 for each byte as it is published, and 30 if its JSON has no spaces.
LEAST_MEMORY = 256 << 20
MEMORY_PER_BYTE = 50
# Seconds of a processor that it may take to be read: some, and so many for each million bytes; and for one word.
SECONDS_TO_READ = 5
SECONDS_PER_MILLION = 1
SECONDS_FOR_WORD = 2
# Tokens of one word. A word of a thousand letters has as many bytes, or a few times as many.
MOST_WORD_TOKENS = 10_000
# A text that shows which special tokens are put around texts, and how many tokens are tried if it has none.
PROBE = "a"
MOST_PROBES = 100
# The program of the process. Folders in which its packages are come after those of Python itself.
PROGRAM = "import sys; sys.path += sys.argv[1:]; from attngeo.embeddings.isolated import serve; serve()"
# Bytes that say how long the file is.
LENGTH = 8
# Where Linux says how many pages a process has.
PAGES = Path("/proc/self/statm")
ADVICE = "copy or download it again, or give another revision"


class Frame(NamedTuple):
    """The special tokens that a tokeniser puts around a text.

    Attributes:
        before: ids of those before it, in order.
        after: ids of those after it.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]


class FastTokens:
    """The tokens of a tokeniser of `tokenizers`, and its cutting of texts. Changes the tokeniser's settings.

    Args:
        tokenizer: the tokeniser.

    Attributes:
        tokens: id → token.
        special: ids that no text gives, and the id of unknown tokens.
        added: ids of tokens that were added after training, special or not.
    """

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        decoder = tokenizer.get_added_tokens_decoder()
        self.tokens: dict[int, str] = {number: token for token, number in tokenizer.get_vocab().items()}
        special = {number for number, token in decoder.items() if token.special}
        unknown = getattr(tokenizer.model, "unk_token", None)
        if unknown is not None:
            special.add(tokenizer.token_to_id(unknown))
        else:  # a Unigram model has a number instead, which only its JSON tells
            special.add(json.loads(tokenizer.to_str())["model"].get("unk_id"))
        special.discard(None)  # the model has no unknown token, or only its name
        self.special = frozenset(special)
        self.added = frozenset(decoder)
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around it; empty if it fails, or a part of it has no token."""
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        except Exception:  # what the library raises, bare, if a model without an unknown token meets one
            return []
        covered: set[int] = set()
        for start, stop in encoding.offsets:
            covered.update(range(start, stop))
        # A BPE without an unknown token drops what it does not know.
        is_complete = all(position in covered for position, letter in enumerate(text) if letter.isalnum())
        return list(encoding.ids) if is_complete else []

    def find_frame(self) -> Frame:
        """The special tokens before and after a text: they do not depend on it, if it has a token."""
        for text in (PROBE, *islice(self.tokens.values(), MOST_PROBES)):
            try:
                encoding = self._tokenizer.encode(text)
            except Exception:  # as in `encode`
                continue
            places = [place for place, is_special in enumerate(encoding.special_tokens_mask) if not is_special]
            if places:
                return Frame(tuple(encoding.ids[: places[0]]), tuple(encoding.ids[places[-1] + 1 :]))
        return Frame((), ())


class IsolatedTokenizer:
    """A tokenizer.json, read and run in a separate process. The process ends with this object.

    Args:
        text: content of the file.
        file: its name, for errors.
        ref: reference of the model, for errors.

    Attributes:
        tokens: as for `FastTokens`.
        special: as for `FastTokens`.
        added: as for `FastTokens`.

    Raises:
        CorruptCheckpointError: the file cannot be read, or needs more memory or time than allowed.
        NotEnoughMemoryError: the process cannot be started.
    """

    def __init__(self, text: str, file: str, ref: str) -> None:
        self._file = file
        self._ref = ref
        self._lock = threading.Lock()
        content = text.encode()
        self._memory = _allow_memory(len(content))
        with about(ref):
            self._process = self._start()
            end = weakref.finalize(self, _end, self._process)
            try:
                request = len(content).to_bytes(LENGTH, "big") + content
                described = self._ask(request, "is read", _allow_seconds(len(content)))
            except CorruptCheckpointError:
                end()
                raise
            if "error" in described:
                end()
                raise CorruptCheckpointError(f"{file} is not a readable tokeniser ({described['error']}); {ADVICE}")
        self.tokens: dict[int, str] = dict(zip(described["ids"], described["tokens"], strict=True))
        self.special = frozenset(described["special"])
        self.added = frozenset(described["added"])

    def encode(self, text: str) -> list[int]:
        """As `FastTokens.encode`. Raises CorruptCheckpointError if the file's rules fail, or take too much."""
        ids: list[int] = self._request(text, f"tokenises {text!r:.60}")["ids"]
        return ids

    def find_frame(self) -> Frame:
        """As `FastTokens.find_frame`. Raises CorruptCheckpointError as `encode` does."""
        answer = self._request(None, "puts special tokens around a text")
        return Frame(tuple(answer["before"]), tuple(answer["after"]))

    def _request(self, request: str | None, what: str) -> dict[str, Any]:
        """The answer to a line of JSON."""
        with about(self._ref):
            answer = self._ask(json.dumps(request).encode() + b"\n", what, SECONDS_FOR_WORD)
            if "error" in answer:
                raise CorruptCheckpointError(f"{answer['error']} when it {what}; {ADVICE}", subject=self._file)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        folders = dict.fromkeys(_find_folder(name) for name in ("attngeo", "tokenizers"))
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", PROGRAM, *folders],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # The library would start threads, which it needs for many texts at once.
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"},
            )
        except (OSError, RuntimeError) as error:
            raise NotEnoughMemoryError(
                f"no process can be started to read {self._file} ({first_line(error)}); close other programs"
            ) from None
        return process

    def _ask(self, request: bytes, what: str, seconds: int) -> dict[str, Any]:
        """The answer to a request. Raises CorruptCheckpointError if the process ends instead."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with self._lock:
            try:
                process.stdin.write(request)
                process.stdin.flush()
                line = process.stdout.readline()
            except (OSError, ValueError):  # it has ended before
                line = b""
            if line.endswith(b"\n"):
                answer: dict[str, Any] = json.loads(line)
                return answer
            code = process.wait()
        if hasattr(signal, "SIGXCPU") and code == -signal.SIGXCPU:
            problem = f"takes more than {seconds} s"
        else:
            problem = f"takes more than {self._memory / 1e6:,.0f} MB of memory, or crashes (exit code {code})"
        raise CorruptCheckpointError(f"{self._file} {problem} when it {what}; {ADVICE}")


def _allow_memory(size: int) -> int:
    """The bytes of memory that a file of so many bytes may take."""
    return LEAST_MEMORY + MEMORY_PER_BYTE * size


def _allow_seconds(size: int) -> int:
    """The seconds of a processor in which a file of so many bytes has to be read."""
    return SECONDS_TO_READ + SECONDS_PER_MILLION * size // 10**6


def _find_folder(package: str) -> str:
    """The folder in which Python finds a package."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).absolute().parents[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process of a tokeniser that is no longer used."""
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # what was not sent
                stream.close()
    process.wait()


def serve() -> None:
    """Run as the process of a tokeniser: read it, and cut words until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    requests = sys.stdin.buffer
    size = int.from_bytes(requests.read(LENGTH), "big")
    _limit_memory(_allow_memory(size))
    _limit_time(_allow_seconds(size))
    answers = sys.stdout.buffer
    tokens: FastTokens | None = None

    def read() -> dict[str, Any]:
        nonlocal tokens
        tokens = FastTokens(Tokenizer.from_str(requests.read(size).decode()))
        return {
            "ids": list(tokens.tokens),
            "tokens": list(tokens.tokens.values()),
            "special": sorted(tokens.special),
            "added": sorted(tokens.added),
        }

    _answer(answers, read)
    for line in requests:
        _limit_time(SECONDS_FOR_WORD)
        _answer(answers, partial(_respond, tokens, json.loads(line)))


def _respond(tokens: FastTokens | None, word: str | None) -> dict[str, Any]:
    """The tokens of a word; for None, the special tokens around a text."""
    assert tokens is not None
    if word is None:
        return tokens.find_frame()._asdict()
    ids = tokens.encode(word)
    if len(ids) > MOST_WORD_TOKENS:
        return {"error": f"{len(ids):,} tokens, expected at most {MOST_WORD_TOKENS:,}"}
    return {"ids": ids}


def _answer(answers: IO[bytes], act: Callable[[], dict[str, Any]]) -> None:
    """Send what a function returns, or why it fails. A panic of the library is no Exception."""
    try:
        answer = act()
    except BaseException as error:
        answer = {"error": first_line(error)}
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _limit_memory(nbytes: int) -> None:
    """Let this process take no more than so many bytes from now on, where the system can."""
    if resource is None or not PAGES.exists():
        return
    taken = int(PAGES.read_text("ascii").split()[0]) * resource.getpagesize()
    _set_limit(resource.RLIMIT_AS, taken + nbytes)
    _set_limit(resource.RLIMIT_CORE, 0)


def _limit_time(seconds: int) -> None:
    """End this process if it takes more than so many seconds of a processor from now on, where the system can."""
    if resource is None:
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _set_limit(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime) + 1 + seconds)


def _set_limit(which: int, limit: int) -> None:
    """Set a limit of this process, unless there is one that is lower and stays."""
    _, highest = resource.getrlimit(which)
    if highest == resource.RLIM_INFINITY or limit <= highest:
        resource.setrlimit(which, (limit, highest))
