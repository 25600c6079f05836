"""PyTorch state dicts (.bin, .pt, .pth): a checked table of contents, and reads of single tensors or rows.

Why not torch.load? With `weights_only` it still calls what the file names, such as bytearray(10¹²), and with `mmap` it
trusts the sizes that the pickle states: a record that is compressed, or shorter than its tensor, gives other bytes as
weights. This reader calls nothing: stand-ins record where each tensor is, every number is checked against the records
of the file, and a read takes exactly the bytes of the rows. Tests compare it with torch.load. In a file from before
PyTorch 1.6, torch.load ignores the byte order, and takes memory as it is for a storage that the file does not list.

Formats: https://docs.pytorch.org/docs/stable/notes/serialization.html,
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT and, for the older one, `_legacy_save` of
https://github.com/pytorch/pytorch/blob/main/torch/serialization.py
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.checkpoints.extent import Extent
from attngeo.checkpoints.pickles import Record, SavedStorage, SavedTensor, TorchUnpickler, broken, count_spanned
from attngeo.checkpoints.store import DTYPE_NAMES, TensorInfo
from attngeo.checkpoints.tensor_file import ByteSource, TensorFile, read_bytes
from attngeo.errors import (
    AttnGeoError,
    CorruptCheckpointError,
    UnsafeCheckpointError,
    UnsupportedModelError,
    first_line,
)

# What is read before any tensor.
SMALL_RECORDS = ("data.pkl", "byteorder")
# Bytes of the list of records, and of a record that is read as a whole; 300 bytes a tensor are usual for both.
LONGEST = 100_000_000
# How a zip file and the header of each record begin; such a header before the name of the record: mark, compression,
# bytes of the name and of what follows it.
ZIP = b"PK\x03\x04"
LOCAL_HEADER = struct.Struct("<4s4xH16x2H")
# Bytes that torch.save adds to a header so that the numbers are aligned; with other settings, it adds more.
PADDING = 128
# Bytes of the first requests to a remote file: the header of the first record, and the list of a hundred.
HEAD = 1000
TAIL = 10_000
ENCRYPTED = 0x1
# The last entry of an archive: mark, two numbers of disks, two of records, size and place of their list, comment.
END = struct.Struct("<4s4H2IH")
LONG_END = 76
# A file from before PyTorch 1.6 begins with the pickle of a magic number, in one of the protocols that torch.load
# reads. Four pickles follow: version, machine, state dict and list of storages; then each storage: count and numbers.
OLD_MARKS = tuple(b"\x80%c\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." % protocol for protocol in (2, 3))
OLD_VERSION = 1001
OLD_COUNT = 8
# Under these keys, Lightning, nanoGPT and DeepSpeed save the state dict of the model, beside that of the optimiser.
WRAPPERS = ("state_dict", "model", "module")


class _StoredRows(NamedTuple):
    """Rows of a tensor: the bytes of a record from `start` to the last one that the rows need."""

    record: str
    dtype: torch.dtype
    start: int
    nbytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class TorchFile(TensorFile):
    """An open state dict.

    Raises UnsafeCheckpointError if a pickle names more than tensors and plain values, CorruptCheckpointError if the
    file is broken, or holds no tensors.
    """

    def _load(self) -> None:
        with self.source.hold([Extent(0, HEAD), Extent(self.source.size - TAIL, TAIL)]):
            mark = read_bytes(self.source, 0, min(len(OLD_MARKS[0]), self.source.size), "mark")
            self._records = _OldRecords(self.source) if mark in OLD_MARKS else _Records(self.source)
        self._saved = _find_tensors(self._records.load_state())
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
                f"{name} is {list(stored_rows.shape)}, but has only {numbers:,} numbers, which are repeated; save it "
                "again after .contiguous()"
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


def _find_tensors(state: Any) -> dict[str, SavedTensor]:
    """The tensors of a state dict, or of the one that a training has saved with its settings, by their names.

    Raises CorruptCheckpointError if there are none, or several state dicts.
    """
    if not isinstance(state, dict) or isinstance(state, Record):
        raise CorruptCheckpointError(f"holds a {type(state).__name__}, expected a state dict of name → tensor")
    by_key = {key: _list_saved(value) for key, value in state.items() if isinstance(key, str)}
    keys_with_tensors = [key for key, saved in by_key.items() if saved]
    wrappers = [key for key in WRAPPERS if key in keys_with_tensors]
    if len(wrappers) == 1:
        return by_key[wrappers[0]]
    tensors = _list_saved(state)
    if tensors and not wrappers:
        return tensors
    if keys_with_tensors:
        keys = ", ".join(f"{key!r:.40}" for key in sorted(keys_with_tensors)[:5])
        raise CorruptCheckpointError(
            f"holds tensors under {keys}, expected one state dict, alone or under one of "
            f"{', '.join(WRAPPERS)}; save torch.load(FILE)[KEY] as a file of its own"
        )
    raise CorruptCheckpointError("holds no tensors, expected a state dict of name → tensor")


def _list_saved(value: Any) -> dict[str, SavedTensor]:
    """The tensors in a dictionary; none of anything else."""
    if not isinstance(value, dict) or isinstance(value, Record):
        return {}
    return {name: saved for name, saved in value.items() if isinstance(name, str) and isinstance(saved, SavedTensor)}


class _Records:
    """The records of an archive by name, without the folder that all of them are in.

    Raises CorruptCheckpointError if the file is no zip file, or if a record is compressed, encrypted or listed twice.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._records = _list_records(source)
        # The bytes that are added to the header of the first record are about as many as in each other header.
        first = min((record.header_offset for record in self._records.values()), default=0)
        *_, extra_length = LOCAL_HEADER.unpack(read_bytes(source, first, LOCAL_HEADER.size, "first record"))
        self._padding = max(PADDING, 2 * extra_length)

    def load_state(self) -> Any:
        """The object that the pickle of the file describes. Raises UnsafeCheckpointError or CorruptCheckpointError."""
        extents: list[Extent] = []
        for name in SMALL_RECORDS:
            if name in self._records and self._records[name].file_size <= LONGEST:
                extents += self.locate(name, 0, self._records[name].file_size)
        with self._source.hold(extents):
            if "data.pkl" not in self._records:
                raise broken("it has no record data.pkl")
            if "constants.pkl" in self._records:
                raise UnsafeCheckpointError("refused: it is a TorchScript program; use safetensors weights")
            if "byteorder" in self._records and self._read("byteorder") != b"little":
                raise broken("its numbers are not little-endian; save it again")
            unpickler = TorchUnpickler(io.BytesIO(self._read("data.pkl")))
            state = unpickler.load_safely()
        for record, _, nbytes in unpickler.storages.values():
            if record not in self._records:
                raise broken(f"it has no record {record[:80]!r}")
            size = self._records[record].file_size
            if size != nbytes:
                raise broken(f"{record[:80]!r} has {size:,} bytes, expected {nbytes:,}")
        return state

    def _read(self, name: str) -> bytes:
        """The content of a record. Raises CorruptCheckpointError if it is longer than LONGEST."""
        size = self._records[name].file_size
        if size > LONGEST:
            raise broken(f"{name} has {size:,} bytes, expected at most {LONGEST:,}")
        return read_bytes(self._source, self.find_start(name), size, name)

    def find_start(self, name: str) -> int:
        """The byte of the file at which a record starts. Raises CorruptCheckpointError if its own header differs."""
        record = self._records[name]
        header = read_bytes(self._source, record.header_offset, LOCAL_HEADER.size, name)
        mark, compression, name_length, extra_length = LOCAL_HEADER.unpack(header)
        name_start = record.header_offset + LOCAL_HEADER.size
        stated = read_bytes(self._source, name_start, name_length, name)
        start: int = name_start + name_length + extra_length
        is_inside = start + record.file_size <= self._source.size
        if mark != ZIP or compression or stated != record.orig_filename.encode() or not is_inside:
            raise broken(f"record {record.orig_filename[:80]!r} differs from the list of records")
        return start

    def locate(self, name: str, start: int, count: int) -> tuple[Extent, Extent]:
        """The header of a record and a part of its content, some more because the length of the header is not known."""
        record = self._records[name]
        header_length = LOCAL_HEADER.size + len(record.orig_filename.encode())
        content = record.header_offset + header_length
        return (
            Extent(record.header_offset, header_length + self._padding),
            Extent(content + start, count + self._padding),
        )


