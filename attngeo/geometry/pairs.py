"""The largest entries of a product of two long factors, which is never held in memory as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Bytes of the part of the product that is in memory at a time.
BLOCK_BYTES = 1 << 26


class Entries(NamedTuple):
    """Entries of a matrix; all of one shape.

    Attributes:
        values: their values.
        rows: numbers of their rows, from 0.
        columns: numbers of their columns, from 0.
    """

    values: Tensor
    rows: Tensor
    columns: Tensor


def largest_of_all(left: Tensor, right: Tensor, count: int, progress: Callable[[int], None] | None = None) -> Entries:
    """The largest entries of left·rightᵀ, in descending order.

    Args:
        left: [n, rank].
        right: [m, rank].
        count: how many entries; fewer if the product has fewer.
        progress: called with the number of rows that are done.

    Returns:
        [count] each.
    """
    best = Entries(left.new_empty(0), *(torch.empty(2, 0, dtype=torch.int64, device=left.device)))
    for first, block in _blocks(left, right):
        # Rows without an entry that is among the largest until now need no search.
        least = best.values[-1] if len(best.values) == count else -math.inf
        rows = (block.amax(1) > least).nonzero()[:, 0]
        tops = block[rows].topk(min(count, len(right)))
        found = (tops.values, first + rows[:, None].expand_as(tops.indices), tops.indices)
        joined = Entries(*(torch.cat([old, new.flatten()]) for old, new in zip(best, found, strict=True)))
        order = joined.values.argsort(descending=True, stable=True)[:count]
        best = Entries(*(part[order] for part in joined))
        if progress is not None:
            progress(first + len(block))
    return best


def largest_of_rows(left: Tensor, right: Tensor, count: int) -> Entries:
    """The largest entries of each row of left·rightᵀ, in descending order.

    Args:
        left: [n, rank].
        right: [m, rank].
        count: how many entries of a row; fewer if a row has fewer.

    Returns:
        [n, count] each.
    """
    count = min(count, len(right))
    tops = [block.topk(count) for _, block in _blocks(left, right)]
    columns = torch.cat([top.indices for top in tops])
    rows = torch.arange(len(left), device=left.device)[:, None].expand_as(columns)
    return Entries(torch.cat([top.values for top in tops]), rows, columns)


def _blocks(left: Tensor, right: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The number of the first row of each block of left·rightᵀ, and the block, [rows, m]."""
    at_once = max(BLOCK_BYTES // (len(right) * left.element_size()), 1)
    for first in range(0, len(left), at_once):
        yield first, left[first : first + at_once] @ right.T
