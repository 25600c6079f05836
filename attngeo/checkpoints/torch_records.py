"""The records of a PyTorch file, a zip archive: listed, checked and found. None is compressed.

Format: https://docs.pytorch.org/docs/stable/notes/serialization.html and
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any

from attngeo.checkpoints.source import ByteSource, Extent
from attngeo.checkpoints.torch_pickle import TorchUnpickler, broken
from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsafeCheckpointError, first_line

# What is read before any tensor.
SMALL_RECORDS = ("data.pkl", "byteorder")
# Bytes of the list of records, and of a record that is read as a whole; 300 bytes a tensor are usual for both.
LONGEST = 100_000_000
ZIP, LOCAL_HEADER = b"PK\x03\x04", 30
# Bytes that torch.save adds to a header so that the numbers are aligned; with other settings, it adds more.
PADDING = 128
# Bytes of the first requests to a remote file: the header of the first record, and the list of a hundred.
HEAD, TAIL = 1000, 10_000
ENCRYPTED = 0x1
# The last entry of an archive: mark, two numbers of disks, two of records, size and place of their list, comment.
END = struct.Struct("<4s4H2IH")
LONG_END = 76


def ends_of(source: ByteSource) -> list[Extent]:
    """The parts of a file that say what it is, and which records it has."""
    tail = min(TAIL, source.size)
    return [Extent(0, min(HEAD, source.size)), Extent(source.size - tail, tail)]


class TorchRecords:
    """The records of an archive by name, without the folder that all of them are in.

    Raises CorruptCheckpointError if the file is no zip file, or if a record is compressed, encrypted or listed twice.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source, self._records = source, _list_records(source)
        self._padding = max(PADDING, 2 * self._first_extra())

    def _first_extra(self) -> int:
        """The bytes that are added to the header of the first record, which are about as many in each header."""
        first = min((record.header_offset for record in self._records.values()), default=0)
        header = self._source.read(first, min(LOCAL_HEADER, self._source.size - first), "first record").numpy()
        return int.from_bytes(bytes(header[28:30]), "little")

    def load_state(self) -> Any:
        """The object that the pickle of the file describes. Raises UnsafeCheckpointError or CorruptCheckpointError."""
        where = self._source.where
        with self._hold(SMALL_RECORDS):
            if self.size("data.pkl") is None:
                raise broken(where, "it has no record data.pkl")
            if self.size("constants.pkl") is not None:
                raise UnsafeCheckpointError(f"{where}: refused: it is a TorchScript program; use safetensors weights")
            if self.size("byteorder") is not None and self._read("byteorder") != b"little":
                raise broken(where, "its numbers are not little-endian; save it again")
            return TorchUnpickler(io.BytesIO(self._read("data.pkl")), where).load_safely()

    def size(self, name: str) -> int | None:
        """The bytes of a record, None if there is no such record."""
        return self._records[name].file_size if name in self._records else None

    def _read(self, name: str) -> bytes:
        """The content of a record. Raises CorruptCheckpointError if it is longer than LONGEST."""
        size = self._records[name].file_size
        if size > LONGEST:
            raise broken(self._source.where, f"{name} has {size:,} bytes, expected at most {LONGEST:,}")
        return bytes(self._source.read(self.find(name), size, name).numpy())

    def find(self, name: str) -> int:
        """The place in the file at which a record starts. Raises CorruptCheckpointError if its own header differs."""
        record = self._records[name]
        header = bytes(self._source.read(record.header_offset, LOCAL_HEADER, name).numpy())
        names, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        own = bytes(self._source.read(record.header_offset + LOCAL_HEADER, names, name).numpy())
        start = record.header_offset + LOCAL_HEADER + names + extra
        stored = header[:4] == ZIP and header[8:10] == b"\0\0"
        if not stored or own != record.orig_filename.encode() or start + record.file_size > self._source.size:
            raise broken(self._source.where, f"record {record.orig_filename[:80]!r} differs from the list of records")
        return start

    def _hold(self, names: Collection[str]) -> AbstractContextManager[None]:
        """Inside the block, these records are read soon; those that are missing are not."""
        present = [name for name in names if (size := self.size(name)) is not None and size <= LONGEST]
        located = (self.locate(name, 0, self._records[name].file_size) for name in present)
        return self._source.hold(extent for extents in located for extent in extents)

    def locate(self, name: str, start: int, count: int) -> tuple[Extent, Extent]:
        """The header of a record and a part of its content, some more because the length of the header is not known."""
        record = self._records[name]
        header = LOCAL_HEADER + len(record.orig_filename.encode())
        return (
            Extent(record.header_offset, header + self._padding),
            Extent(record.header_offset + header + start, count + self._padding),
        )


def _list_records(source: ByteSource) -> dict[str, zipfile.ZipInfo]:
    """The records by name; raises as `TorchRecords`."""
    where = source.where
    with _SourceReader(source) as file:
        if file.read(len(ZIP)) != ZIP:
            raise CorruptCheckpointError(
                f"{where}: not a PyTorch file: it is damaged, or was saved before PyTorch 0.1.10; save it again as "
                "safetensors"
            )
        try:
            with zipfile.ZipFile(file) as archive:
                listed = archive.infolist()
            file.seek(-END.size, os.SEEK_END)
            _check_end(END.unpack(file.read(END.size)), len(listed), file.tell() - END.size)
        except AttnGeoError:  # of the source
            raise
        except Exception as error:  # a forged directory can raise anything
            raise CorruptCheckpointError(
                f"{where}: not a whole zip file ({first_line(error)}); download it again"
            ) from None
    folder = listed[0].orig_filename.partition("/")[0] + "/" if listed else ""
    records = {each.orig_filename.removeprefix(folder): each for each in listed}
    if len({name.lower() for name in records}) < len(listed):
        raise CorruptCheckpointError(f"{where}: a record is listed twice; download it again")
    for name, record in records.items():
        if not record.orig_filename.startswith(folder):
            raise CorruptCheckpointError(f"{where}: record {name[:80]!r} is not in {folder[:80]!r}; download it again")
        if record.compress_type != zipfile.ZIP_STORED or record.compress_size != record.file_size:
            raise CorruptCheckpointError(
                f"{where}: record {name[:80]!r} is compressed, expected records as torch.save stores them; read it "
                "with torch.load(weights_only=True) and save it again"
            )
        if record.flag_bits & ENCRYPTED:
            raise CorruptCheckpointError(f"{where}: record {name[:80]!r} is encrypted; save it again")
    return records


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


class _SourceReader(io.RawIOBase):
    """A ByteSource as a file that is never read far: zipfile reads as many bytes as a forged directory states."""

    def __init__(self, source: ByteSource) -> None:
        self._source, self._at = source, 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size}[whence]
        if self._at < 0:
            raise OSError("a place in front of the file")
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(self._source.size - self._at, 0)
        size = left if size is None or size < 0 else min(size, left)
        if size > LONGEST:
            raise zipfile.BadZipFile(f"its list of records states {size:,} bytes")
        self._at += size
        return bytes(self._source.read(self._at - size, size, "list of records").numpy())