class _OldRecords:
    """The storages of a file from before PyTorch 1.6, by the names that they would have as records of a newer one."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._storages: dict[str, tuple[int, SavedStorage]] = {}  # name → the first byte of its numbers, the storage

    def load_state(self) -> Any:
        """The object that the pickle of the file describes. Finds the storages, too. Raises as `_Records`."""
        content = io.BytesIO(read_bytes(self._source, 0, min(self._source.size, LONGEST), "list of tensors"))
        content.seek(len(OLD_MARKS[0]))
        unpicklers = [TorchUnpickler(content) for _ in range(4)]
        version, system, state, keys = [unpickler.load_safely() for unpickler in unpicklers]
        if version != OLD_VERSION:
            raise broken(f"its version of the format is {version!r:.40}, expected {OLD_VERSION}")
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise broken("its numbers are not little-endian; save it again")
        storages = unpicklers[2].storages
        listed = [f"data/{key}" for key in keys if isinstance(key, str)] if isinstance(keys, list) else []
        if sorted(listed) != sorted(storages):
            raise broken("its list of storages is not that of its tensors")
        end = content.tell()
        for name in listed:
            start = end + OLD_COUNT
            self._storages[name] = (start, storages[name])
            end = start + storages[name].nbytes
        if end > self._source.size:
            raise broken(f"it has {self._source.size:,} bytes, expected {end:,}")
        return state

    def find_start(self, name: str) -> int:
        """The byte of the file at which a storage starts. Raises CorruptCheckpointError if its own count differs."""
        start, storage = self._storages[name]
        count = int.from_bytes(read_bytes(self._source, start - OLD_COUNT, OLD_COUNT, name), "little")
        if count * storage.dtype.itemsize != storage.nbytes:
            expected = storage.nbytes // storage.dtype.itemsize
            raise broken(f"{name[:80]!r} has {count:,} numbers, not {expected:,}")
        return start

    def locate(self, name: str, start: int, count: int) -> tuple[Extent, Extent]:
        """The count of a storage, and a part of its content."""
        first, _ = self._storages[name]
        return Extent(first - OLD_COUNT, OLD_COUNT), Extent(first + start, count)


def _list_records(source: ByteSource) -> dict[str, zipfile.ZipInfo]:
    """The records by name; raises as `_Records`."""
    file: Any = _SourceReader(source)
    if file.read(len(ZIP)) != ZIP:
        raise CorruptCheckpointError(
            "not a PyTorch file: it is damaged, or was saved before PyTorch 0.1.10; save it again as safetensors"
        )
    try:
        listed = zipfile.ZipFile(file).infolist()
        file.seek(-END.size, os.SEEK_END)
        _check_end(END.unpack(file.read(END.size)), len(listed), file.tell() - END.size)
    except AttnGeoError:  # of the source
        raise
    except Exception as error:  # a forged directory can raise anything
        raise CorruptCheckpointError(f"not a whole zip file ({first_line(error)}); download it again") from None
    folder = listed[0].orig_filename.partition("/")[0] + "/" if listed else ""
    records = {record.orig_filename.removeprefix(folder): record for record in listed}
    if len({name.lower() for name in records}) < len(listed):
        raise CorruptCheckpointError("a record is listed twice; download it again")
    for name, record in records.items():
        if not record.orig_filename.startswith(folder):
            raise CorruptCheckpointError(f"record {name[:80]!r} is not in {folder[:80]!r}; download it again")
        is_stored = record.compress_type == zipfile.ZIP_STORED and record.compress_size == record.file_size
        if not is_stored or record.flag_bits & ENCRYPTED:
            raise CorruptCheckpointError(
                f"record {name[:80]!r} is compressed or encrypted, expected records as torch.save stores them; read it "
                "with torch.load(weights_only=True) and save it again"
            )
    return records


def _check_end(end: tuple[Any, ...], records: int, position: int) -> None:
    """Raise BadZipFile unless the end of an archive fits the list of records in front of it.

    zipfile reads more than torch.save writes, such as lists that state another position or number of records.

    Args:
        end: the last entry; see `END`.
        records: the number of records in the list.
        position: the byte of the file at which the last entry starts.
    """
    mark, disk, first_disk, on_disk, total, nbytes, start, comment = end
    # An entry for long archives may be between; it has the numbers if these are the largest that they can be.
    is_long = start == 0xFFFFFFFF or nbytes == 0xFFFFFFFF or total == 0xFFFF
    if mark != b"PK\x05\x06" or disk or first_disk or on_disk != total or comment:
        raise zipfile.BadZipFile("its last entry is not that of one whole archive")
    if not is_long and (total != records or position - start - nbytes not in (0, LONG_END)):
        raise zipfile.BadZipFile(f"it states {total:,} records, and has {records:,}")


class _SourceReader:
    """A ByteSource as a file that is never read far: zipfile reads as many bytes as a forged directory states."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._position = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> None:
        origins = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size}
        self._position = origins[whence] + offset
        if self._position < 0:
            raise OSError("a position in front of the file")

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(self._source.size - self._position, 0)
        count = left if size < 0 else min(size, left)
        if count > LONGEST:
            raise zipfile.BadZipFile(f"its list of records states {count:,} bytes")
        content = read_bytes(self._source, self._position, count, "list of records")
        self._position += count
        return content
