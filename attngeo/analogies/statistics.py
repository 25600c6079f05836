"""Bootstrap intervals of an accuracy, and McNemar's test of two models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binomtest

from attngeo.choices import Resample

Array = np.ndarray[Any, np.dtype[Any]]
LEVEL = 0.95
# Bytes of resampling weights in memory at a time.
CHUNK = 1 << 26


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are computed.

    resample: "questions" draws questions as if they were independent. They are not: each pair of words makes many
    questions (Google's capitals of common countries are 23 pairs and 506 questions), and a model that gets one pair
    wrong can get all of its questions wrong. "pairs" draws the pairs of each category; the weight of a question is the
    product of the draws of its two pairs (Davezies, D'Haultfœuille and Guyonvarch 2021, Annals of Statistics 49(2), for
    data on pairs of units).
    draws: number of draws; 0 for no intervals. seed: of the random numbers.
    """

    resample: Resample = "pairs"
    draws: int = 2000
    seed: int = 0


def resample_means(values: Array, first: Array, second: Array, how: Bootstrap, key: int) -> Array:
    """Numerators and denominators [2, columns, draws] of the mean of each column of `values` [questions, columns].

    The questions are those of one category. first, second: the names of their two pairs, [questions]. The sum over
    categories gives a type. key: number of the category, so that every model is resampled in the same way.
    """
    generator = np.random.default_rng([how.seed, key])
    count = len(values)
    if how.resample == "questions":
        units, places = count, np.arange(count)[None]
    else:
        names, inverse = np.unique(np.concatenate([first, second]), return_inverse=True)
        units, places = len(names), inverse.reshape(2, count)
    sums = np.empty((2, values.shape[1], how.draws))
    step = max(1, CHUNK // (8 * count))
    for start in range(0, how.draws, step):
        stop = min(start + step, how.draws)
        drawn = generator.multinomial(units, np.full(units, 1 / units), size=stop - start)
        weights = drawn[:, places].prod(1).astype(float)
        sums[0, :, start:stop] = (weights @ values).T
        sums[1, :, start:stop] = weights.sum(1)
    return sums


def interval(sums: Array) -> tuple[float, float]:
    """The 95% percentile interval of the mean, from numerators and denominators [2, draws].

    NaN without draws, and if all draws are equal: the bootstrap has no interval for an accuracy of 0 or 1.
    """
    numerators, denominators = sums
    means = numerators[denominators > 0] / denominators[denominators > 0]
    if not len(means) or means.min() == means.max():
        return float("nan"), float("nan")
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value of McNemar's test, from the numbers of questions that only one model gets right.

    If the models are equally accurate, each such question is a fair coin. 1 if there is none. The test assumes
    independent questions, see `Bootstrap`. McNemar 1947, doi 10.1007/BF02295996.
    """
    discordant = only_first + only_second
    return float(binomtest(only_first, discordant).pvalue) if discordant else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of p-values for their number: the probability of any false rejection is at most α.

    Holm 1979, "A simple sequentially rejective multiple test procedure", https://www.jstor.org/stable/4615733.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    factors = np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(np.asarray(p_values)[order] * factors), 1)
    return [float(value) for value in corrected]
