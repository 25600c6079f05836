"""How much of the space that the rows of one factor span lies in that of another one."""

from __future__ import annotations

import torch
from torch import Tensor

from attngeo.geometry.spectra import to_float64

# Rows that a triangle has made orthonormal have a Gram matrix at most this far from that of the identity, entry by
# entry; a second triangle then mends them.
NEAR = 0.1
# Below this condition (of Frobenius norms), the rounding of a Gram matrix leaves 8 digits of what its triangle gives.
SOUND = 5e3


def subspace_overlap(x: Tensor, other: Tensor) -> Tensor:
    """‖U·Vᵀ‖²/rank of orthonormal bases U and V of what the rows of two factors span: their projection kernel.

    1 for the same space, whatever basis the factors have; rank/n by chance; 0 for orthogonal spaces.

    Args:
        x: a factor, [*lead, rank, n], of full rank.
        other: another one of the same shape.

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
        products = orthonormal_rows(x[unsound]) @ orthonormal_rows(other[unsound]).mT
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


def orthonormal_rows(x: Tensor) -> Tensor:
    """An orthonormal basis of what the rows of a factor span, float64.

    The triangle of the Cholesky decomposition of the Gram matrix makes rows orthonormal, twice for all digits: many
    times faster than Householder's QR decomposition, which is taken for factors that are too ill-conditioned for it.

    Args:
        x: a factor, [*lead, rank, n], of full rank.

    Returns:
        [*lead, min(rank, n), n]; NaN where x is not finite.
    """
    x = to_float64(x)
    if x.shape[-2] > x.shape[-1]:
        return _householder_rows(x)
    triangle, failed = torch.linalg.cholesky_ex(x @ x.mT)
    rows: Tensor = torch.linalg.solve_triangular(triangle, x, upper=False)
    gram = rows @ rows.mT
    identity = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
    is_near = ((gram - identity).abs().amax((-2, -1)) < NEAR) & (failed == 0)
    second, _ = torch.linalg.cholesky_ex(gram.where(is_near[..., None, None], identity))
    rows = torch.linalg.solve_triangular(second, rows, upper=False)
    if not bool(is_near.all()):
        rows[~is_near] = _householder_rows(x[~is_near])
    return rows


def _householder_rows(x: Tensor) -> Tensor:
    basis: Tensor = torch.linalg.qr(x.mT).Q
    return basis.mT
