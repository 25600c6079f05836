"""Word vectors as text, one word and its numbers a line: GloVe, fastText's .vec and word2vec's text format.

The latter two begin with a line of two integers: how many vectors there are, and their width.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.rows import Rows
from attngeo.embeddings.streams import Stream
from attngeo.errors import CorruptCheckpointError

HEADER = re.compile(rb"\s*(\d{1,12})\s+(\d{1,6})\s*")
LONGEST_LINE = 1 << 24
Values = np.ndarray[Any, np.dtype[np.float32]]


def read_text(stream: Stream) -> Embedding:
    """The vectors of a text file; lines that are ragged or not numbers are left out, and a note says which."""
    announced, width, skip = _dimensions(stream)
    rows = Rows(stream.ref, width)
    number = 0
    for block in _line_blocks(stream):
        numbers = range(number + 1, number + len(block) + 1)
        number += len(block)
        first = skip if numbers.start == 1 else 0
        _add_block(rows, block[first:], numbers[first:])
    if announced is not None and number - skip < announced:
        raise CorruptCheckpointError(
            f"{stream.ref}: ends after {number - skip:,} of the {announced:,} vectors that its first line announces; "
            "download it again"
        )
    return rows.embedding()


def is_text(head: bytes) -> bool:
    """Whether these first bytes look like a word and at least one number, in a line or after a header."""
    lines = head.splitlines()[:2]
    if not lines:
        return False
    line = lines[-1] if HEADER.fullmatch(lines[0]) and len(lines) > 1 else lines[0]
    try:
        values = line.decode("utf-8", "replace").split()[1:]
        return bool(values) and float(values[0]) is not None
    except ValueError:
        return False


def _dimensions(stream: Stream) -> tuple[int | None, int, int]:
    """How many vectors are announced, their width, and how many lines the header takes."""
    lines = stream.head.splitlines()
    if not lines or len(lines[0].split()) < 2:
        raise CorruptCheckpointError(f"{stream.ref}: line 1 is no word vector, expected a word and its numbers")
    if header := HEADER.fullmatch(lines[0]):
        if 0 in (int(header[1]), int(header[2])):
            raise CorruptCheckpointError(f"{stream.ref}: line 1 announces {lines[0].decode()!r}, no vectors at all")
        return int(header[1]), int(header[2]), 1
    # Most lines agree on the width, also where the first word has a space in it. The head may end inside a line.
    whole = lines if stream.head.endswith(b"\n") or len(lines) == 1 else lines[:-1]
    widths = Counter(len(line.split()) - 1 for line in whole[:100])
    return None, widths.most_common(1)[0][0], 0


def _line_blocks(stream: Stream) -> Iterator[list[bytes]]:
    """The lines of the stream, some megabytes of whole ones at a time."""
    rest = b""
    for chunk in stream.chunks():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LONGEST_LINE:
            raise CorruptCheckpointError(f"{stream.ref}: has a line of over {LONGEST_LINE:,} bytes, no word vectors")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _add_block(rows: Rows, lines: list[bytes], numbers: range) -> None:
    """All lines at once where each is a word, a space and numbers between single spaces; else one by one."""
    words, values, kept, odd = [], [], [], []
    for number, line in zip(numbers, lines, strict=True):
        word, _, rest = line.strip(b"\r\n ").partition(b" ")
        if rest.count(b" ") == rows.width - 1 and word:
            words.append(word.decode("utf-8", "replace"))
            values.append(rest)
            kept.append(number)
        elif line.strip():
            odd.append((number, line))
    try:
        rows.add(words, _parse(values, rows.width), kept)
    except ValueError:
        odd = [*odd, *zip(kept, (lines[number - numbers.start] for number in kept), strict=True)]
    for number, line in sorted(odd):
        _add_line(rows, line, number)


def _parse(texts: list[bytes], width: int) -> Values:
    """The numbers of many lines, [len(texts), width]. Raises ValueError where something is no number."""
    import pandas as pd

    if not texts:
        return np.empty((0, width), np.float32)
    frame = pd.read_csv(
        io.BytesIO(b"\n".join(texts)), sep=" ", header=None, dtype=np.float32, quoting=3, na_filter=False
    )  # fmt: skip
    if frame.shape != (len(texts), width):
        raise ValueError("ragged")
    return frame.to_numpy()


def _add_line(rows: Rows, line: bytes, number: int) -> None:
    """One line that is not plain: a word with spaces in it, tabs, or no vector at all."""
    parts = line.rsplit(None, rows.width)
    try:
        values = np.array([[float(part) for part in parts[1:]]], np.float32)
    except (ValueError, OverflowError):
        return rows.leave_out("not numbers", number)
    if len(parts) != rows.width + 1:
        return rows.leave_out(f"without {rows.width} numbers", number)
    return rows.add([parts[0].strip().decode("utf-8", "replace")], values, [number])
