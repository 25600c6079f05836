"""Word vectors as text, one word and its numbers a line: GloVe, fastText's .vec and word2vec's text format.

The latter two begin with a line of two integers: how many vectors there are, and their width.
"""

from __future__ import annotations

import codecs
import io
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.rows import Rows, Values
from attngeo.embeddings.streams import LONGEST_LINE, Stream
from attngeo.errors import CorruptCheckpointError

HEADER = re.compile(rb"\s*(\d{1,12})\s+(\d{1,6})\s*")
# Bytes that texts do not have, and float32 numbers nearly always do.
CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")


def read_text(stream: Stream) -> Embedding:
    """The vectors of a text file; lines that are ragged or not numbers are left out, and a note says which."""
    announced, width, skip = _dimensions(stream)
    rows, number = Rows(stream.ref, width), 0
    for block in _line_blocks(stream):
        numbers = range(number + 1, number + len(block) + 1)
        number += len(block)
        first = skip if numbers.start == 1 else 0
        _add_lines(rows, block[first:], numbers[first:])
    if announced is None:
        return rows.embedding()
    extra = number - skip - announced
    if extra < 0:
        raise CorruptCheckpointError(
            f"{stream.ref}: ends after {number - skip:,} of the {announced:,} vectors that its first line announces; "
            "download it again"
        )
    return rows.embedding("line", *[f"{extra:,} lines more than its first line announces"] * bool(extra))


def is_text(head: bytes) -> bool:
    """Whether these first bytes look like a word and numbers, in a line or after a header."""
    lines = head.split(b"\n")[:2]
    line = lines[-1] if HEADER.fullmatch(lines[0]) and len(lines) > 1 else lines[0]
    values = line.split()[1:]
    try:
        return bool(values) and not CONTROL.search(line) and float(values[-1]) is not None
    except ValueError:
        return False


def _dimensions(stream: Stream) -> tuple[int | None, int, int]:
    """How many vectors are announced, their width, and how many lines the header takes."""
    lines = stream.head.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if header := HEADER.fullmatch(lines[0]):
        if 0 in (int(header[1]), int(header[2])):
            raise CorruptCheckpointError(f"{stream.ref}: line 1 announces {lines[0].decode()!r}, no vectors at all")
        return int(header[1]), int(header[2]), 1
    # Most lines agree on the width, also where the first word has a space in it. The head may end inside a line.
    whole = lines[:-1] or lines
    widths = Counter(len(line.split()) - 1 for line in whole[:100] if line.strip())
    return None, widths.most_common(1)[0][0], 0


def _line_blocks(stream: Stream) -> Iterator[list[bytes]]:
    """The lines of the stream, some megabytes of whole ones at a time."""
    rest, first = b"", True
    for chunk in stream.chunks():
        *lines, rest = (rest + (chunk.removeprefix(codecs.BOM_UTF8) if first else chunk)).split(b"\n")
        first = False
        if len(rest) > LONGEST_LINE:
            raise CorruptCheckpointError(f"{stream.ref}: has a line of over {LONGEST_LINE:,} bytes, no word vectors")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _add_lines(rows: Rows, lines: list[bytes], numbers: range) -> None:
    """All lines at once where each is a word, a space and numbers between single spaces; else by halves, to one."""
    parts = [line.strip(b"\r\n ").replace(b"\t", b" ").partition(b" ") for line in lines]
    if all(word and rest.count(b" ") == rows.width - 1 for word, _, rest in parts):
        try:
            return rows.add([word for word, _, _ in parts], _parse([rest for _, _, rest in parts], rows.width), numbers)
        except ValueError:
            pass
    if len(lines) == 1:
        return _add_line(rows, lines[0], numbers[0])
    half = len(lines) // 2
    _add_lines(rows, lines[:half], numbers[:half])
    return _add_lines(rows, lines[half:], numbers[half:])


def _parse(texts: list[bytes], width: int) -> Values:
    """The numbers of many lines, [len(texts), width]. Raises ValueError where something is no number."""
    import pandas as pd

    if not texts:
        return np.empty((0, width), np.float32)
    with np.errstate(over="ignore"):  # what float32 cannot hold is left out as not finite
        frame = pd.read_csv(
            io.BytesIO(b"\n".join(texts)), sep=" ", header=None, dtype=np.float32, quoting=3, na_filter=False
        )  # fmt: skip
    if frame.shape != (len(texts), width):
        raise ValueError("ragged")
    return frame.to_numpy()


def _add_line(rows: Rows, line: bytes, number: int) -> None:
    """One line that is not plain: a word with spaces in it, or no vector at all. Empty lines are passed over."""
    parts = line.rsplit(None, rows.width)
    if not parts:
        return None
    try:
        with np.errstate(over="ignore"):
            values = np.array([[_number(part) for part in parts[1:]]], np.float32)
    except ValueError:
        return rows.leave_out("not numbers", number)
    if len(parts) != rows.width + 1:
        return rows.leave_out(f"without {rows.width} numbers", number)
    return rows.add([parts[0].strip()], values, [number])


def _number(text: bytes) -> float:
    if b"_" in text:  # which Python takes for a digit separator
        raise ValueError("not a number")
    return float(text)
