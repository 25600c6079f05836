"""The forms of heads at every rotary offset, and their inner products.

A query that follows its key by Δ positions meets M_Δ = N + Σ_i (cos(ω_iΔ)·C_i + sin(ω_iΔ)·S_i), where N belongs to the
dimensions that do not rotate, and each pair that does has C_i = q₁k₁ᵀ + q₂k₂ᵀ and S_i = q₁k₂ᵀ − q₂k₁ᵀ. With complex
queries q = q₁ + i·q₂ and keys k = k₁ + i·k₂, a pair is one form of rank 1: C + i·S = q̄·kᵀ.

The inner product of two heads is the mean over all Δ of that of their forms M_Δ,

    ⟨M, M'⟩ = ⟨N, N'⟩ + ½ Σ_i (⟨C_i, C'_i⟩ + ⟨S_i, S'_i⟩) = ⟨N, N'⟩ + ½ Σ_i Re((q·q̄')·(k̄·k')),

for frequencies that differ. A rotation inside a pair changes no form, one across pairs does, though it leaves M_0 as it
is. Without rotary embeddings, all dimensions stand still, and the inner product is that of M = Wq·Wkᵀ.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.geometry.factors import split_pairs
from attngeo.geometry.forms import Form, take
from attngeo.geometry.spectra import to_float64


class OffsetForm(NamedTuple):
    """The forms of heads at every rotary offset: the rotating part, and the part that stands still.

    Attributes:
        left: q₁ + i·q₂ of each pair that turns, [heads, pairs, n].
        right: k₁ + i·k₂ of each pair that turns, [heads, pairs, n].
        still_left: the left factor of what stands still, [heads, rank, n].
        still_right: its right factor, [heads, rank, n].
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
    """The forms of each head at every offset.

    Args:
        form: factors whose rank is head_dim.
        layout: which of these dimensions rotate.
    """
    first, second, still_left = split_rotating(form.left, layout)
    left = torch.complex(first, second)
    first, second, still_right = split_rotating(form.right, layout)
    right = torch.complex(first, second)
    return OffsetForm(left, take(right, form.key_heads), still_left, take(still_right, form.key_heads))


def split_rotating(x: Tensor, layout: PairLayout) -> tuple[Tensor, Tensor, Tensor]:
    """The parts of x [heads, head_dim, n], without copies if all or no dimensions rotate.

    Returns:
        The first and the second dimension of each pair that turns, [heads, pairs, n] each, and what stands still,
        [heads, rank, n].
    """
    pairs = len(layout.rotates)
    first, second = split_pairs(x, pairs, interleaved=layout.interleaved, start=layout.start)
    parts = [x[:, : layout.start], x[:, layout.start + 2 * pairs :]]
    if not bool(layout.rotates.all()):
        rotates = layout.rotates.to(x.device)
        parts += [first[:, ~rotates], second[:, ~rotates]]
        first = first[:, rotates]
        second = second[:, rotates]
    parts = [part for part in parts if part.shape[1]]
    still = torch.cat(parts, 1) if len(parts) > 1 else [*parts, x[:, :0]][0]
    return first, second, still


def inner_products(form: OffsetForm, other: OffsetForm) -> Tensor:
    """⟨M, M'⟩ of every head of one layer with every head of another, [heads, other heads], float64.

    Args:
        form: as `head_forms` returns it.
        other: of the same pairs, ranks and widths.
    """
    left = torch.einsum("hpn,gpn->phg", to_complex128(form.left), to_complex128(other.left).conj())
    right = torch.einsum("hpn,gpn->phg", to_complex128(form.right), to_complex128(other.right).conj())
    turning = (left * right.conj()).real.sum(0) / 2
    other_left = to_float64(other.still_left)
    other_right = to_float64(other.still_right)
    still = [
        ((to_float64(left) @ other_left.mT) * (to_float64(right) @ other_right.mT)).sum((-2, -1))
        for left, right in zip(form.still_left, form.still_right, strict=True)
    ]
    return turning + torch.stack(still)


def squared_norms(form: OffsetForm) -> Tensor:
    """⟨M, M⟩ of every head, [heads], float64: the diagonal of its `inner_products` with itself.

    Args:
        form: as `head_forms` returns it.
    """
    left = to_complex128(form.left).abs().square().sum(-1)
    right = to_complex128(form.right).abs().square().sum(-1)
    still_left = to_float64(form.still_left)
    still_right = to_float64(form.still_right)
    still = ((still_left @ still_left.mT) * (still_right @ still_right.mT)).sum((-2, -1))
    return (left * right).sum(-1) / 2 + still


def to_complex128(x: Tensor) -> Tensor:
    """Convert to complex128, on the CPU if the device has no float64."""
    return x.to("cpu" if x.device.type == "mps" else x.device, torch.complex128)
