"""The bilinear form M = Wq·Wkᵀ of each head, and the statistics from which its scores are computed.

M is never held in memory. Shapes: q and k are [heads, rank, n], the projections as a Linear layer stores them
(M = qᵀ·k is n × n), for all heads of a layer at once. With A = q·qᵀ, B = k·kᵀ, C = q·kᵀ (rank × rank):

    ‖M‖²  = Σ A∘B          tr(M·M) = Σ C∘Cᵀ
    r_i²  = (B·q)_i · q_i   c_j²    = (A·k)_j · k_j

A and B are symmetric, so only their blocks on and above the diagonal are formed and used. This is the Gram form. If
the rank is not small against n, M is formed instead, one tile at a time: the tiled form.

Statistics stay on the device: each transfer waits for all that the device computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from attngeo.geometry.spectra import singular_values, to_float64

# Edge of a block of A and B, and of a tile of M: three float32 tiles fit a 16 MiB last-level cache.
BLOCK = 256
TILE = 1024
# The Gram form costs about 6.5·n·rank² operations (block triangles), the tiled form 2·n²·rank.
GRAM_LIMIT = 3.25
# Sums lose digits if what they add cancels. Below these shares float32 is not enough: ‖M‖² = Σ A∘B of ‖A‖·‖B‖ in the
# Gram form; ‖M‖ of ‖q‖·‖k‖ in the tiled form, where the squares are sums of entries of M, and only these cancel.
GRAM_CANCELLATION = 0.02
TILED_CANCELLATION = 0.002
# Bytes of the queries whose heads are computed by the same products. On a CPU only small heads gain, those of larger
# ones leave its cache. Another device needs as few products as its memory allows.
CPU_BATCH = 1 << 18
DEVICE_BATCH = 1 << 28


class Form(NamedTuple):
    """The matrices of the heads of one layer: M = left[h]ᵀ·right[key_heads[h]] for each head h.

    Attributes:
        left: left factors, [heads, rank, n].
        right: right factors, which heads may share, [count, rank, n].
        key_heads: the right factor of each head.
    """

    left: Tensor
    right: Tensor
    key_heads: list[int]


class RotaryScores(NamedTuple):
    """Scores of forms over all rotary offsets, see `rotary`; all are [forms], float64.

    Attributes:
        symmetry: in [−1, 1]; NaN if the norm is 0 or not finite.
        symmetric_growth: as `symmetric` of `Growths`; NaN for heads.
        antisymmetric_growth: as `antisymmetric` of `Growths`; NaN for heads.
    """

    symmetry: Tensor
    symmetric_growth: Tensor
    antisymmetric_growth: Tensor


@dataclass(frozen=True, eq=False)
class FormTraces:
    """The statistics of the matrices M of a form that one product of factors each gives; on the device of the factors.

    Attributes:
        form: what the other fields were computed from, after `rescale`.
        trace: tr(M·M), [heads].
        squared_norm: ‖M‖²_F, [heads].
    """

    form: Form
    trace: Tensor
    squared_norm: Tensor


@dataclass(frozen=True, eq=False)
class FormStatistics(FormTraces):
    """Statistics of the matrices M of a form, from which every score is computed; on the device of the factors.

    A score that jumps at a threshold takes exact norms from the factors if one is near it.

    Attributes:
        row_norms: Euclidean, [heads, n].
        column_norms: Euclidean, [heads, n].
        over_offsets: scores over all rotary offsets; None if they were not computed.
    """

    row_norms: Tensor
    column_norms: Tensor
    over_offsets: RotaryScores | None = field(default=None, kw_only=True)

    @cached_property
    def right(self) -> Tensor:
        """The right factor of each head, [heads, rank, n]."""
        return take(self.form.right, self.form.key_heads)

    @cached_property
    def largest_singular_values(self) -> Tensor:
        """The largest singular value of each M, [heads], float64; NaN if it is not finite."""
        return singular_values(self.form.left, self.right).amax(-1)


def form_statistics(form: Form, right_grams: Tensor | None = None) -> FormStatistics:
    """The statistics of each head, by the cheaper of the two forms.

    Args:
        form: the factors of the heads.
        right_grams: `half_gram(form.right)` if the caller has it.
    """
    numbers = _measure(form, right_grams, with_norms=True)
    return FormStatistics(form, numbers[:, 1], numbers[:, 2], *numbers[:, 3:].chunk(2, 1))


def form_traces(form: Form) -> FormTraces:
    """The part of `form_statistics` without norms of rows and columns, in about half of the time."""
    numbers = _measure(form, None, with_norms=False)
    return FormTraces(form, numbers[:, 1], numbers[:, 2])


def exact_traces(form: Form) -> FormTraces:
    """What `form_traces` returns, computed in float64."""
    numbers = to_float64(form.left.new_zeros(len(form.left), 3))
    for heads, exact in _measure_exactly(form, range(len(form.left)), with_norms=False):
        numbers[heads] = exact
    return FormTraces(form, numbers[:, 1], numbers[:, 2])


def _measure(form: Form, right_grams: Tensor | None, *, with_norms: bool) -> Tensor:
    """The statistics of each head, as `_gram_statistics` returns them, by the cheaper of the two forms."""
    left, right, key_heads = form
    if right_grams is None and is_low_rank(right):
        right_grams = half_gram(right)
    parts = []
    for heads in batches(range(len(left)), left):
        rights = [key_heads[head] for head in heads]
        q = take(left, heads)
        k = take(right, rights)
        if right_grams is None:
            numbers = _tiled_statistics(q, k)
            parts.append(numbers if with_norms else numbers[:, :3])
        else:
            parts.append(_gram_statistics(q, k, take(right_grams, rights), with_norms=with_norms))
    numbers = torch.cat(parts)
    if left.dtype == torch.float32:
        limit = TILED_CANCELLATION if right_grams is None else GRAM_CANCELLATION
        cancelled = (numbers[:, 0] < limit).nonzero().flatten().tolist()
        for heads, exact in _measure_exactly(form, cancelled, with_norms=with_norms):
            numbers[heads] = exact.to(numbers)
    return numbers


def _measure_exactly(form: Form, chosen: Sequence[int], *, with_norms: bool) -> Iterator[tuple[Sequence[int], Tensor]]:
    """The statistics of some heads in float64, as `_gram_statistics` returns them: groups of heads, and theirs."""
    for heads in batches(chosen, form.left, torch.float64):
        q = to_float64(take(form.left, heads))
        k = to_float64(take(form.right, [form.key_heads[head] for head in heads]))
        yield heads, _gram_statistics(q, k, half_gram(k), with_norms=with_norms)


def batches(heads: Sequence[int], factors: Tensor, dtype: torch.dtype | None = None) -> Iterator[Sequence[int]]:
    """Groups of heads to compute at once, for factors [count, rank, n]; dtype: of the computation, if not their own."""
    limit = CPU_BATCH if factors.device.type == "cpu" else DEVICE_BATCH
    rank, n = factors.shape[1:]
    entries = rank * n if is_low_rank(factors) else max(rank * n, min(n, TILE) ** 2)
    at_once = max(limit // (entries * (dtype or factors.dtype).itemsize), 1)
    for first in range(0, len(heads), at_once):
        yield heads[first : first + at_once]


def take(x: Tensor, indices: Sequence[int]) -> Tensor:
    """x[indices], without a copy if they follow each other."""
    first = indices[0]
    end = first + len(indices)
    return x[first:end] if list(indices) == list(range(first, end)) else x[indices]


def layer_form(form: Form) -> Form:
    """The sum over all heads as a form of one head, of rank K·rank for K right factors.

    Left factors that share a right factor are summed first, so the rank follows from the right factors.
    """
    key_heads = torch.tensor(form.key_heads, device=form.left.device)
    left = torch.zeros_like(form.right).index_add_(0, key_heads, form.left)
    return Form(left.flatten(0, 1)[None], form.right.flatten(0, 1)[None], [0])


def output_forms(v: Tensor, o: Tensor, key_heads: list[int]) -> tuple[Form, Form]:
    """The matrices vᵀ·o of heads that share values, and their sum, as `layer_form` returns that of shared keys.

    Args:
        v: values, [count, rank, n].
        o: the part of the output projection that belongs to each head, [heads, rank, n].
        key_heads: the values of each head.
    """
    heads = Form(v[key_heads], o, list(range(len(o))))
    transposed = layer_form(Form(o, v, key_heads))  # whose right factors are those that heads share
    return heads, Form(transposed.right, transposed.left, [0])


def largest_entries(q: Tensor, k: Tensor, edge: int) -> Tensor:
    """The largest |M_ij| in each square of `edge` × `edge` entries of M = qᵀ·k.

    Only a strip of max(edge, TILE) rows of M is in memory at a time.

    Args:
        q: the left factor, [rank, n].
        k: the right factor, [rank, n].
        edge: entries along an edge of a square.

    Returns:
        [⌈n/edge⌉, ⌈n/edge⌉].
    """
    n = q.shape[1]
    count = -(-n // edge)
    result = q.new_empty(count, count)
    rows = max(TILE // edge, 1)  # of the result, at once
    for i in range(0, count, rows):
        strip = (q[:, i * edge : (i + rows) * edge].T @ k).abs()
        result[i : i + rows] = F.max_pool2d(strip[None, None], edge, ceil_mode=True)[0, 0]
    return result


def is_low_rank(x: Tensor) -> bool:
    """Whether the Gram form is cheaper than the tiled form for factors x [..., rank, n]."""
    return x.shape[-1] > GRAM_LIMIT * x.shape[-2]


def half_gram(x: Tensor) -> Tensor:
    """x·xᵀ [*lead, rank, rank] of x [*lead, rank, n]; the blocks below the block diagonal stay zero."""
    rank = x.shape[-2]
    if rank <= BLOCK:
        return x @ x.mT
    gram = x.new_zeros(*x.shape[:-1], rank)
    for i in range(0, rank, BLOCK):
        gram[..., i : i + BLOCK, i:] = x[..., i : i + BLOCK, :] @ x[..., i:, :].mT
    return gram


def multiply_forms(left: Tensor, rights: Tensor) -> Tensor:
    """The inner products ⟨leftᵀ·right, leftᵀ·other⟩ of forms that share a large left factor.

    No form is in memory as a whole. Sums of the Gram form are repeated in float64 if float32 is not enough.

    Args:
        left: the left factor of all forms, [rank, n].
        rights: the right factor of each form, [count, rank, n].

    Returns:
        [count, count], float64.
    """
    if is_low_rank(left):
        return _multiply_by_grams(left, rights)
    count, _, n = rights.shape
    products = to_float64(rights.new_zeros(count, count))
    for first in range(0, n, TILE):
        strips = left[:, first : first + TILE].mT @ rights  # of each form, [count, TILE, n]
        for i, strip in enumerate(strips):
            for j, other in enumerate(strips):
                products[i, j] += to_float64(strip * other).sum()
    return products


def _multiply_by_grams(left: Tensor, rights: Tensor) -> Tensor:
    """What `multiply_forms` returns, by the sums of products of Gram matrices."""
    gram = left @ left.mT
    products = to_float64(rights.new_zeros(len(rights), len(rights)))
    has_cancelled = False
    for i, right in enumerate(rights):
        for j, other in enumerate(rights):
            cross = right @ other.mT
            products[i, j] = to_float64(gram * cross).sum()
            if i == j:
                size = to_float64(gram).norm() * to_float64(cross).norm()
                has_cancelled |= bool(products[i, j] < GRAM_CANCELLATION * size)
    if has_cancelled and left.dtype != products.dtype:
        return _multiply_by_grams(to_float64(left), to_float64(rights))
    return products


def _gram_statistics(q: Tensor, k: Tensor, key_gram: Tensor, *, with_norms: bool) -> Tensor:
    """Statistics of heads [heads, 3 + 2n], or [heads, 3] without norms.

    Columns: ‖M‖² as a share of ‖A‖·‖B‖, tr(M·M), ‖M‖², norms of the rows, norms of the columns. The share is 1 if
    nothing in the sum Σ A∘B cancels, near 0 if most does.

    Args:
        q: left factors, [heads, rank, n].
        k: right factors, [heads, rank, n].
        key_gram: `half_gram(k)`.
        with_norms: whether to compute the norms of rows and columns.
    """
    query_gram = half_gram(q)
    a = _wide(query_gram)
    b = _wide(key_gram)
    c = _wide(q @ k.mT)
    squared_norm = _full_sum(a * b)
    share = squared_norm / (_full_sum(a * a) * _full_sum(b * b)).sqrt()
    trace = (c * c.mT).sum((-2, -1))
    sums = torch.stack([share, trace, squared_norm], -1)
    if not with_norms:
        return sums
    row_norms = quadratic_norms(key_gram, q)
    column_norms = quadratic_norms(query_gram, k)
    return torch.cat([sums, row_norms, column_norms], -1)


def _full_sum(half: Tensor) -> Tensor:
    """The sum of each symmetric matrix [heads], given its blocks on and above the block diagonal."""
    total = half.sum((-2, -1))
    for i in range(BLOCK, half.shape[-1], BLOCK):
        total = total + half[..., i - BLOCK : i, i:].sum((-2, -1))
    return total


def quadratic_norms(gram: Tensor, x: Tensor) -> Tensor:
    """√(x_jᵀ·G·x_j) [heads, n] for each column j of x [heads, rank, n]; `gram` holds G as `half_gram` returns it."""
    squares = _wide(x.new_zeros(x.shape[0], x.shape[2]))
    for i in range(0, x.shape[1], BLOCK):
        rows = slice(i, i + BLOCK)
        product = gram[:, rows, rows] @ x[:, rows]
        if i + BLOCK < x.shape[1]:
            product.baddbmm_(gram[:, rows, i + BLOCK :], x[:, i + BLOCK :], alpha=2)
        squares += product.mul_(x[:, rows]).sum(1, dtype=squares.dtype)
    return squares.clamp_(min=0).sqrt_()


def _tiled_statistics(q: Tensor, k: Tensor) -> Tensor:
    """What `_gram_statistics` returns, by forming M in tiles; the share is that of ‖M‖ in ‖q‖·‖k‖.

    Memory holds two tiles of each head and their squares, for any n.
    """
    heads, _, n = q.shape
    trace, rows, columns = (_wide(q.new_zeros(heads, *size)) for size in ((), (n,), (n,)))
    for i in range(0, n, TILE):
        for j in range(i, n, TILE):
            here = slice(i, i + TILE)
            there = slice(j, j + TILE)
            tile = _wide(q[..., here].mT @ k[..., there])
            _add_squares(tile, rows[:, here], columns[:, there])
            if i == j:
                trace += (tile * tile.mT).sum((1, 2))
                continue
            mirror = _wide(q[..., there].mT @ k[..., here])
            _add_squares(mirror, rows[:, there], columns[:, here])
            trace += 2 * (tile * mirror.mT).sum((1, 2))
    squared_norm = rows.sum(1)
    share = squared_norm.sqrt() / (_wide(q).norm(dim=(1, 2)) * _wide(k).norm(dim=(1, 2)))
    numbers = torch.stack([share, trace, squared_norm], 1)
    return torch.cat([numbers, rows.sqrt(), columns.sqrt()], 1)


def _add_squares(tile: Tensor, rows: Tensor, columns: Tensor) -> None:
    squares = tile.square()
    rows += squares.sum(2)
    columns += squares.sum(1)


def _wide(x: Tensor) -> Tensor:
    """Convert a half-precision product to float32, because its sum needs more digits; other dtypes stay."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


