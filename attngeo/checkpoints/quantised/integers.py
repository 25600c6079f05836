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

from attngeo.checkpoints.quantised.compressed import state_compressed
from attngeo.checkpoints.quantised.scheme import FLOAT_SCALES, INTEGERS, WORDS, Packed, Stated, unpack

# Where AWQ's kernel for matrices has the eight columns of a word, by the place of their four bits.
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


class Gptq(Packed):
    """Words of inputs, [words, outputs]; zeros in words of outputs, [groups, words]; a group number per input."""

    parts: ClassVar = {"codes": (".qweight",), "zeros": (".qzeros",), "scales": (".scales",), "groups": (".g_idx",)}
    optional = frozenset({"groups"})
    dtypes = WORDS
    numbers: ClassVar = {"zeros": WORDS, "scales": FLOAT_SCALES, "groups": INTEGERS}

    def _state(self) -> Stated:
        bits: int = self.setting("bits", default=0)
        if bits not in (2, 3, 4, 8):
            raise self.unsupported(f"GPTQ with {bits} bits")
        forms: set[str] = {self.setting(name) for name in ("checkpoint_format", "format")} - {""}
        if len(forms) > 1:
            raise self.broken(f"the configuration states two formats, {' and '.join(sorted(forms))!s:.60}")
        self.version = next(iter(forms), "gptq")
        if self.version not in ("gptq", "gptq_v2"):
            raise self.unsupported(f"GPTQ in the format {self.version!r:.40}")
        self.is_symmetric = self.settings.get("sym")
        if self.is_symmetric is not None:
            self.setting("sym", default=True)  # raises for what is no flag
        is_ordered = self.setting("desc_act", default=False) or None  # some have the order that inputs have anyway
        self.width = bits
        return Stated(WORDS, bits, self.group_size(128), has_zeros=True, is_ordered=is_ordered)

    def _measure(self) -> None:
        words, outputs = self.matrix("codes")
        inputs = words * 32 // self.width
        self.shape = (outputs, inputs)
        self.format = f"gptq-{self.width}bit"
        groups = self.count_groups(inputs)
        words_of_zeros = math.ceil(outputs * self.width / 32)
        self.require_shape("scales", (groups, outputs))
        self.require_shape("zeros", (groups, words_of_zeros))
        self.require_shape("groups", (inputs,))

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`."""
        outputs, _ = self.shape
        codes = unpack(tensors["codes"][:, rows].T.contiguous(), self.width)  # [rows, inputs]
        stored_zeros = unpack(tensors["zeros"], self.width)[:, :outputs]  # [groups, outputs]
        zeros = stored_zeros[:, rows].T.float()
        if self._is_less_one(stored_zeros):
            zeros = (zeros + 1) % 2**self.width
        scales = tensors["scales"][:, rows].T  # [rows, groups]
        return self.rescale(codes, scales, zeros, groups=tensors.get("groups"))

    def _is_less_one(self, stored: Tensor) -> bool:
        """Whether zeros are stored less one. Some files state version 1 and are of version 2: symmetric ones tell.

        Raises CorruptCheckpointError if zeros are stated in the middle of all codes, and others are stored.
        """
        middle = 1 << (self.width - 1)
        least = int(stored.min())
        most = int(stored.max())
        is_middle = least == most and most in (middle - 1, middle)
        if self.is_symmetric and not is_middle:
            raise self.broken(f"the configuration states sym = true, but zero points are {least} to {most}")
        if self.is_symmetric is not False and is_middle:
            return most == middle - 1
        return self.version == "gptq"


class Awq(Packed):
    """Words of outputs in a special order, [inputs, words] (GEMM), or of inputs, [outputs, words] (GEMV)."""

    parts: ClassVar = {"codes": (".qweight",), "zeros": (".qzeros",), "scales": (".scales",)}
    dtypes = WORDS
    numbers: ClassVar = {"zeros": WORDS, "scales": FLOAT_SCALES}
    bits = 4

    def _state(self) -> Stated:
        version = self.setting("version") or self.setting("format", default="gemm")
        bits = self.setting("bits", default=4)
        if bits != 4 or version not in ("gemm", "gemv") or self.setting("backend") == "llm-awq":
            raise self.unsupported(f"AWQ with {bits} bits in the format {version!r:.40}")
        if not self.setting("zero_point", default=True):
            raise self.broken("the configuration states no zero points, but the tensor .qzeros has some")
        self.is_gemm = version == "gemm"
        self.by_rows = not self.is_gemm
        return Stated(WORDS, bits, self.group_size(128), has_zeros=True)

    def _measure(self) -> None:
        self.format = "awq-4bit"
        if self.is_gemm:
            inputs, words = self.matrix("codes")
            outputs = 8 * words
            self.shape = (outputs, inputs)
            self.groups = self.count_groups(inputs)
            self.require_shape("scales", (self.groups, outputs))
            self.require_shape("zeros", (self.groups, words))
            return
        outputs, words = self.matrix("codes")
        inputs = 8 * words
        self.shape = (outputs, inputs)
        self.groups = self.count_groups(inputs)
        size = inputs if self.stated.size in (None, -1) else self.stated.size
        if size not in (32, 64) and size < 128:
            raise self.unsupported(f"AWQ with groups of {size} in the format 'gemv'")
        # Padded to what the kernel reads at once: words of 8 groups, more of them if groups are small.
        words_at_once = {32: 4, 64: 2}.get(size, 1)
        reads = math.ceil(math.ceil(self.groups / 8) / words_at_once)
        padded_words = reads * words_at_once
        self.require_shape("zeros", (outputs, padded_words))
        self.require_shape("scales", (outputs, 8 * padded_words))

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`."""
        if self.is_gemm:
            codes = _unpack_outputs(tensors["codes"], rows)
            zeros = _unpack_outputs(tensors["zeros"], rows)
            scales = tensors["scales"][:, rows].T
        else:
            codes = unpack(tensors["codes"], 4)
            zeros = unpack(tensors["zeros"], 4)[:, : self.groups]
            scales = tensors["scales"][:, : self.groups]
        return self.rescale(codes, scales, zeros.float())


def _unpack_outputs(words: Tensor, rows: slice) -> Tensor:
    """The numbers of some outputs from words of AWQ's kernel for matrices, [inputs, words] → [outputs, inputs]."""
    by_word = unpack(words, 4).view(len(words), -1, 8)
    outputs = by_word[..., list(AWQ_ORDER)].flatten(-2)
    return outputs[:, rows].T.contiguous()


