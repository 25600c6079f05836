"""One PyTorch state dict (.bin, .pt, .pth): a checked table of contents, and reads of single tensors or rows.

Why not torch.load? With `weights_only` it still calls what the file names, such as bytearray(10¹²), and with `mmap` it
trusts the sizes that the pickle states: a record that is compressed, or shorter than its tensor, gives other bytes as
weights. This reader calls nothing: stand-ins record where each tensor is, every number is checked against the records
of the file, and a read takes exactly the bytes of the rows. Tests compare it with torch.load.

Format: https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.checkpoints.pickles import Record
from attngeo.checkpoints.source import ByteSource, Extent
from attngeo.checkpoints.tensor import DTYPE_NAMES, TensorInfo
from attngeo.checkpoints.torch_legacy import LegacyRecords, is_legacy
from attngeo.checkpoints.torch_pickle import SavedStorage, SavedTensor, broken, count_spanned
from attngeo.checkpoints.torch_records import TorchRecords, ends_of
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError


class _Part(NamedTuple):
    """Rows of a tensor: the numbers of a record from `first` to the last one that the rows need."""

    record: str
    dtype: torch.dtype
    first: int
    numbers: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def start(self) -> int:
        """The first byte in the record."""
        return self.first * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes in the record."""
        return self.numbers * self.dtype.itemsize


class TorchFile:
    """An open state dict; `tensors` is its table of contents.

    Raises UnsafeCheckpointError for a pickle that names more than tensors and plain values, CorruptCheckpointError for
    a file that is broken or holds no tensors.
    """

    def __init__(self, source: ByteSource) -> None:
        self._where, self._source = source.where, source
        try:
            with source.hold(ends_of(source)):
                kind = LegacyRecords if is_legacy(source) else TorchRecords
                self._records: LegacyRecords | TorchRecords = kind(source)
            state = self._records.load_state()
            if not isinstance(state, dict) or isinstance(state, Record):
                raise CorruptCheckpointError(
                    f"{self._where}: holds a {type(state).__name__}, expected a state dict of name → tensor"
                )
            self._saved = {
                name: value for name, value in state.items() if isinstance(name, str) and isinstance(value, SavedTensor)
            }
            if not self._saved:
                raise CorruptCheckpointError(f"{self._where}: holds no tensors, expected a state dict of name → tensor")
            for storage in {saved.storage for saved in self._saved.values() if saved.storage}:
                self._check_record(storage)
        except BaseException:
            self.close()
            raise
        self.tensors = {name: _describe(name, saved) for name, saved in self._saved.items()}

    def _check_record(self, storage: SavedStorage) -> None:
        """Raise CorruptCheckpointError unless the record exists and is as long as the pickle says."""
        size = self._records.size(storage.record)
        if size is None:
            raise broken(self._where, f"it has no record {storage.record[:80]!r}")
        if size != storage.nbytes:
            raise broken(self._where, f"{storage.record[:80]!r} has {size:,} bytes, expected {storage.nbytes:,}")

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """The tensor, or the given rows of its first dimension, in the file's dtype and in new memory.

        Raises CorruptCheckpointError for a tensor without values of its own, UnsupportedModelError for a dtype that
        torch cannot compute with.
        """
        part = self._find_part(name, rows)
        if part.numbers == 0:
            return torch.empty(part.shape, dtype=part.dtype)
        if math.prod(part.shape) > part.numbers:
            raise CorruptCheckpointError(
                f"{self._where}: {name} is {list(part.shape)}, but has only {part.numbers:,} numbers, which are "
                "repeated; save it again after .contiguous()"
            )
        numbers = self._source.read(self._records.find(part.record) + part.start, part.nbytes, name).view(part.dtype)
        return numbers.as_strided(part.shape, part.strides).contiguous()

    def extents(self, reads: Mapping[str, slice]) -> Iterable[Extent]:
        """The bytes of the file that `read` needs for these rows of these tensors."""
        parts = (self._find_part(name, rows) for name, rows in reads.items())
        located = (self._records.locate(part.record, part.start, part.nbytes) for part in parts if part.numbers)
        return [extent for extents in located for extent in extents]

    def _find_part(self, name: str, rows: slice) -> _Part:
        storage, dtype, offset, shape, strides = self._saved[name]
        if storage is None:
            raise CorruptCheckpointError(
                f"{self._where}: {name} is on the meta device and has no values; save the model with its weights"
            )
        if dtype not in DTYPE_NAMES:
            raise UnsupportedModelError(f"{self._where}: {name} is stored as {dtype}, which cannot be read")
        if shape:
            first, last, _ = rows.indices(shape[0])
            offset, shape = offset + first * strides[0], (max(last - first, 0), *shape[1:])
        count = 0 if 0 in shape else count_spanned(shape, strides)
        return _Part(storage.record, dtype, offset, count, shape, strides)

    def close(self) -> None:
        """Close the file. A later `read` fails."""
        self._source.close()


def _describe(name: str, saved: SavedTensor) -> TensorInfo:
    nbytes = math.prod(saved.shape) * saved.dtype.itemsize
    if saved.storage is not None:  # a tensor may repeat its numbers
        nbytes = min(nbytes, saved.storage.nbytes)
    return TensorInfo(name, DTYPE_NAMES.get(saved.dtype, str(saved.dtype)), saved.shape, nbytes)
