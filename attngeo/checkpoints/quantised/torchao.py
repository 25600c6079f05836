"""Weights of torchao in safetensors: its tensor subclasses, flattened to plain tensors.

Float8Tensor and Int8Tensor have a scale for each block, Int4Tensor has codes of 4 bits. A subclass in a pickle is never
unpickled.

Sources: https://github.com/pytorch/ao (`prototype/safetensors`, `quantization/quantize_/workflows`), and for Int4Tensor
https://github.com/pytorch/FBGEMM (`int4_row_quantize_zp`, `pack_int4`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from attngeo.checkpoints.quantised.floats import EXPONENTS, FLOAT8, Scaled
from attngeo.checkpoints.quantised.refused import Undecoded
from attngeo.checkpoints.quantised.scheme import FLOAT_SCALES, Packed, Stated, nibbles
from attngeo.checkpoints.store import TensorInfo

# The configurations of torchao → the kind of weights that they make, None for one that has others for each module.
CONFIGS: Mapping[str, str | None] = {
    "Float8DynamicActivationFloat8WeightConfig": "float8",
    "Float8DynamicActivationInt4WeightConfig": "int4",
    "Float8WeightOnlyConfig": "float8",
    "FqnToConfig": None,
    "Int4WeightOnlyConfig": "int4",
    "Int8DynamicActivationInt8WeightConfig": "int8",
    "Int8DynamicActivationIntxWeightConfig": "int8",
    "Int8StaticActivationInt8WeightConfig": "int8",
    "Int8WeightOnlyConfig": "int8",
    "IntxWeightOnlyConfig": "int8",
    "ModuleFqnToConfig": None,
}
# How torchao 0.14 names the parts of a weight, which has a colon before each, and later versions.
STORED_PARTS: dict[str, tuple[str, ...]] = {
    "codes": ("._weight_qdata", ".weight:qdata"),
    "scale": ("._weight_scale", ".weight:scale"),
    "zeros": ("._weight_zero_point", ".weight:zero_point"),
    "inputs": ("._weight_act_pre_scale", ".weight:act_pre_scale"),
    "input_scale": ("._weight_act_quant_scale",),
    "input_zeros": ("._weight_act_quant_zero_point",),
}
# How torchao 0.14 ends the names of tensors of plain numbers.
PLAIN = ":_data"


def find_config(settings: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """The name of the configuration and its fields; ("", {}) if none is stated."""
    stated = settings.get("quant_type")
    if isinstance(stated, Mapping):
        stated = stated.get("default", stated)
    if not isinstance(stated, Mapping):
        return stated or "", {}
    fields = stated.get("_data")
    return stated.get("_type") or "", fields if isinstance(fields, Mapping) else {}


def require_kind(packed: Packed, kind: str) -> None:
    """Raise an error if the configuration states another kind of weights, or an unknown one."""
    name, _ = find_config(packed.settings)
    if not name:
        return
    if not isinstance(name, str) or name not in CONFIGS:
        raise packed.unsupported(f"torchao with quant_type = {name!r:.60}")
    if CONFIGS[name] not in (kind, None):
        raise packed.broken(f"the configuration states {name}, but the file has {kind}")
    if "inputs" in packed.infos:
        raise packed.unsupported(f"torchao with scaled inputs ({packed.infos['inputs'].name})")


class Int4(Packed):
    """Int4Tensor: signed codes of two inputs per byte, the first one low; scales and offsets [groups, outputs].

    A weight is code · scale + offset.
    """

    parts = STORED_PARTS
    optional = frozenset({"inputs", "input_scale", "input_zeros"})
    dtypes = ("I8", "U8")
    numbers: ClassVar = {"scale": FLOAT_SCALES, "zeros": FLOAT_SCALES}
    bits = 4

    @classmethod
    def suits(cls, settings: Mapping[str, Any], infos: Mapping[str, TensorInfo]) -> bool:  # noqa: ARG003 - tensors tell
        """Whether the zero points are offsets."""
        zeros = infos.get("zeros")
        return zeros is not None and zeros.dtype in FLOAT_SCALES

    def _state(self) -> Stated:
        require_kind(self, "int4")
        return Stated(("I8", "U8"), 4)

    def _measure(self) -> None:
        outputs, nbytes = self.matrix("codes")
        inputs = 2 * nbytes
        self.shape = (outputs, inputs)
        self.format = "torchao-int4"
        groups, _ = self.matrix("scale")
        _, fields = find_config(self.settings)
        size = fields.get("group_size")
        if size is not None:
            if type(size) is not int or size < 1:
                raise self.broken(f"the configuration states group_size = {size!r:.40}, expected at least 1")
            groups = math.ceil(inputs / size)
        self.require_shape("scale", (groups, outputs))
        self.require_shape("zeros", (groups, outputs))
        if inputs % groups:
            raise self.broken(f"{groups} groups do not divide {inputs} inputs")

    def needs(self, rows: slice) -> dict[str, slice]:
        """The rows of the codes, and all scales and offsets, whose columns are these rows."""
        return {"codes": rows, "scale": slice(None), "zeros": slice(None)}

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`."""
        codes = nibbles(tensors["codes"].contiguous().view(torch.uint8))
        signed = (codes ^ 8).float() - 8  # of two's complement
        offsets = tensors["zeros"][:, rows].T.float()  # [rows, groups]
        by_group = self.rescale(signed, tensors["scale"][:, rows].T).view(*offsets.shape, -1)
        numbers = (by_group + offsets.unsqueeze(-1)).flatten(1)
        if not bool(offsets.isfinite().all()):
            raise self.broken("an offset is not a finite number")
        return numbers

    @classmethod
    def count(cls, info: TensorInfo, settings: Mapping[str, Any]) -> int:
        """Number of weights that the codes stand for; Int8Tensor has the same name and dtype, but 8 bits."""
        name, _ = find_config(settings)
        is_int4 = isinstance(name, str) and CONFIGS.get(name) == "int4"
        return info.nbytes * 2 if is_int4 else info.nbytes


