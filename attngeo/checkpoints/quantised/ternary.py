"""Weights of BitNet: -1, 0 and 1 in codes of 2 bits, packed along the outputs, and one scale for all.

Or plain numbers, which the running layer rounds to three values.

Source: https://github.com/huggingface/transformers/blob/main/src/transformers/integrations/bitnet.py: `BitLinear`
divides its outputs by the scale, `AutoBitLinear` multiplies them, and `WeightQuant` rounds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from attngeo.checkpoints.quantised.scheme import FLOAT_SCALES, Packed, Stated, find_packed_rows, unpack_rows
from attngeo.checkpoints.quantised.settings import is_skipped
from attngeo.checkpoints.store import FLOATS, TensorInfo

# The weight of a module in a numbered layer. Tables of embeddings and the head are outside of layers, and not rounded.
IN_LAYER = re.compile(r"(?:.*\.)?\d+\..+\.weight")
# The least mean magnitude by which weights are divided.
LEAST_MEAN = 1e-5
# Outputs in a byte.
IN_BYTE = 4


class Ternary(Packed):
    """Bytes of four outputs, [outputs / 4, inputs]: output r is in byte r % (outputs / 4), the first block lowest.

    AutoBitLinear may also store the numbers themselves, which its scale multiplies.
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
            raise self.broken(
                "the configuration states that the running model rounds plain weights, but the file has a scale"
            )
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
        """The bytes with these rows, and the scale."""
        if self.are_numbers:
            return {"codes": rows, "scale": slice(None)}
        start, stop, _ = rows.indices(self.shape[0])
        return {"codes": find_packed_rows(start, stop, self.infos["codes"].shape[0]), "scale": slice(None)}

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`. Raises CorruptCheckpointError for an invalid code."""
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
        """Number of weights that the codes stand for, from their dtype."""
        if info.dtype == "U8":
            return super().count(info, settings)
        return info.nbytes // {"F64": 8, "F32": 4}.get(info.dtype, 2)


class RoundedTernary(Packed):
    """Plain numbers, which AutoBitLinear in `online` mode rounds when it runs, by their mean magnitude."""

    parts: ClassVar = {"codes": (".weight",)}
    dtypes = FLOATS
    numbers: ClassVar = {}

    @classmethod
    def suits(cls, settings: Mapping[str, Any], infos: Mapping[str, TensorInfo]) -> bool:
        """Whether the running model rounds this weight."""
        name = infos["codes"].name
        module = name.removesuffix(".weight")
        return (
            settings.get("linear_class") == "autobitlinear"
            and settings.get("quantization_mode") == "online"
            and IN_LAYER.fullmatch(name) is not None
            and len(infos["codes"].shape) == 2
            and not is_skipped(module, settings.get("modules_to_not_convert"))
        )

    def _state(self) -> Stated:
        return Stated(FLOATS)

    def _measure(self) -> None:
        self.shape = self.matrix("codes")
        self.format = "bitnet"

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`. The mean needs all rows."""
        stored = tensors["codes"]
        weight = stored.float()
        if not bool(weight.isfinite().all()):
            raise self.broken("a weight is not a finite number")
        scale = 1 / weight.abs().mean().clamp(min=LEAST_MEAN)
        rounded = (weight[rows] * scale).round().clamp(-1, 1) / scale
        return rounded.to(stored.dtype).float()
