"""One .safetensors file: a checked header, and reads of single tensors or rows.

Why not the safetensors library? It maps the file into memory, even for slices of a tensor. Each page that was read
stays in memory while the file is open, so a checkpoint that is read tensor by tensor ends up in memory as a whole. A
slice of a few rows reads far more than these rows from the disk: 41 MB instead of 0.4 MB in a measurement with
safetensors 0.8 on Linux. And the library's errors about broken files state no numbers. This reader reads exactly the
bytes of the rows into new memory. Tests compare it with the library.

Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from attngeo.checkpoints.tensor import DTYPES, TensorInfo, expected_nbytes
from attngeo.errors import CorruptCheckpointError

# The library's limit in bytes, so that a forged length cannot exhaust memory.
LONGEST_HEADER = 100_000_000
# More entries than a dimension of a real tensor has.
LARGEST_SIZE = 2**40


class SafetensorsFile:
    """An open .safetensors file; `tensors` is its table of contents. Raises CorruptCheckpointError if it is broken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise CorruptCheckpointError(f"{path}: no such file; download it again")
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise CorruptCheckpointError(f"{path}: cannot be opened ({error.strerror})") from None
        try:
            size = os.fstat(self._descriptor).st_size
            self.data_start, header = self._read_header(size)
            self.tensors = check_header(header, size - self.data_start, str(path))
        except BaseException:
            self.close()
            raise

    def _read_header(self, size: int) -> tuple[int, Any]:
        length = int.from_bytes(os.pread(self._descriptor, 8, 0), "little")
        if size < 8 or length > LONGEST_HEADER or 8 + length > size:
            raise CorruptCheckpointError(
                f"{self.path}: not a complete safetensors file: its first 8 bytes announce a header of {length:,} "
                f"bytes, but the file has {size:,}; download it again"
            )
        text = os.pread(self._descriptor, length, 8)
        try:
            return 8 + length, json.loads(text, object_pairs_hook=_no_duplicates)
        except (ValueError, RecursionError) as error:
            raise CorruptCheckpointError(
                f"{self.path}: the safetensors header is not readable JSON ({error}); download it again"
            ) from None

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """The tensor, or the given rows of its first dimension, in the file's dtype and in new memory.

        Raises CorruptCheckpointError if the file was truncated after it was opened.
        """
        info = self.tensors[name]
        first, last, _ = rows.indices(info.shape[0]) if info.shape else (0, 1, 1)
        buffer = torch.empty(max(last - first, 0) * info.row_nbytes, dtype=torch.uint8)
        view = memoryview(buffer.numpy().data)
        offset = self.data_start + info.offset + first * info.row_nbytes
        while view:
            count = os.preadv(self._descriptor, [view], offset)
            if count == 0:
                raise CorruptCheckpointError(f"{self.path}: ends inside tensor {name!r}; download it again")
            view, offset = view[count:], offset + count
        shape = (last - first, *info.shape[1:]) if info.shape else ()
        return buffer.view(DTYPES[info.dtype]).reshape(shape)

    def close(self) -> None:
        """Close the file. A later `read` fails."""
        os.close(self._descriptor)


def check_header(header: Any, data_size: int, where: str) -> dict[str, TensorInfo]:
    """The table of contents of a parsed header. Raises CorruptCheckpointError if an entry is wrong.

    The tensors must fill the data without gaps or overlaps. data_size: bytes of the file after the header. where: the
    file, for errors.
    """
    if not isinstance(header, dict):
        raise CorruptCheckpointError(
            f"{where}: the safetensors header is a {type(header).__name__}, expected an object"
        )
    tensors = {name: _check_entry(name, entry, where) for name, entry in header.items() if name != "__metadata__"}
    end = 0
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.nbytes)):
        if info.offset != end:
            raise CorruptCheckpointError(
                f"{where}: tensor {info.name!r} starts at byte {info.offset} of the data, expected {end}; "
                "download the file again"
            )
        end += info.nbytes
    if end != data_size:
        raise CorruptCheckpointError(
            f"{where}: the header describes {end:,} bytes of tensors, the file holds {data_size:,}; download it again"
        )
    return tensors


def _check_entry(name: str, entry: Any, where: str) -> TensorInfo:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(stop)]} if all(
            type(size) is int and 0 <= size < LARGEST_SIZE for size in shape
        ):
            needed = expected_nbytes(dtype, shape)
            if 0 <= start <= stop and needed in (None, stop - start):
                return TensorInfo(name, dtype, tuple(shape), stop - start, start)
            raise CorruptCheckpointError(
                f"{where}: tensor {name!r} ({dtype} {shape}) has data_offsets [{start}, {stop}], "
                f"{stop - start} bytes, expected {needed}; download the file again"
            )
    raise CorruptCheckpointError(
        f"{where}: the header entry of {name!r} is {str(entry)[:80]!r}, expected dtype, shape and data_offsets"
    )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result
