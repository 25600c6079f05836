"""PyTorch files from before version 1.6: pickles, then the numbers of each storage one after the other.

The file begins with three small pickles: a mark, the version of the format, and the machine that wrote it. Then come
the pickle of the state dict and that of the list of its storages. Of these, the sizes are known, and so their places.

Format: `_legacy_save` of https://github.com/pytorch/pytorch/blob/main/torch/serialization.py
"""

from __future__ import annotations

from typing import Any

from attngeo.checkpoints.source import ByteSource, Extent
from attngeo.checkpoints.torch_pickle import SavedStorage, TorchUnpickler, broken

# A pickle of the magic number, in one of the protocols that torch.load(weights_only=True) reads.
MARKS = tuple(b"\x80%c\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." % protocol for protocol in (2, 3))
VERSION = 1001
# Bytes that are read at once of the pickles, and the most that they may be; 300 bytes a tensor are usual.
BLOCK, LONGEST, LONGEST_LINE = 100_000, 100_000_000, 1000
# In front of the numbers of a storage is their count.
COUNT = 8


def is_legacy(source: ByteSource) -> bool:
    """Whether a file begins as those of older versions do."""
    return bytes(source.read(0, min(len(MARKS[0]), source.size), "mark").numpy()) in MARKS


class LegacyRecords:
    """The storages of an older file, found by the names that they would have as records of a newer one.

    Raises UnsafeCheckpointError or CorruptCheckpointError.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source, self._places = source, dict[str, tuple[int, SavedStorage]]()

    def load_state(self) -> Any:
        """The object that the pickle of the file describes. Finds the storages, too."""
        source, pickles = self._source, _Pickles(self._source)
        self._require(pickles, VERSION, "version of the format")
        system = TorchUnpickler(pickles, source.where).load_safely()
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise broken(source.where, "its numbers are not little-endian; save it again")
        unpickler = TorchUnpickler(pickles, source.where)
        state = unpickler.load_safely()
        keys = TorchUnpickler(pickles, source.where).load_safely()
        self._places = self._locate_all(keys, unpickler.storages, pickles.at)
        return state

    def size(self, name: str) -> int | None:
        """The bytes of a storage, None if there is no such storage."""
        return self._places[name][1].nbytes if name in self._places else None

    def find(self, name: str) -> int:
        """The place in the file at which a storage starts. Raises CorruptCheckpointError if its own count differs."""
        start, storage = self._places[name]
        count = int.from_bytes(bytes(self._source.read(start - COUNT, COUNT, name).numpy()), "little")
        expected = storage.nbytes // storage.dtype.itemsize
        if count != expected:
            raise broken(
                self._source.where,
                f"{name[:80]!r} has {count:,} numbers, not {expected:,}",
            )
        return start

    def locate(self, name: str, start: int, count: int) -> tuple[Extent, Extent]:
        """The count of a storage, and a part of its content."""
        at = self._places[name][0]
        return Extent(at - COUNT, COUNT), Extent(at + start, count)

    def _require(self, pickles: _Pickles, expected: int, what: str) -> None:
        found = TorchUnpickler(pickles, self._source.where).load_safely()
        if found != expected:
            raise broken(self._source.where, f"its {what} is {found!r:.40}, expected {expected}")

    def _locate_all(self, keys: Any, storages: dict[str, SavedStorage], at: int) -> dict[str, tuple[int, SavedStorage]]:
        """Record → where its numbers start, and the storage."""
        where = self._source.where
        if not isinstance(keys, list) or {f"data/{key}" for key in keys if isinstance(key, str)} != set(storages):
            raise broken(where, "its list of storages is not that of its tensors")
        if len(keys) != len(storages):
            raise broken(where, "a storage is listed twice")
        places = {}
        for key in keys:
            storage = storages[f"data/{key}"]
            places[storage.record] = at + COUNT, storage
            at += COUNT + storage.nbytes
        if at > self._source.size:
            raise broken(where, f"it has {self._source.size:,} bytes, expected {at:,}")
        return places


class _Pickles:
    """The pickles as a file for an unpickler: read in blocks, never far. at: the bytes that were taken."""

    def __init__(self, source: ByteSource) -> None:
        self._source, self._block, self._start = source, b"", 0
        self.at = len(MARKS[0])

    def read(self, size: int) -> bytes:
        """The next bytes. Raises CorruptCheckpointError if the file, or what pickles may be of it, ends before."""
        if size < 0 or self.at + size > min(self._source.size, LONGEST):
            raise broken(self._source.where, "it ends inside its list of tensors")
        self._load(size)
        self.at += size
        return self._block[self.at - size - self._start : self.at - self._start]

    def readline(self) -> bytes:
        """The bytes up to the next end of a line. Raises CorruptCheckpointError if the line is too long."""
        self._load(min(LONGEST_LINE, self._source.size - self.at))
        end = self._block.find(b"\n", self.at - self._start, self.at - self._start + LONGEST_LINE)
        if end < 0:
            raise broken(self._source.where, f"it has a name of more than {LONGEST_LINE:,} characters")
        return self.read(end + 1 + self._start - self.at)

    def _load(self, size: int) -> None:
        """Hold at least this number of bytes from `at`."""
        if self.at + size > self._start + len(self._block):
            self._start = self.at
            count = min(max(size, BLOCK, 2 * len(self._block)), self._source.size - self.at)
            self._block = bytes(self._source.read(self.at, count, "list of tensors").numpy())
