"""The symmetry of a random form: mean and scatter."""

from __future__ import annotations

import math


def symmetry_at_chance(n: int) -> tuple[float, float]:
    """Mean and standard deviation, 1/n and √2/n, of the symmetry of an n × n form with independent Gaussian factors.

    Both are limits for large n; they hold for any rank.
    Derivation: E[tr(M·M)] = rank·n·σ⁴ and E‖M‖² = rank·n²·σ⁴. (Saponati et al. 2025, Prop. S1.15, prints 8/n for the
    mean; simulation gives 1/n.)
    """
    return 1 / n, math.sqrt(2) / n


def symmetry_z(symmetry: float, n: int) -> float:
    """Distance of a symmetry from its chance level, in standard deviations, for an n × n form."""
    mean, deviation = symmetry_at_chance(n)
    return (symmetry - mean) / deviation
