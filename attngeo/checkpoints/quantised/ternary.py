"""Weights of BitNet: -1, 0 and 1 in codes of 2 bits, packed along the outputs, and one scale for all.

Source: https://github.com/huggingface/transformers/blob/main/src/transformers/integrations/bitnet.py: `BitLinear`
divides its outputs by the scale, `AutoBitLinear` multiplies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from attngeo.checkpoints.quantised.scheme import FLOAT_SCALES, Packed, Stated, find_packed_rows, unpack_rows
from attngeo.checkpoints.store import FLOATS, TensorInfo

# Outputs in a byte.
IN_BYTE = 4


class Ternary(Packed):
    """Bytes of four outputs, [outputs / 4, inputs]: output r is in byte r % (outputs / 4), the first block lowest.

    AutoBitLinear may also hold the numbers themselves, which its scale multiplies.
    """

    parts: ClassVar = {"codes": (".weight",), "scale": (".weight_scale",)}
    dtypes = ("U8", *FLOATS)
    numbers: ClassVar = {"scale": FLOAT_SCALES}
    bits = 2

    def _state(self) -> Stated:
        kind = self.setting("linear_class", default="bitlinear")
        if kind not in ("bitlinear", "autobitlinear"):
            raise self.unsupported(f"BitNet with linear_class = {kind!r:.40}")
        mode = self.setting("quantization_mode", default="offline")
        if mode not in ("offline", "online"):
            raise self.unsupported(f"BitNet with quantization_mode = {mode!r:.40}")
        self.multiplies = kind == "autobitlinear"
        if self.multiplies and mode == "online":
            raise self.broken("the configuration states that weights are rounded when they run, and a scale is stored")
        self.are_numbers = self.infos["codes"].dtype != "U8"
        if self.are_numbers and not self.multiplies:
            raise self.broken(f"{self.infos['codes'].name} is {self.infos['codes'].dtype}, expected U8")
        return Stated((self.infos["codes"].dtype,), 2)

    def _measure(self) -> None:
        rows, columns = self.matrix("codes")
        self.shape = (rows if self.are_numbers else rows * IN_BYTE, columns)
        self.format = "bitnet"
        self.require_shape("scale", (1,), (), (1, 1))

    def needs(self, rows: slice) -> dict[str, slice]:
        """The bytes that hold these rows, and the scale."""
        if self.are_numbers:
            return {"codes": rows, "scale": slice(None)}
        start, stop, _ = rows.indices(self.shape[0])
        return {"codes": find_packed_rows(start, stop, self.infos["codes"].shape[0]), "scale": slice(None)}

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`. Raises CorruptCheckpointError for a code that stands for no number."""
        scale = tensors["scale"].float().reshape(1, 1)
        if not self.multiplies:
            scale = 1 / scale
        if self.are_numbers:
            return self.rescale(tensors["codes"], scale)
        start, stop, _ = rows.indices(self.shape[0])
        packed = self.infos["codes"].shape[0]
        codes = unpack_rows(tensors["codes"], 2, start, stop, packed, blocks=IN_BYTE)
        if codes.numel() and int(codes.max()) > 2:
            raise self.broken("a code is 3, expected 0, 1 or 2 for -1, 0 and 1")
        return self.rescale(codes, scale.expand(len(codes), 1), 1.0)

    @classmethod
    def count(cls, info: TensorInfo, settings: Mapping[str, Any]) -> int:
        """The weights that codes stand for, as their dtype tells."""
        if info.dtype == "U8":
            return super().count(info, settings)
        return info.nbytes // {"F64": 8, "F32": 4}.get(info.dtype, 2)
