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

from attngeo.checkpoints.quantised.compressed import PACKED_FP4, PLAIN, state_compressed
from attngeo.checkpoints.quantised.scheme import FLOAT_SCALES, MOST, Packed, Stated, exponents, fp4, nibbles

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
    """Numbers of 8 bits, and a scale for all of them, for each row, or for each block of rows and columns."""

    parts: ClassVar = {
        "weight": (".weight",), "scale": (".weight_scale_inv", ".weight_scale", ".scale"),
        "zeros": (".weight_zero_point",),
    }  # fmt: skip
    optional = frozenset({"zeros"})
    dtypes = (*FLOAT8, "I8")
    numbers: ClassVar = {"scale": (*FLOAT_SCALES, *EXPONENTS), "zeros": (*FLOAT_SCALES, "I8", "U8")}
    bits = 8

    def _state(self) -> Stated:
        match self.method:
            case "compressed-tensors" if self.infos["weight"].dtype == "I8":
                return self._state_compressed(("I8",), "int")
            case "compressed-tensors":
                return self._state_compressed(("F8_E4M3",), "float")
            case "modelopt":
                return state_modelopt(self, FLOAT8, "FP8")
        form = self.choice("fmt") or "float8"
        if form not in FORMS:
            raise self.unsupported(f"fp8 in the form {form!r:.40}")
        return Stated(FORMS[form], 8)

    def _state_compressed(self, dtypes: tuple[str, ...], kind: str) -> Stated:
        formats = tuple(name for name, known in PLAIN.items() if known in (kind, None))
        stated = state_compressed(self, dtypes, formats, kind)
        if stated.bits is None or (stated.bits != 8 if kind == "float" else stated.bits > 8):
            raise self.broken(f"the configuration states codes of {stated.bits} bits, and the file holds {dtypes[0]}")
        return stated

    def _measure(self) -> None:
        self.shape = rows, columns = self.matrix("weight")
        scale, is_integer = self.infos["scale"], self.infos["weight"].dtype == "I8"
        self.format = "int8" if is_integer else "fp8"
        self._require_exponents()
        self.block = self._find_block(rows, columns)
        self.grid = math.ceil(rows / self.block[0]), math.ceil(columns / self.block[1])
        self.require_shape("zeros", self.grid, scale.shape)

    def _require_exponents(self) -> None:
        """Raise CorruptCheckpointError if scales are stored as exponents, and numbers are stated, or the reverse."""
        stored = self.infos["scale"].dtype in EXPONENTS
        stated: bool | None = None
        if self.method == "compressed-tensors":
            stated = self.choice("format") == "mxfp8-quantized" or self.choice("scale_dtype") == "torch.uint8"
        elif self.choice("scale_fmt") == "float":
            stated = False
        if stated is not None and stated != stored:
            form = "exponents" if stated else "numbers"
            raise self.broken(f"{self.infos['scale'].name} is {self.infos['scale'].dtype}, and {form} are stated")

    def _find_block(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns that share a scale, as config.json states them, or as the shape of the scales tells."""
        if self.method == "compressed-tensors":
            return self._find_compressed_block(rows, columns)
        shape, dtype = self.infos["scale"].shape, self.infos["scale"].dtype
        stated = self.settings.get("weight_block_size")
        if stated is not None:
            sides = self._read_sides("weight_block_size")
            if math.prod(shape) != 1 and dtype in EXPONENTS and sides == [1, 32]:
                self.format = "mxfp8"
            self.require_shape("scale", (math.ceil(rows / sides[0]), math.ceil(columns / sides[1])))
            return sides[0], sides[1]
        if math.prod(shape) == 1:
            return rows, columns
        if shape in ((rows,), (rows, 1)):
            return 1, columns
        if dtype in EXPONENTS and shape == (rows, math.ceil(columns / 32)):
            self.format = "mxfp8"
            return 1, 32
        self.require_shape("scale", (math.ceil(rows / BLOCK), math.ceil(columns / BLOCK)), (rows, 1), (1,))
        return BLOCK, BLOCK

    def _find_compressed_block(self, rows: int, columns: int) -> tuple[int, int]:
        if self.choice("strategy") == "block":
            sides = self._read_sides("block_structure")
            self.require_shape("scale", (math.ceil(rows / sides[0]), math.ceil(columns / sides[1])))
            return sides[0], sides[1]
        if self.stated.size is None:
            self.require_shape("scale", (1,), (1, 1), ())
            return rows, columns
        if self.infos["scale"].dtype in EXPONENTS:
            self.format = "mxfp8"
        self.require_shape("scale", (rows, self.count_groups(columns)))
        return 1, columns if self.stated.size == -1 else self.stated.size

    def _read_sides(self, name: str) -> list[int]:
        """The two sides of a block. Raises CorruptCheckpointError for anything else."""
        sides = self.settings.get(name)
        if isinstance(sides, list) and len(sides) == 2 and all(type(x) is int and 0 < x <= MOST for x in sides):
            return sides
        raise self.broken(f"the configuration states {name} = {sides!r:.40}, expected two sides")

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

        zeros = spread(tensors["zeros"].float()) if "zeros" in tensors else 0.0
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

    def _state(self) -> Stated:
        stated = state_compressed(self, ("U8",), tuple(PACKED_FP4), "float")
        size = PACKED_FP4.get(self.choice("format"), stated.size)
        if stated.bits != 4 or stated.has_zeros or stated.size != size:
            raise self.broken(f"{stated.bits} bits in groups of {stated.size} are stated, and the file holds FP4")
        return stated

    def _measure(self) -> None:
        rows, width = self.matrix("weight")
        self.shape = rows, 2 * width
        self.format = "mxfp4" if self.infos["scale"].dtype in EXPONENTS else "nvfp4"
        size = 32 if self.format == "mxfp4" else 16
        self.require_shape("scale", (rows, math.ceil(2 * width / size)))
        self.require_shape("overall", (1,), ())
        if self.stated.size not in (None, size):
            raise self.broken(
                f"the configuration states groups of {self.stated.size}, and the scales are of {self.format}"
            )
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

    def _state(self) -> Stated:
        return state_modelopt(self, ("U8",), "NVFP4")._replace(bits=4)


def state_modelopt(packed: Packed, dtypes: tuple[str, ...], algorithm: str) -> Stated:
    """What modelopt states about a weight: an algorithm for all of them, or for each that has another one.

    Raises CorruptCheckpointError if it is another one than that of the codes.
    """
    stated = packed.choice("quant_algo", algorithm).upper()
    if "AWQ" in stated:
        raise packed.unsupported(f"the algorithm {stated!r:.40}, which scales inputs")
    if algorithm not in stated and stated != "MIXED_PRECISION":
        raise packed.broken(f"the configuration states {stated!r:.40}, and the file holds {algorithm}")
    return Stated(dtypes, 8)