class ScaledBlocks(Scaled):
    """Float8Tensor, Int8Tensor and IntxUnpackedToInt8Tensor: 8-bit codes with one scale per block."""

    parts = STORED_PARTS
    optional = frozenset({"zeros", "inputs", "input_scale", "input_zeros"})
    numbers: ClassVar = {"scale": FLOAT_SCALES, "zeros": ("I8",)}

    @classmethod
    def suits(cls, settings: Mapping[str, Any], infos: Mapping[str, TensorInfo]) -> bool:  # noqa: ARG003 - tensors tell
        """Whether scales are numbers, not the exponents of MXTensor or the codes of NVFP4Tensor."""
        scale = infos.get("scale")
        return scale is None or scale.dtype not in (*EXPONENTS, *FLOAT8)

    def _state(self) -> Stated:
        is_integer = self.infos["codes"].dtype == "I8"
        require_kind(self, "int8" if is_integer else "float8")
        return Stated(("I8",) if is_integer else FLOAT8, 8)

    def _measure(self) -> None:
        rows, columns = self.matrix("codes")
        self.shape = (rows, columns)
        self.format = "torchao-int8" if self.infos["codes"].dtype == "I8" else "torchao-fp8"
        self.grid = self._find_grid(rows, columns)
        self.block = (rows // self.grid[0], columns // self.grid[1])
        self.require_shape("zeros", self.infos["scale"].shape)

    def _find_grid(self, rows: int, columns: int) -> tuple[int, int]:
        """The blocks of a column and of a row, which divide it. Raises CorruptCheckpointError if they do not."""
        scale = self.infos["scale"]
        if math.prod(scale.shape) == 1:
            return 1, 1
        if scale.shape == (rows,):
            return rows, 1
        if len(scale.shape) != 2 or 0 in scale.shape or rows % scale.shape[0] or columns % scale.shape[1]:
            raise self.broken(f"{scale.name} has shape {list(scale.shape)}, which does not divide {[rows, columns]}")
        _, fields = find_config(self.settings)
        size = fields.get("group_size")
        if size is not None and scale.shape != (rows, columns // size if type(size) is int and size > 0 else 0):
            raise self.broken(f"the configuration states group_size = {size!r:.40}, but scales are {list(scale.shape)}")
        return scale.shape[0], scale.shape[1]


class Others(Undecoded):
    """Int4TilePackedTo4dTensor, Int4PlainInt32Tensor, MXTensor and NVFP4Tensor."""

    parts: ClassVar = {
        **STORED_PARTS,
        "scale_and_zero": ("._weight_scale_and_zero", ".weight:scale_and_zero"),
        "per_tensor_scale": ("._weight_per_tensor_scale",),
    }
    optional = frozenset(parts) - {"codes"}
    problem = "torchao in a kernel-specific packing or with MX numbers"
