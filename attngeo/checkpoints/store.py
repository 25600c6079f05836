"""TensorStore: the names, shapes and dtypes of a model's tensors, and reads of single tensors.

Opening a store reads no tensor. The stores are `files.FileStore` (files of weights) and `ModuleStore` (a model in
memory).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from attngeo.bounds import in_utf8
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError

# The safetensors names of the dtypes that torch has. A tensor of another dtype (sub-byte floats) is listed, never read.
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64,
}  # fmt: skip
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


class TensorStore(Protocol):
    """A model's tensors.

    ref: the model's name, as the user gave it. revision: the Hub's commit, None for other models. config: the parsed
    config.json. folder: where config.json is, None for a model in memory. offline: whether downloads are forbidden.
    lanes: how many reads at once make it faster.
    """

    ref: str
    revision: str | None
    config: Mapping[str, Any]
    folder: Path | None
    offline: bool
    lanes: int

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        ...

    @property
    def total_nbytes(self) -> int | None:
        """Bytes of all tensors together; None if every file would have to be read to know."""
        ...

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype of one tensor. Reads at most the header of a file."""
        ...

    def fetch(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open the files that hold these tensors. Calls `progress` with each file's name."""
        ...

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """One tensor, or rows of its first dimension, on the CPU in the checkpoint's dtype."""
        ...

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, torch.Tensor]:
        """Rows of each of these tensors, in this order. Takes less time than one by one if they are far away."""
        ...

    def count_requests(self, reads: Iterable[Mapping[str, slice]]) -> dict[str, int]:
        """Remote file → the requests for its header, and those that `read_all` sends for each of these reads.

        Reads no tensor. Files on this machine are left out. Right if nothing but headers has been read before.
        """
        ...

    def file(self, name: str) -> Path | None:
        """The path of another file of the model, such as its tokeniser, downloaded if needed; None if it is missing."""
        ...

    def close(self) -> None:
        """Close all open files."""
        ...


class ModuleStore:
    """A TensorStore over the parameters and buffers of a `transformers` model, under its own names for them."""

    def __init__(self, model: Any) -> None:
        self.revision: str | None = None
        self.folder: Path | None = None
        self.offline, self.lanes = False, 1
        self.ref = in_utf8(getattr(model, "name_or_path", "") or type(model).__name__)
        self.config = model.config.to_dict()
        self._state: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)  # tied ones stay one object

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._state.keys()

    @property
    def total_nbytes(self) -> int:
        """Bytes of all tensors; tied tensors count once, as in a saved model."""
        return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in self._state.values()}.values())

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype of one tensor."""
        return info_of(name, self._state[name])

    def fetch(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Do nothing: the tensors are in memory."""

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """One tensor, or rows of it, detached and on the CPU. Raises CorruptCheckpointError for a meta tensor."""
        tensor = self._state[name]
        if tensor.is_meta:
            raise CorruptCheckpointError(
                f"{self.ref}: {name} is on the meta device and has no values; load the weights"
            )
        return (tensor[rows] if tensor.ndim else tensor).detach().cpu()

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, torch.Tensor]:
        """Rows of each of these tensors."""
        return {name: self.read(name, rows) for name, rows in reads.items()}

    def count_requests(self, reads: Iterable[Mapping[str, slice]]) -> dict[str, int]:  # noqa: ARG002 - the protocol's
        """Nothing: a model in memory has no files."""
        return {}

    def file(self, name: str) -> Path | None:  # noqa: ARG002 - the protocol's
        """None: a model in memory has no files."""
        return None

    def close(self) -> None:
        """Do nothing: no file is open."""


def float_shape(store: TensorStore, name: str) -> tuple[int, ...]:
    """The shape of a tensor of floating-point numbers. Reads at most the header of a file.

    Raises UnsupportedModelError for a tensor of other numbers, such as a quantised one.
    """
    info = store.info(name)
    if info.dtype not in FLOATS:
        raise UnsupportedModelError(
            f"{store.ref}: {name} is stored as {info.dtype} ({stated_quantisation(store.config)}), expected one of "
            f"{', '.join(FLOATS)}; quantised weights are not supported yet, give the model without quantisation"
        )
    return info.shape


def stated_quantisation(config: Mapping[str, Any]) -> str:
    """The name of the quantisation that config.json states, such as "awq"; "quantised" if it states none."""
    stated = config.get("quantization_config")
    return str(stated.get("quant_method") or "quantised") if isinstance(stated, Mapping) else "quantised"
