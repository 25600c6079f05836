"""Spectra of forms M = leftᵀ·right [n, n] of low rank: singular values, eigenvalues, traces, and what sums them up.

Shapes: left and right are [*lead, rank, n], as the projections of a Linear layer, and M is never formed. With the QR
decompositions leftᵀ = Q·R and rightᵀ = P·S, M = Q·(R·Sᵀ)·Pᵀ has the singular values of R·Sᵀ (rank × rank). The non-zero
eigenvalues of M are those of right·leftᵀ (rank × rank).

Everything is computed in float64. A form with a factor that is not finite has no spectrum: its numbers are NaN.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# A singular value within this share of the one before is in its band.
NEAR_EQUAL = 0.05


def to_float64(x: Tensor) -> Tensor:
    """Convert to float64, on the CPU if the device has none."""
    return x.to("cpu" if x.device.type == "mps" else x.device, torch.float64)


def triangle(x: Tensor) -> Tensor:
    """R of the QR decomposition xᵀ = Q·R, so that ‖xᵀ·y‖ = ‖R·y‖ for every y.

    Args:
        x: a factor, [*lead, rank, n], float32 or float64.

    Returns:
        [*lead, min(rank, n), rank]; NaN if x is not finite.
    """
    result: Tensor = torch.linalg.qr(x.mT, mode="r").R
    return result


def singular_values(left: Tensor, right: Tensor) -> Tensor:
    """The singular values of M = leftᵀ·right, the largest first; all others are 0.

    Args:
        left: left factors, [*lead, rank, n].
        right: right factors, [*lead, rank, n].

    Returns:
        [*lead, min(rank, n)], float64; NaN where a factor is not finite.
    """
    left, right, is_finite = _as_finite(left, right)
    values: Tensor = torch.linalg.svdvals(triangle(left) @ triangle(right).mT)
    return values.where(is_finite[..., None], torch.nan)


class SingularDirections(NamedTuple):
    """M = Σᵢ values[i]·left[i]ᵀ·right[i], with orthonormal directions. Both directions of a pair may change their sign.

    Attributes:
        values: singular values, the largest first, [*lead, directions], float64.
        left: directions of the rows of M, [*lead, directions, n].
        right: directions of its columns, [*lead, directions, m].
    """

    values: Tensor
    left: Tensor
    right: Tensor


def singular_directions(left: Tensor, right: Tensor) -> SingularDirections:
    """The singular values of M = leftᵀ·right [n, m] that may be above 0, with their directions.

    Args:
        left: left factors, [*lead, rank, n].
        right: right factors, [*lead, rank, m].

    Returns:
        min(rank, n, m) directions, float64. NaN where a factor is not finite.
    """
    left, right, is_finite = _as_finite(left, right)
    basis, upper = torch.linalg.qr(left.mT)
    other_basis, other_upper = torch.linalg.qr(right.mT)
    u, values, vh = torch.linalg.svd(upper @ other_upper.mT, full_matrices=False)
    kept = is_finite[..., None]
    return SingularDirections(
        values.where(kept, torch.nan),
        (basis @ u).mT.where(kept[..., None], torch.nan),
        (vh @ other_basis.mT).where(kept[..., None], torch.nan),
    )


def number_bands(values: Tensor) -> Tensor:
    """The number of the band of each singular value, from 1: a value within 5% of the one before is in its band.

    A small change of the form mixes neighboring directions of a band. The first and the last value of a wide band may
    differ much.

    Args:
        values: singular values, the largest first, [values].

    >>> number_bands(torch.tensor([5.0, 3.0, 2.9, 2.8, 1.0])).tolist()
    [1, 2, 2, 2, 3]
    """
    is_apart = values[1:] < values[:-1] * (1 - NEAR_EQUAL)
    first = is_apart.new_ones(min(len(values), 1))
    return torch.cat([first, is_apart]).cumsum(0)


def eigenvalues(left: Tensor, right: Tensor) -> Tensor:
    """The eigenvalues of M = leftᵀ·right, in any order; all others are 0.

    Args:
        left: left factors, [*lead, rank, n].
        right: right factors, [*lead, rank, n].

    Returns:
        [*lead, rank], complex128 on the CPU; NaN where a factor is not finite. If rank exceeds n, the surplus is 0.
    """
    left, right, is_finite = _as_finite(left, right)
    values: Tensor = torch.linalg.eigvals((right @ left.mT).cpu())
    return values.where(is_finite.cpu()[..., None], torch.nan)


def _as_finite(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both factors in float64, zero if one of the two is not finite, and whether both are, [*lead]."""
    left = to_float64(left)
    right = to_float64(right)
    is_finite = left.isfinite().all(-1).all(-1) & right.isfinite().all(-1).all(-1)
    kept = is_finite[..., None, None]
    return left.where(kept, 0), right.where(kept, 0), is_finite


def standardize_trace(left: Tensor, right: Tensor) -> Tensor:
    """√n·tr(M)/‖M‖ of M = leftᵀ·right: how many standard deviations the trace is above chance.

    It is N(0, 1) for one factor rotated at random, in the limit of large n, whatever the spectrum of M.

    Args:
        left: left factors, [*lead, rank, n].
        right: right factors, [*lead, rank, n].

    Returns:
        [*lead], float64; NaN if M is zero or not finite.
    """
    left = to_float64(left)
    right = to_float64(right)
    traces = (left * right).sum((-2, -1))
    norms = ((left @ left.mT) * (right @ right.mT)).sum((-2, -1)).sqrt()
    return traces / norms * math.sqrt(left.shape[-1])


def positive_share(values: Tensor) -> Tensor:
    """Σ Re λ/Σ|λ| of eigenvalues [*lead, rank]: 1 if all are positive, −1 if all are negative.

    Returns:
        [*lead], float64; NaN if all of them are 0.
    """
    return values.real.sum(-1) / values.abs().sum(-1)


def random_edge(norm: float, rank: int, n: int) -> float:
    """The upper edge of the singular values of a form with random factors, in the limit of large factors.

    Both factors are [rank, n] with independent entries. Then σ²·rank/‖M‖² follows the free product of two
    Marchenko–Pastur laws of the ratio c = rank/n, which ends at (1 + z)(1 + cz)²/z with z = (√(c² + 8c) − c)/4c. The
    edge is proportional to the Frobenius norm: it applies to random factors whose form has this norm.

    Args:
        norm: Frobenius norm of M.
        rank: of the factors, at least 1.
        n: width of the factors.

    >>> random_edge(1.0, rank=1, n=1) ** 2  # of two square matrices: 27/4
    6.75
    """
    ratio = rank / n
    z = (math.sqrt(ratio**2 + 8 * ratio) - ratio) / (4 * ratio)
    edge = (1 + z) * (1 + ratio * z) ** 2 / z
    return norm * math.sqrt(edge / rank)
