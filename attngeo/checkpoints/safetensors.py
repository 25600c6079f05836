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
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from attngeo.checkpoints.store import DTYPE_BITS, DTYPES, MOST_DIMENSIONS, ByteSource, Extent, TensorInfo
from attngeo.errors import CorruptCheckpointError, about

# The library's limit in bytes, so that a forged length cannot exhaust memory.
LONGEST_HEADER = 100_000_000
# Bytes of the first request to a remote file: a header of a hundred tensors.
USUAL_HEADER = 10_000
# More entries than a dimension of a real tensor has.
LARGEST_SIZE = 2**40
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class SafetensorsFile:
    """An open .safetensors file; `tensors` is its table of contents. Errors are about the file.

    Args:
        source: the open file.

    Raises:
        CorruptCheckpointError: The file is broken.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        try:
            with about(source.where):
                with source.hold([Extent(0, min(USUAL_HEADER, source.size))]):
                    self.data_start, header = self._read_header()
                self.tensors = check_header(header, source.size - self.data_start)
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> tuple[int, Any]:
        size = self._source.size
        length = int.from_bytes(bytes(self._source.read(0, min(8, size), "header").numpy()), "little")
        if size < 8 or length > LONGEST_HEADER or 8 + length > size:
            raise CorruptCheckpointError(
                f"not a complete safetensors file: its first 8 bytes announce a header of {length:,} "
                f"bytes, but the file has {size:,}; download it again"
            )
        try:
            return 8 + length, parse_header(bytes(self._source.read(8, length, "header").numpy()))
        except (ValueError, RecursionError) as error:
            raise CorruptCheckpointError(
                f"the safetensors header is not readable JSON ({error}); download it again"
            ) from None

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """One tensor, or rows of its first dimension, in the file's dtype and in new memory.

        Args:
            name: the tensor.
            rows: rows of its first dimension.

        Returns:
            [rows, ...]; the whole tensor if it has no dimensions.

        Raises:
            CorruptCheckpointError: The file was truncated after it was opened.
            NotEnoughMemoryError: The rows are larger than memory.
        """
        info = self.tensors[name]
        with about(self._source.where):
            buffer = self._source.read(*self._locate(name, rows), name)
        shape = (len(range(info.shape[0])[rows]), *info.shape[1:]) if info.shape else ()
        return buffer.view(DTYPES[info.dtype]).reshape(shape)

    def extents(self, reads: Mapping[str, slice]) -> Iterable[Extent]:
        """The bytes of the file that `read` needs for these rows of these tensors."""
        return [self._locate(name, rows) for name, rows in reads.items()]

    def _locate(self, name: str, rows: slice) -> Extent:
        """The bytes of rows of a tensor."""
        info = self.tensors[name]
        first, last, _ = rows.indices(info.shape[0]) if info.shape else (0, 1, 1)
        offset = self.data_start + info.offset + first * info.row_nbytes
        return Extent(offset, max(last - first, 0) * info.row_nbytes)

    def close(self) -> None:
        """Close the file. A later `read` fails."""
        self._source.close()


def parse_header(text: bytes) -> Any:
    """The content of a header. Raises ValueError or RecursionError for what the library does not accept either.

    Python's parser accepts more: UTF-16, NaN, half of a surrogate pair, a name twice and -0 for a size.
    """
    decoded = text.decode("utf-8")
    parse_int = _refuse_minus_zero if "-0" in decoded else None
    header = json.loads(
        decoded, object_pairs_hook=_no_duplicates, parse_constant=_refuse_number, parse_float=_refuse_number,
        parse_int=parse_int,
    )  # fmt: skip
    if SURROGATE.search(decoded):
        json.dumps(header, ensure_ascii=False).encode("utf-8")  # raises for half of a pair
    return header


def check_header(header: Any, data_size: int) -> dict[str, TensorInfo]:
    """The table of contents of a parsed header. Raises CorruptCheckpointError if an entry is wrong.

    The tensors must fill the data without gaps or overlaps. data_size: bytes of the file after the header.
    """
    if not isinstance(header, dict):
        raise CorruptCheckpointError(f"the safetensors header is a {type(header).__name__}, expected an object")
    metadata = header.get("__metadata__")
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise CorruptCheckpointError(f"its __metadata__ is {str(metadata)[:80]!r}, expected names and texts")
    tensors = {name: check_entry(name, entry) for name, entry in header.items() if name != "__metadata__"}
    end = 0
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.nbytes)):
        if info.offset != end:
            raise CorruptCheckpointError(
                f"tensor {info.name!r} starts at byte {info.offset} of the data, expected {end}; "
                "download the file again"
            )
        end += info.nbytes
    if end != data_size:
        raise CorruptCheckpointError(
            f"the header describes {end:,} bytes of tensors, the file holds {data_size:,}; download it again"
        )
    return tensors


def check_entry(name: str, entry: Any) -> TensorInfo:
    """One tensor, from its entry in a header. Raises CorruptCheckpointError if the entry is wrong."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, stop]} if (
            len(entry) == 3
            and dtype in DTYPE_BITS
            and len(shape) <= MOST_DIMENSIONS
            and all(type(size) is int and 0 <= size < LARGEST_SIZE for size in shape)
        ):
            bits = math.prod(shape) * DTYPE_BITS[dtype]
            if type(start) is type(stop) is int and 0 <= start <= stop and bits == 8 * (stop - start):
                return TensorInfo(name, dtype, tuple(shape), stop - start, start)
            raise CorruptCheckpointError(
                f"tensor {name!r} ({dtype} {str(shape)[:80]}) has data_offsets {str([start, stop])[:80]}, "
                f"expected {str(bits / 8 if bits % 8 else bits // 8)[:20]} bytes; download the file again"
            )
    raise CorruptCheckpointError(
        f"the header entry of {name!r} is {str(entry)[:80]!r}, expected dtype, shape and data_offsets only"
    )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result


def _refuse_number(text: str) -> Any:
    raise ValueError(f"the number {text[:20]}, expected whole numbers")


def _refuse_minus_zero(text: str) -> int:
    return _refuse_number(text) if text == "-0" else int(text)
