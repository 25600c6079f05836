"""Weights of bitsandbytes: blocks of numbers from a table of 16 (nf4, fp4), and rows of int8.

Source: https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/functional.py (`QuantState`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from attngeo.checkpoints.quantised.scheme import FLOAT_SCALES, MOST_SETTING, Packed, Stated, nibbles

STATE = ".weight.quant_state.bitsandbytes__"
# The numbers of a block that the library takes.
BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
# Of the numbers that are added to nested scales; those of real weights are below 1.
LARGEST_OFFSET = 1e30


class Blocks(Packed):
    """4-bit codes, row by row, the first in the high half of a byte, with one scale per block of codes.

    The scales may themselves be 8-bit codes (double quantisation), with their own table, blocks and offset.
    """

    parts: ClassVar = {
        "codes": (".weight",),
        "scales": (".weight.absmax",),
        "table": (".weight.quant_map",),
        "state": (f"{STATE}nf4", f"{STATE}fp4"),
        "nested_scales": (".weight.nested_absmax",),
        "nested_table": (".weight.nested_quant_map",),
    }
    optional = frozenset({"nested_scales", "nested_table"})
    small = ("state",)
    dtypes = ("U8", "F16", "BF16", "F32")  # other dtypes than U8 hold the same bytes
    numbers: ClassVar = {
        "scales": (*FLOAT_SCALES, "U8"),
        "table": FLOAT_SCALES,
        "state": ("U8",),
        "nested_scales": FLOAT_SCALES,
        "nested_table": FLOAT_SCALES,
    }
    bits = 4

    def _state(self) -> Stated:
        if not self.setting("load_in_4bit", default=True) or self.setting("load_in_8bit", default=False):
            raise self.broken("the configuration states 8-bit weights, but the file has 4-bit weights")
        stored = self.format_of_state()
        stated = self.setting("bnb_4bit_quant_type", default=stored)
        if stated != stored:
            raise self.broken(f"the configuration states the type {stated!r:.20}, but the file has {stored}")
        return Stated(self.dtypes, 4)

    def _measure(self) -> None:
        is_nested = self._read_state()
        self.format = f"bnb-{self.format_of_state()}"
        numbers = math.prod(self.shape)
        stored = self.infos["codes"].nbytes
        if stored != math.ceil(numbers / 2):
            raise self.broken(f"its codes have {stored} bytes, which do not match {numbers} numbers of 4 bits")
        blocks = math.ceil(numbers / self.block)
        self.require_shape("scales", (blocks,))
        self.require_shape("table", (16,))
        self.is_nested = self.infos["scales"].dtype == "U8"
        says_nested = (is_nested, "nested_scales" in self.infos, "nested_table" in self.infos)
        if any(says != self.is_nested for says in says_nested):
            raise self.broken("its scales are inconsistent: a tensor of packed scales is missing or left over")
        if self.is_nested:
            self.require_shape("nested_scales", (math.ceil(blocks / self.nested_block),))
            self.require_shape("nested_table", (256,))

    def _read_state(self) -> bool:
        """Read what the file states about the packing. Raises CorruptCheckpointError if it makes no sense.

        The shape of the matrix; the numbers of a block, which share a scale; and if scales are packed, too, which is
        the answer, the scales of a nested block, and the offset that is added to all.
        """
        raw = self.read("state")
        try:
            stated = json.loads(bytes(raw.view(torch.uint8).flatten().tolist()))
            rows, columns = stated["shape"]
            self.block = stated["blocksize"]
            is_nested = "nested_blocksize" in stated or "nested_offset" in stated
            self.nested_block = stated["nested_blocksize"] if is_nested else BLOCKS[0]
            self.offset = stated["nested_offset"] if is_nested else 0
            makes_sense = (
                stated.get("quant_type") in (None, self.format_of_state())
                and all(type(size) is int and 0 < size <= MOST_SETTING for size in (rows, columns, self.block))
                and {self.block, self.nested_block} <= set(BLOCKS)
                and type(self.offset) in (int, float)
                and abs(self.offset) < LARGEST_OFFSET
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            makes_sense = False
        if not makes_sense:
            raise self.broken(f"{self.infos['state'].name} does not describe a packed matrix")
        self.shape = (rows, columns)
        return is_nested

    def format_of_state(self) -> str:
        """The type of the codes, from the name of their description: "nf4" or "fp4"."""
        return self.infos["state"].name.rpartition("__")[2]

    def needs(self, rows: slice) -> dict[str, slice]:
        """The bytes of the codes, and all scales."""
        needs = {role: slice(None) for role in self.infos if role != "state"}
        has_a_byte_in_each_row = self.infos["codes"].shape == (math.ceil(math.prod(self.shape) / 2), 1)
        if has_a_byte_in_each_row:
            start, stop = self._span(rows)
            needs["codes"] = slice(start // 2, math.ceil(stop / 2))
        return needs

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
        # Numbers are counted row after row: those of the rows, and the first one that is read.
        start, stop = self._span(rows)
        first_read = 2 * (self.needs(rows)["codes"].start or 0)
        codes = nibbles(tensors["codes"].view(torch.uint8).flatten(), high_first=True)
        numbers = tensors["table"].float()[codes[start - first_read : stop - first_read].int()]
        # The blocks that have these numbers; the first and the last one are filled up.
        first_block = start // self.block
        end_block = math.ceil(stop / self.block)
        before = start - first_block * self.block
        after = end_block * self.block - stop
        blocks = torch.nn.functional.pad(numbers, (before, after)).view(-1, self.block)
        rescaled = self.rescale(blocks, scales[first_block:end_block].unsqueeze(1)).flatten()
        return rescaled[before:][: stop - start].view(-1, self.shape[1])


class Int8Rows(Packed):
    """8-bit codes, with the value of code 127 for each row (LLM.int8)."""

    parts: ClassVar = {"codes": (".weight",), "largest": (".SCB",)}
    dtypes = ("I8",)
    by_rows = True
    numbers: ClassVar = {"largest": FLOAT_SCALES}
    bits = 8

    def _state(self) -> Stated:
        if not self.setting("load_in_8bit", default=True) or self.setting("load_in_4bit", default=False):
            raise self.broken("the configuration states 4-bit weights, but the file has 8-bit weights")
        return Stated(("I8",), 8)

    def _measure(self) -> None:
        self.shape = self.matrix("codes")
        self.format = "bnb-int8"
        self.require_shape("largest", (self.shape[0],))

    def decode(self, tensors: Mapping[str, Tensor], rows: slice) -> Tensor:  # noqa: ARG002 - it has these rows only
        """Rows of the weight; see `Packed`."""
        return self.rescale(tensors["codes"], tensors["largest"].float().unsqueeze(1) / 127)