# The fourth power of a weight in this range, summed over a whole matrix, neither overflows nor underflows float32.
SMALLEST = 2.0**-20
LARGEST = 2.0**20


def rescale(w: Tensor) -> tuple[Tensor, Tensor]:
    """Divide a factor by a power of two if its largest entry is extreme.

    Args:
        w: the factor, [*lead, rank, n].

    Returns:
        w and the divisor, [*lead], on the CPU. The divisor is 1 if no entry is extreme, else the power of two at or
        below the largest magnitude, so that the division rounds nothing. It is 0 if w is all zero, and NaN or Inf if w
        is not finite; w is then returned unchanged.
    """
    largest = torch.maximum(w.amax((-2, -1)), -w.amin((-2, -1))).cpu()
    ordinary = (largest >= SMALLEST) & (largest <= LARGEST)
    usable = largest.isfinite() & (largest > 0)
    if bool((ordinary | ~usable).all()):
        return w, torch.ones_like(largest).where(usable, largest)
    divisor = torch.exp2(largest.log2().floor()).where(usable & ~ordinary, torch.ones_like(largest))
    return w / divisor[..., None, None].to(w.device), divisor.where(usable, largest)


def rescale_form(form: Form) -> tuple[Form, Tensor]:
    """The form with factors as `rescale` returns them, and what M was divided by, [heads], float64 on the CPU."""
    left, left_divisors = rescale(form.left)
    right, right_divisors = rescale(form.right)
    divisors = left_divisors.double() * right_divisors[form.key_heads].double()
    return Form(left, right, form.key_heads), divisors
