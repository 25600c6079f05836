"""Exponential families of one observation, with their natural parameter.

    p(y | η) = h(y)·exp(η·t(y) − A(η))

η: the natural parameter. t: the sufficient statistic. A: the log-partition. h: the base measure. Each family is a short
class of these, a subclass of `ExponentialFamily`, from which the rest follows.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 2.2 and equation (3); the forms are those of any textbook,
for example Wainwright and Jordan 2008, table 3.1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributions, nn
from torch.nn import functional

from attngeo.choices import real, whole
from attngeo.efa.columns import LARGEST
from attngeo.efa.exponential_family import ExponentialFamily as ExponentialFamily
from attngeo.errors import UsageError

# The smallest distance from 0 of a natural parameter that must be negative.
LEAST = 1e-30
# The most levels of an ordinal family: each value has a logit for each.
MOST_LEVELS = 100_000


class Gaussian(ExponentialFamily):
    """Normal with one variance for all observations; η is mean / variance.

    variance: positive, or None for one that is learned and starts at 1.
    """

    def __init__(self, variance: float | None = 1.0) -> None:
        super().__init__()
        self.log_variance: nn.Parameter | None = None
        if variance is None:
            self.log_variance = nn.Parameter(torch.zeros(()))
        self._given = 1.0 if variance is None else _check_positive("variance", variance)

    def variance_as(self, like: Tensor) -> Tensor:
        """The variance, a scalar of the precision and on the device of another tensor."""
        if self.log_variance is not None:
            return self.log_variance.to(like.dtype).exp()
        return torch.tensor(self._given, dtype=like.dtype, device=like.device)

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η) = variance·η² / 2."""
        return self.variance_as(natural) * natural.square() / 2

    def log_base(self, value: Tensor) -> Tensor:
        """The density of a normal with mean 0."""
        return self._log_density(value)

    def log_prob(self, natural: Tensor, value: Tensor) -> Tensor:
        """The logarithm of p(y | η), from y − mean: η·t(y) and A(η) are too large where the mean is."""
        return self._log_density(value - self.mean(natural))

    def _log_density(self, distance: Tensor) -> Tensor:
        """Of a number at a distance from the mean."""
        variance = self.variance_as(distance)
        return -(distance.square() / variance + math.log(2 * math.pi) + variance.log()) / 2

    def natural(self, raw: Tensor) -> Tensor:
        """The network gives the mean."""
        return raw / self.variance_as(raw)

    def mean(self, natural: Tensor) -> Tensor:
        """variance·η."""
        return natural * self.variance_as(natural)

    def sample(self, natural: Tensor) -> Tensor:
        """Normal numbers."""
        return _draw(distributions.Normal(self.mean(natural), self.variance_as(natural).sqrt()))


class Poisson(ExponentialFamily):
    """Counts; η is the logarithm of the rate.

    least: of the rate. The network gives r and the rate is least + exp(r): with 1, the second parameterisation of the
    paper's section 6.2.2. The first one is that of counts from 1, as `Shifted(Poisson(), 1)`.
    """

    values = "whole numbers from 0"
    needs_double = True

    def __init__(self, least: float = 0.0) -> None:
        super().__init__()
        self.least = real("least", least, 0, LARGEST)

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η) = exp(η)."""
        return natural.exp()

    def log_base(self, value: Tensor) -> Tensor:
        """−log y!"""
        return -(value + 1).lgamma()

    def supports(self, value: Tensor) -> Tensor:
        """0, 1, 2, …"""
        return _is_whole(value, math.inf)

    def natural(self, raw: Tensor) -> Tensor:
        """log(least + exp(raw))."""
        return raw if not self.least else torch.logaddexp(raw, torch.full_like(raw, math.log(self.least)))

    def mean(self, natural: Tensor) -> Tensor:
        """exp(η)."""
        return natural.exp()

    def sample(self, natural: Tensor) -> Tensor:
        """Counts."""
        return _draw(distributions.Poisson(natural.exp()))


class Binomial(ExponentialFamily):
    """Successes of a number of trials; η is the logit of a success.

    total_count: the number of trials.
    """

    needs_double = True

    def __init__(self, total_count: int) -> None:
        super().__init__()
        self.total_count = whole("total_count", total_count, 1, int(LARGEST))
        self.values = f"whole numbers from 0 to {total_count}"

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η) = n·log(1 + exp(η))."""
        return self.total_count * functional.softplus(natural)

    def log_base(self, value: Tensor) -> Tensor:
        """The logarithm of the binomial coefficient."""
        n = self.total_count
        return math.lgamma(n + 1) - (value + 1).lgamma() - (n - value + 1).lgamma()

    def supports(self, value: Tensor) -> Tensor:
        """0 to n."""
        return _is_whole(value, self.total_count)

    def mean(self, natural: Tensor) -> Tensor:
        """n·sigmoid(η)."""
        return self.total_count * natural.sigmoid()

    def sample(self, natural: Tensor) -> Tensor:
        """Counts."""
        return _draw(distributions.Binomial(self.total_count, logits=natural))


