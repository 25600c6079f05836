"""TensorStore: names, shapes and dtypes of a model's tensors, and reads of single tensors.

Opening a store reads no tensor. The stores are `file_store.FileStore` (weight files) and `ModuleStore` (a model in
memory), and those that change what another one reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from attngeo.bounds.names import in_utf8
from attngeo.checkpoints.extent import Extent
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError, about

if TYPE_CHECKING:
    pass

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
MOST_TENSOR_DIMENSIONS = 64
FLOATS = ("F64", "F32", "F16", "BF16")
# The sections of config.json that may describe the text part of a model, as transformers' get_text_config has them.
TEXT_SECTIONS = ("decoder", "generator", "text_config")


@dataclass(frozen=True)
class TensorInfo:
    """A stored tensor, without its values.

    Attributes:
        name: name of the tensor.
        dtype: number type, by its safetensors name.
        shape: shape of the tensor.
        nbytes: size in bytes.
        offset: first byte in its file; 0 for a tensor in memory or in a PyTorch file.
        packed: stored form of a decoded tensor, such as "gptq-4bit"; "" for plain numbers.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int = 0
    packed: str = ""

    def locate(self, rows: slice) -> Extent:
        """The bytes of rows of the first dimension, or of the whole tensor if it has no dimensions."""
        if not self.shape:
            return Extent(self.offset, self.nbytes)
        first, last, _ = rows.indices(self.shape[0])
        row_nbytes = self.nbytes // max(self.shape[0], 1)
        return Extent(self.offset + first * row_nbytes, max(last - first, 0) * row_nbytes)


class TensorStore(Protocol):
    """A model's tensors. If a store decodes, names and sizes are those after decoding.

    The defaults fit a model in memory.

    Attributes:
        ref: the model's name, as the user wrote it.
        revision: the commit on the Hub; None for other models.
        config: the parsed config.json.
        format: how the weights are stored, such as "safetensors", or "memory".
        folder: folder of config.json; None for a model in memory.
        main_file: name of the one weight file, or of the index; "" in memory.
        offline: whether downloads are forbidden.
    """

    ref: str
    revision: str | None
    config: Mapping[str, Any]
    format: str
    folder: Path | None
    main_file: str
    offline: bool

    @property
    def lanes(self) -> int:
        """Number of parallel reads that make reading faster."""
        return 1

    @property
    def nested_under(self) -> str:
        """The key that holds the tensors in the one weight file; "" if they are at its top level."""
        return ""

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        ...

    @property
    def total_nbytes(self) -> int | None:
        """Bytes of all tensors as stored; None if finding out would need every file."""
        ...

    @property
    def parameters(self) -> int | None:
        """Number of floating-point elements of all tensors.

        Files that are not open are estimated from their bytes; None if these are unknown.
        """
        ...

    def info(self, name: str) -> TensorInfo:
        """Shape, dtype and size in memory of one tensor. Reads at most a file header."""
        ...

    def count_nbytes(self, reads: Mapping[str, slice]) -> int:
        """Stored bytes that `read_all` would read. Reads at most headers."""
        return count_rows_nbytes({name: self.info(name) for name in reads}, reads)

    def open(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:  # noqa: ARG002
        """Open the files that hold these tensors. Calls `progress` with each file's name."""
        return

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """One tensor, or rows of its first dimension, on the CPU in the checkpoint's dtype."""
        return self.read_all({name: rows})[name]

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, Tensor]:
        """Rows of each of these tensors, in this order. Faster than single reads if the files are remote."""
        ...

    def list_notes(self, names: Iterable[str]) -> list[str]:  # noqa: ARG002
        """Caveats about scores of these (open) tensors: why other programs may use different values."""
        return []

    def file(self, name: str) -> Path | None:  # noqa: ARG002
        """The path of another file of the model, such as its tokeniser, downloaded if needed; None if missing."""
        return None

    def download(self, progress: Callable[[str], None]) -> None:  # noqa: ARG002
        """Download every weight file completely. Calls `progress` with each file's name."""
        return

    def close(self) -> None:
        """Close all open files."""
        return


def count_rows_nbytes(infos: Mapping[str, TensorInfo], reads: Mapping[str, slice]) -> int:
    """Bytes of rows of tensors, computed from their infos."""
    return sum(infos[name].locate(rows).nbytes for name, rows in reads.items())


