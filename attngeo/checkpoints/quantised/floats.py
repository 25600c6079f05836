"""Weights whose codes are numbers of 8 or 4 bits, each times the scale of its block: fp8, MXFP8, int8, NVFP4, MXFP4.

Sources: https://github.com/deepseek-ai/DeepSeek-V3/blob/main/inference/kernel.py (blocks of 128 × 128, ragged at the
edges), https://github.com/vllm-project/compressed-tensors (float-quantized, int-quantized, nvfp4-pack-quantized),
https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf (E8M0 scales of 32 numbers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from attngeo.checkpoints.quantised.scheme import FLOAT_SCALES, Packed, exponents, fp4, nibbles

FLOAT8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
EXPONENTS = ("U8", "F8_E8M0")
# The side of a block if config.json states none.
BLOCK = 128


class Scaled(Packed):
    """Numbers of 8 bits, and a scale for all of them, for each row, or for each block of rows and columns."""

    parts: ClassVar = {
        "weight": (".weight",), "scale": (".weight_scale_inv", ".weight_scale", ".scale"),
        "zero": (".weight_zero_point",),
    }  # fmt: skip
    optional = frozenset({"zero"})
    dtypes = (*FLOAT8, "I8")
    numbers: ClassVar = {"scale": (*FLOAT_SCALES, *EXPONENTS), "zero": (*FLOAT_SCALES, "I8", "U8")}
    bits = 8

    def _measure(self) -> None:
        self.shape = rows, columns = self.matrix("weight")
        scale, is_integer = self.infos["scale"], self.infos["weight"].dtype == "I8"
        self.format = "int8" if is_integer else "fp8"
        self.block = self._find_block(rows, columns)
        self.grid = math.ceil(rows / self.block[0]), math.ceil(columns / self.block[1])
        self.require_shape("zero", self.grid, scale.shape)

    def _find_block(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns that share a scale, from the shape of the scales and what config.json states."""
        shape, dtype = self.infos["scale"].shape, self.infos["scale"].dtype
        if math.prod(shape) == 1:
            return rows, columns
        if shape in ((rows,), (rows, 1)):
            return 1, columns
        if dtype in EXPONENTS and shape == (rows, math.ceil(columns / 32)):
            self.format = "mxfp8"
            return 1, 32
        stated = self.settings.get("weight_block_size")
        sides = stated if isinstance(stated, list) and len(stated) == 2 else [BLOCK, BLOCK]
        if not all(type(side) is int and side > 0 for side in sides):
            raise self.broken(f"the configuration states weight_block_size = {stated!r:.40}, expected two sides")
        blocks = math.ceil(rows / sides[0]), math.ceil(columns / sides[1])
        if shape == blocks:
            return sides[0], sides[1]
        if len(shape) == 2 and shape[0] == rows and columns % shape[1] == 0:  # groups of a row
            return 1, columns // shape[1]
        self.require_shape("scale", blocks, (rows, 1), (1,))
        raise AssertionError  # the shape is none of these

    def needs(self, rows: slice) -> dict[str, slice]:
        """The rows of the codes, and of the scales that their blocks have."""
        start, stop, _ = rows.indices(self.shape[0])
        blocks = slice(start // self.block[0], math.ceil(stop / self.block[0]))
        first = {role: info.shape[:1] for role, info in self.infos.items()}
        needs = {role: blocks if count == self.grid[:1] else slice(None) for role, count in first.items()}
        return needs | {"weight": rows}

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`."""
        start, stop, _ = rows.indices(self.shape[0])
        height, first = self.block[0], start % self.block[0]

        def spread(values: Tensor) -> Tensor:
            """[blocks of rows, groups] → [rows, groups]."""
            table = values.reshape(-1, self.grid[1])
            return table.repeat_interleave(height, 0)[first : first + stop - start] if height > 1 else table

        zeros = spread(tensors["zero"].float()) if "zero" in tensors else 0.0
        return self.rescale(tensors["weight"], spread(exponents(tensors["scale"])), zeros, size=self.block[1])


class PackedFp4(Packed):
    """Numbers of 4 bits (E2M1), two in a byte, a scale for 16 or 32 of them, and perhaps one for all.

    The names are those of compressed-tensors.
    """

    parts: ClassVar = {
        "weight": (".weight_packed",), "scale": (".weight_scale",), "overall": (".weight_global_scale",),
    }  # fmt: skip
    optional = frozenset({"overall"})
    dtypes = ("U8",)
    numbers: ClassVar = {"scale": (*FLOAT_SCALES, "F8_E4M3", *EXPONENTS), "overall": FLOAT_SCALES}
    bits = 4
    # The stated scale of all numbers divides the other scales.
    divides = True

    def _measure(self) -> None:
        rows, width = self.matrix("weight")
        self.shape = rows, 2 * width
        self.format = "mxfp4" if self.infos["scale"].dtype in EXPONENTS else "nvfp4"
        size = 32 if self.format == "mxfp4" else 16
        self.require_shape("scale", (rows, math.ceil(2 * width / size)))
        self.require_shape("overall", (1,), ())
        if (self.format == "nvfp4") != ("overall" in self.infos):
            raise self.broken(f"{self.format}, whose scale of all numbers is missing, or one too many")

    def needs(self, rows: slice) -> dict[str, slice]:
        """The same rows of codes and scales."""
        return {role: slice(None) if role == "overall" else rows for role in self.infos}

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:  # noqa: ARG002 - it has these rows only
        """Rows of the weight; see `Packed`."""
        scales = exponents(tensors["scale"])
        if "overall" in tensors:
            overall = tensors["overall"].float().reshape(())
            scales = scales / overall if self.divides else scales * overall
        return self.rescale(fp4(nibbles(tensors["weight"])), scales, size=32 if self.format == "mxfp4" else 16)


class ModeloptFp4(PackedFp4):
    """The same of modelopt: its scale of all numbers multiplies."""

    parts: ClassVar = {"weight": (".weight",), "scale": (".weight_scale",), "overall": (".weight_scale_2",)}
    divides = False