class CompressedIntegers(Packed):
    """Words of inputs, [outputs, words], with one scale per row or group, and zeros in words of outputs."""

    parts: ClassVar = {
        "codes": (".weight_packed",),
        "scales": (".weight_scale",),
        "shape": (".weight_shape",),
        "zeros": (".weight_zero_point",),
        "groups": (".weight_g_idx",),
    }
    optional = frozenset({"zeros", "groups"})
    small = ("shape",)
    dtypes = WORDS
    bits_field = "num_bits"
    numbers: ClassVar = {"zeros": WORDS, "scales": FLOAT_SCALES, "groups": INTEGERS, "shape": INTEGERS}

    def _state(self) -> Stated:
        stated = state_compressed(self, WORDS, ("pack-quantized",), "int")
        assert stated.bits is not None  # 8 is the default
        self.width = stated.bits
        return stated._replace(has_zeros=bool(stated.has_zeros))

    def _measure(self) -> None:
        rows, words = self.matrix("codes")
        shape = self.read("shape").flatten().tolist()
        if len(shape) != 2 or shape[0] != rows or not 0 < shape[1] <= 32 * words:
            raise self.broken(f"its stated shape is {shape!r:.60}, but it has {rows} rows of {words} words")
        columns = int(shape[1])
        self.shape = (rows, columns)
        self.padded = words != math.ceil(columns * self.width / 32)  # the width of rows tells
        if self.padded and words != math.ceil(columns / (32 // self.width)):
            raise self.broken(f"{words} words do not match {columns} numbers of {self.width} bits")
        self.format = f"int{self.width}"
        scales = self.infos["scales"].shape
        if self.stated.size is None:
            self.require_shape("scales", (1,), (1, 1), ())
        else:
            self.require_shape("scales", (rows, self.count_groups(columns)))
        if "zeros" in self.infos:
            in_word = 32 // self.width if self.padded else 32 / self.width
            groups = scales[-1] if scales else 1
            self.require_shape("zeros", (math.ceil(rows / in_word), groups))

    def needs(self, rows: slice) -> dict[str, slice]:
        """The same rows of codes and scales."""
        outputs, _ = self.shape
        scales = self.infos["scales"].shape
        needs = dict.fromkeys(self.infos, slice(None))
        needs["codes"] = rows
        if len(scales) == 2 and scales[0] == outputs:
            needs["scales"] = rows
        return needs

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`."""
        outputs, inputs = self.shape
        used = 32 // self.width * self.width  # the bits of a padded word
        if self.padded and bool((tensors["codes"].long() & 0xFFFFFFFF >> used << used).any()):
            raise self.broken(f"its words have bits outside the numbers of {self.width} bits")
        codes = unpack(tensors["codes"], self.width, padded=self.padded)[:, :inputs]
        scales = tensors["scales"]
        if scales.numel() == 1:
            scales = scales.expand(len(codes), 1)
        zeros: Tensor | float = float(2 ** (self.width - 1))
        if "zeros" in tensors:  # packed along the outputs
            unpacked = unpack(tensors["zeros"].T.contiguous(), self.width, padded=self.padded).T
            zeros = unpacked[:outputs][rows].float()
        groups = tensors.get("groups")
        if groups is not None and int(groups.min()) < 0:  # -1 stands for groups after one another
            groups = None
        return self.rescale(codes, scales, zeros, groups=groups)


class Mlx(Packed):
    """Words of inputs, [outputs, words], with a scale and an offset per group of a row: code · scale + offset."""

    parts: ClassVar = {"codes": (".weight",), "scales": (".scales",), "offsets": (".biases",)}
    dtypes = ("U32",)
    by_rows = True
    numbers: ClassVar = {"scales": FLOAT_SCALES, "offsets": FLOAT_SCALES}

    def _state(self) -> Stated:
        bits = self.setting("bits", default=0)
        size = self.setting("group_size", default=0)
        mode = self.setting("mode", default="affine")
        if mode != "affine" or bits not in (2, 3, 4, 5, 6, 8) or size < 1:
            raise self.unsupported(f"MLX with {bits} bits and groups of {size} in the mode {mode!r:.40}")
        self.width = bits
        return Stated(("U32",), bits, size)

    def _measure(self) -> None:
        rows, words = self.matrix("codes")
        columns = words * 32 // self.width
        self.shape = (rows, columns)
        self.format = f"mlx-{self.width}bit"
        for role in ("scales", "offsets"):
            self.require_shape(role, (rows, self.count_groups(columns)))

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:  # noqa: ARG002 - it has these rows only
        """Rows of the weight; see `Packed`."""
        codes = unpack(tensors["codes"], self.width)
        offsets = tensors["offsets"].float()  # [rows, groups]
        by_group = self.rescale(codes, tensors["scales"]).view(*offsets.shape, -1)  # [rows, groups, inputs of a group]
        return (by_group + offsets.unsqueeze(-1)).flatten(1)