class OuterStore(TensorStore):
    """A TensorStore over another one, `inner`, with the same names, files and sizes."""

    def __init__(self, inner: TensorStore) -> None:
        self._inner = inner
        self.ref = inner.ref
        self.config = inner.config
        self.revision = inner.revision
        self.offline = inner.offline
        self.folder = inner.folder
        self.main_file = inner.main_file
        self.format = inner.format

    @property
    def lanes(self) -> int:
        """Number of parallel reads that make reading faster."""
        return self._inner.lanes

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._inner.names

    @property
    def total_nbytes(self) -> int | None:
        """Bytes of all tensors as stored."""
        return self._inner.total_nbytes

    @property
    def parameters(self) -> int | None:
        """Number of weights; see `TensorStore`."""
        return self._inner.parameters

    def open(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open the files that hold these tensors. Calls `progress` with each file's name."""
        self._inner.open(names, progress)

    def list_notes(self, names: Iterable[str]) -> list[str]:
        """Caveats about scores of these tensors; see `TensorStore`."""
        return self._inner.list_notes(names)

    def file(self, name: str) -> Path | None:
        """The path of another file of the model; see `TensorStore`."""
        return self._inner.file(name)

    def download(self, progress: Callable[[str], None]) -> None:
        """Download every weight file completely; see `TensorStore`."""
        self._inner.download(progress)

    def close(self) -> None:
        """Close all open files."""
        self._inner.close()


def read_state(model: Any, *, on_device: bool) -> dict[str, Tensor]:
    """The parameters and buffers of a model by name.

    Tied ones are one object, except with `on_device`: a sharded model may gather only values.
    """
    state: dict[str, Tensor] = model.state_dict(keep_vars=not on_device)
    return state


class ModuleStore(TensorStore):
    """A TensorStore over the parameters and buffers of a transformers model, under their names in the model.

    Args:
        model: the model.
        state: its parameters and buffers, or some of them, under other names.
        on_device: whether tensors stay on the model's device when they are read.
    """

    revision: str | None = None
    folder: Path | None = None
    main_file = ""
    format = "memory"
    offline = False

    def __init__(self, model: Any, state: dict[str, Tensor] | None = None, *, on_device: bool = False) -> None:
        self.ref = in_utf8(getattr(model, "name_or_path", "") or type(model).__name__)
        self.config = model.config.to_dict()
        self._state = read_state(model, on_device=on_device) if state is None else state
        self._on_device = on_device

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._state.keys()

    @property
    def total_nbytes(self) -> int:
        """Bytes of all tensors; tied tensors count once, as in a saved model."""
        return sum(tensor.nbytes for tensor in self._distinct())

    @property
    def parameters(self) -> int:
        """Number of floating-point elements of all tensors; tied tensors count once."""
        return sum(tensor.numel() for tensor in self._distinct() if tensor.is_floating_point())

    def _distinct(self) -> Iterable[Tensor]:
        return {id(tensor): tensor for tensor in self._state.values()}.values()

    def info(self, name: str) -> TensorInfo:
        """Shape, dtype and bytes of one tensor."""
        tensor = self._state[name]
        return TensorInfo(name, DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape), tensor.nbytes)

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, Tensor]:
        """Rows of each of these tensors, detached. Raises CorruptCheckpointError for a meta tensor."""
        meta = [name for name in reads if self._state[name].is_meta]
        if meta:
            with about(self.ref):
                raise CorruptCheckpointError(f"{meta[0]} is on the meta device and has no values; load the weights")
        tensors = {}
        for name, rows in reads.items():
            tensor: Any = self._state[name]
            if hasattr(tensor, "full_tensor"):  # sharded, as by FSDP: all processes take part
                tensor = tensor.full_tensor()
            tensor = tensor.detach()
            chosen = tensor[rows] if tensor.ndim else tensor
            tensors[name] = chosen if self._on_device else chosen.cpu()
        return tensors


def float_shape(store: TensorStore, name: str) -> tuple[int, ...]:
    """The shape of a floating-point tensor. Reads at most a file header.

    Raises UnsupportedModelError for other dtypes, such as those of an unknown packing, and CorruptCheckpointError for a
    tensor without values, which sharded training has left in other files.
    """
    info = store.info(name)
    if info.dtype not in FLOATS:
        method = stated_quantization(store.config) or "config.json states no quantization_config"
        with about(store.ref):
            raise UnsupportedModelError(
                f"{info.name} is stored as {info.dtype} ({method}), expected {', '.join(FLOATS)}, or a packed weight "
                "with its scales; give the model without quantisation"
            )
    if 0 in info.shape:
        with about(store.ref):
            raise CorruptCheckpointError(
                f"{info.name} is {list(info.shape)}, without any numbers: sharded training (ZeRO stage 3 of DeepSpeed, "
                "FSDP) keeps them in other files; join these with DeepSpeed's zero_to_fp32.py or accelerate "
                "merge-weights, and give the joined file"
            )
    return info.shape


def quantization_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The quantisation table in config.json: its own, MLX's, or its text section's; {} if there is none.

    transformers applies the table of the text section to the whole model.
    """
    candidates = [config.get(name) for name in ("quantization_config", "compression_config", "quantization")]
    for name in TEXT_SECTIONS:
        section = config.get(name)
        if isinstance(section, Mapping):
            candidates.append(section.get("quantization_config"))
    for stated in candidates:
        if stated is not None:
            return stated if isinstance(stated, Mapping) else {"quant_method": "quantised"}
    return {}


def stated_quantization(config: Mapping[str, Any]) -> str:
    """The quantisation method in config.json, such as "awq", cut if it is long; "" if there is none."""
    stated = quantization_settings(config)
    usual = "mlx" if "quantization" in config else "quantised"
    return f"{stated.get('quant_method') or usual!s:.40}" if stated else ""
