"""ByteSource: where a format reads its bytes, a file on this machine or one on the Hub."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from torch import Tensor


class Extent(NamedTuple):
    """A range of bytes."""

    offset: int
    nbytes: int


class ByteSource(Protocol):
    """An open file of known size. The stores of bytes are `RegularFile` (a disk) and `RemoteFile` (the Hub).

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
