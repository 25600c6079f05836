"""Ordinal tables whose training and test rows have different correlations: the simulation of appendix D.

Source: Wibisono and Wang 2023 (arXiv 2307.04057), appendix D.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from attngeo.choices import one_of, real, whole

if TYPE_CHECKING:
    import numpy as np

# How tables are made: as the text says, or as the code did that made the published numbers.
ShiftConvention = Literal["text", "published"]
# Standard deviations: of the response's noise, and of the features' noise at `noise` 1, for features that the response
# depends on and for others.
RESPONSE_NOISE, CAUSE_NOISE, OTHER_NOISE = 2.0, 0.4, 0.3
LARGEST_COEFFICIENT = 10.0
# The seed that draws the seeds of data sets, which are below a limit.
SEED_OF_SEEDS, SEED_LIMIT = 2023, 10_000


class Rows(NamedTuple):
    """Rows of a table of categories, as numbers from 0.

    x: features, [rows, n_features]. y: responses, [rows].
    """

    x: np.ndarray
    y: np.ndarray


class ShiftedTable(NamedTuple):
    """A data set: training rows, and test rows with other correlations."""

    train: Rows
    test: Rows


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A setting of the simulation. Raises UsageError for a value outside its limits.

    n_c: features that the response depends on, the first ones. noise: scale of the noise of observed features. corr:
    between features in training rows; in test rows it is 1 − corr. n_features: K. n_classes: C, of features and of the
    response. train_rows, test_rows: how many rows. convention: `text` follows appendix D; `published` follows the code
    that made Table 1, which multiplies the first features by −1 in test rows, too, and bins training and test rows
    together.
    """

    n_c: int = 5
    noise: float = 0.0
    corr: float = 0.9
    n_features: int = 5
    n_classes: int = 10
    train_rows: int = 2000
    test_rows: int = 2000
    convention: ShiftConvention = "text"

    def __post_init__(self) -> None:
        whole("n_features", self.n_features, 1)
        whole("n_c", self.n_c, 1, self.n_features)
        whole("n_classes", self.n_classes, 2)
        whole("train_rows", self.train_rows, self.n_classes)
        whole("test_rows", self.test_rows, self.n_classes)
        real("noise", self.noise, 0.0, math.inf)
        real("corr", self.corr, 0.0, 1.0)
        one_of("convention", self.convention, get_args(ShiftConvention))


def simulate(shift: Shift, seed: int) -> ShiftedTable:
    """One data set of a setting. Equal seeds give the same underlying numbers under both conventions.

    seed: from 0 to 2³² − 1. The generator is NumPy's RandomState, whose numbers do not change between versions. Order
    of draws is that of the published runs: a seed of Table 1 has the coefficients and the noise of the data set there,
    and features that are rotated.
    """
    import numpy as np

    draw, k = np.random.RandomState(seed), shift.n_features
    sizes = (shift.train_rows, shift.test_rows)
    flips = np.where(np.arange(k) < k // 2, -1.0, 1.0)
    exact = [
        _draw_normal(draw, rows, k, correlation)
        for rows, correlation in zip(sizes, (shift.corr, 1 - shift.corr), strict=True)
    ]
    exact = [exact[0] * flips, exact[1] * flips if shift.convention == "published" else exact[1]]
    scales = np.where(np.arange(k) < shift.n_c, CAUSE_NOISE, OTHER_NOISE) * shift.noise
    observed = [x + scales * draw.normal(size=x.shape) for x in exact]
    coefficients = draw.uniform(size=shift.n_c) * LARGEST_COEFFICIENT
    responses = [x[:, : shift.n_c] @ coefficients + RESPONSE_NOISE * draw.normal(size=len(x)) for x in exact]
    cells = [np.column_stack([x, y]) for x, y in zip(observed, responses, strict=True)]
    binned = _bin_together(cells, shift.n_classes) if shift.convention == "published" else _bin(cells, shift.n_classes)
    return ShiftedTable(*(Rows(each[:, :-1], each[:, -1]) for each in binned))


def seeds_of_data_sets(count: int) -> list[int]:
    """The seeds of the first data sets of every setting; the first 20 are those of Table 1. All are different."""
    import numpy as np

    whole("datasets", count, 1, SEED_LIMIT // 2)
    draw = np.random.RandomState(SEED_OF_SEEDS)
    found: dict[int, None] = {}
    while len(found) < count:
        found[int(draw.randint(SEED_LIMIT))] = None
    return list(found)


def quantile_codes(values: np.ndarray, n_classes: int) -> np.ndarray:
    """The number of the quantile bin of each value, from 0: [rows].

    Quantiles are interpolated and bins are closed on the right, as those of `pandas.qcut`, but a quantile that is one
    of the values is exactly that.
    """
    import numpy as np

    ordered, last = np.sort(values), len(values) - 1
    below, left = np.divmod(np.arange(1, n_classes) * last, n_classes)
    edges = ordered[below] + left / n_classes * (ordered[np.minimum(below + 1, last)] - ordered[below])
    return np.searchsorted(edges, values, side="left")


def _draw_normal(draw: np.random.RandomState, rows: int, k: int, correlation: float) -> np.ndarray:
    """Normal rows with mean 0, variance 1 and one correlation between all features: [rows, k].

    The square root of the covariance is the symmetric one, a·I + b·J. `RandomState.multivariate_normal` draws the same
    numbers, but multiplies them by a root that depends on LAPACK, because eigenvalues repeat.
    """
    import numpy as np

    least, largest = math.sqrt(1 - correlation), math.sqrt(1 + (k - 1) * correlation)
    return draw.standard_normal((rows, k)) @ (least * np.eye(k) + (largest - least) / k * np.ones((k, k)))


def _bin(tables: Sequence[np.ndarray], n_classes: int) -> list[np.ndarray]:
    """Each column of each table by its own quantiles."""
    import numpy as np

    return [np.column_stack([quantile_codes(column, n_classes) for column in table.T]) for table in tables]


def _bin_together(tables: Sequence[np.ndarray], n_classes: int) -> list[np.ndarray]:
    """Each column by the quantiles over all tables."""
    import numpy as np

    (binned,) = _bin([np.concatenate(tables)], n_classes)
    return np.split(binned, np.cumsum([len(table) for table in tables])[:-1])
