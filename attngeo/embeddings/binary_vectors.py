"""word2vec's binary format: a line of two integers, then for each word the word, a space and its float32 numbers.

gensim's reader is not used: it is no faster, reports neither progress nor the number of the broken vector, needs a path
(no member of a .zip), and takes hours for gigabytes that are not word vectors.
Source of the format: https://github.com/tmikolov/word2vec/blob/master/word2vec.c
"""

from __future__ import annotations

import numpy as np

from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.rows import RowCollector
from attngeo.embeddings.streams import Stream
from attngeo.embeddings.text_vectors import HEADER
from attngeo.errors import CorruptCheckpointError

LONGEST_WORD = 4096


def read_binary(stream: Stream) -> Embedding:
    """The vectors of a word2vec binary file. Raises CorruptCheckpointError if it ends early or is of another format."""
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
    announced, width = int(header[1]), int(header[2])
    rows, size, record = RowCollector(stream.ref, width, "vector"), 4 * width, 0
    chunks = stream.chunks()
    buffer = next(chunks)[len(line) + 1 :]
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
        values = np.frombuffer(b"".join(vectors), "<f4").astype(np.float32, copy=False)
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


def _describe_rest(rest: bytes, announced: int) -> list[str]:
    """A note if the file goes on after its last vector."""
    note = f"only {announced:,} vectors, as the first line announces; the file has more behind them"
    return [note] if rest.strip() else []
