"""The definitions as printed, on a matrix that is formed, in float64: the reference for the fast forms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

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
