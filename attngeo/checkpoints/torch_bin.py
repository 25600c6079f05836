"""One PyTorch state dict (.bin, .pt, .pth): a checked table of contents, and reads of single tensors or rows.

Why not torch.load? With `weights_only` it still calls what the file names, such as bytearray(10¹²), and with `mmap` it
trusts the sizes that the pickle states: a record that is compressed, or shorter than its tensor, gives other bytes as
weights. This reader calls nothing: stand-ins record where each tensor is, every number is checked against the records
of the zip file, and a read takes exactly the bytes of the rows. Tests compare it with torch.load.

Format: https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

from __future__ import annotations

import io
import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.checkpoints.pickles import PlainUnpickler, Record, choose_opcodes, make_dict
from attngeo.checkpoints.source import ByteSource, Extent
from attngeo.checkpoints.tensor import DTYPE_NAMES, MOST_DIMENSIONS, TensorInfo
from attngeo.checkpoints.torch_records import TorchRecords
from attngeo.errors import CorruptCheckpointError, UnsafeCheckpointError, UnsupportedModelError, first_line

# What is read before any tensor.
SMALL_RECORDS = ("data.pkl", "byteorder")
STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64, "ComplexDoubleStorage": torch.complex128, "QInt8Storage": torch.qint8,
    "QUInt8Storage": torch.quint8, "QInt32Storage": torch.qint32, "UntypedStorage": torch.uint8,
}  # fmt: skip
# What torch.load(weights_only=True) knows, too. Its objects are kept as records, and no tensor is read from them.
INERT = re.compile(
    r"torch\.(Size|Tensor|device|per_\w+|(cuda\.|sparse\.|cuda\.sparse\.)?\w+(Tensor|Storage))"
    r"|torch\.nn\.parameter\.Parameter|torch\._utils\._rebuild_\w+|torch\.serialization\._get_layout"
    r"|torch\.storage\.\w+Storage|collections\.Counter|_codecs\.encode|(builtins|__builtin__)\.(bytearray|set|complex)"
)
# The opcodes that torch.load(weights_only=True) knows.
OPCODES = frozenset(
    (
        "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPERSID", "BINPUT", "BINUNICODE",
        "BUILD", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET", "EMPTY_TUPLE", "GLOBAL", "LONG1", "LONG_BINGET",
        "LONG_BINPUT", "MARK", "NEWFALSE", "NEWOBJ", "NEWTRUE", "NONE", "PROTO", "REDUCE", "SETITEM", "SETITEMS",
        "SHORT_BINSTRING", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    )
)  # fmt: skip


class SavedStorage(NamedTuple):
    """Numbers of one dtype in one record, given by its name and the bytes of it that are used."""

    record: str
    dtype: torch.dtype
    nbytes: int


class SavedTensor(NamedTuple):
    """A view of a storage; sizes in numbers, not bytes. storage: None for a tensor on the meta device."""

    storage: SavedStorage | None
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Part(NamedTuple):
    """Rows of a tensor: so many numbers of a record, from `first` to the last one that the rows need."""

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
            self._records = TorchRecords(source)
            with self._records.hold(SMALL_RECORDS):
                state = self._load()
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

    def _load(self) -> dict[Any, Any]:
        records = self._records
        if records.size("data.pkl") is None:
            raise records.broken("it has no record data.pkl")
        if records.size("constants.pkl") is not None:
            raise UnsafeCheckpointError(f"{self._where}: refused: it is a TorchScript program; use safetensors weights")
        if records.size("byteorder") is not None and records.read("byteorder") != b"little":
            raise records.broken("its numbers are not little-endian; save it again")
        data = records.read("data.pkl")
        try:
            state = _TorchUnpickler(io.BytesIO(data), encoding="utf-8").load()
        except UnsafeCheckpointError as error:
            raise UnsafeCheckpointError(
                f"{self._where}: refused: it names {str(error)[:80]!r}, which is not part of a plain state dict, and "
                "loading it could run code; use safetensors weights"
            ) from None
        except Exception as error:  # a forged pickle can raise anything
            raise records.broken(f"{type(error).__name__}: {first_line(error)}") from None
        if not isinstance(state, dict) or isinstance(state, Record):
            raise CorruptCheckpointError(
                f"{self._where}: holds a {type(state).__name__}, expected a state dict of name → tensor"
            )
        return state

    def _check_record(self, storage: SavedStorage) -> None:
        """Raise CorruptCheckpointError unless the record exists and is as long as the pickle says."""
        size = self._records.size(storage.record)
        if size is None:
            raise self._records.broken(f"it has no record {storage.record[:80]!r}")
        if size != storage.nbytes:
            raise self._records.broken(f"{storage.record[:80]!r} has {size:,} bytes, expected {storage.nbytes:,}")

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
        count = 0 if 0 in shape else _count_spanned(shape, strides)
        return _Part(storage.record, dtype, offset, count, shape, strides)

    def close(self) -> None:
        """Close the file. A later `read` fails."""
        self._source.close()


class _TorchUnpickler(PlainUnpickler):
    """Makes SavedTensors, and records of everything else. Calls nothing that the file names."""

    dispatch = choose_opcodes(OPCODES)

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if (made := MADE.get(full)) is not None:
            return made
        if module in ("torch", "torch.storage") and name in STORAGES:
            return STORAGES[name]
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        if INERT.fullmatch(full):
            return Record
        raise UnsafeCheckpointError(full)

    def persistent_load(self, saved: Any) -> SavedStorage:
        match saved:
            case ("storage", torch.dtype() as dtype, str(key), str(), int(count)) if _is_size(count):
                return SavedStorage(f"data/{key}", dtype, count * dtype.itemsize)
        raise ValueError(f"{reprlib.repr(saved)} is no storage")


def _rebuild(
    storage: Any, offset: Any, shape: Any, strides: Any, _: Any = None, __: Any = None, metadata: Any = None
) -> SavedTensor:
    if metadata:
        raise ValueError("a conjugated or negated tensor")
    return _check(storage, storage.dtype, offset, shape, strides)


def _rebuild_quantised(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> SavedTensor:
    return _check(storage, storage.dtype, offset, shape, strides)


def _rebuild_of_dtype(
    storage: Any, offset: Any, shape: Any, strides: Any, _: Any, __: Any, dtype: Any, metadata: Any = None
) -> SavedTensor:
    if metadata:
        raise ValueError("a conjugated or negated tensor")
    return _check(storage, dtype, offset, shape, strides)


def _rebuild_meta(dtype: Any, shape: Any, strides: Any, *_: Any) -> SavedTensor:
    return _check(None, dtype, 0, shape, strides)


def _rebuild_parameter(tensor: Any, *_: Any) -> Any:
    return tensor


def _rebuild_from_type(function: Any, _: Any, arguments: Any, __: Any) -> Any:
    """A tensor with attributes of its own, which are not kept."""
    return function(*arguments) if function in MADE.values() else Record()


MADE: dict[str, Any] = {
    "collections.OrderedDict": make_dict,
    "torch._utils._rebuild_tensor": _rebuild,
    "torch._utils._rebuild_tensor_v2": _rebuild,
    "torch._utils._rebuild_tensor_v3": _rebuild_of_dtype,
    "torch._utils._rebuild_qtensor": _rebuild_quantised,
    "torch._utils._rebuild_meta_tensor_no_storage": _rebuild_meta,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
}


def _check(storage: Any, dtype: Any, offset: Any, shape: Any, strides: Any) -> SavedTensor:
    """The tensor. Raises ValueError unless its numbers are inside its storage."""
    saved = SavedTensor(storage, dtype, offset, shape, strides)
    match saved:
        case (SavedStorage() | None, torch.dtype(), int(), tuple(), tuple()) if len(shape) == len(
            strides
        ) <= MOST_DIMENSIONS and all(map(_is_size, (offset, *shape, *strides))):
            end = 0 if 0 in shape else offset + _count_spanned(shape, strides)
            if storage is None or end * dtype.itemsize <= storage.nbytes:
                return saved
            raise ValueError(f"a tensor needs {end * dtype.itemsize:,} bytes of a storage of {storage.nbytes:,}")
    raise ValueError(f"{reprlib.repr(tuple(saved)[1:])} is no tensor")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _count_spanned(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The numbers from the first to the last one of a tensor that is not empty."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _describe(name: str, saved: SavedTensor) -> TensorInfo:
    nbytes = math.prod(saved.shape) * saved.dtype.itemsize
    if saved.storage is not None:  # a tensor may repeat its numbers
        nbytes = min(nbytes, saved.storage.nbytes)
    return TensorInfo(name, DTYPE_NAMES.get(saved.dtype, str(saved.dtype)), saved.shape, nbytes)
