"""Compare what a running model multiplies with the forms of the weights that attngeo reads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import normalize

# Relative difference that rounding in float32 explains. A wrong head, gain or order differs by far more.
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Prediction:
    """Queries and keys of one site for known inputs, from its weights: [heads, runs, head_dim] each.

    query, key: Wq and Wk applied to the inputs. query_with_bias, key_with_bias: with the biases added.
    """

    query: Tensor
    key: Tensor
    query_with_bias: Tensor
    key_with_bias: Tensor


def compare(predicted: Prediction, query: Tensor, key: Tensor) -> tuple[float, bool]:
    """How far the products of a running model are from those of the weights, and whether only directions were compared.

    query, key: [runs, n, tokens, width], the factors that the model multiplied in each run. Returns the relative
    difference of the products of all queries with all keys of the same head and token, up to one positive factor:
    infinite if their numbers do not fit. If a model divides queries and keys by their lengths, only directions fit.
    """
    best = (math.inf, False)
    for ran_query, ran_key in _arrangements(query, key, len(predicted.query)):
        changes = [x[:, 1:] - x[:, :1] for x in (ran_query, ran_key, predicted.query, predicted.key)]
        directions = [
            normalize(x, dim=-1) for x in (ran_query, ran_key, predicted.query_with_bias, predicted.key_with_bias)
        ]
        for only_directions, (want_q, want_k, q, k) in ((False, changes), (True, directions)):
            difference = _relative_difference(want_q @ want_k.mT, q @ k.mT)
            if difference < best[0]:
                best = difference, only_directions
            if difference < TOLERANCE and not only_directions:
                return difference, False
    return best


def _arrangements(query: Tensor, key: Tensor, heads: int) -> list[tuple[Tensor, Tensor]]:
    """Queries and keys [heads, runs, width] of one token, for each order in which a model may store its heads."""
    runs, n, tokens, width = query.shape
    if n % key.shape[1]:
        return []
    if n < heads:  # the queries that share a key head are rows of one product
        shared = heads // n
        if heads % n or tokens % shared:
            return []
        middle, alone = tokens // shared // 2, key.repeat_interleave(shared, 1)[:, :, key.shape[2] // 2]
        by_token = query.reshape(runs, n, tokens // shared, shared, width)[:, :, middle]
        by_head = query.reshape(runs, n, shared, tokens // shared, width)[:, :, :, middle]
        keys = alone.transpose(0, 1)
        return [(x.reshape(runs, heads, width).transpose(0, 1), keys) for x in (by_token, by_head)]
    if n % heads:
        return []
    q, k = query[:, :, tokens // 2], key.repeat_interleave(n // key.shape[1], 1)[:, :, key.shape[2] // 2]
    others = n // heads  # sequences, windows or chunks, before or after the heads
    found = []
    for shape, axis in (((runs, others, heads, -1), 1), ((runs, heads, others, -1), 2)):
        own_q, own_k = (x.reshape(shape).select(axis, others // 2).transpose(0, 1) for x in (q, k))
        found.append((own_q, own_k))
    return found


def _relative_difference(want: Tensor, have: Tensor) -> float:
    if want.shape != have.shape or not want.isfinite().all() or not have.square().sum():
        return math.inf
    scale = (want * have).sum() / have.square().sum()
    if scale <= 0:
        return math.inf
    return float((scale * have - want).norm() / want.norm())