class Bernoulli(Binomial):
    """0 or 1; η is the logit of 1."""

    def __init__(self) -> None:
        super().__init__(1)


class NegativeBinomial(ExponentialFamily):
    """Failures before a number of successes; η = log(1 − p) for a probability p of success, so it is negative.

    total_count: the number of successes; positive, not necessarily whole.
    """

    values = "whole numbers from 0"
    needs_double = True

    def __init__(self, total_count: float) -> None:
        super().__init__()
        self.total_count = _check_positive("total_count", total_count)

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η) = −n·log(1 − exp(η))."""
        return -self.total_count * (-natural.expm1()).log()

    def log_base(self, value: Tensor) -> Tensor:
        """The logarithm of the number of orders."""
        n = self.total_count
        return (value + n).lgamma() - (value + 1).lgamma() - math.lgamma(n)

    def supports(self, value: Tensor) -> Tensor:
        """0, 1, 2, …"""
        return _is_whole(value, math.inf)

    def natural(self, raw: Tensor) -> Tensor:
        """−softplus(−raw): the logarithm of a probability whose logit is raw."""
        return -functional.softplus(-raw) - LEAST

    def mean(self, natural: Tensor) -> Tensor:
        """n·(1 − p) / p."""
        return self.total_count / (-natural).expm1()

    def sample(self, natural: Tensor) -> Tensor:
        """Counts. What torch calls a success is a failure here."""
        return _draw(distributions.NegativeBinomial(self.total_count, logits=-(-natural).expm1().log()))


class Gamma(ExponentialFamily):
    """Positive numbers with a known concentration (shape); η is −rate, so it is negative.

    concentration: positive.
    """

    values = "positive numbers"
    needs_double = True

    def __init__(self, concentration: float) -> None:
        super().__init__()
        self.concentration = _check_positive("concentration", concentration)

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η) = −α·log(−η)."""
        return -self.concentration * (-natural).log()

    def log_base(self, value: Tensor) -> Tensor:
        """(α − 1)·log y − log Γ(α)."""
        return (self.concentration - 1) * value.log() - math.lgamma(self.concentration)

    def supports(self, value: Tensor) -> Tensor:
        """Above 0."""
        return value.isfinite() & (value > 0)

    def natural(self, raw: Tensor) -> Tensor:
        """−α·exp(−raw): the network gives the logarithm of the mean."""
        return -self.concentration * (-raw).exp()

    def mean(self, natural: Tensor) -> Tensor:
        """α / rate."""
        return -self.concentration / natural

    def sample(self, natural: Tensor) -> Tensor:
        """Positive numbers."""
        return _draw(distributions.Gamma(torch.full_like(natural, self.concentration), -natural))


