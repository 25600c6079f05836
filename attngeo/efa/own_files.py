"""A user's own files: which are read in parts, and how errors call their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from attngeo.errors import TableError
from attngeo.options import INPUT, option, parse_bytes


def in_memory_option() -> int:
    """The option of a command that reads a file."""
    size: int = option(
        256_000_000, "Largest Parquet file that is read at once; a larger one is read in parts", panel=INPUT,
        metavar="SIZE", parse=partial(parse_bytes, name="in_memory"), shown_default="256MB",
    )  # fmt: skip
    return size


def is_large(path: str, in_memory: int) -> bool:
    """Whether a file is a Parquet file of more bytes, which is read in parts."""
    place = Path(path).expanduser()
    return place.suffix.lower() == ".parquet" and place.is_file() and place.stat().st_size > in_memory


@contextmanager
def naming(files: Mapping[str, str | None]) -> Iterator[None]:
    """Let the errors of tables in the block name files. files: what an error calls a table → its file."""
    try:
        yield
    except TableError as error:
        for name, path in files.items():
            if path and str(error).startswith(name):
                raise TableError(path + str(error).removeprefix(name)) from None
        raise
