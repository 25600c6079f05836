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
from collections.abc import Mapping
from typing import Any

import torch

from attngeo.bounds.names import name_type
from attngeo.checkpoints.extent import Extent
from attngeo.checkpoints.first_bytes import SAFETENSORS
from attngeo.checkpoints.store import DTYPE_BITS, DTYPES, MOST_TENSOR_DIMENSIONS, TensorInfo
from attngeo.checkpoints.tensor_file import ByteSource, TensorFile, explain_content, read_bytes
from attngeo.errors import CorruptCheckpointError

# The library's limit in bytes, so that a forged length cannot exhaust memory.
LONGEST_HEADER = 100_000_000
# Bytes of the first request to a remote file: a header of a hundred tensors.
USUAL_HEADER = 10_000
# More entries than a dimension of a real tensor has.
LARGEST_SIZE = 2**40
METADATA = "__metadata__"
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class SafetensorsFile(TensorFile):
    """An open .safetensors file. Raises CorruptCheckpointError if it is broken."""

    def _load(self) -> None:
        size = self.source.size
        with self.source.hold([Extent(0, USUAL_HEADER)]):
            length = int.from_bytes(read_bytes(self.source, 0, min(8, size), "header"), "little")
            data_start = 8 + length
            if size < 8 or length > LONGEST_HEADER or data_start > size:
                raise explain_content(self.source, SAFETENSORS) or CorruptCheckpointError(
                    f"not a complete safetensors file: its first 8 bytes announce a header of {length:,} "
                    f"bytes, but the file has {size:,}; copy or download it again"
                )
            text = read_bytes(self.source, 8, length, "header")
        try:
            header = parse_header(text)
        except (ValueError, RecursionError) as error:
            raise explain_content(self.source, SAFETENSORS) or CorruptCheckpointError(
                f"the safetensors header is not readable JSON ({error}); copy or download it again"
            ) from None
        self.tensors = check_header(header, data_start, size)

    def _read(self, name: str, rows: slice) -> torch.Tensor:
        info = self.tensors[name]
        shape = (len(range(info.shape[0])[rows]), *info.shape[1:]) if info.shape else ()
        return self.source.read(*info.locate(rows), name).view(DTYPES[info.dtype]).reshape(shape)


def list_names(source: ByteSource) -> list[str]:
    """The tensor names in a file, unchecked; none if the file is broken (reading it reports the error)."""
    length = int.from_bytes(bytes(read_bytes(source, 0, min(8, source.size), "header")), "little")
    if length > min(LONGEST_HEADER, source.size - 8):
        return []
    try:
        header = json.loads(read_bytes(source, 8, length, "header"))
    except (ValueError, RecursionError):
        return []
    return [name for name in header if name != METADATA] if isinstance(header, dict) else []


def parse_header(text: bytes) -> Any:
    """The content of a header. Raises ValueError or RecursionError for headers that the library also rejects.

    Python's parser alone would accept UTF-16, half of a surrogate pair, repeated names and -0 as a size.
    """
    decoded = text.decode("utf-8")
    parse_int = _refuse_minus_zero if "-0" in decoded else None
    header = json.loads(decoded, object_pairs_hook=_no_duplicates, parse_int=parse_int)
    if SURROGATE.search(decoded):
        json.dumps(header, ensure_ascii=False).encode("utf-8")  # raises for half of a pair
    return header


def check_header(header: Any, data_start: int, size: int) -> dict[str, TensorInfo]:
    """The table of contents of a parsed header. Raises CorruptCheckpointError if an entry is wrong.

    The tensors must fill the data without gaps or overlaps. data_start: the first byte of the data in the file. size:
    bytes of the file.
    """
    if not isinstance(header, dict):
        raise CorruptCheckpointError(f"the safetensors header is {name_type(header)}, expected an object")
    metadata = header.pop(METADATA, None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise CorruptCheckpointError(f"its __metadata__ is {str(metadata)[:80]!r}, expected a table of name → string")
    tensors = {name: check_entry(name, entry, data_start) for name, entry in header.items()}
    end = data_start
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.nbytes)):
        if info.offset != end:
            raise CorruptCheckpointError(
                f"tensor {info.name!r} starts at byte {info.offset - data_start} of the data, expected "
                f"{end - data_start}; download the file again"
            )
        end += info.nbytes
    if end != size:
        raise CorruptCheckpointError(
            f"the header describes {end - data_start:,} bytes of tensors, but the file has {size - data_start:,}; "
            "copy or download it again"
        )
    return tensors


def check_entry(name: str, entry: Any, data_start: int) -> TensorInfo:
    """One tensor, from its entry in a header. Raises CorruptCheckpointError if the entry is wrong."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, stop]} if (
            len(entry) == 3
            and dtype in DTYPE_BITS
            and len(shape) <= MOST_TENSOR_DIMENSIONS
            and all(type(size) is int and 0 <= size < LARGEST_SIZE for size in shape)
        ):
            bits = math.prod(shape) * DTYPE_BITS[dtype]
            if type(start) is type(stop) is int and 0 <= start <= stop and bits == 8 * (stop - start):
                return TensorInfo(name, dtype, tuple(shape), stop - start, data_start + start)
            raise CorruptCheckpointError(
                f"tensor {name!r} ({dtype} {str(shape)[:80]}) has data_offsets {str([start, stop])[:80]}, "
                f"expected {str(bits / 8 if bits % 8 else bits // 8)[:20]} bytes; download the file again"
            )
    raise CorruptCheckpointError(
        f"the header entry of {name!r} is {str(entry)[:80]!r}, expected only dtype, shape and data_offsets"
    )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result


def _refuse_minus_zero(text: str) -> int:
    if text == "-0":
        raise ValueError("a number is -0")
    return int(text)
