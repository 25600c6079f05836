"""The scores as data: `SCORES` lists them, and tables, figures and reports read it.

A new score is one more `ScoreSpec` in `SCORES`; the table is read when it is needed, never copied at import. Imports no
torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from attngeo.scores.options import ScoreOptions

if TYPE_CHECKING:
    from torch import Tensor

    from attngeo.geometry.forms import FormStatistics


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


@dataclass(frozen=True, kw_only=True)
class ScoreSpec:
    """One score of a bilinear form M = Wq·Wkᵀ [d_model, d_model].

    Attributes:
        name: its column.
        label: how figures and tables call it.
        low: the lower end of its range.
        high: the upper end of its range.
        negative: what the lower end means, as the end of the sentence "the form is …".
        positive: what the upper end means, as the end of the sentence "the form is …".
        compute: the score of each head of a form, [heads], NaN if it is undefined.
        chance: the score of random forms, for a d_model.
        chance_is_exact: whether chance follows from a proof; then the column `NAME_z` counts standard deviations
            above chance.
    """

    name: str
    label: str
    low: float = -1.0
    high: float = 1.0
    negative: str
    positive: str
    compute: Callable[[FormStatistics, ScoreOptions], Tensor]
    chance: Callable[[int], Chance]
    chance_is_exact: bool = False

    @property
    def axis_title(self) -> str:
        """The label with the meaning of both ends of the range, for an axis."""
        return f"{self.label} ({_number(self.low)} {self.negative}, {_number(self.high)} {self.positive})"

    def z(self, value: float, d_model: int) -> float:
        """How many standard deviations a score is above chance."""
        mean, deviation = self.chance(d_model)
        return (value - mean) / deviation


def _number(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def _symmetry(statistics: FormStatistics, _: ScoreOptions) -> Tensor:
    from attngeo.geometry.scores import symmetry_of

    return symmetry_of(statistics)


def _directionality(statistics: FormStatistics, options: ScoreOptions) -> Tensor:
    from attngeo.geometry.scores import directionality_of

    return directionality_of(statistics, gamma=options.gamma, convention=options.convention)


# Source: Saponati et al. 2025 (arXiv 2502.10927), Definition 3.1 without its factor 2, and Definition 3.2.
SCORES: dict[str, ScoreSpec] = {
    spec.name: spec
    for spec in (
        ScoreSpec(
            name="symmetry",
            label="symmetry",
            negative="skew-symmetric",
            positive="symmetric",
            compute=_symmetry,
            chance=symmetry_at_chance,
            chance_is_exact=True,
        ),
        ScoreSpec(
            name="directionality",
            label="directionality",
            negative="dominated by columns",
            positive="dominated by rows",
            compute=_directionality,
            chance=directionality_at_chance,
        ),
    )
}


# Columns beside the scores: variance of the norms of the columns, and of the rows, over their mean square. They are no
# scores, because chance gives (1/rank + 1/d_model)/2, which d_model alone does not tell.
SPREADS = ("column_spread", "row_spread")


def score_names() -> tuple[str, ...]:
    """The names of all scores, in the order of the table."""
    return tuple(SCORES)


def z_columns() -> tuple[str, ...]:
    """The columns that count standard deviations above chance."""
    return tuple(f"{spec.name}_z" for spec in SCORES.values() if spec.chance_is_exact)


def number_columns() -> tuple[str, ...]:
    """The columns of scores, of their z and of spreads; a reader of results files needs their names."""
    return (*score_names(), *z_columns(), *SPREADS)
