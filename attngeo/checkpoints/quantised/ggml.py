"""Weights of GGUF files, decoded by the gguf package: any type that it knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attngeo.checkpoints.gguf import GGML_TYPES
from attngeo.checkpoints.quantised.scheme import Packed, Stated
from attngeo.checkpoints.store import TensorInfo
from attngeo.errors import require_extra


class Ggml(Packed):
    """Blocks of a row, each with scales and codes in the order of its type."""

    parts: ClassVar = {"codes": (".weight",)}
    numbers: ClassVar = {}
    by_rows = True
    dtypes = tuple(name for name, numbers, _ in GGML_TYPES.values() if numbers > 1)

    def _state(self) -> Stated:
        return Stated()

    def _measure(self) -> None:
        self.shape = self.matrix("codes")
        self.format = self.infos["codes"].dtype

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:  # noqa: ARG002 - it has these rows only
        """Rows of the weight; see `Packed`. Raises MissingPackageError without the gguf package."""
        with require_extra():
            import gguf
        codes = tensors["codes"].contiguous().numpy()
        with np.errstate(all="ignore"):
            numbers = torch.from_numpy(gguf.dequantize(codes, gguf.GGMLQuantizationType[self.format]))
        if not math.isfinite(float(numbers.sum())):
            raise self.broken("a scale is not a finite number")
        return numbers

    @classmethod
    def count(cls, info: TensorInfo, settings: Mapping[str, Any]) -> int:  # noqa: ARG003 - the shape tells
        """Number of weights that the codes stand for."""
        return math.prod(info.shape)
