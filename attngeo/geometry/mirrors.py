"""Pairs of heads: mirrors and twins, and what their pairs make of the symmetry of a layer.

The form of a head has a symmetric and an antisymmetric part, M = S + A. Two heads have two inner products,

    tr(M·M') = ⟨S, S'⟩ − ⟨A, A'⟩          ⟨M, M'⟩ = ⟨S, S'⟩ + ⟨A, A'⟩

divided by ‖M‖·‖M'‖ the mirror and the twin of the pair, in [−1, 1]: a mirror of 1 means M' ∝ Mᵀ, a twin of 1 M' ∝ M.
Symmetric heads are both, so only the cosine of A and A' tells one from the other: −1 for M' ∝ Mᵀ, 1 for M' ∝ M. The
symmetry of a layer, tr(M·M)/‖M‖² of the sum M of its forms, is a sum over its heads and over its pairs.

With rotary embeddings, heads are compared at all offsets: both products are means over Δ, of ⟨M_Δ, M'_Δ⟩ and of
tr(M_Δ·M'_−Δ), because the transpose of M'_−Δ is what the mirror of M' at Δ is. `offsets` has the forms C_i + i·S_i of
rank 1 of each pair i of dimensions that rotates; the means are

    ½ Σ_i Re (q_i·q̄'_i)·conj(k_i·k̄'_i)  and  ½ Σ_i Re (k̄_i·q'_i)·(k̄'_i·q_i),

plus the inner products of what stands still. No form is in memory: keys that stand still are replaced by an orthonormal
basis, so that what products add up is not larger than the forms, and nothing cancels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.geometry.forms import Form
from attngeo.geometry.offsets import STILL, PairLayout, split_rotating, to_complex128
from attngeo.geometry.spectra import to_float64

# Rows of a block of the products of what stands still: its parts fit a cache.
BLOCK_ROWS = 1024
# Antisymmetric parts lose digits in float32 if ‖A‖² is below this share of ‖M‖²; below the least one, A is rounding.
SMALL_SHARE = 1e-2
LEAST_SHARE = 1e-12


class PairedHeads(NamedTuple):
    """The heads of one layer, as their pairs need them. n: width of the stream.

    Attributes:
        turning_left: q₁ + i·q₂ of each pair of dimensions that turns, [pairs, heads, n].
        turning_right: k₁ + i·k₂ of each of these, [pairs, key heads, n].
        left: left factors of what stands still, [heads, rank, n].
        right: its right factors, with orthonormal rows, [key heads, rank, n].
        key_heads: the key head of each head.
    """

    turning_left: Tensor
    turning_right: Tensor
    left: Tensor
    right: Tensor
    key_heads: list[int]

    def to_float64(self) -> PairedHeads:
        """The heads with more digits."""
        turning = (to_complex128(self.turning_left), to_complex128(self.turning_right))
        return PairedHeads(*turning, to_float64(self.left), to_float64(self.right), self.key_heads)


class Products(NamedTuple):
    """Both inner products of heads with other heads; all float64.

    Attributes:
        mirrors: tr(M·M').
        twins: ⟨M, M'⟩.
    """

    mirrors: Tensor
    twins: Tensor

    @property
    def antisymmetric(self) -> Tensor:
        """⟨A, A'⟩."""
        return (self.twins - self.mirrors) / 2


class HeadMoments(NamedTuple):
    """Of the forms of each head, what the distribution of a mirror by chance depends on; all float64.

    The forms of a head are C_i/√2 and S_i/√2 of each pair that turns, and the one that stands still: `count` of them,
    of which tr(M·M') adds the S_i/√2 with a minus.

    Attributes:
        traces: trace of each form, [heads, count].
        symmetric: ⟨S_a, S_b⟩ of the symmetric parts without their traces, with the signs of a and b, [heads, count²].
        antisymmetric: ⟨A_a, A_b⟩ of the antisymmetric parts, with the signs of a and b, [heads, count²].
        signs: 1, or −1 for S_i/√2, [count].
    """

    traces: Tensor
    symmetric: Tensor
    antisymmetric: Tensor
    signs: Tensor


def pair_heads(form: Form, layout: PairLayout = STILL) -> PairedHeads:
    """The heads of a layer, as `multiply_pairs` needs them.

    They have float64 if their own number type does not show the antisymmetric part of one of them.

    Args:
        form: factors whose rank is head_dim.
        layout: which of these dimensions rotate; by default none.
    """
    heads = _pair_heads(form, layout)
    if heads.left.dtype == torch.float64:
        return heads
    of_themselves = multiply_themselves(heads)
    is_small = of_themselves.antisymmetric < SMALL_SHARE * of_themselves.twins
    if bool(is_small.any()):
        form = form._replace(left=to_float64(form.left), right=to_float64(form.right))
        return _pair_heads(form, layout)
    return heads


def _pair_heads(form: Form, layout: PairLayout) -> PairedHeads:
    first, second, still_left = split_rotating(form.left, layout)
    turning_left = torch.complex(first, second).transpose(0, 1)
    first, second, still_right = split_rotating(form.right, layout)
    turning_right = torch.complex(first, second).transpose(0, 1)
    if still_right.shape[1]:
        basis, triangle = torch.linalg.qr(still_right.mT)
        still_left = triangle[form.key_heads] @ still_left
        still_right = basis.mT.contiguous()
    return PairedHeads(turning_left, turning_right, still_left, still_right, form.key_heads)


def multiply_themselves(heads: PairedHeads) -> Products:
    """Both inner products of each head with itself, tr(M·M) and ‖M‖², [heads] each."""
    right = heads.turning_right[:, heads.key_heads]
    crossed = (right.conj() * heads.turning_left).sum(-1)
    sizes = _squares(right) * _squares(heads.turning_left)
    mirrors = to_float64(crossed.square().real).sum(0) / 2
    twins = to_float64(sizes).sum(0) / 2
    still = heads.right[heads.key_heads] @ heads.left.mT
    mirrors += to_float64((still * still.mT).sum((-2, -1)))
    twins += to_float64(heads.left.square().sum((-2, -1)))
    return Products(mirrors, twins)


def _squares(x: Tensor) -> Tensor:
    """|x|² of complex vectors [..., n]."""
    return torch.view_as_real(x).square().sum((-2, -1))


def multiply_pairs(heads: PairedHeads, others: PairedHeads) -> Products:
    """Both inner products of all pairs of heads of two layers, or of one layer with itself.

    Args:
        heads: of one layer.
        others: of another layer with the same pairs that turn and the same width; or the same object.
    """
    if heads.left.dtype != others.left.dtype:
        heads = heads.to_float64()
        others = others.to_float64()
    mirrors, twins = _multiply_turning(heads, others)
    if heads.left.shape[1]:
        mirrors += _cross_still(heads, others)
        twins += _multiply_still(heads, others)
    return Products(mirrors, twins)


def _multiply_turning(heads: PairedHeads, others: PairedHeads) -> tuple[Tensor, Tensor]:
    """The mirrors and the twins of what turns, [heads, other heads] each."""
    keys = heads.key_heads
    other_keys = others.key_heads
    crossed = (heads.turning_right.conj() @ others.turning_left.mT)[:, keys]
    crossed_back = (others.turning_right.conj() @ heads.turning_left.mT)[:, other_keys]
    mirrors = to_float64((crossed * crossed_back.mT).real).sum(0) / 2
    queries = heads.turning_left @ others.turning_left.mH
    of_keys = (heads.turning_right @ others.turning_right.mH)[:, keys][:, :, other_keys]
    twins = to_float64((queries * of_keys.conj()).real).sum(0) / 2
    return mirrors, twins


def _cross_still(heads: PairedHeads, others: PairedHeads) -> Tensor:
    """tr(M·M') of what stands still, [heads, other heads]: what keys read of queries, times the same the other way."""
    mirrors = to_float64(heads.left.new_empty(len(heads.left), len(others.left)))
    for rows in _blocks(heads):
        for columns in _blocks(others):
            if heads is others and columns.start < rows.start:
                mirrors[rows, columns] = mirrors[columns, rows].T
                continue
            crossed = _cross(heads, others, rows, columns)
            is_diagonal = heads is others and rows == columns
            crossed_back = crossed if is_diagonal else _cross(others, heads, columns, rows)
            mirrors[rows, columns] = to_float64((crossed * crossed_back.permute(2, 3, 0, 1)).sum((1, 3)))
    return mirrors


def _blocks(heads: PairedHeads) -> Iterator[slice]:
    """Slices of the heads, of at most BLOCK_ROWS rows or one head."""
    count, rank, _ = heads.left.shape
    at_once = max(BLOCK_ROWS // rank, 1)
    for first in range(0, count, at_once):
        yield slice(first, min(first + at_once, count))


def _cross(heads: PairedHeads, others: PairedHeads, rows: slice, columns: slice) -> Tensor:
    """The products of keys of some heads with queries of some others, [heads, rank, other heads, other rank]."""
    key_heads = heads.key_heads[rows]
    keys = [*dict.fromkeys(key_heads)]
    right = heads.right[keys]
    left = others.left[columns]
    product = right.flatten(0, 1) @ left.flatten(0, 1).mT
    return product.reshape(*right.shape[:2], *left.shape[:2])[[keys.index(key) for key in key_heads]]


def _multiply_still(heads: PairedHeads, others: PairedHeads) -> Tensor:
    """⟨M, M'⟩ of what stands still, [heads, other heads]: one product of bases serves all heads that share two keys."""
    twins = to_float64(heads.left.new_empty(len(heads.left), len(others.left)))
    other_groups = _group(others)
    for key, (mine, left) in _group(heads).items():
        for other_key, (theirs, other_left) in other_groups.items():
            if heads is others and other_key < key:
                continue
            turned = (heads.right[key] @ others.right[other_key].mT) @ other_left
            products = to_float64(left.flatten(1) @ turned.flatten(1).mT)
            twins[mine[:, None], theirs] = products
            if heads is others:
                twins[theirs[:, None], mine] = products.T
    return twins


def _group(heads: PairedHeads) -> dict[int, tuple[Tensor, Tensor]]:
    """The numbers of the heads that share a key head, and their left factors, by key head."""
    key_heads = torch.tensor(heads.key_heads, device=heads.left.device)
    groups = {key: (key_heads == key).nonzero()[:, 0] for key in sorted({*heads.key_heads})}
    return {key: (numbers, heads.left[numbers]) for key, numbers in groups.items()}


def cosines(products: Products, of_heads: Products, of_others: Products) -> tuple[Tensor, Tensor, Tensor]:
    """The mirror, the twin and the antisymmetric cosine of each pair.

    Args:
        products: of the pairs, [heads, other heads].
        of_heads: of each head with itself, [heads].
        of_others: of each other head with itself, [other heads].

    Returns:
        [heads, other heads] each, in [−1, 1]; NaN if a form is zero or not finite, and the third one also if a form is
        symmetric.
    """
    sizes = _divisors(of_heads.twins, of_others.twins)
    antisymmetric = _divisors(*(_antisymmetric_squares(products) for products in (of_heads, of_others)))
    ratios = (products.mirrors / sizes, products.twins / sizes, products.antisymmetric / antisymmetric)
    mirror, twin, cosine = (ratio.clamp(-1, 1) for ratio in ratios)
    return mirror, twin, cosine


def _divisors(squares: Tensor, other_squares: Tensor) -> Tensor:
    """The products of norms, NaN in place of 0."""
    products = squares.sqrt()[:, None] * other_squares.sqrt()
    return products.where(products > 0, torch.nan)


def _antisymmetric_squares(products: Products) -> Tensor:
    """‖A‖² of each head; 0 if it is rounding."""
    squares = products.antisymmetric
    return squares.where(squares > LEAST_SHARE * products.twins, 0)


def measure_moments(heads: PairedHeads) -> HeadMoments:
    """What `standardize_mirrors` needs of the heads of a layer."""
    k = heads.turning_right.transpose(0, 1)
    q = heads.turning_left.transpose(0, 1)
    right = heads.right[heads.key_heads]
    turning = torch.stack([(k[key] * of_head.conj()).sum(-1) for key, of_head in zip(heads.key_heads, q, strict=True)])
    turning = to_complex128(turning) / 2**0.5  # of C_i/√2 + i·S_i/√2
    still = to_float64((heads.left * right).sum((-2, -1)))
    traces = torch.cat([turning.real, turning.imag, still[:, None]], 1)
    inner, crossed = _multiply_parts(heads, q, k, right)
    pairs = q.shape[1]
    signs = torch.tensor([1.0] * pairs + [-1.0] * pairs + [1.0], dtype=torch.float64, device=traces.device)
    signs_of_both = signs[:, None] * signs
    without_trace = (inner + crossed) / 2 - traces[:, :, None] * traces[:, None] / heads.left.shape[-1]
    symmetric = without_trace * signs_of_both
    antisymmetric = (inner - crossed) / 2 * signs_of_both
    return HeadMoments(traces, symmetric.flatten(1), antisymmetric.flatten(1), signs)


def _multiply_parts(heads: PairedHeads, q: Tensor, k: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """⟨X_a, X_b⟩ and tr(X_a·X_b) of the forms X of each head, [heads, count, count] each.

    With Z_i = C_i + i·S_i = q̄_i·k_iᵀ, tr(Zᵀ·Z') and tr(Z̄ᵀ·Z') give the products of real and imaginary parts.

    Args:
        heads: the heads.
        q: queries that turn, [heads, pairs, n].
        k: keys that turn, [key heads, pairs, n].
        right: right factors of what stands still, of each head, [heads, rank, n].
    """
    grams = to_complex128(q @ q.mH)
    key_grams = to_complex128(k @ k.mT)[heads.key_heads]
    hermitian_key_grams = to_complex128(k.conj() @ k.mT)[heads.key_heads]
    plain_grams = to_complex128(q.conj() @ q.mH)
    k = k[heads.key_heads]
    inner = _join_parts(
        (plain_grams * key_grams, grams * hermitian_key_grams),
        _apply(heads.left, q.conj()) * _apply(right, k),
        to_float64(heads.left.square().sum((-2, -1))),
    )
    of_keys = to_complex128(k @ q.mH)  # k_i·q̄_j
    of_conjugates = to_complex128(k.conj() @ q.mH)  # k̄_i·q̄_j
    still = right @ heads.left.mT
    crossed = _join_parts(
        (of_keys * of_keys.mT, of_conjugates * of_conjugates.conj().mT),
        _apply(right, q.conj()) * _apply(heads.left, k),
        to_float64((still * still.mT).sum((-2, -1))),
    )
    return inner, crossed


def _apply(factor: Tensor, vectors: Tensor) -> Tensor:
    """factor·x of each vector x, [heads, rank, pairs]."""
    return to_complex128(torch.complex(factor @ vectors.real.mT, factor @ vectors.imag.mT))


def _join_parts(turning: tuple[Tensor, Tensor], mixed: Tensor, still: Tensor) -> Tensor:
    """The products of all forms of a head: of C_i/√2, of S_i/√2, and of the form that stands still.

    Args:
        turning: the products of Z_i with Z_j, and of conj Z_i with Z_j, [heads, pairs, pairs] each.
        mixed: those of the form that stands still with Z_i, before they are summed, [heads, rank, pairs].
        still: that of the form that stands still with itself, [heads].
    """
    plain, conjugated = turning
    cosines = (plain + conjugated).real / 2
    sines = (conjugated - plain).real / 2
    cosine_with_sine = (plain + conjugated).imag / 2
    with_still = mixed.sum(1) / 2**0.5
    blocks = torch.cat(
        [torch.cat([cosines, cosine_with_sine], 2), torch.cat([cosine_with_sine.mT, sines], 2)],
        1,
    )
    column = torch.cat([with_still.real, with_still.imag], 1)[:, :, None]
    top = torch.cat([blocks / 2, column], 2)
    bottom = torch.cat([column.mT, still[:, None, None]], 2)
    return torch.cat([top, bottom], 1)


def standardize_mirrors(mirrors: Tensor, moments: HeadMoments, others: HeadMoments, width: int) -> Tensor:
    """tr(M·M') in standard deviations above chance: one of the two heads turned by a random rotation of the stream.

    The distribution has wider tails than the normal one if few singular values dominate, and trained heads are far from
    it without being mirrors.

    Args:
        mirrors: tr(M·M'), [heads, other heads], float64.
        moments: of the heads.
        others: of the other heads.
        width: of the stream.

    Returns:
        [heads, other heads], float64; NaN if a form is zero or not finite.
    """
    mean = (moments.traces * moments.signs) @ others.traces.T / width
    variance = moments.symmetric @ others.symmetric.T / ((width - 1) * (width + 2) / 2)
    variance += moments.antisymmetric @ others.antisymmetric.T / (width * (width - 1) / 2)
    return (mirrors - mean) / variance.clamp(min=0).sqrt().where(variance > 0, torch.nan)
