"""Files of word vectors as streams of bytes: plain, .gz, or one file of a .zip.

smart_open is not used: it does not read .zip, tells .gz by the name of the file only, and reports no progress.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from attngeo.errors import CorruptCheckpointError, ModelNotFoundError, UsageError
from attngeo.progress import Progress, ProgressCallback, ignore_progress

CHUNK = 1 << 22
SNIFFED = 1 << 16
LONGEST_LINE = 1 << 24
SHOWN = 6
GZIP, ZIP = b"\x1f\x8b", b"PK\x03\x04"
# What gzip, zipfile and their decompressors raise for files that are damaged, encrypted or of an unknown kind.
BROKEN = (EOFError, RuntimeError, ValueError, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile, zlib.error)


class Stream:
    """A decompressed stream.

    ref: the name of the file in messages. head: the first bytes, with two whole lines unless they are longer than
    LONGEST_LINE; `chunks` returns them again.
    """

    def __init__(
        self, ref: str, file: IO[bytes], raw: IO[bytes], size: int, report: ProgressCallback, what: str
    ) -> None:
        self.ref, self._file, self._raw, self._size, self._report, self._what = ref, file, raw, size, report, what
        self.head = b""
        while self.head.count(b"\n") < 2 and len(self.head) < LONGEST_LINE and (more := self._read(SNIFFED)):
            self.head += more
        self._pending = self.head

    def chunks(self) -> Iterator[bytes]:
        """The whole stream, in chunks of some megabytes. Reports the bytes of the file that are read.

        Raises CorruptCheckpointError if the file is damaged.
        """
        while chunk := self._pending or self._read(CHUNK):
            self._pending = b""
            self._report(Progress("read", self._what, min(self._raw.tell(), self._size), self._size))
            yield chunk

    def _read(self, count: int) -> bytes:
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
    report: ProgressCallback = ignore_progress,
    what: str = "reading vectors",
) -> Iterator[Stream]:
    """The content of `path`. member: the file of a .zip, required if it has several. what: the step that is reported.

    Raises ModelNotFoundError, UsageError, CorruptCheckpointError.
    """
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(path.open("rb"))
            magic = raw.read(4)
            raw.seek(0)
            file: Any = raw  # what the three libraries return has no common type
            if magic.startswith(GZIP):
                file = stack.enter_context(gzip.open(raw))
            elif magic == ZIP:
                file = _open_member(stack.enter_context(zipfile.ZipFile(raw)), member, ref, stack)
        except BROKEN as error:
            raise CorruptCheckpointError(f"{ref}: not a whole .zip file ({error}); download it again") from None
        except OSError as error:
            raise ModelNotFoundError(f"{ref}: cannot be opened ({error.strerror})") from None
        if member is not None and magic != ZIP:
            raise ModelNotFoundError(f"{ref}: {path} is not a .zip file, so it has no {member}")
        yield Stream(ref, io.BufferedReader(file, CHUNK), raw, path.stat().st_size, report, what)


def _open_member(archive: zipfile.ZipFile, member: str | None, ref: str, stack: ExitStack) -> IO[bytes]:
    names = [info.filename for info in archive.infolist() if not info.is_dir() and "__MACOSX" not in info.filename]
    shown = ", ".join(names[:SHOWN])
    if member is None and not names:
        raise CorruptCheckpointError(f"{ref}: the .zip file is empty, expected one file of word vectors")
    if member is None and len(names) > 1:
        raise UsageError(f"{ref}: the .zip file has {len(names)} files ({shown}); name one, such as {ref}/{names[0]}")
    if member is not None and member not in names:
        raise ModelNotFoundError(f"{ref}: the .zip file has no {member}, it has: {shown}")
    return stack.enter_context(archive.open(names[0] if member is None else member))
