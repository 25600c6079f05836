"""Weights of bitsandbytes: blocks of numbers from a table of 16 (nf4, fp4), and rows of int8.

Source: https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/functional.py (`QuantState`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from attngeo.checkpoints.quantised.scheme import FLOAT_SCALES, Packed, nibbles

STATE = ".weight.quant_state.bitsandbytes__"


class Blocks(Packed):
    """Codes of 4 bits, the first in the high half of a byte, row after row, and a scale for each block of them.

    The scales may be codes of 8 bits themselves (double quantisation), with a table, blocks and an offset of their own.
    """

    parts: ClassVar = {
        "codes": (".weight",), "scales": (".weight.absmax",), "table": (".weight.quant_map",),
        "state": (f"{STATE}nf4", f"{STATE}fp4"), "nested_scales": (".weight.nested_absmax",),
        "nested_table": (".weight.nested_quant_map",),
    }  # fmt: skip
    optional, small = frozenset({"nested_scales", "nested_table"}), ("state",)
    dtypes = ("U8", "F16", "BF16", "F32")  # other dtypes than U8 hold the same bytes
    numbers: ClassVar = {
        "scales": (*FLOAT_SCALES, "U8"), "table": FLOAT_SCALES, "state": ("U8",), "nested_scales": FLOAT_SCALES,
        "nested_table": FLOAT_SCALES,
    }  # fmt: skip
    bits = 4

    def _measure(self) -> None:
        state = self._read_state()
        self.format = f"bnb-{self.infos['state'].name.rpartition('__')[2]}"
        self.shape = tuple(state["shape"])
        self.block, self.nested_block = state["blocksize"], state.get("nested_blocksize", 0)
        self.offset = float(state.get("nested_offset", 0.0))
        numbers = math.prod(self.shape)
        if self.infos["codes"].nbytes != math.ceil(numbers / 2):
            raise self.broken(f"{self.infos['codes'].nbytes} bytes hold no {numbers} numbers of 4 bits")
        blocks = math.ceil(numbers / self.block)
        self.require_shape("scales", (blocks,))
        self.require_shape("table", (16,))
        self.is_nested = self.infos["scales"].dtype == "U8"
        if self.is_nested:
            if not {"nested_scales", "nested_table"} <= self.infos.keys() or not self.nested_block:
                raise self.broken("its scales are packed, and what they are packed with is missing")
            self.require_shape("nested_scales", (math.ceil(blocks / self.nested_block),))
            self.require_shape("nested_table", (256,))

    def _read_state(self) -> dict[str, Any]:
        """What the file states about the packing. Raises CorruptCheckpointError if it makes no sense."""
        raw = self.read("state")
        try:
            state = json.loads(bytes(raw.view(torch.uint8).flatten().tolist()))
            shape, sizes = state["shape"], [state["blocksize"], state.get("nested_blocksize", 1)]
            if len(shape) == 2 and all(type(x) is int and 0 < x < 2**40 for x in (*shape, *sizes)):
                float(state.get("nested_offset", 0.0))
                return dict(state)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass
        raise self.broken(f"{self.infos['state'].name} is no description of a packed matrix")

    def needs(self, rows: slice) -> dict[str, slice]:
        """The bytes of the codes, and all scales."""
        span = slice(None)
        if self.infos["codes"].shape == (math.ceil(math.prod(self.shape) / 2), 1):
            start, stop = self._span(rows)
            span = slice(start // 2, math.ceil(stop / 2))
        return {role: span if role == "codes" else slice(None) for role in self.infos if role != "state"}

    def _span(self, rows: slice) -> tuple[int, int]:
        """The numbers of these rows, counted row after row."""
        start, stop, _ = rows.indices(self.shape[0])
        return start * self.shape[1], stop * self.shape[1]

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Rows of the weight; see `Packed`."""
        scales = tensors["scales"]
        if self.is_nested:
            nested = tensors["nested_scales"].float().repeat_interleave(self.nested_block)[: len(scales)]
            scales = tensors["nested_table"].float()[scales.long()] * nested + self.offset
        start, stop = self._span(rows)
        held = 2 * (self.needs(rows)["codes"].start or 0)  # the first number that is read
        codes = nibbles(tensors["codes"].view(torch.uint8).flatten(), high_first=True)[start - held : stop - held]
        first, last = start // self.block, math.ceil(stop / self.block)
        numbers = tensors["table"].float()[codes.int()]
        padded = torch.nn.functional.pad(numbers, (start - first * self.block, last * self.block - stop))
        whole = self.rescale(padded.view(last - first, self.block), scales[first:last].unsqueeze(1)).flatten()
        return whole[start - first * self.block :][: stop - start].view(-1, self.shape[1])


class Int8Rows(Packed):
    """Codes of 8 bits, and for each row the number that code 127 stands for (LLM.int8)."""

    parts: ClassVar = {"codes": (".weight",), "largest": (".SCB",)}
    dtypes, by_rows = ("I8",), True
    numbers: ClassVar = {"largest": FLOAT_SCALES}
    bits = 8

    def _measure(self) -> None:
        self.shape, self.format = self.matrix("codes"), "bnb-int8"
        self.require_shape("largest", (self.shape[0],))

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:  # noqa: ARG002 - it has these rows only
        """Rows of the weight; see `Packed`."""
        return self.rescale(tensors["codes"], tensors["largest"].float().unsqueeze(1) / 127)
