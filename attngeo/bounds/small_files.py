"""Small files that others have written, such as a config.json or a recipe: regular files only, up to a limit of bytes.

A FIFO or a device may never end, and a file may be gigabytes long. So every small file is read here.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MEGABYTE = 1 << 20
# Several times the longest that are known: 2 MB for the configuration of a classifier with 21,000 labels, 9 MB for the
# index of 90,000 tensors, 35 MB for a tokenizer.json. Parsed, a file needs up to twenty times its bytes of memory.
MOST_BYTES = 16 * MEGABYTE
MOST_INDEX_BYTES = 64 * MEGABYTE
MOST_TOKENISER_BYTES = 256 * MEGABYTE
MOST_RESULTS_BYTES = 1024 * MEGABYTE


def check_small(path: Path, most: int = MOST_BYTES) -> int:
    """The number of bytes of a small file that another library reads.

    Raises OSError if it is no regular file, ValueError if it has more than `most` bytes.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if status.st_size > most:
        raise ValueError(f"it has {status.st_size:,} bytes, expected at most {most:,}")
    return status.st_size


def read_small_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a small file.

    Raises OSError if it cannot be read, or is no regular file; ValueError if it has more than `most` bytes.
    """
    size = check_small(path, most)
    with path.open("rb") as file:
        content = file.read(size + 1)
    if len(content) > size:  # it grows, or it is a file of the system without a size
        raise ValueError(f"it has more bytes than its size of {size:,}")
    return content


def read_small_text(path: Path, most: int = MOST_BYTES, encoding: str = "utf-8") -> str:
    """The text of a small file. Raises as `read_small_bytes`, and ValueError if it is not UTF-8.

    encoding: "utf-8", or "utf-8-sig" for a file that may start with a byte order mark.
    """
    content = read_small_bytes(path, most)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: byte {error.object[error.start]:#04x} at {error.start:,}") from None
