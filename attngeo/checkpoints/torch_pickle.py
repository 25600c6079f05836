"""The pickle of a PyTorch file: what it says about tensors and their storages. Calls nothing that the file names.

Format: https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

from __future__ import annotations

import re
import reprlib
from typing import Any, NamedTuple

import torch

from attngeo.checkpoints.pickles import PlainUnpickler, Record, choose_opcodes, make_dict
from attngeo.checkpoints.tensor import MOST_DIMENSIONS
from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsafeCheckpointError, first_line

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


def broken(where: str, why: str) -> CorruptCheckpointError:
    """The error for a file that is not as torch.save writes it."""
    return CorruptCheckpointError(f"{where}: not a readable PyTorch file ({why}); download it again")


class TorchUnpickler(PlainUnpickler):
    """Makes SavedTensors, and records of everything else.

    file: with `read` and `readline`. where: its name, for errors. storages: those that were found, by their records.
    """

    dispatch = choose_opcodes(OPCODES)

    def __init__(self, file: Any, where: str) -> None:
        super().__init__(file, encoding="utf-8")
        self.storages: dict[str, SavedStorage] = {}
        self._where = where

    def load_safely(self) -> Any:
        """The next object. Raises UnsafeCheckpointError or CorruptCheckpointError, and errors of the file itself."""
        try:
            return self.load()
        except UnsafeCheckpointError as error:
            raise UnsafeCheckpointError(
                f"{self._where}: refused: it names {str(error)[:80]!r}, which is not part of a plain state dict, and "
                "loading it could run code; use safetensors weights"
            ) from None
        except AttnGeoError:  # of the file
            raise
        except Exception as error:  # a forged pickle can raise anything
            raise broken(self._where, f"{type(error).__name__}: {first_line(error)}") from None

    def find_class(self, module: str, name: str) -> Any:  # noqa: D102
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

    def persistent_load(self, saved: Any) -> SavedStorage:  # noqa: D102
        match saved:  # older files add a view of another storage, which is None since PyTorch 0.4
            case ("storage", torch.dtype() as dtype, str(key), str(), int(count), *rest) if _is_size(
                count
            ) and rest in ([], [None]):
                storage = SavedStorage(f"data/{key}", dtype, count * dtype.itemsize)
                if self.storages.setdefault(storage.record, storage) != storage:
                    raise ValueError(f"storage {key[:80]!r} has two sizes")
                return storage
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
            end = 0 if 0 in shape else offset + count_spanned(shape, strides)
            if storage is None or end * dtype.itemsize <= storage.nbytes:
                return saved
            raise ValueError(f"a tensor needs {end * dtype.itemsize:,} bytes of a storage of {storage.nbytes:,}")
    raise ValueError(f"{reprlib.repr(tuple(saved)[1:])} is no tensor")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def count_spanned(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The numbers from the first to the last one of a tensor that is not empty."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
