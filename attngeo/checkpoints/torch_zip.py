"""PyTorch's archives since 1.6: an uncompressed zip file of a pickle and of one record for each storage.

Formats: https://docs.pytorch.org/docs/stable/notes/serialization.html and
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from typing import Any

from attngeo.checkpoints.extent import Extent
from attngeo.checkpoints.first_bytes import PYTORCH
from attngeo.checkpoints.pickles import LONGEST, TorchUnpickler, broken
from attngeo.checkpoints.tensor_file import ByteSource, explain_content, read_bytes
from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsafeCheckpointError, first_line

# What is read before any tensor.
SMALL_RECORDS = ("data.pkl", "byteorder")
# How a zip file and the header of each record begin; such a header before the name of the record: mark, compression,
# bytes of the name and of what follows it.
ZIP = b"PK\x03\x04"
LOCAL_HEADER = struct.Struct("<4s4xH16x2H")
# Bytes that torch.save adds to a header so that the numbers are aligned; with other settings, it adds more.
PADDING = 128
ENCRYPTED = 0x1
# The last entry of an archive: mark, two numbers of disks, two of records, size and place of their list, comment.
END = struct.Struct("<4s4H2IH")
LONG_END = 76


class ZipRecords:
    """The records of an archive by name, without their common folder.

    Raises CorruptCheckpointError if this is not a zip file, or if a record is compressed, encrypted or listed twice.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._records = _list_records(source)
        # The bytes that are added to the header of the first record are about as many as in each other header.
        first = min((record.header_offset for record in self._records.values()), default=0)
        *_, extra_length = LOCAL_HEADER.unpack(read_bytes(source, first, LOCAL_HEADER.size, "first record"))
        self._padding = max(PADDING, 2 * extra_length)

    def load_state(self) -> Any:
        """The object in the pickle of the file. Raises UnsafeCheckpointError or CorruptCheckpointError."""
        extents: list[Extent] = []
        for name in SMALL_RECORDS:
            if name in self._records and self._records[name].file_size <= LONGEST:
                extents += self.locate(name, 0, self._records[name].file_size)
        with self._source.hold(extents):
            if "data.pkl" not in self._records:
                raise explain_content(self._source, PYTORCH) or broken("it has no record data.pkl")
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
        """The offset of a record in the file. Raises CorruptCheckpointError if its own header differs."""
        record = self._records[name]
        header = read_bytes(self._source, record.header_offset, LOCAL_HEADER.size, name)
        mark, compression, name_length, extra_length = LOCAL_HEADER.unpack(header)
        name_start = record.header_offset + LOCAL_HEADER.size
        stated = read_bytes(self._source, name_start, name_length, name)
        start: int = name_start + name_length + extra_length
        is_inside = start + record.file_size <= self._source.size
        if mark != ZIP or compression or stated != record.orig_filename.encode() or not is_inside:
            raise broken(f"record {record.orig_filename[:80]!r} does not match its entry in the list of records")
        return start

    def locate(self, name: str, start: int, count: int) -> tuple[Extent, Extent]:
        """The extents of a record's header and of a part of its content, padded as the header's length is unknown."""
        record = self._records[name]
        header_length = LOCAL_HEADER.size + len(record.orig_filename.encode())
        content = record.header_offset + header_length
        return (
            Extent(record.header_offset, header_length + self._padding),
            Extent(content + start, count + self._padding),
        )


def _list_records(source: ByteSource) -> dict[str, zipfile.ZipInfo]:
    """The records by name; raises as `ZipRecords`."""
    file: Any = _SourceReader(source)
    mark = file.read(len(ZIP))
    if mark != ZIP:
        raise explain_content(source, PYTORCH) or CorruptCheckpointError(
            f"not a PyTorch file: it begins with {mark!r}, so it is damaged, has another format, or predates "
            "PyTorch 0.1.10; save its tensors again as safetensors"
        )
    try:
        listed = zipfile.ZipFile(file).infolist()
        file.seek(-END.size, os.SEEK_END)
        _check_end(END.unpack(file.read(END.size)), len(listed), file.tell() - END.size)
    except AttnGeoError:  # of the source
        raise
    except Exception as error:  # a forged directory can raise anything
        raise CorruptCheckpointError(
            f"not a complete zip file ({first_line(error)}); copy or download it again"
        ) from None
    folder = listed[0].orig_filename.partition("/")[0] + "/" if listed else ""
    records = {record.orig_filename.removeprefix(folder): record for record in listed}
    if len({name.lower() for name in records}) < len(listed):
        raise CorruptCheckpointError("a record is listed twice; copy or download it again")
    for name, record in records.items():
        if not record.orig_filename.startswith(folder):
            other = explain_content(source, PYTORCH)
            problem = f"record {name[:80]!r} is not in {folder[:80]!r}"
            raise other or CorruptCheckpointError(f"{problem}; copy or download it again")
        is_stored = record.compress_type == zipfile.ZIP_STORED and record.compress_size == record.file_size
        if not is_stored or record.flag_bits & ENCRYPTED:
            raise CorruptCheckpointError(
                f"record {name[:80]!r} is compressed or encrypted, expected records as torch.save stores them; load "
                "the file with torch.load(weights_only=True), and save it again"
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
        raise zipfile.BadZipFile("it does not end with the end record of a complete archive")
    if not is_long and (total != records or position - start - nbytes not in (0, LONG_END)):
        raise zipfile.BadZipFile(f"it states {total:,} records, but lists {records:,}")


class _SourceReader:
    """A ByteSource as a file that is never read far: zipfile reads as many bytes as a forged directory states."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._position = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> None:
        origins = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size}
        self._position = origins[whence] + offset
        if self._position < 0:
            raise OSError("a position before the start of the file")

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
