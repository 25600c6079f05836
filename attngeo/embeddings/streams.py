"""Files of word vectors as a stream of bytes, whether plain, .gz or inside a .zip."""

from __future__ import annotations

import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from attngeo.errors import CorruptCheckpointError, ModelNotFoundError, UsageError
from attngeo.progress import Progress

CHUNK = 1 << 22
SNIFFED = 1 << 16
LONGEST_LINE = 1 << 24
# What gzip, zipfile and their decompressors raise for files that are damaged, encrypted or of a kind they do not know.
BROKEN = (EOFError, RuntimeError, ValueError, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile, zlib.error)


class Stream:
    """A decompressed stream; `head` are its first bytes, which reading gives again. Reports the bytes of the file.

    The head holds two whole lines wherever they are not absurdly long.
    """

    def __init__(
        self, ref: str, file: IO[bytes], raw: IO[bytes], size: int, report: Callable[[Progress], None], what: str
    ) -> None:
        self.ref, self._file, self._raw, self._size, self._report, self._what = ref, file, raw, size, report, what
        self.head = b""
        while self.head.count(b"\n") < 2 and len(self.head) < LONGEST_LINE and (more := self._some(SNIFFED)):
            self.head += more
        self._pending = self.head

    def chunks(self) -> Iterator[bytes]:
        """Everything in turn, some megabytes at a time. Raises CorruptCheckpointError where it is damaged."""
        while chunk := self._pending or self._some(CHUNK):
            self._pending = b""
            self._report(Progress("read", self._what, min(self._raw.tell(), self._size), self._size))
            yield chunk

    def _some(self, count: int) -> bytes:
        try:
            return self._file.read(count)
        except (*BROKEN, OSError) as error:
            raise CorruptCheckpointError(
                f"{self.ref}: damaged or cut off ({str(error) or type(error).__name__}); download it again"
            ) from None


@contextmanager
def open_stream(
    path: Path,
    member: str | None,
    ref: str,
    report: Callable[[Progress], None] = lambda _: None,
    what: str = "reading vectors",
) -> Iterator[Stream]:
    """What is in `path`; `member` names one file of a .zip that holds several. `what` is reported as being done."""
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(path.open("rb"))
            magic = raw.read(4)
            raw.seek(0)
            file: Any = raw  # what the three libraries give shares no type
            if magic[:2] == b"\x1f\x8b":
                file = stack.enter_context(gzip.open(raw))
            elif magic == b"PK\x03\x04":
                file = _open_member(stack.enter_context(zipfile.ZipFile(raw)), member, ref, stack)
        except BROKEN as error:
            raise CorruptCheckpointError(f"{ref}: not a whole .zip file ({error}); download it again") from None
        except OSError as error:
            raise ModelNotFoundError(f"{ref}: cannot be opened ({error.strerror})") from None
        if member is not None and magic != b"PK\x03\x04":
            raise ModelNotFoundError(f"{ref}: {path} is no .zip file, so there is no {member} in it")
        yield Stream(ref, io.BufferedReader(file, CHUNK), raw, path.stat().st_size, report, what)


def _open_member(archive: zipfile.ZipFile, member: str | None, ref: str, stack: ExitStack) -> IO[bytes]:
    names = [info.filename for info in archive.infolist() if not info.is_dir() and "__MACOSX" not in info.filename]
    if member is None and len(names) != 1:
        example = f"{ref}/{names[0]}" if names else ""
        raise UsageError(
            f"{ref}: holds {len(names)} files"
            + (f" ({', '.join(names[:6])}); name one, such as {example}" * bool(names))
        )
    if member is not None and member not in names:
        raise ModelNotFoundError(f"{ref}: the .zip file has no {member}, it has: {', '.join(names[:6])}")
    return stack.enter_context(archive.open(names[0] if member is None else member))
