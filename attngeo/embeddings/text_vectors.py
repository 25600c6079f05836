"""Word vectors as text, one word and its numbers for each line: GloVe, fastText's .vec and word2vec's text format.

fastText and word2vec begin with a line of two integers: the number of vectors and their width. gensim's reader is not
used: it takes seven times as long (19 s against 2.5 s for 100,000 vectors of 300 numbers), stops at the first bad line
without its number, and does not read words that contain spaces (GloVe 840B has some).
"""

from __future__ import annotations

import codecs
import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.rows import RowCollector, Values
from attngeo.embeddings.streams import LONGEST_LINE, Stream
from attngeo.errors import CorruptCheckpointError

HEADER = re.compile(rb"\s*(\d{1,12})\s+(\d{1,6})\s*")
# So few lines take as long at once as one by one.
FEW = 64
# Bytes that texts do not have, and float32 numbers nearly always have.
CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")


def read_text(stream: Stream) -> Embedding:
    """The vectors of a text file. Lines of another width or without numbers are left out, and a note lists them.

    Raises CorruptCheckpointError if the file has fewer lines than its first line announces, or hardly any vectors.
    """
    announced, width = _read_dimensions(stream)
    rows, number = RowCollector(stream.ref, width, "line"), 0
    skip = 0 if announced is None else 1
    for block in _split_blocks(stream):
        numbers = range(number + 1, number + len(block) + 1)
        number += len(block)
        first = skip if numbers.start == 1 else 0
        _add_lines(rows, block[first:], numbers[first:])
    if announced is None:
        return rows.finish()
    count = number - skip
    if count < announced:
        raise CorruptCheckpointError(
            f"{stream.ref}: it ends after {count:,} vectors, its first line announces {announced:,}; download it again"
        )
    if count > announced:
        return rows.finish(f"{count:,} vectors, although the first line announces {announced:,}")
    return rows.finish()


def is_text(head: bytes) -> bool:
    """Whether these first bytes are a word and numbers, on the first line or after a header."""
    lines = head.split(b"\n")[:2]
    line = lines[-1] if HEADER.fullmatch(lines[0]) and len(lines) > 1 else lines[0]
    values = line.split()[1:]
    if not values or CONTROL.search(line):
        return False
    try:
        float(values[-1])
    except ValueError:
        return False
    return True


def _read_dimensions(stream: Stream) -> tuple[int | None, int]:
    """The number of vectors that a header announces (None without a header), and their width."""
    lines = stream.head.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if header := HEADER.fullmatch(lines[0]):
        if 0 in (int(header[1]), int(header[2])):
            raise CorruptCheckpointError(f"{stream.ref}: line 1 announces {lines[0].decode()!r}, no vectors at all")
        return int(header[1]), int(header[2])
    # The most frequent width, because the first word may contain a space. The head may end inside a line.
    whole = lines[:-1] or lines
    widths = Counter(len(line.split()) - 1 for line in whole[:100] if line.strip())
    width = widths.most_common(1)[0][0]
    if not width:
        raise CorruptCheckpointError(f"{stream.ref}: its lines are single words, expected a word and its numbers each")
    return None, width


def _split_blocks(stream: Stream) -> Iterator[list[bytes]]:
    """The lines of the stream, in blocks of some megabytes."""
    rest, first = b"", True
    for chunk in stream.chunks():
        *lines, rest = (rest + (chunk.removeprefix(codecs.BOM_UTF8) if first else chunk)).split(b"\n")
        first = False
        if len(rest) > LONGEST_LINE:
            raise CorruptCheckpointError(f"{stream.ref}: no word vectors: a line has over {LONGEST_LINE:,} bytes")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _add_lines(rows: RowCollector, lines: list[bytes], numbers: range) -> None:
    """Add lines: at once those that stand together and are a word and numbers with single spaces between them."""
    run = LineRun([], [], [])
    for number, line in zip(numbers, lines, strict=True):
        word, _, text = line.strip(b"\r\n ").replace(b"\t", b" ").partition(b" ")
        if word and text.count(b" ") == rows.width - 1:
            run.words.append(word)
            run.texts.append(text)
            run.numbers.append(number)
        elif word or line.strip():
            _add_run(rows, run)
            run = LineRun([], [], [])
            _add_line(rows, line, number)
    _add_run(rows, run)


class LineRun(NamedTuple):
    """Lines: the word, the numbers as text and the number of each line."""

    words: list[bytes]
    texts: list[bytes]
    numbers: list[int]


def _add_run(rows: RowCollector, run: LineRun) -> None:
    """Add lines at once; if one has text in place of a number, halve them until they are few."""
    if len(run.words) <= FEW:
        for word, text, number in zip(*run, strict=True):
            _add_line(rows, word + b" " + text, number)
        return None
    try:
        return rows.add(run.words, _parse(run.texts, rows.width), run.numbers)
    except ValueError:
        pass
    half = len(run.words) // 2
    _add_run(rows, LineRun(*(part[:half] for part in run)))  # type: ignore[arg-type]  # three lists
    return _add_run(rows, LineRun(*(part[half:] for part in run)))  # type: ignore[arg-type]


def _parse(texts: list[bytes], width: int) -> Values:
    """The numbers of many lines, [len(texts), width]. Raises ValueError if one of them is not a number."""
    import pandas as pd

    with np.errstate(over="ignore"):  # numbers beyond float32 become Inf, and their rows are left out
        frame = pd.read_csv(
            io.BytesIO(b"\n".join(texts)), sep=" ", header=None, dtype=np.float32, quoting=3, na_filter=False
        )  # fmt: skip
    if frame.shape != (len(texts), width):
        raise ValueError("ragged")
    return frame.to_numpy()


def _add_line(rows: RowCollector, line: bytes, number: int) -> None:
    """Add a line that has spaces in its word, or count it as left out. Ignores empty lines."""
    parts = line.rsplit(None, rows.width)
    if not parts:
        return None
    try:
        with np.errstate(over="ignore"):
            values = np.array([[_parse_number(part) for part in parts[1:]]], np.float32)
    except ValueError:
        return rows.leave_out("with text in place of a number", number)
    if len(parts) != rows.width + 1:
        return rows.leave_out(f"with fewer than {rows.width} numbers", number)
    return rows.add([parts[0].strip()], values, [number])


def _parse_number(text: bytes) -> float:
    if b"_" in text:  # Python takes it for a digit separator
        raise ValueError("not a number")
    return float(text)
