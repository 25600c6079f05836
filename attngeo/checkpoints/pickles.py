"""Pickles of others, without running any code of them: a check of the opcodes, and a stand-in for objects.

Python's unpickler trusts numbers in the file: an entry of its memo with the number 2³⁰ makes it reserve gigabytes, and
so does the stated length of a text. `check_opcodes` refuses such numbers before the unpickler sees them.
"""

from __future__ import annotations

import pickletools
import re
from collections import defaultdict
from functools import cache
from mmap import mmap
from typing import Any, NamedTuple

LENGTH_BYTES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
PUT, LONG_BINPUT, FRAME, STOP = b"pr\x95."
# In a file that is as long, smaller numbers of entries of the memo need no check.
LONG_FILE = 1 << 24
SMALL_INDEX = rb"|r[\s\S]{3}\x00"


class Record(dict[Any, Any]):
    """A stand-in for an object of any class: keeps its arguments, attributes and items, and does nothing with them."""

    def __new__(cls, *_: Any, **__: Any) -> Record:  # noqa: D102
        return super().__new__(cls)

    def __init__(self, *arguments: Any, **_: Any) -> None:
        super().__init__()
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Codes(NamedTuple):
    """simple: a run of opcodes without anything to check. lengths: opcode → bytes of the length of its argument.

    lines: opcode → number of lines of its argument.
    """

    simple: re.Pattern[bytes]
    lengths: dict[int, int]
    lines: dict[int, int]


def check_opcodes(data: bytes | mmap, allowed: frozenset[str] | None = None) -> None:
    """Raise ValueError unless `data` starts with a whole pickle, in which every length and number fits the file.

    allowed: the names of opcodes, as pickletools gives them; None means all.
    """
    codes, at, end = _list_codes(allowed, len(data) >= LONG_FILE), 0, len(data)
    while True:
        if (run := codes.simple.match(data, at)) is not None:
            at = run.end()
        if at >= end:
            raise ValueError("the pickle is cut off")
        code, at = data[at], at + 1
        if code == STOP:
            return
        if code in codes.lengths:
            at = _skip_counted(data, at, code, codes.lengths[code])
        elif code in codes.lines:
            at = _skip_lines(data, at, code, codes.lines[code])
        else:
            raise ValueError(f"its opcode {code:#04x} is unknown or not allowed")


def _skip_counted(data: bytes | mmap, at: int, code: int, size: int) -> int:
    """The place after an argument with a length of `size` bytes in front, or after the number of an entry."""
    length, at = int.from_bytes(data[at : at + size], "little"), at + size
    if code == LONG_BINPUT:
        _check_index(length, len(data))
        return at
    if at + length > len(data):
        raise ValueError(f"it states {length:,} bytes, and has {len(data) - at:,}")
    return at if code == FRAME else at + length  # other opcodes follow in a frame


def _skip_lines(data: bytes | mmap, at: int, code: int, count: int) -> int:
    """The place after an argument of `count` lines."""
    start = at
    for _ in range(count):
        at = data.find(b"\n", at) + 1
        if not at:
            raise ValueError("the pickle is cut off")
    if code == PUT:
        _check_index(int(data[start : min(at, start + 20)]), len(data))
    return at


def _check_index(index: int, size: int) -> None:
    if index > size:
        raise ValueError(f"entry {index:,} of the memo in a pickle of {size:,} bytes")


@cache
def _list_codes(allowed: frozenset[str] | None, is_long: bool) -> _Codes:
    by_size: dict[int, bytes] = defaultdict(bytes)
    lengths, lines = {LONG_BINPUT: 4, FRAME: 8}, {}
    for opcode in pickletools.opcodes:
        code, size = ord(opcode.code), opcode.arg.n if opcode.arg else 0
        if (allowed is not None and opcode.name not in allowed) or code in (STOP, *lengths):
            continue
        if size == pickletools.UP_TO_NEWLINE:
            lines[code] = 2 if opcode.arg is pickletools.stringnl_noescape_pair else 1
        elif size in LENGTH_BYTES:
            lengths[code] = LENGTH_BYTES[size]
        else:
            by_size[size] += bytes([code])
    runs = (b"[%s][\\s\\S]{%d}" % (re.escape(codes), size) for size, codes in by_size.items())
    simple = b"(?:%s%s)*+" % (b"|".join(runs), SMALL_INDEX if is_long else b"")
    return _Codes(re.compile(simple), lengths, lines)
