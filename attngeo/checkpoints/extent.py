"""A range of bytes of a file."""

from __future__ import annotations

from typing import NamedTuple


class Extent(NamedTuple):
    """A range of bytes."""

    offset: int
    nbytes: int
