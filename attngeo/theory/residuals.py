"""What a statement's function returns: how far both sides of the statement are apart."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Residuals:
    """How far both sides of a statement are apart, in each case that was computed.

    found: the numbers behind the residuals, in words. errors: one for each case, at least 0. printed: the same for the
    statement as the paper prints it; empty if that is what was computed.
    """

    found: str
    errors: tuple[float, ...]
    printed: tuple[float, ...] = ()

    @property
    def worst(self) -> float:
        """The largest error; NaN if one is NaN, or if there is none."""
        return _largest(self.errors)

    @property
    def worst_printed(self) -> float:
        """The largest error of the printed form."""
        return _largest(self.printed) if self.printed else self.worst


def _largest(errors: tuple[float, ...]) -> float:
    return math.nan if not errors or any(map(math.isnan, errors)) else max(errors)


def difference(left: Any, right: Any) -> float:
    """The largest |left − right| as a share of the largest |right|, or of 1 if that is larger.

    left, right: numbers, arrays or tensors that broadcast. NaN if an entry of either is NaN or infinite.

    >>> difference([1.0, 200.0], [1.0, 201.0])
    0.004975124378109453
    """
    a, b = (np.asarray(value, dtype=float) for value in (left, right))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan
    return float(np.max(np.abs(a - b)) / max(1.0, float(np.max(np.abs(b)))))


def shortfall(values: Iterable[float], least: float = 0.0) -> float:
    """How far the smallest value is below `least`; 0 if it is not. NaN if a value is NaN."""
    numbers = np.asarray(list(values), dtype=float)
    return math.nan if np.isnan(numbers).any() else max(0.0, least - float(numbers.min()))
