"""The encoding of a text file of others: UTF-8, UTF-16 with or without a byte order mark, or cp1252."""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from attngeo.bounds.small_files import open_regular

UTF8 = "utf-8-sig"
BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
CP1252 = "cp1252"
# A character of several bytes in UTF-8.
MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
# Bytes of the longest one, which may begin in the chunk before.
LONGEST_CHARACTER = 4
# Bytes that are read at once.
CHUNK_BYTES = 1 << 16


def find_encoding(path: Path) -> str:
    """The encoding of a text file: UTF-16, UTF-8, or cp1252 for text that is not UTF-8 anywhere. Raises OSError."""
    state = path.stat()
    return _find_encoding(path, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=64)
def _find_encoding(path: Path, *_state: int) -> str:
    """The encoding of a file in a state: a table is opened several times, and read whole for its encoding once."""
    with open_regular(path) as file:
        head = file.read(CHUNK_BYTES)
        encoding = find_utf16(head)
        if encoding:
            return encoding
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while head:
                decoder.decode(head)
                head = file.read(CHUNK_BYTES)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            pass
        else:
            return UTF8
    with open_regular(path) as file:
        return CP1252 if is_cp1252(file) else UTF8


def find_utf16(head: bytes) -> str:
    """The name of UTF-16 for the beginning of such a file, with a byte order mark or without; "" for other ones."""
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    first, second = head[::2].count(0), head[1::2].count(0)
    least = len(head) // 4  # half of the characters are of Latin letters, digits and separators
    if second > least and not first:
        return "utf-16-le"
    if first > least and not second:
        return "utf-16-be"
    return ""


def is_cp1252(file: BinaryIO) -> bool:
    """Whether a file that is not UTF-8 may be cp1252. If it has some UTF-8 characters, it is a damaged file."""
    end = b""
    while chunk := file.read(CHUNK_BYTES):
        if MULTIBYTE.search(end + chunk):
            return False
        try:
            chunk.decode(CP1252)
        except UnicodeDecodeError:
            return False
        end = chunk[-LONGEST_CHARACTER:]
    return True
