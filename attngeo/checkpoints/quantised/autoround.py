"""Weights of AutoRound: integers in the words of GPTQ or AWQ; the packing format says how zero points are stored.

Source: https://github.com/intel/auto-round (`inference/convert_model.py`, `utils/bit_packing.py`, and `torch` in
`auto_round_extension`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from attngeo.checkpoints.quantised.integers import Awq, Gptq
from attngeo.checkpoints.quantised.refused import Undecoded
from attngeo.checkpoints.quantised.scheme import WORDS, Packed, Stated
from attngeo.checkpoints.store import TensorInfo

# Packing formats whose zero points are stored less one, and those that store them as they are.
LESS_ONE = ("auto_round:auto_gptq", "auto_round:gptq", "auto")
AS_THEY_ARE = ("auto_round", "auto_round:gptqmodel")
AWQ_PACKING = ("auto_round:auto_awq", "auto_round:awq")
# Bits that its words may have.
BITS = (2, 3, 4, 5, 6, 7, 8)


def read_packing(settings: Mapping[str, Any]) -> str:
    """The packing format; files before version 0.5 state it in `backend`, followed by the kernel.

    If none is stated, AutoRound uses GPTQ's.
    """
    stated = settings.get("packing_format")
    if stated is None:
        backend = str(settings.get("backend") or "auto")
        for word, packing in (("awq", AWQ_PACKING[0]), ("gptq", LESS_ONE[0])):
            if word in backend and "gptqmodel" not in backend:
                return packing
        stated = LESS_ONE[0] if backend == "auto" else backend
    return str(stated).lower()


def require_integers(packed: Packed) -> int:
    """The bits of a code. Raises UnsupportedModelError for codes that are not integers."""
    data_type = packed.setting("data_type", default="int")
    if data_type != "int":
        raise packed.unsupported(f"AutoRound with data_type = {data_type!r:.40}")
    bits: int = packed.setting("bits", default=4)
    if bits not in BITS:
        raise packed.unsupported(f"AutoRound with {bits} bits")
    return bits


class AutoRoundWords(Gptq):
    """Words of inputs as in GPTQ, with any number of bits. Only the packing format says how zeros are stored."""

    @classmethod
    def suits(cls, settings: Mapping[str, Any], infos: Mapping[str, TensorInfo]) -> bool:  # noqa: ARG003 - names are
        """Whether words hold inputs."""
        return read_packing(settings) not in AWQ_PACKING

    def _state(self) -> Stated:
        bits = require_integers(self)
        packing = read_packing(self.settings)
        if packing not in (*LESS_ONE, *AS_THEY_ARE):
            raise self.unsupported(f"AutoRound in the packing format {packing!r:.40}")
        self.version = "gptq" if packing in LESS_ONE else "gptq_v2"
        self.is_symmetric = self.setting("sym", default=False)
        self.width = bits
        return Stated(WORDS, bits, self.group_size(128), has_zeros=True)

    def _is_less_one(self, stored: Tensor) -> bool:
        """Whether zeros are stored less one. Raises CorruptCheckpointError if they are not those that `sym` states."""
        is_less_one = self.version == "gptq"
        middle = (1 << (self.width - 1)) - is_less_one
        if self.is_symmetric and not bool((stored == middle).all()):
            raise self.broken(
                f"the configuration states sym = true, but zero points are {int(stored.min())} to {int(stored.max())}, "
                f"expected {middle}"
            )
        most = (1 << self.width) - 1
        if is_less_one and int(stored.max()) == most:
            raise self.unsupported(
                f"a zero point stored as {most}, which some kernels read as {most + 1} and others as 0"
            )
        return is_less_one


class AutoRoundAwq(Awq):
    """Words of outputs, as in AWQ's GEMM format."""

    @classmethod
    def suits(cls, settings: Mapping[str, Any], infos: Mapping[str, TensorInfo]) -> bool:  # noqa: ARG003 - names are
        """Whether words hold outputs."""
        return read_packing(settings) in AWQ_PACKING

    def _state(self) -> Stated:
        bits = require_integers(self)
        if bits != 4:
            raise self.unsupported(f"AutoRound in AWQ packing with {bits} bits")
        self.is_gemm = True
        return Stated(WORDS, bits, self.group_size(128), has_zeros=True)


class AutoRoundOthers(Undecoded):
    """The float formats of AutoRound."""

    parts: ClassVar = {
        "codes": (".weight_packed", ".weight"),
        "scale": (".weight_scale", ".weight_scale_inv"),
        "overall": (".weight_global_scale",),
    }
    optional = frozenset({"overall"})
    problem = "AutoRound with non-integer codes"
