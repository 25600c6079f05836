"""How far forms of two models are apart, over all rotary offsets, without loss of digits where they are almost equal.

With the inner product of `attngeo.geometry.offsets`, the change from M = q·k to M' = q'·k' is that of

    M' − M = −(δq·k + q'·δk),    δq = q − q', δk = k − k',

so that differences are taken before products. All norms follow from the Gram matrices of (δq, q') and of (k, δk): for
each pair that turns a small one, over the terms of its form. What stands still is a product of larger factors, whose
Gram matrices cost more than the product itself if the rank is not small against n.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.geometry.forms import TILE, Form
from attngeo.geometry.offsets import STILL, PairLayout, split_rotating
from attngeo.geometry.spectra import to_float64

# Bytes of the factors of pairs that are in double precision at a time: as many as stay in a processor's cache.
BLOCK_BYTES = 1 << 20
# Ranks below this share of n have Gram matrices that cost less than products: 16·rank²·n against 6·rank·n².
GRAM_SHARE = 3 / 8
# A form whose ‖M‖² is at most this share of what it follows from, by rounding, is zero.
ZERO = 1e-13


class FormChange(NamedTuple):
    """The change of forms from M to M'.

    Attributes:
        change: ‖M' − M‖/‖M‖, [*lead], float64; NaN where M is zero, or a factor is not finite.
        cosine: ⟨M, M'⟩/(‖M‖·‖M'‖), [*lead], float64, in [−1, 1]; NaN where either is zero or not finite.
    """

    change: Tensor
    cosine: Tensor


# The first and the second dimension of the pairs that turn, and what stands still, as of `split_rotating`.
Parts = tuple[Tensor, Tensor, Tensor]


class _Rows(NamedTuple):
    """The factors (δq, q'), or (k, δk), of a sum of terms.

    turning: [pairs, 2 dimensions of a pair, 2 factors, terms, n]. still: [2 factors, rank of all terms, n].
    """

    turning: Tensor
    still: Tensor


def measure_layer_change(
    form: Form, other: Form, layout: PairLayout = STILL, other_layout: PairLayout = STILL
) -> FormChange:
    """The change of the sum over all heads; arguments as for `measure_head_changes`. Without lead."""
    groups: dict[int, list[int]] = {}
    for head, key in enumerate(form.key_heads):
        groups.setdefault(key, []).append(head)
    left = _stack_left(form, other, layout, other_layout, [*groups.values()])
    right = _stack_right(form, other, layout, other_layout, [(key, key) for key in groups])
    return _describe(_sum_squares(left, right, _find_grams(right)))


def measure_head_changes(
    form: Form, other: Form, layout: PairLayout = STILL, other_layout: PairLayout = STILL
) -> FormChange:
    """The change of each head: exactly 0, and the cosine 1, if the factors are equal.

    Args:
        form: factors whose rank is head_dim.
        other: of the same sizes; rotating pairs are compared in their order.
        layout: which dimensions of `form` rotate.
        other_layout: which dimensions of `other` rotate: as many pairs.

    Returns:
        With lead = [heads].
    """
    squares = []
    keys_of_heads = enumerate(zip(form.key_heads, other.key_heads, strict=True))
    for keys, group in groupby(keys_of_heads, key=itemgetter(1)):  # heads that share keys follow each other
        right = _stack_right(form, other, layout, other_layout, [keys])
        right_grams = _find_grams(right)
        for head, _ in group:
            left = _stack_left(form, other, layout, other_layout, [[head]])
            squares.append(_sum_squares(left, right, right_grams))
    return _describe(torch.stack(squares, -1))


def _stack_left(
    form: Form, other: Form, layout: PairLayout, other_layout: PairLayout, terms: Sequence[Sequence[int]]
) -> _Rows:
    """(q − q', q') of each term, which is the sum over some heads that follow each other."""
    sides: list[tuple[Parts, Parts]] = []
    for heads in terms:
        chosen = slice(heads[0], heads[-1] + 1)
        parts = split_rotating(form.left[chosen], layout)
        other_parts = split_rotating(other.left[chosen], other_layout)
        sides.append((_subtract(parts, other_parts), _sum_heads(other_parts)))
    return _stack(sides)


def _stack_right(
    form: Form, other: Form, layout: PairLayout, other_layout: PairLayout, keys: Sequence[tuple[int, int]]
) -> _Rows:
    """(k, k − k') of each term. keys: the right factor of both forms."""
    sides: list[tuple[Parts, Parts]] = []
    for key, other_key in keys:
        parts = split_rotating(form.right[key : key + 1], layout)
        other_parts = split_rotating(other.right[other_key : other_key + 1], other_layout)
        sides.append((_sum_heads(parts), _subtract(parts, other_parts)))
    return _stack(sides)


def _subtract(parts: Parts, other_parts: Parts) -> Parts:
    first, second, still = (_sum(part - other_part) for part, other_part in zip(parts, other_parts, strict=True))
    return first, second, still


def _sum_heads(parts: Parts) -> Parts:
    first, second, still = map(_sum, parts)
    return first, second, still


def _sum(x: Tensor) -> Tensor:
    """The sum over heads, which is no copy of one."""
    return x.sum(0) if len(x) > 1 else x[0]


def _stack(terms: list[tuple[Parts, Parts]]) -> _Rows:
    """The rows of a sum of terms, of two sides each."""
    pairs, n = terms[0][0][0].shape
    turning = terms[0][0][0].new_empty(pairs, 2, 2, len(terms), n)
    for term, sides in enumerate(terms):
        for side, parts in enumerate(sides):
            turning[:, 0, side, term] = parts[0]
            turning[:, 1, side, term] = parts[1]
    still = [torch.cat([sides[side][2] for sides in terms]) for side in (0, 1)]
    return _Rows(turning, torch.stack(still))


def _find_grams(rows: _Rows) -> tuple[Tensor, Tensor]:
    """The Gram matrices of both parts of rows, float64.

    Returns:
        Of the pairs, as complex numbers whose real and imaginary parts are the first dimension: [2, pairs, 2, terms, 2,
        terms]; and of what stands still, [2, rank, 2, rank], without entries if products cost less.
    """
    pairs, _, sides, terms, n = rows.turning.shape
    size = sides * terms
    at_once = max(BLOCK_BYTES // (16 * size * n), 1)
    grams = [to_float64(rows.turning.new_zeros(0, 2 * size, 2 * size))]
    for first in range(0, pairs, at_once):
        wide = to_float64(rows.turning[first : first + at_once].flatten(1, 3))
        grams.append(wide @ wide.mT)
    gram = torch.cat(grams).reshape(pairs, 2, size, 2, size)
    parts = torch.stack([gram[:, 0, :, 0] + gram[:, 1, :, 1], gram[:, 1, :, 0] - gram[:, 0, :, 1]])
    of_turning = parts.reshape(2, pairs, sides, terms, sides, terms)
    rank = rows.still.shape[1]
    if not _has_low_rank(rows):
        return of_turning, of_turning.new_zeros(2, 0, 2, 0)
    still = to_float64(rows.still.flatten(0, 1))
    return of_turning, (still @ still.mT).reshape(2, rank, 2, rank)


def _has_low_rank(rows: _Rows) -> bool:
    _, rank, n = rows.still.shape
    return rank < GRAM_SHARE * n


def _sum_squares(left: _Rows, right: _Rows, right_grams: tuple[Tensor, Tensor]) -> Tensor:
    """‖M‖², ‖M'‖² and ‖M' − M‖² of one sum of terms, [3], float64."""
    turning, still = _find_grams(left)
    of_turning = _combine(turning, right_grams[0]) / 2
    if _has_low_rank(left) and _has_low_rank(right):
        return of_turning + _combine(still, right_grams[1])
    return of_turning + _square_products(left.still, right.still).to(of_turning.device)


def _combine(left: Tensor, right: Tensor) -> Tensor:
    """‖M‖², ‖M'‖² and ‖M' − M‖², [3], from Gram matrices of (δ, base) and of (base, δ), [*any, 2, terms, 2, terms]."""
    moved, kept = left.unbind(-4)
    base, difference = right.unbind(-4)
    of_base, of_both = base.unbind(-2)
    other_right = of_base - of_both - difference[..., 0, :] + difference[..., 1, :]
    mine = ((moved + kept).sum(-2) * of_base).sum()
    others = (kept[..., 1, :] * other_right).sum()
    return torch.stack([mine, others, (left * right).sum()]).clamp(min=0)


def _square_products(left: Tensor, right: Tensor) -> Tensor:
    """What `_combine` returns, of factors [2, rank, n], by products of strips of M in the type of the factors."""
    moved, kept = left
    base, difference = right
    total = torch.zeros(3, dtype=torch.float64)
    for first in range(0, left.shape[2], TILE):
        rows = slice(first, first + TILE)
        by_left = moved[:, rows].mT @ base
        by_right = kept[:, rows].mT @ difference
        product = kept[:, rows].mT @ base
        matrices = (product + by_left, product - by_right, by_left + by_right)
        total += torch.stack([to_float64(matrix).square().sum().cpu() for matrix in matrices])
    return total


def _describe(squares: Tensor) -> FormChange:
    """The changes, given ‖M‖², ‖M'‖² and ‖M' − M‖², [3, *lead]."""
    mine, others, apart = squares.unbind()
    is_zero = mine <= ZERO * (others + apart)
    other_is_zero = others <= ZERO * (mine + apart)
    norms = mine.sqrt().where(~is_zero, 0)
    other_norms = others.sqrt().where(~other_is_zero, 0)
    change = (apart.sqrt() / norms).where(~is_zero, torch.nan)
    ratio = other_norms / norms
    cosine = (ratio + 1 / ratio - apart / norms / other_norms) / 2
    return FormChange(change, cosine.clamp(-1, 1).where(~(is_zero | other_is_zero), torch.nan))
