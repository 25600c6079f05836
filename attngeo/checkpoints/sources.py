"""Where a format reads its bytes: the protocol of an open file, and a file on this machine."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from attngeo.bounds import require_memory
from attngeo.errors import CorruptCheckpointError

# Buffers of at least this many bytes are placed in huge pages.
LARGE = 1 << 22


class Extent(NamedTuple):
    """A range of bytes."""

    offset: int
    nbytes: int


class ByteSource(Protocol):
    """An open file of known size: a `RegularFile` on a disk, or a `RemoteFile` on the Hub.

    where: the file, for errors. size: its bytes. lanes: how many reads at once make it faster. requests: how many were
    sent to a server for its bytes, without repetitions.
    """

    where: str
    size: int
    lanes: int
    requests: int

    def read(self, offset: int, count: int, name: str) -> Tensor:
        """Bytes, uint8 [count], in new memory. name: the tensor that they belong to, for errors.

        Raises CorruptCheckpointError if the file ends before, NotEnoughMemoryError if they do not fit into memory.
        """
        ...

    def hold(self, extents: Iterable[Extent]) -> AbstractContextManager[None]:
        """Inside the block, these bytes are read soon: a remote file asks for all of them at once, and keeps them."""
        ...

    def count_requests(self, extents: Iterable[Extent]) -> int:
        """How many requests `hold` sends for these bytes."""
        ...

    def close(self) -> None:
        """Close the file. A later `read` fails."""
        ...


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
            received = self._read_into(view, offset)
            if received == 0:  # it was truncated after it was opened
                raise self._cut_off(name)
            view, offset = view[received:], offset + received
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
