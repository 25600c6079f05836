"""The header of a .gguf file: its values, and the tensors that it lists.

The gguf package reads paths only, so the header is read here.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from attngeo.checkpoints.first_bytes import GGUF
from attngeo.checkpoints.tensor_file import ByteSource, explain_content, read_bytes
from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsupportedModelError, about

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# No version is as large. One that is written from its last byte to its first is larger.
LARGEST_VERSION = 1 << 16
# Bytes that are read at a time, at first and at most: of the last part much may be no header.
FIRST_CHUNK = 1 << 16
CHUNK = 1 << 20
# Limits that no real file reaches: bytes of a header and of a text, texts of a list, of all lists.
LONGEST_HEADER = 1 << 29
LONGEST_TEXT = 1 << 24
MOST_TEXTS_READ = 1 << 20
MOST_VALUES_SKIPPED = 1 << 22
# The number of a type of value in the header → how `struct` reads it; 8 is a text, 9 a list.
VALUES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT = 8
LIST = 9
# What the keys about the vocabulary begin with, and those of the lists of tokens and of their types.
VOCABULARY = "tokenizer.ggml"
TOKENS = f"{VOCABULARY}.tokens"
TOKEN_TYPES = f"{VOCABULARY}.token_type"


class Unread(NamedTuple):
    """A list that was skipped. length: the number of its values."""

    length: int

    def __str__(self) -> str:
        return f"a list of {self.length:,}"


class GgufEntry(NamedTuple):
    """One tensor in a header.

    Attributes:
        name: name of the tensor.
        shape: dimensions, in the reverse of their order in the file.
        dtype: number of its type.
        offset: first byte of the tensor, counted from the start of the tensors.
    """

    name: str
    shape: tuple[int, ...]
    dtype: int
    offset: int


class HeaderReader:
    """Reads a header value by value. position: the next byte."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self.position = 0
        self._texts = 0  # texts of all lists so far
        # The bytes that are in memory, and the position of the first one.
        self._chunk = b""
        self._start = 0

    def broken(self, problem: str) -> CorruptCheckpointError:
        """The error for a broken header."""
        return CorruptCheckpointError(f"the GGUF header {problem}; copy or download it again")

    def explain_start(self, magic: bytes, version: int) -> AttnGeoError:
        """The error for a file with an unexpected beginning."""
        if magic != MAGIC:
            return explain_content(self._source, GGUF) or self.broken(
                f"begins with {magic!r} and version {version}, expected {MAGIC!r} and version 2 or 3"
            )
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped < LARGEST_VERSION < version:
            return UnsupportedModelError(
                f"a big-endian GGUF file (version {swapped}), expected little-endian; convert it with "
                "gguf-convert-endian FILE little, from the gguf package"
            )
        advice = "give the checkpoint that it was made from" if version < min(VERSIONS) else "update attngeo"
        return UnsupportedModelError(f"a GGUF file of version {version}, expected 2 or 3; {advice}")

    def take(self, count: int) -> bytes:
        """The next bytes."""
        end = self.position + count
        if not 0 <= count <= LONGEST_TEXT or end > min(self._source.size, LONGEST_HEADER):
            raise self.broken(f"announces {count:,} bytes at {self.position:,}, but the file has {self._source.size:,}")
        if end > self._start + len(self._chunk):
            self._start = self.position
            usual = min(max(self.position // 2, FIRST_CHUNK), CHUNK)
            length = min(max(count, usual), self._source.size - self.position)
            self._chunk = read_bytes(self._source, self.position, length, "header")
        first = self.position - self._start
        self.position = end
        return self._chunk[first : first + count]

    def number(self, form: str) -> Any:
        """The next number. form: its type in `struct`."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        """The next text, a name."""
        try:
            return self.take(self.number("Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise self.broken("has a name that is not UTF-8") from None

    def value(self, kind: int, *, is_wanted: bool = False) -> Any:
        """The next value; `Unread` for a list that is not wanted."""
        if kind == TEXT:
            return self.take(self.number("Q")).decode("utf-8", "replace")
        if kind != LIST:
            return self.number(self._form(kind))
        kind = self.number("I")
        count = self.number("Q")
        if kind != TEXT:
            form = self._form(kind)
            if count > CHUNK:
                raise self.broken(f"announces a list of {count:,} numbers, which is too long")
            raw = self.take(struct.calcsize(form) * count)
            return np.frombuffer(raw, np.dtype(form).newbyteorder("<")) if is_wanted else Unread(count)
        self._texts += count
        most = MOST_TEXTS_READ if is_wanted else self._source.size // 8
        if count > most or self._texts > MOST_VALUES_SKIPPED:
            raise self.broken(f"announces a list of {count:,} strings, which is too long")
        if is_wanted:
            return [self.value(TEXT) for _ in range(count)]
        self._skip_texts(count)
        return Unread(count)

    def _skip_texts(self, count: int) -> None:
        """Read over texts, all that are in memory at a time: a vocabulary has very many short ones."""
        length = struct.Struct("<Q")
        while count:
            self.take(self.number("Q"))
            count -= 1
            offset = self.position - self._start
            while count and offset + 8 <= len(self._chunk):
                end = offset + 8 + length.unpack_from(self._chunk, offset)[0]
                if end > len(self._chunk):
                    break
                offset = end
                count -= 1
            self.position = self._start + offset

    def _form(self, kind: int) -> str:
        if kind not in VALUES:
            raise self.broken(f"has a value of unknown type {kind}")
        return VALUES[kind]


def read_vocabulary(source: ByteSource) -> dict[str, Any]:
    """The values of a header, as in `GgufFile.metadata`, with the lists of tokens and token types."""
    with about(source.where):
        metadata, _ = read_header(HeaderReader(source), (TOKENS, TOKEN_TYPES))
    return metadata


def read_header(reader: HeaderReader, wanted: Collection[str] = ()) -> tuple[dict[str, Any], list[GgufEntry]]:
    """The values and tensors in a header. wanted: keys of lists to keep, whatever their length."""
    magic = reader.take(4)
    version = reader.number("I")
    if magic != MAGIC or version not in VERSIONS:
        raise reader.explain_start(magic, version)
    count = reader.number("Q")
    keys = reader.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = reader.text()
        if key in metadata:
            raise reader.broken(f"states {key!r:.80} twice")
        metadata[key] = reader.value(reader.number("I"), is_wanted=key in wanted)
    entries = []
    for _ in range(count):
        name = reader.text()
        dimensions = reader.number("I")
        if dimensions > 4:
            raise reader.broken(f"announces a tensor of {dimensions} dimensions, expected at most 4")
        shape = tuple(reader.number("Q") for _ in range(dimensions))[::-1]
        if any(size >= 1 << 40 for size in shape):
            raise reader.broken(f"announces a tensor of shape {list(shape)}, which is too large")
        dtype = reader.number("I")
        offset = reader.number("Q")
        entries.append(GgufEntry(name, shape, dtype, offset))
    return metadata, entries
