"""The scores of random forms: what a score has to be compared with."""

from __future__ import annotations

import math
from typing import NamedTuple


class Chance(NamedTuple):
    """Mean and standard deviation of a score over n × n forms with independent Gaussian factors."""

    mean: float
    deviation: float


def symmetry_at_chance(n: int) -> Chance:
    """1/n and √2/n: limits for large n, for any rank.

    E[tr(MM)] = rank·n·σ⁴ and E‖M‖² = rank·n²·σ⁴. Saponati et al. 2025, Prop. S1.15, prints 8/n for the mean;
    simulation gives 1/n.
    """
    return Chance(1 / n, math.sqrt(2) / n)


def directionality_at_chance(n: int) -> Chance:
    """0 and 3.4/√n; the factor 3.4 was found by simulation of Gaussian Wq and Wk."""
    return Chance(0.0, 3.4 / math.sqrt(n))
