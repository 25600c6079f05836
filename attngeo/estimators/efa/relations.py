"""How nearly one set of vectors is a linear map of another.

Source: Roeder et al. 2021 (arXiv 2007.00810); Wibisono and Wang 2025 (arXiv 2501.16790), remark 13.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

# Directions with a smaller share of the largest singular value are the rounding of single precision.
ROUNDING = 1e-6
# In this number of parts, the rows are left out of the map that explains them; one at a time if they are fewer.
FOLDS = 20


class Relation(NamedTuple):
    """How close one set of vectors is to a linear map of another.

    R² is measured on rows left out of the map, a twentieth at a time: 0 or less by chance, NaN with too few rows.

    Attributes:
        forward: R² of the second set from the first.
        backward: R² of the first set from the second.
        correlation: mean canonical correlation.
        lowest: lowest canonical correlation.
        correlation_chance: mean canonical correlation after shuffling the rows of one set.
    """

    forward: float
    backward: float
    correlation: float
    lowest: float
    correlation_chance: float

    @property
    def error(self) -> float:
        """1 − the lower R²."""
        return 1 - min(self.forward, self.backward)

    def __str__(self) -> str:
        return f"R² {self.forward:.4f} and {self.backward:.4f}, correlation {self.correlation:.4f}"


def relate(first: Tensor, second: Tensor, *, intercept: bool = False) -> Relation:
    """Compare vectors of the same things, [n, K] and [n, K']. intercept: whether the map may add a vector.

    R² is 1 − Σ‖error‖²/Σ‖vector − mean‖², so that a constant explains nothing.
    """
    first = first.detach().double()
    second = second.detach().double()
    forward = _explain(first, second, intercept=intercept)
    backward = _explain(second, first, intercept=intercept)
    left = _find_basis(first - first.mean(0))
    right = _find_basis(second - second.mean(0))
    shuffled = right[torch.randperm(len(right), generator=torch.Generator().manual_seed(0))]
    correlations = _correlate(left, right)
    if not len(correlations):  # vectors that are all equal
        return Relation(forward, backward, torch.nan, torch.nan, torch.nan)
    chance = float(_correlate(left, shuffled).mean())
    return Relation(forward, backward, float(correlations.mean()), float(correlations.min()), chance)


def _explain(inputs: Tensor, outputs: Tensor, *, intercept: bool) -> float:
    """R² of a linear map, on the rows of each fold by the map of the other rows."""
    if intercept:
        inputs = functional.pad(inputs, (0, 1), value=1.0)
    fold = torch.arange(len(inputs)) % FOLDS
    if int((fold != 0).sum()) < inputs.shape[1]:
        return torch.nan
    error = 0.0
    for number in range(min(FOLDS, len(inputs))):
        is_out = fold == number
        fitted = torch.linalg.lstsq(inputs[~is_out], outputs[~is_out], rcond=ROUNDING, driver="gelsd").solution
        error += float((outputs[is_out] - inputs[is_out] @ fitted).square().sum())
    return 1 - error / float((outputs - outputs.mean(0)).square().sum())


def _find_basis(vectors: Tensor) -> Tensor:
    """An orthonormal basis of the columns, [n, rank]."""
    left, sizes, _ = torch.linalg.svd(vectors, full_matrices=False)
    basis: Tensor = left[:, sizes > ROUNDING * sizes[0]]
    return basis


def _correlate(left: Tensor, right: Tensor) -> Tensor:
    """The canonical correlations of two orthonormal bases, [lower rank]."""
    correlations: Tensor = torch.linalg.svdvals(left.T @ right).clamp(max=1)
    return correlations
