"""How much of the space that the rows of one factor span lies in that of another one."""

from __future__ import annotations

import torch
from torch import Tensor

from attngeo.geometry.spectra import to_float64

# Below this condition (of Frobenius norms), the rounding of a Gram matrix leaves 8 digits of what its triangle gives.
SOUND = 5e3


def subspace_overlap(x: Tensor, other: Tensor) -> Tensor:
    """‖U·Vᵀ‖²/rank of orthonormal bases U and V of what the rows of two factors span: their projection kernel.

    Bases come from the triangles of Gram matrices, many times faster than from a QR decomposition, which is used only
    for factors that are too ill-conditioned.

    1 for the same space, whatever basis the factors have; rank/n by chance; 0 for orthogonal spaces.

    Args:
        x: a factor, [*lead, rank, n], of full rank.
        other: another factor of the same shape.

    Returns:
        [*lead], float64; NaN where a factor is zero, which spans nothing, or not finite.
    """
    x = to_float64(x)
    other = to_float64(other)
    rank = min(x.shape[-2:])
    inverse, is_sound = _invert_triangle(x)
    other_inverse, other_is_sound = _invert_triangle(other)
    overlaps: Tensor = _sum_squares(inverse @ (x @ other.mT) @ other_inverse.mT) / rank
    unsound = ~(is_sound & other_is_sound)
    if bool(unsound.any()):
        products = _orthonormal_rows(x[unsound]) @ _orthonormal_rows(other[unsound]).mT
        overlaps[unsound] = _sum_squares(products) / rank
    spans_nothing = ~(x.any((-2, -1)) & other.any((-2, -1)))
    return overlaps.masked_fill(spans_nothing, torch.nan)


def _sum_squares(matrices: Tensor) -> Tensor:
    return matrices.square().sum((-2, -1))


def _invert_triangle(x: Tensor) -> tuple[Tensor, Tensor]:
    """L⁻¹ of the Gram matrix L·Lᵀ of the rows, so that the rows of L⁻¹·x are orthonormal, and whether they are so."""
    triangle, failed = torch.linalg.cholesky_ex(x @ x.mT)
    inverse, singular = torch.linalg.inv_ex(triangle)
    condition = triangle.norm(dim=(-2, -1)) * inverse.norm(dim=(-2, -1))
    return inverse, (condition < SOUND) & (failed == 0) & (singular == 0)


def _orthonormal_rows(x: Tensor) -> Tensor:
    """An orthonormal basis of what the rows of a factor span, by Householder's QR decomposition."""
    basis: Tensor = torch.linalg.qr(x.mT).Q
    return basis.mT
