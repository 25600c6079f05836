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
import os
import re
import struct
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.checkpoints.pickles import PlainUnpickler, Record, choose_opcodes, describe, make_dict
from attngeo.checkpoints.regular_file import RegularFile
from attngeo.checkpoints.tensor import DTYPE_NAMES, TensorInfo
from attngeo.errors import CorruptCheckpointError, UnsafeCheckpointError, UnsupportedModelError, first_line

# Bytes of the pickle that names the tensors, and of the list of records; 300 bytes a tensor are usual for both.
LONGEST = 100_000_000
ZIP, LOCAL_HEADER = b"PK\x03\x04", 30
ENCRYPTED = 0x1
# The last entry of an archive: mark, two numbers of disks, two of records, size and place of their list, comment.
END = struct.Struct("<4s4H2IH")
LONG_END = 76
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


class TorchFile:
    """An open state dict; `tensors` is its table of contents.

    Raises UnsafeCheckpointError for a pickle that names more than tensors and plain values, CorruptCheckpointError for
    a file that is broken or holds no tensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = RegularFile(path)
        try:
            self._records = _list_records(path)
            self._saved = {
                name: value
                for name, value in self._load().items()
                if isinstance(name, str) and isinstance(value, SavedTensor)
            }
            if not self._saved:
                raise CorruptCheckpointError(f"{path}: holds no tensors, expected a state dict of name → tensor")
            for storage in {saved.storage for saved in self._saved.values() if saved.storage}:
                self._check_record(storage)
        except BaseException:
            self.close()
            raise
        self.tensors = {name: _describe(name, saved) for name, saved in self._saved.items()}

    def _load(self) -> dict[Any, Any]:
        if "data.pkl" not in self._records:
            raise self._broken("it has no record data.pkl")
        if "constants.pkl" in self._records:
            raise UnsafeCheckpointError(f"{self.path}: refused: it is a TorchScript program; use safetensors weights")
        order = self._records.get("byteorder")
        if order is not None and self._read_record("byteorder", order) != b"little":
            raise self._broken("its numbers are not little-endian; save it again")
        data = self._read_record("data.pkl", self._records["data.pkl"])
        try:
            state = _TorchUnpickler(io.BytesIO(data), encoding="utf-8").load()
        except UnsafeCheckpointError as error:
            raise UnsafeCheckpointError(
                f"{self.path}: refused: it names {str(error)[:80]!r}, which is not part of a plain state dict, and "
                "loading it could run code; use safetensors weights"
            ) from None
        except Exception as error:  # a forged pickle can raise anything
            raise self._broken(f"{type(error).__name__}: {first_line(error)}") from None
        if not isinstance(state, dict) or isinstance(state, Record):
            raise CorruptCheckpointError(
                f"{self.path}: holds a {type(state).__name__}, expected a state dict of name → tensor"
            )
        return state

    def _broken(self, why: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self.path}: not a readable PyTorch file ({why}); download it again")

    def _check_record(self, storage: SavedStorage) -> None:
        """Raise CorruptCheckpointError unless the record exists and is as long as the pickle says."""
        record = self._records.get(storage.record)
        if record is None:
            raise self._broken(f"it has no record {storage.record[:80]!r}")
        if record.file_size != storage.nbytes:
            raise self._broken(f"{storage.record[:80]!r} has {record.file_size:,} bytes, expected {storage.nbytes:,}")

    def _start(self, name: str, record: zipfile.ZipInfo) -> int:
        """The place in the file at which a record starts. Raises CorruptCheckpointError if its own header differs."""
        header = bytes(self._file.read(record.header_offset, LOCAL_HEADER, name).numpy())
        names, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        own = bytes(self._file.read(record.header_offset + LOCAL_HEADER, names, name).numpy())
        start = record.header_offset + LOCAL_HEADER + names + extra
        stored = header[:4] == ZIP and header[8:10] == b"\0\0"
        if not stored or own != record.orig_filename.encode() or start + record.file_size > self._file.size:
            raise self._broken(f"record {record.orig_filename[:80]!r} differs from the list of records")
        return start

    def _read_record(self, name: str, record: zipfile.ZipInfo) -> bytes:
        if record.file_size > LONGEST:
            raise self._broken(f"{name} has {record.file_size:,} bytes, expected at most {LONGEST:,}")
        return bytes(self._file.read(self._start(name, record), record.file_size, name).numpy())

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """The tensor, or the given rows of its first dimension, in the file's dtype and in new memory.

        Raises CorruptCheckpointError for a tensor without values of its own, UnsupportedModelError for a dtype that
        torch cannot compute with.
        """
        storage, dtype, offset, shape, strides = self._saved[name]
        if storage is None:
            raise CorruptCheckpointError(
                f"{self.path}: {name} is on the meta device and has no values; save the model with its weights"
            )
        if dtype not in DTYPE_NAMES:
            raise UnsupportedModelError(f"{self.path}: {name} is stored as {dtype}, which cannot be read")
        if shape:
            first, last, _ = rows.indices(shape[0])
            offset, shape = offset + first * strides[0], (max(last - first, 0), *shape[1:])
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        count, span = math.prod(shape), _count_spanned(shape, strides)
        if count > span:
            raise CorruptCheckpointError(
                f"{self.path}: {name} is {list(shape)}, but has only {span:,} numbers, which are repeated; "
                "save it again after .contiguous()"
            )
        start = self._start(storage.record, self._records[storage.record]) + offset * dtype.itemsize
        numbers = self._file.read(start, span * dtype.itemsize, name).view(dtype)
        return numbers.as_strided(shape, strides).contiguous()

    def close(self) -> None:
        """Close the file. A later `read` fails."""
        self._file.close()


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
        raise ValueError(f"{describe(saved)} is no storage")


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
        case (SavedStorage() | None, torch.dtype(), int(), tuple(), tuple()) if len(shape) == len(strides) and all(
            map(_is_size, (offset, *shape, *strides))
        ):
            end = 0 if 0 in shape else offset + _count_spanned(shape, strides)
            if storage is None or end * dtype.itemsize <= storage.nbytes:
                return saved
            raise ValueError(f"a tensor needs {end * dtype.itemsize:,} bytes of a storage of {storage.nbytes:,}")
    raise ValueError(f"{describe(tuple(saved)[1:])} is no tensor")


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


def _check_end(end: tuple[Any, ...], records: int, at: int) -> None:
    """Raise BadZipFile unless the end of an archive, which is at byte `at`, fits the list of records in front of it.

    zipfile reads more than torch.save writes, such as lists that state another place or number of records.
    """
    mark, disk, first_disk, own, total, nbytes, start, comment = end
    # An entry for long archives may be between; it has the numbers if these are the largest that they can be.
    is_long = start == 0xFFFFFFFF or nbytes == 0xFFFFFFFF or total == 0xFFFF
    if mark != b"PK\x05\x06" or disk or first_disk or own != total or comment:
        raise zipfile.BadZipFile("its last entry is not that of one whole archive")
    if not is_long and (total != records or at - start - nbytes not in (0, LONG_END)):
        raise zipfile.BadZipFile(f"it states {total:,} records, and has {records:,}")


class _BoundedFile(io.FileIO):
    """A file that is never read far: zipfile reads as many bytes as a forged directory states."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = LONGEST
        if size > LONGEST:
            raise zipfile.BadZipFile(f"its list of records states {size:,} bytes")
        return super().read(size)


