"""The definitions as printed, on a matrix that is formed, in float64: the reference for the fast forms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attngeo.attention.weights import SiteWeights
from attngeo.layouts.positions import SiteRotation, find_rotation

Matrix = NDArray[np.float64]


def form(wq: Tensor, wk: Tensor) -> Matrix:
    """M = Wq·Wkᵀ of two [d_model, head_dim] factors."""
    return np.asarray(wq.double().numpy() @ wk.double().numpy().T)


def dense_symmetry(m: Matrix) -> float:
    """(‖M_s‖² − ‖M_n‖²)/‖M‖²."""
    symmetric, skew = (m + m.T) / 2, (m - m.T) / 2
    return float(((symmetric**2).sum() - (skew**2).sum()) / (m**2).sum())


def dense_directionality(m: Matrix, gamma: float = 2.0, convention: str = "corrected") -> float:
    """(r̄ − c̄)/(r̄ + c̄), 0 if there is no outlier."""
    sums = []
    for axis in (1, 0):
        norms = np.sqrt((m**2).sum(axis=axis))
        threshold = norms.mean() + gamma * norms.std(ddof=1 if convention == "published" else 0)
        above = norms[norms > threshold * (1 + 1e-12)]
        sums.append(float((above - threshold).sum() if convention == "published" else above.sum()))
    rows, columns = sums
    return (rows - columns) / (rows + columns) if rows + columns else 0.0


def dense_growths(heads: Sequence[Matrix]) -> dict[str, float]:
    """How the matrices of the heads of a layer add up, from the parts of each; columns of the table of scores."""
    total = np.sum(heads, axis=0)
    parts = {}
    for name, sign in (("symmetric", 1), ("antisymmetric", -1)):
        alone = sum(float((((m + sign * m.T) / 2) ** 2).sum()) for m in heads)
        together = float((((total + sign * total.T) / 2) ** 2).sum())
        parts[name] = (alone, together)
    norm = float((total**2).sum())
    (s, sum_s), (a, sum_a) = parts.values()
    return {
        "symmetric_growth": sum_s / s if s else math.nan,
        "antisymmetric_growth": sum_a / a if a else math.nan,
        "own_symmetry": (s - a) / norm,
        "agreement": (sum_s - s) / norm,
        "cancellation": (a - sum_a) / norm,
    }


def form_heads(of_site: SiteWeights, offset: float = 0.0, points: int = 0) -> Matrix:
    """M of each head, [heads, n, n], float64. With points, pair i of the rotary dimensions turns by 2π(i + 1)/points.

    At as many offsets as points, more than twice the pairs, the means of all products of two pairs are exact.
    """
    wq = of_site.wq.double().numpy().copy()
    wk = of_site.wk.double().numpy()
    rotation = find_rotation(of_site.site) if points else None
    if isinstance(rotation, SiteRotation):
        pairs = len(rotation.frequencies)
        angles = offset * 2 * np.pi * (np.arange(pairs) + 1) / points * (rotation.frequencies.numpy() != 0)
        dimensions = np.arange(2 * pairs) + rotation.start
        first, second = (
            (dimensions[::2], dimensions[1::2]) if rotation.interleaved else (dimensions[:pairs], dimensions[pairs:])
        )
        one, two = wq[..., first], wq[..., second]
        wq[..., first] = one * np.cos(angles) - two * np.sin(angles)
        wq[..., second] = one * np.sin(angles) + two * np.cos(angles)
    groups = len(wq) // len(wk)
    return np.stack([wq[head] @ wk[head // groups].T for head in range(len(wq))])


def dense_rotary(of_site: SiteWeights) -> tuple[list[float], dict[str, float]]:
    """Of each head its symmetry over all rotary offsets, and of their sum the columns of the table of scores."""
    points = of_site.wq.shape[-1] + 1
    heads = np.stack([form_heads(of_site, offset, points) for offset in range(points)])  # [offsets, heads, n, n]
    opposite = np.stack([form_heads(of_site, -offset, points) for offset in range(points)]).swapaxes(2, 3)

    def squares(sign: int) -> tuple[Matrix, float]:
        """‖M + sign·M_−Δᵀ‖²/4 of each head and of their sum, means over offsets."""
        alone = ((heads + sign * opposite) ** 2).sum((2, 3)).mean(0) / 4
        together = ((heads.sum(1) + sign * opposite.sum(1)) ** 2).sum((1, 2)).mean() / 4
        return alone, float(together)

    (s, sum_s), (a, sum_a) = squares(1), squares(-1)
    with np.errstate(invalid="ignore"):  # a head of zeros
        of_heads = (s - a) / (s + a)
    return [*of_heads], {
        "rotary_symmetry": (sum_s - sum_a) / (sum_s + sum_a),
        "rotary_symmetric_growth": sum_s / s.sum(),
        "rotary_antisymmetric_growth": sum_a / a.sum(),
    }
