"""Keeping fourth powers of weights inside the range of float32."""

from __future__ import annotations

import torch
from torch import Tensor

# Inside this range the fourth power of a weight, summed over a whole matrix, neither overflows nor underflows float32.
SMALLEST, LARGEST = 2.0**-20, 2.0**20


def rescale(w: Tensor) -> tuple[Tensor, Tensor]:
    """The tensor w [..., rank, n] and the factor [...] it was divided by: 1 unless its largest entry is extreme.

    The factor is the power of two below the largest magnitude, so that dividing rounds nothing; 0 where w is
    all zero, NaN or Inf where w is not finite (w is then returned as it is).
    """
    largest = torch.linalg.vector_norm(w, ord=float("inf"), dim=(-2, -1))
    ordinary = (largest >= SMALLEST) & (largest <= LARGEST)
    usable = largest.isfinite() & (largest > 0)
    if bool((ordinary | ~usable).all()):
        return w, torch.ones_like(largest).where(usable, largest)
    factor = torch.exp2(largest.log2().floor()).where(usable & ~ordinary, torch.ones_like(largest))
    return w / factor[..., None, None], factor.where(usable, largest)
