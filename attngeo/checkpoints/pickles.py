"""The pickle of a PyTorch file: what it states about tensors and their storages. Calls nothing that the file names.

Python's fast unpickler trusts its file. A pickle of a hundred bytes makes it reserve gigabytes, by the number of an
entry of its memo; hash for centuries, by a key of tuples in tuples; overflow the stack; or change the functions that
stand in for those that it names. So the unpickler in Python is used, which reserves nothing, with the opcodes that
build plain values only, and with plain keys.

Format: https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

from __future__ import annotations

import pickle
import pickletools
import re
import reprlib
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import torch

from attngeo.checkpoints.store import MOST_TENSOR_DIMENSIONS
from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsafeCheckpointError, first_line

# Bytes of a pickle that is read as a whole, or of another list of the tensors; 300 bytes a tensor are usual for both.
LONGEST = 100_000_000
# The types whose hash is short work and no chance for collisions; of whole numbers, those of at most 64 bits.
KEYS = frozenset({str, bytes, int, float, bool, type(None)})
LONGEST_KEY = 64
# Ten times those of a checkpoint of 100,000 tensors.
MOST_PICKLE_VALUES = 20_000_000
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
    """Numbers of one dtype in a record.

    Attributes:
        record: name of the record.
        dtype: number type.
        nbytes: used bytes of the record.
    """

    record: str
    dtype: torch.dtype
    nbytes: int


class SavedTensor(NamedTuple):
    """A view of a storage. Sizes are in numbers, not bytes.

    Attributes:
        storage: the storage; None for a tensor on the meta device.
        dtype: number type.
        offset: position of the first number in the storage.
        shape: shape of the tensor.
        strides: step in the storage from one element to the next, for each dimension.
    """

    storage: SavedStorage | None
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Record(dict[Any, Any]):
    """A stand-in for an object of any class: keeps its items and does nothing with them."""

    def __new__(cls, *_: Any, **__: Any) -> Record:  # noqa: D102
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __repr__(self) -> str:  # of bounded length and time, whatever it holds
        return type(self).__name__


class _Opcodes(dict[int, Callable[[Any], None]]):
    """The methods of opcodes, by their codes."""

    def __missing__(self, code: int) -> Callable[[Any], None]:
        raise ValueError(f"opcode {code:#04x} is unknown or not allowed")


class TorchUnpickler(pickle._Unpickler):
    """Builds SavedTensors, and Records for everything else. Leaves out the state of objects.

    file: has `read` and `readline`. storages: record → its storage, for storages read so far.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = _Opcodes()
    stack: list[Any]

    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="utf-8")
        self.storages: dict[str, SavedStorage] = {}
        self._values = 0

    def load_safely(self) -> Any:
        """The next object. Raises UnsafeCheckpointError or CorruptCheckpointError, and errors of the file."""
        try:
            return self.load()
        except UnsafeCheckpointError as error:
            raise UnsafeCheckpointError(
                f"refused: it names {str(error)[:80]!r}, which is not part of a plain state dict, so "
                "loading it could run code; use safetensors weights"
            ) from None
        except AttnGeoError:  # of the file
            raise
        except Exception as error:  # a forged pickle can raise anything
            raise broken(f"{type(error).__name__}: {first_line(error)}") from None

    def find_class(self, module: str, name: str) -> Any:  # noqa: D102
        path = f"{module}.{name}"
        if path in STAND_INS:
            return STAND_INS[path]
        if module in ("torch", "torch.storage") and name in STORAGES:
            return STORAGES[name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if INERT.fullmatch(path):
            return Record
        raise UnsafeCheckpointError(path)

    def persistent_load(self, saved: Any) -> SavedStorage:  # noqa: D102
        match saved:  # older files add a view of another storage, which is None since PyTorch 0.4
            case ("storage", torch.dtype() as dtype, str(key), str(), int(count), *rest) if rest in ([], [None]):
                if not _is_size(count):
                    raise ValueError(f"storage {key[:80]!r} has {reprlib.repr(count)} numbers")
                storage = SavedStorage(f"data/{key}", dtype, count * dtype.itemsize)
                if self.storages.setdefault(storage.record, storage) != storage:
                    raise ValueError(f"storage {key[:80]!r} has two sizes")
                return storage
        raise ValueError(f"{reprlib.repr(saved)} is not a storage")

    def load_setitem(self) -> None:  # noqa: D102
        _check_keys(self.stack[-2:-1])
        super().load_setitem()  # type: ignore[misc]  # the methods of opcodes are not in the stubs

    def load_setitems(self) -> None:  # noqa: D102
        _check_keys(self.stack[::2])
        super().load_setitems()  # type: ignore[misc]

    def load_reduce(self) -> None:  # noqa: D102
        self._count(self.stack[-1], *self.stack[-1])
        super().load_reduce()  # type: ignore[misc]

    def load_build(self) -> None:  # noqa: D102
        self._count(self.stack.pop())

    def _count(self, *arguments: Any) -> None:
        """Raise ValueError if objects are made of the same long list again and again."""
        self._values += sum(len(value) for value in arguments if isinstance(value, list | tuple | dict))
        if self._values > MOST_PICKLE_VALUES:
            raise ValueError(f"its objects have more than {MOST_PICKLE_VALUES:,} values")


for _opcode in pickletools.opcodes:
    if _opcode.name in OPCODES:
        _method = pickle._Unpickler.dispatch[ord(_opcode.code)]
        TorchUnpickler.dispatch[ord(_opcode.code)] = getattr(TorchUnpickler, _method.__name__)


def broken(why: str) -> CorruptCheckpointError:
    """The error for a file that torch.save cannot have written."""
    return CorruptCheckpointError(f"not a readable PyTorch file ({why}); copy or download it again")


def _check_keys(keys: list[Any]) -> None:
    """Raise ValueError for a key that is no text or number, or a number of many bits."""
    types = set(map(type, keys))
    others = types - KEYS
    if others:
        raise ValueError(f"a key is of type {others.pop().__name__}, expected a string or a number")
    if int in types and any(type(key) is int and key.bit_length() > LONGEST_KEY for key in keys):
        raise ValueError(f"a key is a number of more than {LONGEST_KEY} bits")


def _make_dict(pairs: Iterable[tuple[Any, Any]] = ()) -> dict[Any, Any]:
    """A stand-in for OrderedDict: the dictionary of these pairs. Raises ValueError if a key is not plain."""
    pairs = [(key, value) for key, value in pairs]
    _check_keys([key for key, _ in pairs])
    return dict(pairs)


def _rebuild_from_type(function: Any, _: Any, arguments: Any, __: Any) -> Any:
    """A tensor with attributes of its own, which are not kept."""
    return function(*arguments) if function in STAND_INS.values() else Record()


STAND_INS: dict[str, Any] = {
    "collections.OrderedDict": _make_dict,
    "torch._utils._rebuild_tensor": lambda storage, *sizes: _check(storage, storage.dtype, *sizes),
    "torch._utils._rebuild_tensor_v2": (
        lambda storage, offset, shape, strides, _, __, metadata=None: _check(
            storage, storage.dtype, offset, shape, strides, metadata
        )
    ),
    "torch._utils._rebuild_tensor_v3": (
        lambda storage, offset, shape, strides, _, __, dtype, metadata=None: _check(
            storage, dtype, offset, shape, strides, metadata
        )
    ),
    "torch._utils._rebuild_qtensor": lambda storage, *numbers: _check(storage, storage.dtype, *numbers[:3]),
    "torch._utils._rebuild_meta_tensor_no_storage": lambda dtype, *sizes: _check(None, dtype, 0, *sizes[:2]),
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    "torch._utils._rebuild_parameter_with_state": lambda tensor, *_: tensor,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
}


def _check(storage: Any, dtype: Any, offset: Any, shape: Any, strides: Any, metadata: Any = None) -> SavedTensor:
    """The tensor. Raises ValueError unless its numbers are inside its storage. metadata: marks of the tensor."""
    if metadata:
        raise ValueError("conjugated and negated tensors are not supported")
    saved = SavedTensor(storage, dtype, offset, shape, strides)
    types = (SavedStorage | None, torch.dtype, int, tuple, tuple)
    is_tensor = (
        all(map(isinstance, saved, types))
        and len(shape) == len(strides) <= MOST_TENSOR_DIMENSIONS
        and all(map(_is_size, (offset, *shape, *strides)))
    )
    if not is_tensor:
        raise ValueError(f"{reprlib.repr(tuple(saved)[1:])} is not a tensor")
    end = 0 if 0 in shape else offset + count_spanned(shape, strides)
    nbytes = end * dtype.itemsize
    if storage is not None and nbytes > storage.nbytes:
        raise ValueError(f"a tensor needs {nbytes:,} bytes, but its storage has {storage.nbytes:,}")
    return saved


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def count_spanned(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many stored numbers a tensor spans, from its first to its last; it must not be empty."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
