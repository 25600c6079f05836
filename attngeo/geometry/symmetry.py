"""How symmetric the bilinear form M = Wq·Wkᵀ is."""

from __future__ import annotations

from torch import Tensor

from attngeo.geometry.pairs import each_pair


def symmetry(wq: Tensor, wk: Tensor) -> Tensor:
    """tr(M·M)/‖M‖²_F of M = wq·wkᵀ: 1 symmetric, −1 skew-symmetric, about 1/d_model by chance.

    wq, wk: [*lead, d_model, head_dim], floating point; leading dimensions broadcast. Returns [*lead].
    Equals (‖M_s‖² − ‖M_n‖²)/‖M‖² for the symmetric and skew parts of M, which is never formed.
    NaN where M is zero or not finite. Raises ShapeError when the two cannot be one square form.

    Source: Saponati et al. 2025 (arXiv 2502.10927), Def. 3.1 without its factor 2, which contradicts the range.

    >>> import torch
    >>> w = torch.randn(3, 64, 8)
    >>> symmetry(w, w).round(decimals=3).tolist()
    [1.0, 1.0, 1.0]
    """
    return each_pair(wq, wk, lambda moments, _q, _k: symmetry_of(moments.trace, moments.squared_norm))


def symmetry_of(trace: Tensor, squared_norm: Tensor) -> Tensor:
    """tr(M·M)/‖M‖², clamped to the range that rounding may leave by an ulp; NaN where the norm is 0 or not finite."""
    defined = squared_norm.isfinite() & (squared_norm > 0)
    return (trace / squared_norm).clamp(-1, 1).where(defined, float("nan"))
