"""What is known about a tensor before it is read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# The safetensors names of the dtypes that torch has. A tensor of another dtype (sub-byte floats) is listed, never read.
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
# The bits of one number of each dtype that a safetensors file may have; torch lacks the last three.
DTYPE_BITS = {name: 8 * dtype.itemsize for name, dtype in DTYPES.items()} | {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# As many as torch allows.
MOST_DIMENSIONS = 64
FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: its name, dtype (by its safetensors name), shape, bytes, and offset in bytes in its file's data.

    The offset is 0 for a tensor that is in no safetensors file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int = 0

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row of the first dimension; of the whole tensor if it has no rows."""
        return self.nbytes // self.shape[0] if self.shape and self.shape[0] else self.nbytes


def info_of(name: str, tensor: torch.Tensor) -> TensorInfo:
    """The TensorInfo of a tensor in memory."""
    return TensorInfo(name, DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape), tensor.nbytes)
