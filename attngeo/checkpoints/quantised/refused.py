"""Packed weights that are not decoded, by method, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from attngeo.checkpoints.quantised.scheme import Packed, Stated
from attngeo.checkpoints.store import DTYPE_NAMES, FLOATS


class Other(NamedTuple):
    """A method that is not decoded.

    Attributes:
        title: common name.
        reason: why it is not decoded.
        codes: name endings of its codes.
    """

    title: str
    reason: str
    codes: tuple[str, ...]


# The method, as config.json states it → what it is.
OTHERS: Mapping[str, Other] = {
    "aqlm": Other("AQLM", "its numbers are sums of learned codebook entries", (".codes",)),
    "eetq": Other("EETQ", "its codes are in a kernel-specific order", (".weight", ".qweight")),
    "exl2": Other("ExLlamaV2", "its rows are permuted, and the bits vary by group", (".q_weight",)),
    "exl3": Other("ExLlamaV3", "its numbers come from a trellis after random rotations", (".trellis",)),
    "fp_quant": Other("FP-Quant", "its inputs are rotated", (".qweight",)),
    "higgs": Other("HIGGS", "its numbers are rotated grid points in a kernel-specific order", (".weight",)),
    "marlin": Other("Marlin", "its codes are in a kernel-specific order", (".B",)),
    "quip": Other("QuIP#", "its numbers are lattice points after random rotations", (".Qidxs",)),
    "spqr": Other("SpQR", "its outliers are stored apart from its codes", (".dense_weights",)),
    "vptq": Other("VPTQ", "its numbers are learned codebook vectors", (".indices",)),
}
OTHER_CODES = tuple(sorted({end for other in OTHERS.values() for end in other.codes if end != ".weight"}))


class Undecoded(Packed):
    """An undecoded form of a method that is otherwise decoded. `problem`: its description for errors."""

    numbers: ClassVar = {}
    dtypes = tuple(name for name in DTYPE_NAMES.values() if name not in FLOATS)
    problem: ClassVar[str]

    def _state(self) -> Stated:
        raise self.unsupported(self.problem)
