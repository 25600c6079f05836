"""The forms of heads at every rotary offset: their norms, differences and inner products.

A query that follows its key by Δ positions meets M_Δ = N + Σ_i (cos(ω_iΔ)·C_i + sin(ω_iΔ)·S_i), where N belongs to the
dimensions that do not rotate, and each pair that does has C_i = q₁k₁ᵀ + q₂k₂ᵀ and S_i = q₁k₂ᵀ − q₂k₁ᵀ. With complex
queries q = q₁ + i·q₂ and keys k = k₁ + i·k₂, a pair is one form of rank 1: C + i·S = q̄·kᵀ.

The inner product of two heads is the mean over all Δ of that of their forms M_Δ,

    ⟨M, M'⟩ = ⟨N, N'⟩ + ½ Σ_i (⟨C_i, C'_i⟩ + ⟨S_i, S'_i⟩) = ⟨N, N'⟩ + ½ Σ_i Re((q·q̄')·(k̄·k')),

for frequencies that differ. A rotation inside a pair changes no form, one across pairs does, though it leaves M_0 as it
is. Without rotary embeddings, all dimensions stand still, and the inner product is that of M = Wq·Wkᵀ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.geometry.factors import split_pairs
from attngeo.geometry.forms import Form, batches, take
from attngeo.geometry.spectra import to_float64

# Bytes of the complex factors that are in memory in double precision at a time.
BLOCK_BYTES = 1 << 26


class OffsetForm(NamedTuple):
    """Forms at every rotary offset, of one head or more: sums of terms that turn, and of terms that stand still.

    Attributes:
        left: q₁ + i·q₂ of each pair that turns, [*lead, terms, pairs, n]; the form of a pair is the sum over terms.
        right: k₁ + i·k₂, of the same shape.
        still_left: the left factor of what stands still, [*lead, rank, n].
        still_right: its right factor, [*lead, rank, n].
    """

    left: Tensor
    right: Tensor
    still_left: Tensor
    still_right: Tensor


class PairLayout(NamedTuple):
    """Which dimensions of a head rotate.

    Attributes:
        rotates: whether each pair turns, [pairs]; a pair with frequency 0 does not.
        interleaved: as for `rotate`.
        start: as for `rotate`.
    """

    rotates: Tensor
    interleaved: bool = False
    start: int = 0


# Of heads without rotary embeddings.
STILL = PairLayout(torch.zeros(0, dtype=torch.bool))


def head_forms(form: Form, layout: PairLayout = STILL) -> OffsetForm:
    """The forms of each head at every offset: one term for each pair.

    Args:
        form: factors whose rank is head_dim.
        layout: which of these dimensions rotate.

    Returns:
        With lead = [heads].
    """
    left, still_left = _split(form.left, layout)
    right, still_right = _split(form.right, layout)
    return OffsetForm(
        left.unsqueeze(1),
        take(right, form.key_heads).unsqueeze(1),
        still_left,
        take(still_right, form.key_heads),
    )


def layer_forms(form: Form, layout: PairLayout = STILL) -> OffsetForm:
    """The sum over all heads at every offset: for each pair, one term for each key head.

    Args:
        form: factors whose rank is head_dim.
        layout: which of these dimensions rotate.

    Returns:
        Without lead; the left factors are float64, since a sum in fewer digits would lose those of small differences.
    """
    left, still_left = _split(_sum_groups(form), layout)
    right, still_right = _split(form.right, layout)
    return OffsetForm(left, right, still_left.flatten(0, 1), still_right.flatten(0, 1))


def _sum_groups(form: Form) -> Tensor:
    """The sum of the left factors that meet each right factor, [count, rank, n], float64."""
    count = len(form.right)
    group = len(form.left) // count
    if form.key_heads == [head // group for head in range(count * group)] and form.left.device.type != "mps":
        return form.left.reshape(count, group, *form.left.shape[1:]).sum(1, dtype=torch.float64)
    left = to_float64(form.left)
    key_heads = torch.tensor(form.key_heads, device=left.device)
    return left.new_zeros(count, *left.shape[1:]).index_add_(0, key_heads, left)


def _split(x: Tensor, layout: PairLayout) -> tuple[Tensor, Tensor]:
    """What turns, complex [heads, pairs, n], and what stands still, [heads, rank, n], of x [heads, head_dim, n]."""
    pairs = len(layout.rotates)
    rotates = layout.rotates.to(x.device)
    first, second = split_pairs(x, pairs, interleaved=layout.interleaved, start=layout.start)
    before = x[:, : layout.start]
    after = x[:, layout.start + 2 * pairs :]
    still = torch.cat([before, first[:, ~rotates], second[:, ~rotates], after], 1)
    return torch.complex(first[:, rotates], second[:, rotates]), still


def difference(form: OffsetForm, other: OffsetForm) -> OffsetForm:
    """The forms minus others of the same shape, without loss of digits where they are almost equal.

    q̄·kᵀ − q̄'·k'ᵀ is written as (q̄ − q̄')·kᵀ + q̄'·(k − k')ᵀ, so that terms and ranks double.
    """
    return OffsetForm(
        torch.cat([form.left - other.left, other.left], -3),
        torch.cat([form.right, form.right - other.right], -3),
        torch.cat([form.still_left - other.still_left, other.still_left], -2),
        torch.cat([form.still_right, form.still_right - other.still_right], -2),
    )


def squared_norm(form: OffsetForm) -> Tensor:
    """⟨M, M⟩, [*lead], float64; NaN if a factor is not finite."""
    total = _squared_norm_of_product(to_float64(form.still_left), to_float64(form.still_right))
    at_once = max(BLOCK_BYTES // (16 * max(form.left[..., :1, :].numel(), 1)), 1)
    for first in range(0, form.left.shape[-2], at_once):
        # [*lead, pairs, terms, n]: for each pair, the Gram matrices of its terms.
        left = _to_complex128(form.left[..., first : first + at_once, :]).transpose(-3, -2)
        right = _to_complex128(form.right[..., first : first + at_once, :]).transpose(-3, -2)
        products = (left @ left.mH) * (right @ right.mH).conj()
        total = total + products.real.sum((-3, -2, -1)) / 2
    return total.clamp(min=0)


def _squared_norm_of_product(left: Tensor, right: Tensor) -> Tensor:
    """‖leftᵀ·right‖² [*lead] of factors [*lead, rank, n], by Gram matrices or by the product, whichever is cheaper."""
    rank, n = left.shape[-2:]
    squares = (left @ left.mT) * (right @ right.mT) if 2 * rank < n else (left.mT @ right).square()
    return squares.sum((-2, -1))


class FormChange(NamedTuple):
    """What became of forms M, which are now M'.

    Attributes:
        change: ‖M' − M‖/‖M‖, [*lead], float64; NaN where M is zero, or a factor is not finite.
        cosine: ⟨M, M'⟩/(‖M‖·‖M'‖), [*lead], float64, in [−1, 1]; NaN where either is zero or not finite.
        norms: ‖M‖, [*lead], float64.
        other_norms: ‖M'‖, [*lead], float64.
    """

    change: Tensor
    cosine: Tensor
    norms: Tensor
    other_norms: Tensor


def measure_change(form: OffsetForm, other: OffsetForm) -> FormChange:
    """The change from forms to others of the same shape: exactly 0, and the cosine 1, if the factors are equal."""
    squares = squared_norm(form)
    other_squares = squared_norm(other)
    apart = squared_norm(difference(form, other))
    ratio = (other_squares / squares).sqrt()
    norms = squares.sqrt()
    other_norms = other_squares.sqrt()
    cosine = (ratio + 1 / ratio - apart / norms / other_norms) / 2
    is_zero = squares == 0
    change = (apart.sqrt() / norms).where(~is_zero, torch.nan)
    return FormChange(change, cosine.clamp(-1, 1).where(~is_zero & (other_squares > 0), torch.nan), norms, other_norms)


def measure_head_changes(
    form: Form, other: Form, layout: PairLayout = STILL, other_layout: PairLayout = STILL
) -> FormChange:
    """The change of each head, few of them in memory in double precision at a time.

    Args:
        form: factors whose rank is head_dim.
        other: of the same sizes; pairs that turn are compared in their order.
        layout: which dimensions of `form` rotate.
        other_layout: which dimensions of `other` rotate: as many pairs.
    """
    parts = []
    for heads in batches(range(len(form.left)), form.left):
        mine = head_forms(_take_heads(form, heads), layout)
        parts.append(measure_change(mine, head_forms(_take_heads(other, heads), other_layout)))
    return FormChange(*map(torch.cat, zip(*parts, strict=True)))


def _take_heads(form: Form, heads: Sequence[int]) -> Form:
    right = take(form.right, [form.key_heads[head] for head in heads])
    return Form(take(form.left, heads), right, [*range(len(heads))])


def inner_products(form: OffsetForm, other: OffsetForm) -> Tensor:
    """⟨M, M'⟩ of every head of one layer with every head of another, [heads, other heads], float64.

    Args:
        form: as `head_forms` returns it.
        other: of the same pairs, ranks and widths.
    """
    left = torch.einsum("hpn,gpn->phg", _to_complex128(form.left[:, 0]), _to_complex128(other.left[:, 0]).conj())
    right = torch.einsum("hpn,gpn->phg", _to_complex128(form.right[:, 0]), _to_complex128(other.right[:, 0]).conj())
    turning = (left * right.conj()).real.sum(0) / 2
    other_left = to_float64(other.still_left)
    other_right = to_float64(other.still_right)
    still = [
        ((to_float64(left) @ other_left.mT) * (to_float64(right) @ other_right.mT)).sum((-2, -1))
        for left, right in zip(form.still_left, form.still_right, strict=True)
    ]
    return turning + torch.stack(still)


def _to_complex128(x: Tensor) -> Tensor:
    return x.to("cpu" if x.device.type == "mps" else x.device, torch.complex128)
