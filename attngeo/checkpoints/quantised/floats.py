"""Weights with 8-bit or 4-bit numbers as codes, times the scale of their block: fp8, MXFP8, int8, NVFP4, MXFP4.

Sources: https://github.com/deepseek-ai/DeepSeek-V3/blob/main/inference/kernel.py (blocks of 128 × 128, ragged at the
edges), https://github.com/vllm-project/compressed-tensors (float-quantized, int-quantized, nvfp4-pack-quantized),
https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf (E8M0 scales of 32 numbers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from attngeo.checkpoints.quantised.compressed import PACKED_FP4, PLAIN, state_compressed
from attngeo.checkpoints.quantised.scheme import FLOAT_SCALES, MOST_SETTING, Packed, Stated, exponents, fp4, nibbles

FLOAT8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
EXPONENTS = ("U8", "F8_E8M0")
# The side of a block if config.json states none.
BLOCK = 128
# The form of numbers that config.json may state → the dtypes of codes.
FORMS = {
    "float8": FLOAT8, "e4m3": ("F8_E4M3", "F8_E4M3FNUZ"), "e5m2": ("F8_E5M2", "F8_E5M2FNUZ"),
    "float8_e4m3fn": ("F8_E4M3",), "float8_e5m2": ("F8_E5M2",),
}  # fmt: skip


class Scaled(Packed):
    """8-bit numbers, with one scale in total, per row, or per block of rows and columns."""

    parts: ClassVar = {
        "codes": (".weight",),
        "scale": (".weight_scale_inv", ".weight_scale", ".scale"),
        "zeros": (".weight_zero_point",),
    }
    optional: ClassVar[frozenset[str]] = frozenset({"zeros"})
    dtypes: ClassVar[tuple[str, ...]] = (*FLOAT8, "I8")
    numbers: ClassVar = {"scale": (*FLOAT_SCALES, *EXPONENTS), "zeros": (*FLOAT_SCALES, "I8", "U8")}
    bits = 8

    def _state(self) -> Stated:
        match self.method:
            case "compressed-tensors":
                return self._state_compressed()
            case "modelopt":
                return state_modelopt(self, FLOAT8, "FP8")
        form = self.setting("fmt") or "float8"
        if form not in FORMS:
            raise self.unsupported(f"fp8 in the form {form!r:.40}")
        return Stated(FORMS[form], 8)

    def _state_compressed(self) -> Stated:
        is_integer = self.infos["codes"].dtype == "I8"
        dtype, number = ("I8", "int") if is_integer else ("F8_E4M3", "float")
        formats = tuple(name for name, stored in PLAIN.items() if stored in (number, None))
        stated = state_compressed(self, (dtype,), formats, number)
        fits = stated.bits is not None and (stated.bits <= 8 if is_integer else stated.bits == 8)
        if not fits:
            raise self.broken(f"the configuration states {stated.bits}-bit codes, but the file has {dtype}")
        return stated

    def _measure(self) -> None:
        rows, columns = self.matrix("codes")
        self.shape = (rows, columns)
        self.format = "int8" if self.infos["codes"].dtype == "I8" else "fp8"
        scale = self.infos["scale"]
        stated: bool | None = None  # whether scales are exponents
        if self.method == "compressed-tensors":
            stated = self.setting("format") == "mxfp8-quantized" or self.setting("scale_dtype") == "torch.uint8"
        elif self.setting("scale_fmt") == "float":
            stated = False
        if stated is not None and stated != (scale.dtype in EXPONENTS):
            raise self.broken(
                f"{scale.name} is {scale.dtype}, but the configuration states {'exponents' if stated else 'numbers'}"
            )
        self.block = self._find_block(rows, columns)
        height, width = self.block
        self.grid = (math.ceil(rows / height), math.ceil(columns / width))
        self.require_shape("zeros", self.grid, scale.shape)

    def _find_block(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns that share a scale, as config.json states them, or as the shape of the scales tells."""
        if self.method == "compressed-tensors":
            return self._find_compressed_block(rows, columns)
        shape = self.infos["scale"].shape
        are_exponents = self.infos["scale"].dtype in EXPONENTS
        if self.settings.get("weight_block_size") is not None:
            height, width = self._read_sides("weight_block_size")
            if are_exponents and (height, width) == (1, 32) and math.prod(shape) != 1:
                self.format = "mxfp8"
            self.require_shape("scale", (math.ceil(rows / height), math.ceil(columns / width)))
            return height, width
        if math.prod(shape) == 1:
            return rows, columns
        if shape in ((rows,), (rows, 1)):
            return 1, columns
        if are_exponents and shape == (rows, math.ceil(columns / 32)):
            self.format = "mxfp8"
            return 1, 32
        grid = (math.ceil(rows / BLOCK), math.ceil(columns / BLOCK))
        self.require_shape("scale", grid, (rows, 1), (1,))
        return BLOCK, BLOCK

    def _find_compressed_block(self, rows: int, columns: int) -> tuple[int, int]:
        if self.setting("strategy") == "block":
            height, width = self._read_sides("block_structure")
            self.require_shape("scale", (math.ceil(rows / height), math.ceil(columns / width)))
            return height, width
        if self.stated.size is None:
            self.require_shape("scale", (1,), (1, 1), ())
            return rows, columns
        if self.infos["scale"].dtype in EXPONENTS:
            self.format = "mxfp8"
        self.require_shape("scale", (rows, self.count_groups(columns)))
        return 1, columns if self.stated.size == -1 else self.stated.size

    def _read_sides(self, name: str) -> tuple[int, int]:
        """The height and width of a block. Raises CorruptCheckpointError for anything else."""
        sides = self.settings.get(name)
        if isinstance(sides, list) and len(sides) == 2:
            height, width = sides
            if all(type(side) is int and 0 < side <= MOST_SETTING for side in sides):
                return height, width
        raise self.broken(f"the configuration states {name} = {sides!r:.40}, expected [height, width]")

    def needs(self, rows: slice) -> dict[str, slice]:
        """The rows of the codes, and the scales of their blocks."""
        start, stop, _ = rows.indices(self.shape[0])
        height, _ = self.block
        blocks = slice(start // height, math.ceil(stop / height))
        needs = {}
        for role, info in self.infos.items():
            has_blocks = info.shape[:1] == self.grid[:1]
            needs[role] = blocks if has_blocks else slice(None)
        needs["codes"] = rows
        return needs

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`."""
        zeros: Tensor | float = 0.0
        if "zeros" in tensors:
            zeros = self._spread(tensors["zeros"].float(), rows)
        scales = self._spread(exponents(tensors["scale"]), rows)
        return self.rescale(tensors["codes"], scales, zeros, size=self.block[1])

    def _spread(self, values: Tensor, rows: slice) -> Tensor:
        """Numbers of blocks as numbers of rows: those of the blocks that rows are in → [rows, groups]."""
        height, _ = self.block
        by_block = values.reshape(-1, self.grid[1])
        if height == 1:
            return by_block
        start, stop, _ = rows.indices(self.shape[0])
        first = start % height
        return by_block.repeat_interleave(height, 0)[first : first + stop - start]


class PackedFp4(Packed):
    """4-bit numbers (E2M1), two per byte, with one scale per 16 or 32 numbers, and perhaps an overall scale.

    Tensor names are those of compressed-tensors.
    """

    parts: ClassVar = {
        "codes": (".weight_packed",),
        "scale": (".weight_scale",),
        "overall": (".weight_global_scale",),
    }
    optional = frozenset({"overall"})
    dtypes = ("U8",)
    numbers: ClassVar = {"scale": (*FLOAT_SCALES, "F8_E4M3", *EXPONENTS), "overall": FLOAT_SCALES}
    bits = 4
    # The stated scale of all numbers divides the other scales.
    divides = True

    def _state(self) -> Stated:
        stated = state_compressed(self, ("U8",), tuple(PACKED_FP4), "float")
        size = PACKED_FP4.get(self.setting("format"), stated.size)
        if stated.bits != 4 or stated.has_zeros or stated.size != size:
            raise self.broken(
                f"the configuration states {stated.bits} bits in groups of {stated.size}, but the file has FP4"
            )
        return stated

    def _measure(self) -> None:
        rows, nbytes = self.matrix("codes")
        columns = 2 * nbytes
        self.shape = (rows, columns)
        is_mxfp4 = self.infos["scale"].dtype in EXPONENTS
        self.format = "mxfp4" if is_mxfp4 else "nvfp4"
        self.size = 32 if is_mxfp4 else 16
        self.require_shape("scale", (rows, math.ceil(columns / self.size)))
        self.require_shape("overall", (1,), ())
        if self.stated.size not in (None, self.size):
            raise self.broken(
                f"the configuration states groups of {self.stated.size}, but {self.format} scales have groups of "
                f"{self.size}"
            )
        if is_mxfp4 == ("overall" in self.infos):
            needed = "its overall scale is missing" if not is_mxfp4 else "it has an unexpected overall scale"
            raise self.broken(f"stored as {self.format}, but {needed}")

    def needs(self, rows: slice) -> dict[str, slice]:
        """The same rows of codes and scales."""
        return {role: slice(None) if role == "overall" else rows for role in self.infos}

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:  # noqa: ARG002 - it has these rows only
        """Rows of the weight; see `Packed`."""
        scales = exponents(tensors["scale"])
        if "overall" in tensors:
            overall = tensors["overall"].float().reshape(())
            scales = scales / overall if self.divides else scales * overall
        numbers = fp4(nibbles(tensors["codes"]))
        return self.rescale(numbers, scales, size=self.size)


class ModeloptFp4(PackedFp4):
    """FP4 of modelopt: its overall scale multiplies."""

    parts: ClassVar = {"codes": (".weight",), "scale": (".weight_scale",), "overall": (".weight_scale_2",)}
    divides = False

    def _state(self) -> Stated:
        return state_modelopt(self, ("U8",), "NVFP4")._replace(bits=4)


def state_modelopt(packed: Packed, dtypes: tuple[str, ...], algorithm: str) -> Stated:
    """The settings of modelopt for a weight: one algorithm for the whole model, or one per weight.

    Raises CorruptCheckpointError if the codes use another algorithm.
    """
    stated = packed.setting("quant_algo", default=algorithm).upper()
    if "AWQ" in stated:
        raise packed.unsupported(f"the algorithm {stated!r:.40}, which scales inputs")
    if algorithm not in stated and stated != "MIXED_PRECISION":
        raise packed.broken(f"the configuration states {stated!r:.40}, but the file has {algorithm}")
    return Stated(dtypes, 8)
