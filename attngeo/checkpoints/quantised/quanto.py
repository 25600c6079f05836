"""Weights of quanto: codes of 8 bits and a scale for each row.

Those of 4 and 2 bits are reshaped to groups, and the file does not state the shape that they had.

Source: https://github.com/huggingface/optimum-quanto/tree/main/optimum/quanto/tensor (`WeightQBytesTensor`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from torch import Tensor

from attngeo.checkpoints.quantised.floats import FLOAT8
from attngeo.checkpoints.quantised.refused import Undecoded
from attngeo.checkpoints.quantised.scheme import FLOAT_SCALES, Packed, Stated

# What the configuration calls the weights → the dtypes of their codes.
WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "int8": ("I8",), "qint8": ("I8",), "float8": ("F8_E4M3",), "qfloat8": ("F8_E4M3",), "qfloat8_e4m3fn": ("F8_E4M3",),
    "qfloat8_e4m3fnuz": ("F8_E4M3FNUZ",), "qfloat8_e5m2": ("F8_E5M2",),
}  # fmt: skip


def recognise_method(names: Iterable[str]) -> str:
    """The quantisation method, from tensor names: "quanto", or "" if not recognised.

    Folders from optimum-quanto state the method only in quanto_qmap.json, not in config.json.
    """
    codes = (*QuantoBytes.parts["codes"], *QuantoBits.parts["codes"])
    return "quanto" if any(name.endswith(codes) for name in names) else ""


class QuantoBytes(Packed):
    """8-bit codes, integers or float8, with one scale per row."""

    parts: ClassVar = {"codes": (".weight._data",), "scale": (".weight._scale",)}
    dtypes = ("I8", *FLOAT8)
    by_rows = True
    numbers: ClassVar = {"scale": FLOAT_SCALES}
    bits = 8

    def _state(self) -> Stated:
        stated = self.setting("weights")
        if stated and stated not in WEIGHTS:
            raise self.broken(f"the configuration states weights = {stated!r:.40}, but the file has 8-bit codes")
        return Stated(WEIGHTS.get(stated, ()), 8)

    def _measure(self) -> None:
        self.shape = self.matrix("codes")
        self.format = "quanto-int8" if self.infos["codes"].dtype == "I8" else "quanto-fp8"
        self.require_shape("scale", (self.shape[0], 1))

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:  # noqa: ARG002 - it has these rows only
        """Rows of the weight; see `Packed`."""
        return self.rescale(tensors["codes"], tensors["scale"])


class QuantoBits(Undecoded):
    """4-bit or 2-bit codes."""

    parts: ClassVar = {"codes": (".weight._data._data",), "scale": (".weight._scale",), "zeros": (".weight._shift",)}
    optional = frozenset({"scale", "zeros"})
    problem = "quanto with 4 or 2 bits, whose file does not state the shape of the weight"
