"""Weights whose codes are whole numbers of 1 to 8 bits in words of 32 bits: GPTQ, AWQ, compressed-tensors and MLX.

Sources: https://github.com/ModelCloud/GPTQModel (zeros are stored less one in version 1),
https://github.com/casper-hansen/AutoAWQ/tree/main/awq/utils (the order of eight columns in a word),
https://github.com/vllm-project/compressed-tensors (dense words since 0.18, padded ones before),
https://github.com/ml-explore/mlx/blob/main/mlx/ops.cpp (`quantize`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from attngeo.checkpoints.quantised.scheme import FLOAT_SCALES, INTEGERS, WORDS, Packed, stated_widths, unpack

# Where AWQ's kernel for matrices has the eight columns of a word, by the place of their four bits.
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


class Gptq(Packed):
    """Words of inputs, [words, outputs]; zeros in words of outputs, [groups, words]; each input names its group."""

    parts: ClassVar = {"codes": (".qweight",), "zeros": (".qzeros",), "scales": (".scales",), "groups": (".g_idx",)}
    optional = frozenset({"groups"})
    dtypes = WORDS
    numbers: ClassVar = {"zeros": WORDS, "scales": FLOAT_SCALES, "groups": INTEGERS}

    def _measure(self) -> None:
        self.width = self.integer("bits")
        if self.width not in (2, 3, 4, 8):
            raise self.unsupported(f"GPTQ with {self.width} bits")
        stated = self.settings.get("checkpoint_format", "gptq")
        if stated not in ("gptq", "gptq_v2"):
            raise self.unsupported(f"GPTQ in the format {stated!r:.40}")
        words, outputs = self.matrix("codes")
        inputs = words * 32 // self.width
        self.shape, self.format = (outputs, inputs), f"gptq-{self.width}bit"
        self.size = self.integer("group_size", -1)
        groups = self.count_groups(inputs, self.size)
        self.require_shape("scales", (groups, outputs))
        self.require_shape("zeros", (groups, math.ceil(outputs * self.width / 32)))
        self.require_shape("groups", (inputs,))
        if "groups" not in self.infos and self.settings.get("desc_act"):
            raise self.broken("its inputs are in an order of their own (desc_act), and the tensor .g_idx is missing")

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`."""
        codes = unpack(tensors["codes"][:, rows].T.contiguous(), self.width)
        stored = unpack(tensors["zeros"], self.width)[:, : self.shape[0]]
        zeros = stored[:, rows].T.float()
        if self._is_less_one(stored):
            zeros = (zeros + 1) % 2**self.width
        scales, groups = tensors["scales"][:, rows].T, tensors.get("groups")
        return self.rescale(codes, scales, zeros, groups=groups, size=self.size)

    def _is_less_one(self, stored: Tensor) -> bool:
        """Whether zeros are stored less one. Some files state version 1 and are of version 2: symmetric ones tell."""
        stated = self.settings.get("checkpoint_format", "gptq") == "gptq"
        middle = 2 ** (self.width - 1)
        least, most = (int(x) for x in stored.aminmax())
        is_plain = self.settings.get("sym") and least == most and most in (middle - 1, middle)
        return most == middle - 1 if is_plain else bool(stated)


