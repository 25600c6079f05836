"""Differences between the queries and keys of a running model and of its weights, whatever their arrangement."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import normalize

# Relative difference that rounding in float32 explains. A wrong head, gain or order differs by far more.
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Prediction:
    """Queries and keys of one site for known inputs, from its weights: [heads, runs, head_dim] each.

    Attributes:
        query: Wq applied to the inputs.
        key: Wk applied to the inputs.
        query_with_bias: the queries with the biases added.
        key_with_bias: the keys with the biases added.
    """

    query: Tensor
    key: Tensor
    query_with_bias: Tensor
    key_with_bias: Tensor


def compare_products(predicted: Prediction, query: Tensor, key: Tensor, offset: int = 0) -> tuple[float, bool]:
    """Difference between the products of a running model and those of the weights.

    Args:
        predicted: queries and keys of the weights.
        query: first factor that the model multiplied in each run, [runs, n, tokens, width].
        key: second factor, [runs, n, tokens, width].
        offset: compare queries with the keys this many tokens before them.

    Returns:
        The relative difference of the products of all queries with all keys of the same head and token, up to one
        positive factor (infinite if their numbers do not match); and whether only directions were compared. If a model
        divides queries and keys by their lengths, only directions match.
    """
    best = (math.inf, False)
    changes = changes_of(predicted.query) @ changes_of(predicted.key).mT
    directions = normalize(predicted.query_with_bias, dim=-1) @ normalize(predicted.key_with_bias, dim=-1).mT
    for ran_query, ran_key in arrange_heads(query, key, len(predicted.query), offset):
        ran_changes = changes_of(ran_query) @ changes_of(ran_key).mT
        difference = _relative_difference(ran_changes, changes)
        if difference < TOLERANCE:
            return difference, False
        ran_directions = normalize(ran_query, dim=-1) @ normalize(ran_key, dim=-1).mT
        best = min(best, (difference, False), (_relative_difference(ran_directions, directions), True))
    return best


def changes_of(x: Tensor) -> Tensor:
    """Vectors of later runs minus the vectors of the first run, which removes biases: [heads, runs - 1, width]."""
    return x[:, 1:] - x[:, :1]


def difference_of(one: Prediction, other: Prediction) -> float:
    """Difference between the weights of two sites, by products of their queries and keys: infinite if shapes differ.

    It is relative to the second site and ignores biases and the order of the dimensions of a head.
    """
    have = one.query @ one.key.mT
    want = other.query @ other.key.mT
    if have.shape != want.shape:
        return math.inf
    size = want.norm()
    if size:
        return float((have - want).norm() / size)
    return math.inf if have.any() else 0.0


def arrange_heads(query: Tensor, key: Tensor, heads: int, offset: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries and keys [heads, runs, width] of one token, for each order in which a model can store its heads.

    Yields a token in the middle, away from padding, and then the first token, which no position rotates.
    """
    n = query.shape[1]
    if n % key.shape[1]:
        return
    key = key.repeat_interleave(n // key.shape[1], 1)  # keys that a fused operation shares between heads
    if n < heads:
        yield from _arrange_shared(query, key, heads, offset)
    elif n % heads == 0:
        others = n // heads  # sequences, windows or chunks, before or after the heads
        for shape, axis in (((others, heads), 1), ((heads, others), 2)):
            q = query.reshape(query.shape[0], *shape, *query.shape[2:])
            k = key.reshape(key.shape[0], *shape, *key.shape[2:])
            for index in dict.fromkeys((others // 2, 0)):
                yield from _of_tokens(q.select(axis, index), k.select(axis, index), offset)


def _arrange_shared(query: Tensor, key: Tensor, heads: int, offset: int) -> Iterator[tuple[Tensor, Tensor]]:
    """As `arrange_heads`, for queries that share a key head as rows of one product."""
    runs, n, rows, width = query.shape
    shared = heads // n
    if heads % n or rows % shared:
        return
    tokens = rows // shared
    key = key.repeat_interleave(shared, 1)
    by_token = query.reshape(runs, n, tokens, shared, width).permute(0, 1, 3, 2, 4)
    by_head = query.reshape(runs, n, shared, tokens, width)
    for arranged in (by_token, by_head):
        yield from _of_tokens(arranged.reshape(runs, heads, tokens, width), key, offset)


def _of_tokens(query: Tensor, key: Tensor, offset: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries and keys [heads, runs, width] of some tokens, from [runs, heads, tokens, width].

    If a block of tokens looks at itself and its neighbours, the first token is the first one of the second block. If
    tokens look at others before them, such as those of an encoder, their own keys are the last ones.
    """
    tokens = query.shape[2]
    keys = key.shape[2]
    if offset:
        if tokens <= abs(offset) or keys < tokens:
            return
        middle = (tokens - offset) // 2
        positions = [(middle + offset, middle), (middle + offset, middle + keys - tokens)]
    else:
        positions = [(tokens // 2, keys // 2), (0, 0)]
        if keys >= 2 * tokens:
            positions.append((0, tokens))
        if keys > tokens:
            positions.append((tokens // 2, keys - tokens + tokens // 2))
    for query_position, key_position in dict.fromkeys(positions):
        yield query[:, :, query_position].transpose(0, 1), key[:, :, key_position].transpose(0, 1)


def _relative_difference(want: Tensor, have: Tensor) -> float:
    if want.shape != have.shape or not want.isfinite().all():
        return math.inf
    if not have.any():
        return math.inf if want.any() else 0.0
    scale = (want * have).sum() / have.square().sum()
    if scale <= 0:
        return math.inf
    return float((scale * have - want).norm() / want.norm())
