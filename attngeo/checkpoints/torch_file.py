"""PyTorch state dicts (.bin, .pt, .pth): a checked table of contents, and reads of single tensors or rows.

Why not torch.load? With `weights_only` it still calls what the file names, such as bytearray(10¹²), and with `mmap` it
trusts the sizes that the pickle states: a record that is compressed, or shorter than its tensor, gives other bytes as
weights. This reader calls nothing: stand-ins record where each tensor is, every number is checked against the records
of the file, and a read takes exactly the bytes of the rows. Tests compare it with torch.load.

The records are in a zip file, or one after the other in a file from before PyTorch 1.6: `torch_zip`, `torch_legacy`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.bounds.names import name_type
from attngeo.checkpoints.extent import Extent
from attngeo.checkpoints.pickles import Record, SavedTensor, count_spanned
from attngeo.checkpoints.store import DTYPE_NAMES, TensorInfo
from attngeo.checkpoints.tensor_file import TensorFile, read_bytes
from attngeo.checkpoints.torch_legacy import MARKS, LegacyRecords
from attngeo.checkpoints.torch_zip import ZipRecords
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError

# Bytes of the first requests to a remote file: the header of the first record, and the list of a hundred.
HEAD = 1000
TAIL = 10_000
# Under these keys, Lightning, nanoGPT, DeepSpeed, Whisper and NeMo save the state dict of the model, beside that of the
# optimiser; and under these may be a dictionary with such a key.
WRAPPERS = ("state_dict", "model", "module", "model_state_dict", "model_state", "model_weights")
CONTAINERS = (*WRAPPERS, "checkpoint", "state")
# Keys one in the other at most.
DEEPEST = 3


class _StoredRows(NamedTuple):
    """Rows of a tensor in a file.

    Attributes:
        record: name of the record.
        dtype: number type.
        start: first byte in the record.
        nbytes: bytes up to the last one that the rows need.
        shape: shape of the rows.
        strides: steps between neighbours along each dimension, in numbers.
    """

    record: str
    dtype: torch.dtype
    start: int
    nbytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class TorchFile(TensorFile):
    """An open state dict.

    Raises UnsafeCheckpointError if a pickle names more than tensors and plain values, CorruptCheckpointError if the
    file is broken or has no tensors.
    """

    def _load(self) -> None:
        with self.source.hold([Extent(0, HEAD), Extent(self.source.size - TAIL, TAIL)]):
            mark = read_bytes(self.source, 0, min(len(MARKS[0]), self.source.size), "mark")
            self._records = LegacyRecords(self.source) if mark in MARKS else ZipRecords(self.source)
        self.nested_under, self._saved = _find_tensors(self._records.load_state())
        self.tensors = {}
        for name, saved in self._saved.items():
            nbytes = math.prod(saved.shape) * saved.dtype.itemsize
            if saved.storage is not None:  # a tensor may repeat its numbers
                nbytes = min(nbytes, saved.storage.nbytes)
            dtype = DTYPE_NAMES.get(saved.dtype, str(saved.dtype))
            self.tensors[name] = TensorInfo(name, dtype, saved.shape, nbytes)

    def _read(self, name: str, rows: slice) -> Tensor:
        stored_rows = self._find_rows(name, rows)
        if stored_rows.nbytes == 0:
            return torch.empty(stored_rows.shape, dtype=stored_rows.dtype)
        numbers = stored_rows.nbytes // stored_rows.dtype.itemsize
        if math.prod(stored_rows.shape) > numbers:
            raise CorruptCheckpointError(
                f"{name} is {list(stored_rows.shape)}, but repeats only {numbers:,} stored numbers; save it again "
                "after .contiguous()"
            )
        start = self._records.find_start(stored_rows.record) + stored_rows.start
        stored = self.source.read(start, stored_rows.nbytes, name).view(stored_rows.dtype)
        return stored.as_strided(stored_rows.shape, stored_rows.strides).contiguous()

    def extents(self, reads: Mapping[str, slice]) -> Iterable[Extent]:
        """The bytes of the file that `read` needs for these rows of these tensors."""
        extents: list[Extent] = []
        for name, rows in reads.items():
            stored_rows = self._find_rows(name, rows)
            if stored_rows.nbytes:
                extents += self._records.locate(stored_rows.record, stored_rows.start, stored_rows.nbytes)
        return extents

    def _find_rows(self, name: str, rows: slice) -> _StoredRows:
        storage, dtype, offset, shape, strides = self._saved[name]
        if storage is None:
            raise CorruptCheckpointError(
                f"{name} is on the meta device and has no values; save the model with its weights"
            )
        if dtype not in DTYPE_NAMES:
            raise UnsupportedModelError(f"{name} is stored as {dtype}, which cannot be read")
        if shape:
            first, last, _ = rows.indices(shape[0])
            offset += first * strides[0]
            shape = (max(last - first, 0), *shape[1:])
        count = 0 if 0 in shape else count_spanned(shape, strides)
        return _StoredRows(storage.record, dtype, offset * dtype.itemsize, count * dtype.itemsize, shape, strides)


def _find_tensors(state: Any, outer: tuple[str, ...] = ()) -> tuple[str, dict[str, SavedTensor]]:
    """The tensors of a state dict, or of the one that a training has saved with its settings, and its key there or "".

    outer: the keys that this dictionary is under. Raises CorruptCheckpointError if there are none, or several state
    dicts.
    """
    if not isinstance(state, dict) or isinstance(state, Record):
        raise CorruptCheckpointError(f"holds {name_type(state)}, expected a state dict of name → tensor")
    by_key = {key: _list_saved(value) for key, value in state.items() if isinstance(key, str)}
    keys_with_tensors = [key for key, saved in by_key.items() if saved]
    wrappers = [key for key in WRAPPERS if key in keys_with_tensors]
    if len(wrappers) == 1:
        return wrappers[0], by_key[wrappers[0]]
    tensors = _list_saved(state)
    if tensors and not wrappers:
        return "", tensors
    if keys_with_tensors:
        paths = [".".join((*outer, key)) for key in sorted(keys_with_tensors)[:5]]
        keys = ", ".join(f"{path!r:.40}" for path in paths)
        raise CorruptCheckpointError(
            f"holds tensors under {keys}, expected one state dict, alone or under one of "
            f"{', '.join(WRAPPERS)}; save torch.load(FILE)[KEY] to a separate file"
        )
    containers = [key for key in CONTAINERS if isinstance(state.get(key), dict)]
    if len(containers) == 1 and len(outer) + 1 < DEEPEST:
        return _find_tensors(state[containers[0]], (*outer, containers[0]))
    raise CorruptCheckpointError("holds no tensors, expected a state dict of name → tensor")


def _list_saved(value: Any) -> dict[str, SavedTensor]:
    """The tensors in a dictionary; none of anything else."""
    if not isinstance(value, dict) or isinstance(value, Record):
        return {}
    return {name: saved for name, saved in value.items() if isinstance(name, str) and isinstance(saved, SavedTensor)}
