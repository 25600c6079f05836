"""The scores as data: `SCORES` lists them, and tables, figures and reports read it.

A new score is one more `ScoreSpec` in `SCORES`; the table is read when it is needed, never copied at import. Imports no
torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from attngeo import geometry

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


def trace_at_chance(_: int) -> Chance:
    """0 and 1 for one factor rotated at random, whatever the spectrum of the form."""
    return Chance(0.0, 1.0)


def directionality_at_chance(n: int) -> Chance:
    """0 and 3.4/√n; the factor 3.4 was found by simulation of Gaussian Wq and Wk.

    It depends a little on their rank: 3.5 if they are square, 3.1 for a rank of n/16.
    """
    return Chance(0.0, 3.4 / math.sqrt(n))


@dataclass(frozen=True, kw_only=True)
class ScoreSpec:
    """One score of a bilinear form M = Wq·Wkᵀ [d_model, d_model].

    Attributes:
        name: its column.
        label: its name in figures and tables.
        low: the lower end of its range; −∞ if it has none.
        high: the upper end of its range; ∞ if it has none.
        negative: meaning of the lower end, to complete the sentence "the form is …".
        positive: meaning of the upper end, to complete the sentence "the form is …".
        compute: the score of each head of a form, [heads], NaN if it is undefined; called with its statistics and the
            ScoreOptions.
        chance: the score of random forms, for a d_model; None if it depends on more than that.
        chance_is_exact: whether chance follows from a proof; if so, the column `NAME_z` counts standard deviations
            above chance.
        is_optional: whether it is computed only if the option `scores` names it.
        is_size: whether it grows with the form, as a norm does.
        is_of_layers: whether it compares the form of a layer with those of its heads, which have none. It is computed
            from `LayerStatistics`, or from `RotaryScores` if `is_rotary`.
        is_rotary: whether it is one of W_qk over all rotary offsets. It is computed from `RotaryScores`.
        digits: after the point, in tables; of a size in all.
    """

    name: str
    label: str
    low: float = -1.0
    high: float = 1.0
    negative: str
    positive: str
    compute: Callable[[FormStatistics, Any], Tensor]
    chance: Callable[[int], Chance] | None
    chance_is_exact: bool = False
    is_optional: bool = False
    is_size: bool = False
    is_of_layers: bool = False
    is_rotary: bool = False
    digits: int = 3

    @property
    def axis_title(self) -> str:
        """The label with the meaning of both ends of the range, for an axis."""
        low = "low:" if math.isinf(self.low) else _number(self.low)
        high = "high:" if math.isinf(self.high) else _number(self.high)
        return f"{self.label} ({low} {self.negative}, {high} {self.positive})"

    def z(self, value: float, d_model: int) -> float:
        """A score in standard deviations above chance; the score must have a chance level."""
        assert self.chance is not None
        mean, deviation = self.chance(d_model)
        return (value - mean) / deviation


def _number(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def _directionality(statistics: FormStatistics, options: Any) -> Tensor:
    return geometry.directionality_of(statistics, gamma=options.gamma, convention=options.convention)


def _stable_rank(statistics: FormStatistics, _: Any) -> Tensor:
    return statistics.squared_norm / statistics.largest_singular_values.square()


def _positive_eigenvalues(statistics: FormStatistics, _: Any) -> Tensor:
    return geometry.positive_share(geometry.eigenvalues(statistics.form.left, statistics.right))


# Sources: of symmetry and directionality Saponati et al. 2025 (arXiv 2502.10927), Definition 3.1 without its factor 2,
# and Definition 3.2; of the eigenvalues of a head's form Elhage et al. 2021 (A mathematical framework for transformer
# circuits), who sum those of the form over tokens, E·O·U. A z of positive_eigenvalues would be right for factors with
# independent entries only: trained ones have spectra that decay, which widens its distribution.
SCORES: dict[str, ScoreSpec] = {
    spec.name: spec
    for spec in (
        ScoreSpec(
            name="symmetry",
            label="symmetry",
            negative="skew-symmetric",
            positive="symmetric",
            compute=lambda statistics, _: geometry.symmetry_of(statistics),
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
        ScoreSpec(
            name="trace_z",
            label="trace z",
            low=-math.inf,
            high=math.inf,
            negative="the opposite of its inputs",
            positive="like its inputs",
            compute=lambda statistics, _: geometry.standardize_trace(statistics.form.left, statistics.right),
            chance=trace_at_chance,
            is_optional=True,
            digits=1,
        ),
        ScoreSpec(
            name="spectral_norm",
            label="spectral norm",
            low=0.0,
            high=math.inf,
            negative="zero",
            positive="large in one direction",
            compute=lambda statistics, _: statistics.largest_singular_values,
            chance=None,
            is_optional=True,
            is_size=True,
            digits=4,
        ),
        ScoreSpec(
            name="stable_rank",
            label="stable rank",
            low=1.0,
            high=math.inf,
            negative="of one direction",
            positive="of many directions",
            compute=_stable_rank,
            chance=None,
            is_optional=True,
            digits=1,
        ),
        ScoreSpec(
            name="positive_eigenvalues",
            label="Σλ/Σ|λ|",
            negative="of negative eigenvalues",
            positive="of positive eigenvalues",
            compute=_positive_eigenvalues,
            chance=None,
            is_optional=True,
        ),
        ScoreSpec(
            name="symmetric_growth",
            label="symmetric growth",
            low=0.0,
            high=math.inf,
            negative="of symmetric parts that cancel",
            positive="of symmetric parts that agree; 1 if they are unrelated",
            compute=lambda statistics, _: geometry.growths_of(statistics).symmetric,
            chance=None,
            is_optional=True,
            is_of_layers=True,
        ),
        ScoreSpec(
            name="antisymmetric_growth",
            label="antisymmetric growth",
            low=0.0,
            high=math.inf,
            negative="of antisymmetric parts that cancel",
            positive="of antisymmetric parts that agree; 1 if they are unrelated",
            compute=lambda statistics, _: geometry.growths_of(statistics).antisymmetric,
            chance=None,
            is_optional=True,
            is_of_layers=True,
        ),
        ScoreSpec(
            name="own_symmetry",
            label="own symmetry",
            low=-math.inf,
            high=math.inf,
            negative="of skew-symmetric heads",
            positive="of symmetric heads",
            compute=lambda statistics, _: geometry.growths_of(statistics).own,
            chance=None,
            is_optional=True,
            is_of_layers=True,
        ),
        ScoreSpec(
            name="agreement",
            label="agreement",
            low=-math.inf,
            negative="of symmetric parts that cancel",
            positive="of symmetric parts that agree",
            compute=lambda statistics, _: geometry.growths_of(statistics).agreement,
            chance=None,
            is_optional=True,
            is_of_layers=True,
        ),
        ScoreSpec(
            name="cancellation",
            label="cancellation",
            high=math.inf,
            negative="of antisymmetric parts that agree",
            positive="of antisymmetric parts that cancel",
            compute=lambda statistics, _: geometry.growths_of(statistics).cancellation,
            chance=None,
            is_optional=True,
            is_of_layers=True,
        ),
        ScoreSpec(
            name="rotary_symmetry",
            label="rotary symmetry",
            negative="skew-symmetric over all offsets",
            positive="symmetric over all offsets",
            compute=lambda statistics, _: geometry.rotary_scores_of(statistics).symmetry,
            chance=None,
            is_optional=True,
            is_rotary=True,
        ),
        ScoreSpec(
            name="rotary_symmetric_growth",
            label="rotary symmetric growth",
            low=0.0,
            high=math.inf,
            negative="of symmetric parts that cancel",
            positive="of symmetric parts that agree over all offsets; 1 if they are unrelated",
            compute=lambda statistics, _: geometry.rotary_scores_of(statistics).symmetric_growth,
            chance=None,
            is_optional=True,
            is_of_layers=True,
            is_rotary=True,
        ),
        ScoreSpec(
            name="rotary_antisymmetric_growth",
            label="rotary antisymmetric growth",
            low=0.0,
            high=math.inf,
            negative="of antisymmetric parts that cancel",
            positive="of antisymmetric parts that agree over all offsets; 1 if they are unrelated",
            compute=lambda statistics, _: geometry.rotary_scores_of(statistics).antisymmetric_growth,
            chance=None,
            is_optional=True,
            is_of_layers=True,
            is_rotary=True,
        ),
    )
}


# Columns beside the scores: variance of the norms of the columns, and of the rows, over their mean square. They are no
# scores, because chance gives (1/rank + 1/d_model)/2, which d_model alone does not tell.
SPREADS = ("column_spread", "row_spread")


def score_names(chosen: Collection[str] = ()) -> tuple[str, ...]:
    """The names of the scores that are always computed, and of the chosen optional ones, in the order of the table."""
    return tuple(name for name, spec in SCORES.items() if not spec.is_optional or name in chosen)


def default_scores() -> dict[str, ScoreSpec]:
    """The scores that are always computed, by name."""
    return {name: SCORES[name] for name in score_names()}


def head_scores(names: Iterable[str]) -> tuple[str, ...]:
    """The scores among these that heads have, too."""
    return tuple(name for name in names if not SCORES[name].is_of_layers)


def layer_scores() -> tuple[str, ...]:
    """The names of the scores that only whole layers have."""
    return tuple(name for name, spec in SCORES.items() if spec.is_of_layers)


def rotary_scores() -> tuple[str, ...]:
    """The names of the scores over all rotary offsets."""
    return tuple(name for name, spec in SCORES.items() if spec.is_rotary)


def scores_in(columns: Iterable[str]) -> tuple[str, ...]:
    """The names of the scores that a table with these columns shows: the optional ones only if it has them."""
    return score_names(tuple(columns))


def z_columns() -> tuple[str, ...]:
    """The columns that count standard deviations above chance."""
    return tuple(f"{spec.name}_z" for spec in SCORES.values() if spec.chance_is_exact)


def number_columns(chosen: Collection[str] = tuple(SCORES)) -> tuple[str, ...]:
    """The columns of scores, of their z and of spreads; a reader of results files needs their names.

    chosen: the optional scores among them, by default all.
    """
    return (*score_names(chosen), *z_columns(), *SPREADS)