class Categorical(ExponentialFamily):
    """One of D categories, numbered from 0; η are D logits, the last dimension of `natural`."""

    values = "numbers of categories from 0"

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η) = log Σ exp(η)."""
        return natural.logsumexp(-1)

    def log_base(self, value: Tensor) -> Tensor:
        """0."""
        return torch.zeros(value.shape, device=value.device)

    def supports(self, value: Tensor) -> Tensor:
        """0, 1, 2, …"""
        return _is_whole(value, math.inf)

    def mean(self, natural: Tensor) -> Tensor:
        """The probability of each category, [..., D]."""
        return natural.softmax(-1)

    def log_likelihood(self, natural: Tensor, value: Tensor) -> Tensor:
        """The logarithm of the probability of each value's category."""
        shape = np.broadcast_shapes(natural.shape[:-1], value.shape)
        chances = natural.log_softmax(-1).expand(*shape, -1)
        return chances.gather(-1, value.long().expand(shape)[..., None])[..., 0]

    def sample(self, natural: Tensor) -> Tensor:
        """Numbers of categories."""
        return _draw(distributions.Categorical(logits=natural))


class Ordinal(ExponentialFamily):
    """One of a number of ordered levels, numbered from 0: p(y | η) ∝ exp(η·y + b_y).

    The logit of each level against the one below it is η plus a constant: the adjacent-category model, which is the
    ordinal model of an exponential family. levels: from 2 to 100,000. The weights b of the levels are learned, and
    start at 0.
    """

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = whole("levels", levels, 2, MOST_LEVELS)
        self.values = f"whole numbers from 0 to {levels - 1}"
        self.weights = nn.Parameter(torch.zeros(levels))

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η) = log Σ_k exp(η·k + b_k)."""
        return self._logits(natural).logsumexp(-1)

    def log_base(self, value: Tensor) -> Tensor:
        """b_y."""
        return self.weights[value.long()].to(torch.promote_types(value.dtype, torch.float32))

    def supports(self, value: Tensor) -> Tensor:
        """0 to levels − 1."""
        return _is_whole(value, self.levels - 1)

    def mean(self, natural: Tensor) -> Tensor:
        """The mean level."""
        return self._logits(natural).softmax(-1) @ torch.arange(self.levels, dtype=natural.dtype, device=natural.device)

    def sample(self, natural: Tensor) -> Tensor:
        """Levels."""
        return Categorical().sample(self._logits(natural)).to(natural.dtype)

    def _logits(self, natural: Tensor) -> Tensor:
        levels = torch.arange(self.levels, dtype=natural.dtype, device=natural.device)
        return natural[..., None] * levels + self.weights.to(natural.dtype)


class Shifted(ExponentialFamily):
    """Values that start at another number: y − shift is of the family. For example, ratings from 1 that are counts."""

    def __init__(self, family: ExponentialFamily, shift: float) -> None:
        super().__init__()
        self.family, self.shift = family, shift
        self.needs_double = family.needs_double
        is_open = family.values.endswith("from 0")
        self.values = f"{family.values[:-1]}{shift:g}" if is_open else f"{family.values} plus {shift:g}"

    def log_partition(self, natural: Tensor) -> Tensor:
        """That of the family."""
        return self.family.log_partition(natural)

    def log_base(self, value: Tensor) -> Tensor:
        """That of the family at y − shift."""
        return self.family.log_base(value - self.shift)

    def sufficient(self, value: Tensor) -> Tensor:
        """That of the family at y − shift."""
        return self.family.sufficient(value - self.shift)

    def supports(self, value: Tensor) -> Tensor:
        """Whether y − shift is a value of the family."""
        return self.family.supports(value - self.shift)

    def natural(self, raw: Tensor) -> Tensor:
        """That of the family."""
        return self.family.natural(raw)

    def mean(self, natural: Tensor) -> Tensor:
        """The mean of the family plus the shift."""
        return self.family.mean(natural) + self.shift

    def sample(self, natural: Tensor) -> Tensor:
        """Values of the family plus the shift."""
        return self.family.sample(natural) + self.shift


def _draw(distribution: Any) -> Tensor:
    """One value of each distribution of torch."""
    drawn: Tensor = distribution.sample()
    return drawn


def _is_whole(value: Tensor, most: float) -> Tensor:
    return value.isfinite() & (value == value.floor()) & (value >= 0) & (value <= most)


def _check_positive(name: str, value: float) -> float:
    if not 1 / LARGEST <= value <= LARGEST:
        raise UsageError(f"{name} is {value!r}, expected a positive number from {1 / LARGEST:g} to {LARGEST:g}")
    return float(value)
