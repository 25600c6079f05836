"""Keep fourth powers of weights inside the range of float32."""

from __future__ import annotations

import torch
from torch import Tensor

# The fourth power of a weight in this range, summed over a whole matrix, neither overflows nor underflows float32.
SMALLEST, LARGEST = 2.0**-20, 2.0**20


def rescale(w: Tensor) -> tuple[Tensor, Tensor]:
    """Divide w [..., rank, n] by a power of two if its largest entry is extreme. Returns w and the divisor [...].

    The divisor is 1 if no entry is extreme, else the power of two at or below the largest magnitude, so that the
    division rounds nothing. It is 0 if w is all zero, and NaN or Inf if w is not finite; w is then returned unchanged.
    """
    largest = torch.linalg.vector_norm(w, ord=float("inf"), dim=(-2, -1))
    ordinary = (largest >= SMALLEST) & (largest <= LARGEST)
    usable = largest.isfinite() & (largest > 0)
    if bool((ordinary | ~usable).all()):
        return w, torch.ones_like(largest).where(usable, largest)
    divisor = torch.exp2(largest.log2().floor()).where(usable & ~ordinary, torch.ones_like(largest))
    return w / divisor[..., None, None], divisor.where(usable, largest)
