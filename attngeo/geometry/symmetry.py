"""How symmetric the bilinear form M = Wq·Wkᵀ is."""

from __future__ import annotations

from torch import Tensor

from attngeo.geometry.factors import FormStatistics
from attngeo.geometry.pairs import score_pairs


def symmetry(wq: Tensor, wk: Tensor) -> Tensor:
    """tr(M·M)/‖M‖²_F of M = wq·wkᵀ: 1 symmetric, −1 skew-symmetric, about 1/d_model by chance.

    wq, wk: [*lead, d_model, head_dim], floating point; leading dimensions broadcast. Returns [*lead].
    Equals (‖M_s‖² − ‖M_n‖²)/‖M‖² for the symmetric part M_s and the skew part M_n. M itself is never formed.
    NaN if M is zero or not finite. Raises ShapeError if wq and wk do not make a square form.

    Source: Saponati et al. 2025 (arXiv 2502.10927), Def. 3.1 without its factor 2, which contradicts the range.

    >>> import torch
    >>> w = torch.randn(3, 64, 8)
    >>> symmetry(w, w).round(decimals=3).tolist()
    [1.0, 1.0, 1.0]
    """
    return score_pairs(wq, wk, symmetry_of)


def symmetry_of(form: FormStatistics) -> Tensor:
    """tr(M·M)/‖M‖² of one matrix, as a float64 scalar on the CPU. In [−1, 1]; NaN if the norm is 0 or not finite.

    The quotient is clamped: rounding may leave the range by an ulp.
    """
    trace, squared_norm = form.trace.cpu().double(), form.squared_norm.cpu().double()
    defined = squared_norm.isfinite() & (squared_norm > 0)
    return (trace / squared_norm).clamp(-1, 1).where(defined, float("nan"))