def _list_records(path: Path) -> dict[str, zipfile.ZipInfo]:
    """The records of the zip file by name, without the folder that all of them are in.

    Raises CorruptCheckpointError if the file is no zip file, or if a record is compressed, encrypted or listed twice.
    """
    with _BoundedFile(path) as file:
        if file.read(len(ZIP)) != ZIP:
            raise CorruptCheckpointError(
                f"{path}: not a PyTorch file in zip format; it is damaged, or was saved before PyTorch 1.6; save it "
                "again as safetensors"
            )
        try:
            with zipfile.ZipFile(file) as archive:
                listed = archive.infolist()
            file.seek(-END.size, os.SEEK_END)
            _check_end(END.unpack(file.read(END.size)), len(listed), file.tell() - END.size)
        except Exception as error:  # a forged directory can raise anything
            raise CorruptCheckpointError(
                f"{path}: not a whole zip file ({first_line(error)}); download it again"
            ) from None
    folder = listed[0].orig_filename.partition("/")[0] + "/" if listed else ""
    records = {each.orig_filename.removeprefix(folder): each for each in listed}
    if len({name.lower() for name in records}) < len(listed):
        raise CorruptCheckpointError(f"{path}: a record is listed twice; download it again")
    for name, record in records.items():
        if not record.orig_filename.startswith(folder):
            raise CorruptCheckpointError(f"{path}: record {name[:80]!r} is not in {folder[:80]!r}; download it again")
        if record.compress_type != zipfile.ZIP_STORED or record.compress_size != record.file_size:
            raise CorruptCheckpointError(
                f"{path}: record {name[:80]!r} is compressed, expected records as torch.save stores them; read it with "
                "torch.load(weights_only=True) and save it again"
            )
        if record.flag_bits & ENCRYPTED:
            raise CorruptCheckpointError(f"{path}: record {name[:80]!r} is encrypted; save it again")
    return records
