"""word2vec's binary format: a line of two integers, then for each word the word, a space and its float32 numbers.

gensim's reader is not used: it is no faster, reports neither progress nor the number of the broken vector, needs a path
(no member of a .zip), and takes hours for gigabytes that are not word vectors.
Source of the format: https://github.com/tmikolov/word2vec/blob/master/word2vec.c
"""

from __future__ import annotations

import re

import numpy as np

from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.rows import RowCollector
from attngeo.embeddings.streams import Stream
from attngeo.embeddings.text_vectors import HEADER
from attngeo.errors import CorruptCheckpointError

LONGEST_WORD = 4096
# Bytes of numbers in a text. A float32 vector has a sixteenth of them, and a text that was damaged has most.
NUMERALS = re.compile(rb"[0-9.eE+\s-]+")
MOST_NUMERALS = 0.6
SAMPLE, LEAST_BYTES = 4096, 12


def read_binary(stream: Stream) -> Embedding:
    """The vectors of a word2vec binary file. Raises CorruptCheckpointError if it ends early or is of another format."""
    announced, width, start = _read_dimensions(stream)
    rows, size, record = RowCollector(stream.ref, width, "vector"), 4 * width, 0
    chunks = stream.chunks()
    buffer = next(chunks)[start:]
    while True:
        words, vectors, first, offset = [], [], record + 1, 0
        while record < announced:
            space = buffer.find(b" ", offset, offset + LONGEST_WORD)
            end = space + 1 + size
            if space < 0 or end > len(buffer):
                break
            words.append(buffer[offset:space].lstrip(b"\n"))
            vectors.append(buffer[space + 1 : end])
            offset, record = end, record + 1
        joined = b"".join(vectors)
        _refuse_text(joined[:SAMPLE], stream.ref)
        values = np.frombuffer(joined, "<f4").astype(np.float32, copy=False)
        rows.add(words, values.reshape(len(words), width), range(first, record + 1))
        if record < announced and len(buffer) - offset > LONGEST_WORD + size:
            raise CorruptCheckpointError(f"{stream.ref}: vector {record + 1:,} has no word; download it again")
        if record == announced:
            break
        chunk = next(chunks, b"")
        if not chunk:
            break
        buffer = buffer[offset:] + chunk
    if record < announced:
        raise CorruptCheckpointError(
            f"{stream.ref}: it ends after {record:,} vectors, its first line announces {announced:,}; download it again"
        )
    return rows.finish(*_describe_rest(buffer[offset:] + next(chunks, b""), announced))


def _read_dimensions(stream: Stream) -> tuple[int, int, int]:
    """The number of vectors that the first line announces, their width, and the place of the first one."""
    line, _, _ = stream.head.partition(b"\n")
    header = HEADER.fullmatch(line)
    if not stream.head:
        raise CorruptCheckpointError(
            f"{stream.ref}: the file is empty, expected a word and its numbers on each line; download it again"
        )
    if header is None or not int(header[1]) or not int(header[2]):
        raise CorruptCheckpointError(
            f"{stream.ref}: no word vectors: it starts with {line[:40]!r}, expected a word and its numbers, or "
            "the number of vectors and their width"
        )
    return int(header[1]), int(header[2]), len(line) + 1


def _refuse_text(vectors: bytes, ref: str) -> None:
    """Raise CorruptCheckpointError if the bytes of vectors are those of a text."""
    if len(vectors) >= LEAST_BYTES and len(NUMERALS.sub(b"", vectors)) < (1 - MOST_NUMERALS) * len(vectors):
        raise CorruptCheckpointError(
            f"{ref}: a text after its first line, but its second line is not a word and numbers; download it again"
        )


def _describe_rest(rest: bytes, announced: int) -> list[str]:
    """A note if the file goes on after its last vector."""
    note = f"only {announced:,} vectors, as the first line announces; the file has more behind them"
    return [note] if rest.strip() else []
