"""One open weight file, and the source of its bytes: a `RegularFile` on a disk, or a `RemoteFile` on the Hub."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from attngeo.bounds.machine import require_memory
from attngeo.checkpoints.extent import Extent
from attngeo.checkpoints.first_bytes import LOOKED_AT, explain_other_format
from attngeo.checkpoints.store import TensorInfo
from attngeo.errors import AttnGeoError, CorruptCheckpointError, about

if TYPE_CHECKING:
    from attngeo.checkpoints.remote import RemoteFile

# Buffers of at least this many bytes are placed in huge pages.
LARGE = 1 << 22
# An open file on a disk, or on the Hub.
ByteSource: TypeAlias = "RegularFile | RemoteFile"


def read_bytes(source: ByteSource, offset: int, count: int, name: str) -> bytes:
    """Bytes of a file, as bytes and not as a tensor; see `RegularFile.read`."""
    return bytes(source.read(offset, count, name).numpy())


def explain_content(source: ByteSource, expected: str) -> AttnGeoError | None:
    """The error for a file in another format than its name says; see `explain_other_format`."""
    head = read_bytes(source, 0, min(LOOKED_AT, source.size), "mark")
    return explain_other_format(head, expected)


class TensorFile:
    """One open weight file of one format. Errors are about the file. An error during opening closes it.

    Args:
        source: the open file.

    tensors: the table of contents: tensor name → shape, dtype and place. nested_under: the key that holds the tensors;
    "" if they are at the top level of the file.
    """

    tensors: dict[str, TensorInfo]
    nested_under = ""

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        try:
            with about(source.where):
                self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        """Read the header, and make the table of contents."""
        raise NotImplementedError

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """One tensor, or rows of its first dimension, on the CPU, in the file's dtype and in new memory.

        Raises CheckpointError if the file was truncated, or the tensor cannot be read or does not fit into memory.
        """
        with about(self.source.where):
            return self._read(name, rows)

    def _read(self, name: str, rows: slice) -> Tensor:
        raise NotImplementedError

    def extents(self, reads: Mapping[str, slice]) -> Iterable[Extent]:
        """The bytes of the file that `read` needs for these rows of these tensors."""
        return [self.tensors[name].locate(rows) for name, rows in reads.items()]

    def close(self) -> None:
        """Close the file. A later `read` fails."""
        self.source.close()


class RegularFile:
    """An open file. Raises CorruptCheckpointError if it is missing, not a regular file, or not readable.

    where: the file; readers of it put their errors `about` it. size: its bytes. lanes: number of parallel reads that
    make reading faster.
    """

    lanes = 1

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        with about(self.where):
            if not path.is_file():
                raise CorruptCheckpointError("no such file; copy or download it again")
            try:
                self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))  # a flag of Windows
            except OSError as error:
                raise CorruptCheckpointError(f"cannot be opened ({error.strerror})") from None
        self.size = os.fstat(self._descriptor).st_size
        self._position = Lock()

    def read(self, offset: int, count: int, name: str) -> Tensor:
        """Bytes, uint8 [count], in new memory. name: their owner, such as a tensor, for errors.

        Raises CorruptCheckpointError if the file ends too early, NotEnoughMemoryError if they do not fit into memory.
        """
        if offset < 0 or offset + count > self.size:
            raise self._cut_off(name)
        require_memory(count, f"tensor {name!r}")
        buffer = _reserve(count)
        view = memoryview(buffer.numpy().data)
        while view:
            received = self._read_into(view, offset)
            if received == 0:  # it was truncated after it was opened
                raise self._cut_off(name)
            view = view[received:]
            offset += received
        return buffer

    def _read_into(self, view: memoryview, offset: int) -> int:
        """Fill memory from this position of the file on. Returns the number of bytes, which may be fewer."""
        if hasattr(os, "preadv"):
            return os.preadv(self._descriptor, [view], offset)
        with self._position:  # Windows: all threads that read the file share its position
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            return io.FileIO(self._descriptor, closefd=False).readinto(view)

    def hold(self, extents: Iterable[Extent]) -> AbstractContextManager[None]:  # noqa: ARG002 - as of a RemoteFile
        """Announce bytes that the block will read. Does nothing: the operating system reads ahead."""
        return nullcontext()

    def _cut_off(self, name: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"ends inside tensor {name!r}; copy or download it again")

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
