"""Reads of exact ranges of bytes from one regular file: a ByteSource."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from attngeo.bounds.memory import require_memory
from attngeo.checkpoints.source import Extent
from attngeo.errors import CorruptCheckpointError

# Buffers of at least this many bytes are placed in huge pages.
LARGE = 1 << 22


class RegularFile:
    """An open file. Raises CorruptCheckpointError if it is missing, not a regular file, or not readable."""

    lanes = 1

    def __init__(self, path: Path) -> None:
        self.where, self.requests = str(path), 0
        if not path.is_file():
            raise CorruptCheckpointError(f"{path}: no such file; download it again")
        try:
            self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))  # a flag of Windows
        except OSError as error:
            raise CorruptCheckpointError(f"{path}: cannot be opened ({error.strerror})") from None
        self.size, self._position = os.fstat(self._descriptor).st_size, Lock()

    def read(self, offset: int, count: int, name: str) -> Tensor:
        """Bytes, uint8 [count], in new memory; see `ByteSource`."""
        if offset < 0 or offset + count > self.size:
            raise self._cut_off(name)
        require_memory(count, f"{self.where}: tensor {name!r}")
        buffer = _reserve(count)
        view = memoryview(buffer.numpy().data)
        while view:
            got = self._read_into(view, offset)
            if got == 0:  # it was truncated after it was opened
                raise self._cut_off(name)
            view, offset = view[got:], offset + got
        return buffer

    def _read_into(self, view: memoryview, offset: int) -> int:
        """Fill memory from this position of the file on. Returns the number of bytes, which may be fewer."""
        if hasattr(os, "preadv"):
            return os.preadv(self._descriptor, [view], offset)
        with self._position:  # Windows: all threads that read the file share its position
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            return io.FileIO(self._descriptor, closefd=False).readinto(view)

    def hold(self, extents: Iterable[Extent]) -> AbstractContextManager[None]:  # noqa: ARG002 - the protocol's
        """Nothing: the operating system reads ahead."""
        return nullcontext()

    def count_requests(self, extents: Iterable[Extent]) -> int:  # noqa: ARG002 - the protocol's
        """0: no server is asked."""
        return 0

    def _cut_off(self, name: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self.where}: ends inside tensor {name!r}; download it again")

    def close(self) -> None:
        """Close the file. A later `read` fails."""
        os.close(self._descriptor)


def _reserve(count: int) -> Tensor:
    """New memory, uint8 [count]. That of large tensors is in huge pages if Linux has them.

    The first write to a page takes a fault, and for pages of 4 KiB the faults take longer than reads of cached bytes.
    """
    if count >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE)
            return torch.frombuffer(memory, dtype=torch.uint8)
    return torch.empty(count, dtype=torch.uint8)
