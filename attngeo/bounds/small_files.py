"""Reading of small files that attngeo may not have written, such as a config.json or a recipe.

A FIFO or a device may never end, and a file may be gigabytes long. So these functions accept regular files only, up to
a limit of bytes. Every small file is read here, or checked here before another library reads it.
Messages of a ValueError begin with "it" or "not": the caller puts the name of the file before them.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MEBIBYTE = 1 << 20
# Limits in bytes, several times the longest files that are known. Parsing needs up to twenty times as much memory.
# Configurations, recipes and lists. Longest: 2 MB, of a classifier with 21,000 labels.
MOST_CONFIG_BYTES = 16 * MEBIBYTE
# The index of a sharded checkpoint, and texts of sentences. Longest: 9 MB, of 90,000 tensors.
MOST_INDEX_BYTES = 64 * MEBIBYTE
# Longest: 35 MB, of a tokenizer.json.
MOST_TOKENIZER_BYTES = 256 * MEBIBYTE
# Tables of results.
MOST_RESULTS_BYTES = 1024 * MEBIBYTE


class NotTextError(ValueError):
    """The bytes of a file are not text in the expected encoding."""


def require_regular_file(path: Path, most_bytes: int = MOST_CONFIG_BYTES) -> int:
    """Check a file before it is read, here or by another library.

    Args:
        path: the file.
        most_bytes: the limit of its size.

    Returns:
        The size of the file in bytes.

    Raises:
        OSError: It does not exist, or is not a regular file.
        ValueError: It has more than `most_bytes` bytes.
    """
    status = path.stat()
    _require_regular(path, status.st_mode)
    if status.st_size > most_bytes:
        raise ValueError(f"it has {status.st_size:,} bytes, expected at most {most_bytes:,}")
    return status.st_size


def _require_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def open_regular(path: Path) -> BinaryIO:
    """A file of any size, opened to read its bytes.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    _require_regular(path, path.stat().st_mode)
    return path.open("rb")


def read_small_bytes(path: Path, most_bytes: int = MOST_CONFIG_BYTES) -> bytes:
    """The content of a small file.

    Args:
        path: the file.
        most_bytes: the limit of its size.

    Raises:
        OSError: It cannot be read, or is not a regular file.
        ValueError: It has more than `most_bytes` bytes, or more than the size that the system states.
    """
    size = require_regular_file(path, most_bytes)
    with path.open("rb") as file:
        content = file.read(size + 1)
    if len(content) > size:  # the file grows, or it is one such as those in /proc, whose size is stated as 0
        raise ValueError(f"it has more bytes than its stated size, {size:,}")
    return content


def read_small_text(path: Path, most_bytes: int = MOST_CONFIG_BYTES, encoding: str = "utf-8") -> str:
    """The text of a small file.

    Args:
        path: the file.
        most_bytes: the limit of its size.
        encoding: of Python; "utf-8-sig" for a file of UTF-8 that may start with a byte order mark.

    Raises:
        OSError: As `read_small_bytes`.
        ValueError: As `read_small_bytes`.
        NotTextError: The file is not UTF-8. The message has the offset of the byte, from 0.
    """
    content = read_small_bytes(path, most_bytes)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        name = "UTF-8" if encoding.startswith("utf-8") else encoding
        raise NotTextError(f"not {name} (byte {error.object[error.start]:#04x} at offset {error.start:,})") from None
