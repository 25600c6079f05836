"""Errors of a statement: residuals of both of its sides, and means of simulated values with their standard errors.

Imports nothing heavy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

# Half widths of confidence intervals in standard errors: 95%, and one that chance leaves once in 16,000 times.
USUAL = 1.96
STRICT = 4.0


@dataclass(frozen=True)
class Residuals:
    """The distance between both sides of a statement, for each computed case.

    Attributes:
        computed: the numbers behind the residuals, in words.
        errors: one error per case, at least 0.
        printed: the same for the statement as printed in the paper; empty if that form was computed.
    """

    computed: str
    errors: Sequence[float]
    printed: Sequence[float] = ()

    @property
    def worst(self) -> float:
        """The largest error; NaN if one is NaN, or if there is none."""
        if not self.errors or any(map(math.isnan, self.errors)):
            return math.nan
        return max(self.errors)

    @property
    def worst_printed(self) -> float:
        """The largest error of the printed form."""
        return Residuals("", self.printed).worst if self.printed else self.worst


def difference(left: Any, right: Any) -> float:
    """The largest |left − right| as a share of the largest |right|, or of 1 if that is larger.

    left, right: numbers, arrays or tensors that broadcast. NaN if an entry of either is NaN or infinite.

    >>> difference([1.0, 200.0], [1.0, 201.0])
    0.004975124378109453
    """
    import numpy as np

    a = np.asarray(left, dtype=float)
    b = np.asarray(right, dtype=float)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan
    return float(np.max(np.abs(a - b)) / max(1.0, float(np.max(np.abs(b)))))


def shortfall(values: Iterable[float], least: float = 0.0) -> float:
    """How far the smallest value is below `least`; 0 if it is not below, NaN if a value is NaN."""
    numbers = [float(value) for value in values]
    if any(map(math.isnan, numbers)):
        return math.nan
    return max(0.0, least - min(numbers))


class Effect(NamedTuple):
    """A measured mean and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} [{self.mean - USUAL * self.error:.3g}, {self.mean + USUAL * self.error:.3g}]"

    @property
    def low(self) -> float:
        """The lower end of the 95% interval."""
        return self.mean - USUAL * self.error

    @property
    def contradiction(self) -> float:
        """How far the whole strict interval is below 0; 0 if it is not."""
        return max(0.0, -self.mean - STRICT * self.error)

    def miss(self, claimed: float = 0.0) -> float:
        """How far a claimed value is outside the strict interval; 0 if it is inside."""
        return max(0.0, abs(self.mean - claimed) - STRICT * self.error)


def measure_effect(values: np.ndarray[Any, np.dtype[Any]]) -> Effect:
    """The mean of independent values [n] and its standard error."""
    return Effect(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5))