class Awq(Packed):
    """Words of outputs in an order of their own, [inputs, words] (GEMM), or of inputs, [outputs, words] (GEMV)."""

    parts: ClassVar = {"codes": (".qweight",), "zeros": (".qzeros",), "scales": (".scales",)}
    dtypes = WORDS
    numbers: ClassVar = {"zeros": WORDS, "scales": FLOAT_SCALES}
    bits = 4

    def _measure(self) -> None:
        stated, self.format = str(self.settings.get("version", "gemm")).lower(), "awq-4bit"
        if self.integer("bits", 4) != 4 or stated not in ("gemm", "gemv"):
            raise self.unsupported(f"AWQ with {self.settings.get('bits')} bits in the format {stated!r:.40}")
        self.size, self.is_gemm, self.by_rows = self.integer("group_size", 128), stated == "gemm", stated == "gemv"
        first, words = self.matrix("codes")
        self.shape = (8 * words, first) if self.is_gemm else (first, 8 * words)
        self.groups = self.count_groups(self.shape[1], self.size)
        if self.is_gemm:
            self.require_shape("scales", (self.groups, self.shape[0]))
            self.require_shape("zeros", (self.groups, words))
            return
        _, width = self.matrix("zeros")  # padded to what the kernel reads at once
        self.require_shape("zeros", (first, width))
        self.require_shape("scales", (first, 8 * width))
        if 8 * width < self.groups:
            raise self.broken(f"it has {8 * width} scales a row, expected at least {self.groups}")

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`."""
        if not self.is_gemm:
            codes, zeros = unpack(tensors["codes"], 4), unpack(tensors["zeros"], 4)[:, : self.groups]
            return self.rescale(codes, tensors["scales"][:, : self.groups], zeros.float(), size=self.size)

        def transpose(words: Tensor) -> Tensor:
            """The numbers of the wanted outputs, [outputs, ...]."""
            by_word = unpack(words, 4).view(len(words), -1, 8)[..., list(AWQ_ORDER)]
            return by_word.flatten(-2)[:, rows].T.contiguous()

        zeros = transpose(tensors["zeros"]).float()
        return self.rescale(transpose(tensors["codes"]), tensors["scales"][:, rows].T, zeros, size=self.size)


class CompressedIntegers(Packed):
    """Words of inputs, [outputs, words], a scale for each row or group, and zeros in words of outputs."""

    parts: ClassVar = {
        "codes": (".weight_packed",), "scales": (".weight_scale",), "shape": (".weight_shape",),
        "zeros": (".weight_zero_point",), "groups": (".weight_g_idx",),
    }  # fmt: skip
    optional, small = frozenset({"zeros", "groups"}), ("shape",)
    dtypes = WORDS
    numbers: ClassVar = {"zeros": WORDS, "scales": FLOAT_SCALES, "groups": INTEGERS, "shape": INTEGERS}

    def _measure(self) -> None:
        rows, words = self.matrix("codes")
        stated = self.read("shape").flatten().tolist()
        if len(stated) != 2 or stated[0] != rows or not 0 < stated[1] <= 32 * words:
            raise self.broken(f"its stated shape is {stated!r:.60}, and {rows} rows of {words} words are stored")
        self.shape = rows, int(stated[1])
        self.width, self.padded = self._find_width(words, self.shape[1])
        self.format = f"int{self.width}"
        scales = self.infos["scales"].shape
        is_matrix = len(scales) == 2 and scales[0] == rows and scales[1] > 0
        if math.prod(scales) != 1 and not (is_matrix and self.shape[1] % scales[1] == 0):
            self.require_shape("scales", (rows, 1), (1,))
        if "zeros" in self.infos:
            in_word = 32 // self.width if self.padded else 32 / self.width
            self.require_shape("zeros", (math.ceil(rows / in_word), scales[-1] if scales else 1))

    def _find_width(self, words: int, columns: int) -> tuple[int, bool]:
        """The bits of a code, and whether words are padded: what config.json states and the width of rows allow."""
        stated = stated_widths(self.settings)
        for bits in stated:
            if words == math.ceil(columns * bits / 32):
                return bits, False
            if words == math.ceil(columns / (32 // bits)):
                return bits, True
        raise self.broken(f"{words} words hold no {columns} numbers of {stated!r:.60} bits")

    def needs(self, rows: slice) -> dict[str, slice]:
        """The same rows of codes and scales."""
        first = len(self.infos["scales"].shape) == 2 and self.infos["scales"].shape[0] == self.shape[0]
        cut = {"codes": rows} | ({"scales": rows} if first else {})
        return {role: cut.get(role, slice(None)) for role in self.infos}

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`."""
        codes = unpack(tensors["codes"], self.width, padded=self.padded)[:, : self.shape[1]]
        scales = tensors["scales"]
        scales = scales.expand(len(codes), 1) if scales.numel() == 1 else scales
        zeros: Tensor | float = float(2 ** (self.width - 1))
        if "zeros" in tensors:  # packed along the outputs
            zeros = unpack(tensors["zeros"].T.contiguous(), self.width, padded=self.padded).T
            zeros = zeros[: self.shape[0]][rows].float()
        groups = tensors.get("groups")
        ordered = groups is not None and int(groups.min()) >= 0  # -1 stands for groups after one another
        return self.rescale(codes, scales, zeros, groups=groups if ordered else None)


class Mlx(Packed):
    """Words of inputs, [outputs, words], and a scale and an offset for each group of a row: code · scale + offset."""

    parts: ClassVar = {"codes": (".weight",), "scales": (".scales",), "offsets": (".biases",)}
    dtypes, by_rows = ("U32",), True
    numbers: ClassVar = {"scales": FLOAT_SCALES, "offsets": FLOAT_SCALES}

    def _measure(self) -> None:
        self.width, size = self.integer("bits"), self.integer("group_size")
        rows, words = self.matrix("codes")
        if self.settings.get("mode", "affine") != "affine" or not 1 <= self.width <= 8:
            raise self.unsupported(f"MLX with {self.width} bits in the mode {self.settings.get('mode')!r:.40}")
        self.shape, self.format = (rows, words * 32 // self.width), f"mlx-{self.width}bit"
        groups = self.count_groups(self.shape[1], size)
        if self.shape[1] % groups:
            raise self.broken(f"{self.shape[1]} inputs are no groups of {size}")
        for role in ("scales", "offsets"):
            self.require_shape(role, (rows, groups))

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:  # noqa: ARG002 - it has these rows only
        """Rows of the weight; see `Packed`."""
        codes, offsets = unpack(tensors["codes"], self.width), tensors["offsets"].float()
        by_group = self.rescale(codes, tensors["scales"]).view(*offsets.shape, -1)
        return (by_group + offsets.unsqueeze(-1)).flatten(1)
