"""Compare what a running model multiplies with the forms of the weights that attngeo reads."""

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


def difference_of(one: Prediction, other: Prediction) -> float:
    """How far the weights of two sites are from each other, by what they multiply to: infinite if shapes differ.

    Relative to the second, without biases. It is 0 whatever the order of the dimensions of a head is.
    """
    have, want = one.query @ one.key.mT, other.query @ other.key.mT
    if have.shape != want.shape:
        return math.inf
    size = want.norm()
    return float((have - want).norm() / size) if size else math.inf if have.any() else 0.0


def _arrangements(query: Tensor, key: Tensor, heads: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries and keys [heads, runs, width] of one token, for each order in which a model may store its heads.

    The token is one in the middle, where no padding is near, and then the first one, which no position rotates.
    """
    runs, n, tokens, width = query.shape
    if n % key.shape[1]:
        return
    key = key.repeat_interleave(n // key.shape[1], 1)  # keys that a fused operation shares between heads
    if n < heads:  # the queries that share a key head are rows of one product
        shared = heads // n
        if heads % n or tokens % shared:
            return
        key = key.repeat_interleave(shared, 1)
        for shape, axes in (((tokens // shared, shared), (3, 2)), ((shared, tokens // shared), (2, 3))):
            by_head = query.reshape(runs, n, *shape, width).permute(0, 1, *axes, 4)
            yield from _of_tokens(by_head.reshape(runs, heads, tokens // shared, width), key)
    elif n % heads == 0:
        others = n // heads  # sequences, windows or chunks, before or after the heads
        for shape, axis in (((others, heads), 1), ((heads, others), 2)):
            q, k = (x.reshape(runs, *shape, *x.shape[2:]) for x in (query, key))
            for place in dict.fromkeys((others // 2, 0)):
                yield from _of_tokens(q.select(axis, place), k.select(axis, place))


def _of_tokens(query: Tensor, key: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries and keys [heads, runs, width] of some tokens, from [runs, heads, tokens, width].

    If a block of tokens looks at itself and its neighbours, the first token is the first one of the second block. If
    tokens look at others before them, such as those of an encoder, their own keys are the last ones.
    """
    tokens, keys = query.shape[2], key.shape[2]
    places = dict.fromkeys(((tokens // 2, keys // 2), (0, 0), (0, tokens if keys >= 2 * tokens else 0)))
    if keys > tokens:
        places |= {(tokens // 2, keys - tokens + tokens // 2): None}
    for q_place, k_place in places:
        yield query[:, :, q_place].transpose(0, 1), key[:, :, k_place].transpose(0, 1)


def _relative_difference(want: Tensor, have: Tensor) -> float:
    if want.shape != have.shape or not want.isfinite().all():
        return math.inf
    if not have.any():
        return math.inf if want.any() else 0.0
    scale = (want * have).sum() / have.square().sum()
    if scale <= 0:
        return math.inf
    return float((scale * have - want).norm() / want.norm())
