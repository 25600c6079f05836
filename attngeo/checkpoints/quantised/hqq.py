"""Weights of HQQ: whole numbers of 1 to 8 bits, in groups of inputs or of outputs, with zeros that are no integers.

Source: https://github.com/mobiusml/hqq/blob/master/hqq/core/quantize.py (`Quantizer.dequantize`) and `bitpack.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from attngeo.checkpoints.quantised.scheme import (
    FLOAT_SCALES,
    MOST_SETTING,
    Packed,
    Stated,
    find_packed_rows,
    unpack_rows,
)
from attngeo.checkpoints.store import TensorInfo


class Packing(NamedTuple):
    """A packing of numbers along the first axis, with the first block in the highest bits.

    Attributes:
        bits: bits per number.
        blocks: numbers per word.
        dtype: dtype of the words.
    """

    bits: int
    blocks: int
    dtype: torch.dtype


PACKINGS = {
    "8bit_u8": Packing(8, 1, torch.uint8),
    "4bit_u8": Packing(4, 2, torch.uint8),
    "3bit_32": Packing(3, 10, torch.int32),
    "2bit_u8": Packing(2, 4, torch.uint8),
    "1bit_u8": Packing(1, 8, torch.uint8),
}
# Bits → the packing that HQQ gives them.
PACKING_OF_BITS = {
    8: "8bit_u8", 6: "8bit_u8", 5: "8bit_u8", 4: "4bit_u8", 3: "3bit_32", 2: "2bit_u8", 1.58: "2bit_u8", 1: "1bit_u8"
}  # fmt: skip
# Of a text that is stored as bytes.
MOST_TEXT_CHARACTERS = 32


class Hqq(Packed):
    """A matrix reshaped to [groups, size] (axis 1) or [size, groups] (axis 0), and packed along its rows.

    A weight is (code - zero) · scale. The other settings of a layer are stored as tensors.
    """

    parts: ClassVar = {
        "codes": (".W_q",),
        "scales": (".scale",),
        "zeros": (".zero",),
        "shape": (".shape",),
        "bits": (".nbits",),
        "size": (".group_size",),
        "axis": (".axis",),
        "packing": (".packing",),
        "as_float": (".view_as_float",),
        "packed_zeros": (".quant_zero",),
        "packed_scales": (".quant_scale",),
    }
    optional = frozenset({"as_float", "packed_zeros", "packed_scales"})
    small = ("shape", "bits", "size", "axis", "packing", "as_float", "packed_zeros", "packed_scales")
    dtypes = ("U8", "I32", *FLOAT_SCALES)
    numbers: ClassVar = {
        "scales": FLOAT_SCALES,
        "zeros": FLOAT_SCALES,
        "shape": ("I32", "I64"),
        "bits": ("I32", "I64", "F32"),
        "size": ("I32", "I64"),
        "axis": ("I32", "I64"),
        "packing": ("U8",),
        "as_float": ("U8",),
        "packed_zeros": ("U8",),
        "packed_scales": ("U8",),
    }

    def _state(self) -> Stated:
        stated = self._read_number("bits")
        bits = round(stated, 2)
        if bits not in PACKING_OF_BITS:
            raise self.unsupported(f"HQQ with {stated:g} bits")
        characters = self.read("packing").flatten().tolist()[:MOST_TEXT_CHARACTERS]
        packing = "".join(map(chr, characters))
        if packing != PACKING_OF_BITS[bits]:
            raise self.broken(f"its packing is {packing!r}, expected {PACKING_OF_BITS[bits]!r} for {stated:g} bits")
        self.packing = PACKINGS[packing]
        for role in ("packed_zeros", "packed_scales"):
            if role in self.infos and self._read_number(role):
                raise self.unsupported("HQQ with packed scales or zeros")
        usual = "I32" if self.packing.dtype == torch.int32 else "U8"
        as_float = "as_float" in self.infos and bool(self._read_number("as_float"))
        return Stated(FLOAT_SCALES if as_float else (usual,), self.packing.bits)

    def _read_number(self, role: str) -> float:
        """A number that a tensor of one holds. Raises CorruptCheckpointError for any other."""
        numbers = self.read(role).flatten().tolist()
        if len(numbers) != 1 or not math.isfinite(numbers[0]) or not 0 <= numbers[0] <= MOST_SETTING:
            raise self.broken(f"{self.infos[role].name} is {numbers!r:.40}, expected one number")
        return float(numbers[0])

    def _measure(self) -> None:
        shape = self.read("shape").flatten().tolist()
        if len(shape) != 2 or not all(0 < side <= MOST_SETTING for side in shape):
            raise self.broken(f"its stated shape is {shape!r:.60}, expected a matrix")
        self.shape = (int(shape[0]), int(shape[1]))
        self.format = f"hqq-{self.packing.bits}bit"
        size = int(self._read_number("size"))
        self.axis = int(self._read_number("axis"))
        numbers = math.prod(self.shape)
        if self.axis not in (0, 1):
            raise self.broken(f"it states groups along axis {self.axis}, expected 0 or 1")
        if size < 1 or numbers % size:
            raise self.broken(f"groups of {size} do not divide {list(self.shape)}")
        groups = numbers // size
        # The matrix of all numbers before packing: its rows, and the numbers of each.
        self.rows, self.width = (groups, size) if self.axis == 1 else (size, groups)
        self.packed = math.ceil(self.rows / self.packing.blocks)
        stored = self.infos["codes"]
        nbytes = self.packed * self.width * self.packing.dtype.itemsize
        if len(stored.shape) != 2 or stored.shape[0] != self.packed or stored.nbytes != nbytes:
            raise self.broken(
                f"{stored.name} is {stored.dtype} {list(stored.shape)}, expected {self.packed} rows of {self.width} "
                f"words for {list(self.shape)} in groups of {size}"
            )
        by_group = (groups, 1) if self.axis == 1 else (1, groups)
        self.require_shape("scales", by_group)
        self.require_shape("zeros", by_group)

    def _span(self, rows: slice) -> tuple[int, int]:
        """The rows of the reshaped matrix that hold these rows of the weight."""
        start, stop, _ = rows.indices(self.shape[0])
        inputs = self.shape[1]
        return start * inputs // self.width, math.ceil(stop * inputs / self.width)

    def needs(self, rows: slice) -> dict[str, slice]:
        """The words with these rows, and the scales of their groups."""
        start, stop = self._span(rows)
        scales = slice(start, stop) if self.axis == 1 else slice(None)
        return {"codes": find_packed_rows(start, stop, self.packed), "scales": scales, "zeros": scales}

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`."""
        start, stop = self._span(rows)
        words = tensors["codes"].contiguous().view(self.packing.dtype)
        codes = unpack_rows(
            words, self.packing.bits, start, stop, self.packed, blocks=self.packing.blocks, high_first=True
        )
        zeros = tensors["zeros"].float()
        scales = tensors["scales"].float()
        if self.axis == 0:  # each column is a group
            numbers = self.rescale(codes, scales.expand(len(codes), -1), zeros.expand(len(codes), -1))
        else:
            numbers = self.rescale(codes, scales, zeros)
        first, last, _ = rows.indices(self.shape[0])
        inputs = self.shape[1]
        before = first * inputs - start * self.width
        return numbers.flatten()[before:][: (last - first) * inputs].view(-1, inputs)

    @classmethod
    def count(cls, info: TensorInfo, settings: Mapping[str, Any]) -> int:
        """Number of weights that the codes stand for, from the stated bits."""
        config = settings.get("quant_config")
        weights = config.get("weight_quant_params") if isinstance(config, Mapping) else None
        bits = weights.get("nbits") if isinstance(weights, Mapping) else None
        usual = PACKING_OF_BITS[4]
        packing = PACKINGS[PACKING_OF_BITS.get(bits, usual) if isinstance(bits, int | float) else usual]
        return info.nbytes // packing.dtype.itemsize * packing.blocks
