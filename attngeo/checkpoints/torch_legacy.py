"""PyTorch's files from before 1.6: pickles, then for each storage the count of its numbers and the numbers.

In such a file, torch.load ignores the byte order, and takes memory as it is for a storage that the file does not list.

Format: `_legacy_save` of https://github.com/pytorch/pytorch/blob/main/torch/serialization.py
"""

from __future__ import annotations

import io
from typing import Any

from attngeo.checkpoints.extent import Extent
from attngeo.checkpoints.pickles import LONGEST, SavedStorage, TorchUnpickler, broken
from attngeo.checkpoints.tensor_file import ByteSource, read_bytes

# The first pickle is a magic number, in one of the protocols that torch.load reads. Four pickles follow: version,
# machine, state dict and list of storages.
MARKS = tuple(b"\x80%c\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." % protocol for protocol in (2, 3))
VERSION = 1001
# Bytes of the count in front of the numbers of a storage.
COUNT = 8


class LegacyRecords:
    """The storages of a file from before PyTorch 1.6, under the record names of newer files."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._storages: dict[str, tuple[int, SavedStorage]] = {}  # name → the first byte of its numbers, the storage

    def load_state(self) -> Any:
        """The object in the pickle of the file. Also finds the storages. Raises as `ZipRecords`."""
        content = io.BytesIO(read_bytes(self._source, 0, min(self._source.size, LONGEST), "list of tensors"))
        content.seek(len(MARKS[0]))
        unpicklers = [TorchUnpickler(content) for _ in range(4)]
        version, system, state, keys = [unpickler.load_safely() for unpickler in unpicklers]
        if version != VERSION:
            raise broken(f"its format version is {version!r:.40}, expected {VERSION}")
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise broken("its numbers are not little-endian; save it again")
        storages = unpicklers[2].storages
        listed = [f"data/{key}" for key in keys if isinstance(key, str)] if isinstance(keys, list) else []
        if sorted(listed) != sorted(storages):
            raise broken("its list of storages does not match its tensors")
        end = content.tell()
        for name in listed:
            start = end + COUNT
            self._storages[name] = (start, storages[name])
            end = start + storages[name].nbytes
        if end > self._source.size:
            raise broken(f"it has {self._source.size:,} bytes, expected {end:,}")
        return state

    def find_start(self, name: str) -> int:
        """The offset of a storage in the file. Raises CorruptCheckpointError if its own count differs."""
        start, storage = self._storages[name]
        count = int.from_bytes(read_bytes(self._source, start - COUNT, COUNT, name), "little")
        if count * storage.dtype.itemsize != storage.nbytes:
            expected = storage.nbytes // storage.dtype.itemsize
            raise broken(f"{name[:80]!r} has {count:,} numbers, expected {expected:,}")
        return start

    def locate(self, name: str, start: int, count: int) -> tuple[Extent, Extent]:
        """The extents of a storage's count and of a part of its content."""
        first, _ = self._storages[name]
        return Extent(first - COUNT, COUNT), Extent(first + start, count)
