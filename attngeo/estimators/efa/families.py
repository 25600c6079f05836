"""Exponential families of one observation, with their natural parameter.

    p(y | η) = h(y)·exp(η·t(y) − A(η))

η: the natural parameter. t: the sufficient statistic. A: the log-partition. h: the base measure. Each family is a short
class of these, a subclass of `ExponentialFamily`. Its mean and its samples are those of torch's distribution.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 2.2 and equation (3); the forms are those of any textbook,
for example Wainwright and Jordan 2008, table 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributions, nn
from torch.distributions import Distribution, constraints
from torch.nn import functional

from attngeo.choices import real, whole
from attngeo.errors import UsageError
from attngeo.estimators.efa.options import FAMILY_FORMS, check_family, describe_family

# Squares of numbers up to this one are finite in single precision, and so are sums of many of them.
LARGEST = 1e18
# Numbers of a network for a mean are searched up to this one by this number of halvings, which exhaust the digits of
# double precision.
LARGEST_RAW = 4 * LARGEST
HALVES = 160
# The smallest distance from 0 of a natural parameter that must be negative.
LEAST = 1e-30
# The most levels of an ordinal family: each value has a logit for each.
MOST_LEVELS = 100_000


class ExponentialFamily(nn.Module):
    """A family whose values are numbers. Tensors of values and natural parameters have the same shape, or broadcast.

    A subclass defines `log_partition`, `log_base` and `distribution`; also `support`, `sufficient` and `natural` if the
    defaults below do not fit.
    """

    # A name of the values for messages.
    values = "numbers"
    # Torch's constraint of the values.
    support: Any = constraints.real
    # Whether log p is computed in double precision: η·t(y) and A(η) of large counts nearly cancel.
    needs_double = False

    def __init__(self) -> None:
        super().__init__()
        # The name in options and saved models: a text that `parse_family` reads, or the name of the class.
        self.text = type(self).__name__

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η)."""
        raise NotImplementedError

    def log_base(self, value: Tensor) -> Tensor:
        """The logarithm of h(y)."""
        raise NotImplementedError

    def distribution(self, natural: Tensor) -> Distribution:  # noqa: ARG002 - the signature of families
        """Torch's distribution of the values, for their mean and for samples."""
        raise UsageError(f"the family {self.text} cannot draw values; define its method distribution")

    def sufficient(self, value: Tensor) -> Tensor:
        """t(y); y itself by default."""
        return value

    def supports(self, value: Tensor) -> Tensor:
        """Whether the family can give each value, boolean."""
        allowed: Tensor = self.support.check(value)
        return value.isfinite() & allowed

    def natural(self, raw: Tensor) -> Tensor:
        """The natural parameter for any real number that a network gives."""
        return raw

    def mean(self, natural: Tensor) -> Tensor:
        """The mean of the values."""
        mean: Tensor = self.distribution(natural).mean
        return mean

    def sample(self, natural: Tensor) -> Tensor:
        """One random value per natural parameter, from torch's random numbers."""
        return self.distribution(natural).sample()  # type: ignore[no-untyped-call, no-any-return, unused-ignore]

    def log_prob(self, natural: Tensor, value: Tensor) -> Tensor:
        """The logarithm of p(y | η), constants included."""
        return natural * self.sufficient(value) - self.log_partition(natural) + self.log_base(value)

    def find_raw(self, means: Tensor) -> Tensor:
        """The network's number that gives each mean of t(y), which is A'(η); ±`LARGEST_RAW` if no number gives it."""
        low = torch.full_like(means, -LARGEST_RAW)
        high = torch.full_like(means, LARGEST_RAW)
        for _ in range(HALVES):
            middle = (low + high) / 2
            natural = self.natural(middle).detach().requires_grad_()
            (mean,) = torch.autograd.grad(self.log_partition(natural).sum(), natural)
            is_below = mean < means
            low = torch.where(is_below, middle, low)
            high = torch.where(is_below, high, middle)
        return high


class Gaussian(ExponentialFamily):
    """Normal with one variance for all observations; η is mean / variance, and the network gives the mean.

    variance: positive, or None to learn it, starting at 1.
    """

    def __init__(self, variance: float | None = 1.0) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(())) if variance is None else None
        self._variance = 1.0 if variance is None else real("variance", variance, 1 / LARGEST, LARGEST)
        self.text = "gaussian" if self.log_variance is not None else f"gaussian:{self._variance!r}"

    def variance_as(self, like: Tensor) -> Tensor:
        """The variance, a scalar of the precision and on the device of another tensor."""
        if self.log_variance is not None:
            return self.log_variance.to(like.dtype).exp()
        return torch.tensor(self._variance, dtype=like.dtype, device=like.device)

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η) = variance·η² / 2."""
        return self.variance_as(natural) * natural.square() / 2

    def log_base(self, value: Tensor) -> Tensor:
        """The density of a normal with mean 0."""
        variance = self.variance_as(value)
        return -(value.square() / variance + math.log(2 * math.pi) + variance.log()) / 2

    def log_prob(self, natural: Tensor, value: Tensor) -> Tensor:
        """The logarithm of p(y | η), from y − mean, because η·t(y) and A(η) are too large for large means."""
        return self.log_base(value - self.mean(natural))

    def natural(self, raw: Tensor) -> Tensor:
        """Mean / variance."""
        return raw / self.variance_as(raw)

    def distribution(self, natural: Tensor) -> Distribution:
        """Normal; the mean is variance·η."""
        variance = self.variance_as(natural)
        return distributions.Normal(natural * variance, variance.sqrt(), validate_args=False)


class Poisson(ExponentialFamily):
    """Counts; η is the logarithm of the rate.

    Args:
        least: lower limit of the rate. The network gives r, and the rate is least + exp(r): with 1, the second
            parameterisation of the paper's section 6.2.2.
        first: smallest value; y − first is a Poisson variable. With 1, the first parameterisation there.

    Attributes:
        values: the values in words, for errors.
        text: the family as users write it, such as "poisson:1".
    """

    support = constraints.nonnegative_integer
    needs_double = True

    def __init__(self, least: float = 0.0, first: int = 0) -> None:
        super().__init__()
        self.least = real("least", least, 0, LARGEST)
        self.first = first
        self.values = f"whole numbers from {first}"
        self.text = "poisson-from-1" if first else "poisson"
        if self.least:
            self.text += f":{self.least!r}"

    def sufficient(self, value: Tensor) -> Tensor:
        """Y − first."""
        return value - self.first

    def supports(self, value: Tensor) -> Tensor:
        """Whether y − first is a count."""
        return super().supports(value - self.first)

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η) = exp(η)."""
        return natural.exp()

    def log_base(self, value: Tensor) -> Tensor:
        """The logarithm of 1 / (y − first)!."""
        return -(value - self.first + 1).lgamma()

    def natural(self, raw: Tensor) -> Tensor:
        """log(least + exp(raw))."""
        if not self.least:
            return raw
        return torch.logaddexp(raw, torch.full_like(raw, math.log(self.least)))

    def mean(self, natural: Tensor) -> Tensor:
        """The rate + first."""
        return natural.exp() + self.first

    def sample(self, natural: Tensor) -> Tensor:
        """Counts + first."""
        return torch.poisson(natural.exp()) + self.first


class Binomial(ExponentialFamily):
    """Successes of a number of trials; η is the logit of a success.

    Args:
        total_count: number of trials.

    Attributes:
        values: the values in words, for errors.
        support: constraint on the values.
        text: the family as users write it, such as "binomial:10".
    """

    needs_double = True

    def __init__(self, total_count: int) -> None:
        super().__init__()
        self.total_count = whole("total_count", total_count, 1, int(LARGEST))
        self.values = f"whole numbers from 0 to {total_count}"
        self.support = constraints.integer_interval(0, self.total_count)  # type: ignore[no-untyped-call]
        self.text = f"binomial:{self.total_count}"

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η) = n·log(1 + exp(η))."""
        return self.total_count * functional.softplus(natural)

    def log_base(self, value: Tensor) -> Tensor:
        """The logarithm of the binomial coefficient."""
        n = self.total_count
        return math.lgamma(n + 1) - (value + 1).lgamma() - (n - value + 1).lgamma()

    def distribution(self, natural: Tensor) -> Distribution:
        """Binomial."""
        return distributions.Binomial(self.total_count, logits=natural, validate_args=False)


class Bernoulli(Binomial):
    """0 or 1; η is the logit of 1."""

    def __init__(self) -> None:
        super().__init__(1)
        self.text = "bernoulli"


class NegativeBinomial(ExponentialFamily):
    """Failures before a number of successes; η = log(1 − p) for a probability p of success, so it is negative.

    total_count: the number of successes; positive, not necessarily whole.
    """

    values = "whole numbers from 0"
    support = constraints.nonnegative_integer
    needs_double = True

    def __init__(self, total_count: float) -> None:
        super().__init__()
        self.total_count = real("total_count", total_count, 1 / LARGEST, LARGEST)
        self.text = f"negative-binomial:{self.total_count!r}"

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η) = −n·log(1 − exp(η))."""
        return -self.total_count * (-natural.expm1()).log()

    def log_base(self, value: Tensor) -> Tensor:
        """The logarithm of the number of orders."""
        n = self.total_count
        return (value + n).lgamma() - (value + 1).lgamma() - math.lgamma(n)

    def natural(self, raw: Tensor) -> Tensor:
        """−softplus(−raw): the logarithm of a probability whose logit is raw."""
        return -functional.softplus(-raw) - LEAST

    def mean(self, natural: Tensor) -> Tensor:
        """n·(1 − p) / p, without the logit of torch's distribution, which loses digits of large means."""
        return self.total_count / (-natural).expm1()

    def distribution(self, natural: Tensor) -> Distribution:
        """Negative binomial. What torch calls a success is a failure here."""
        logits = -(-natural).expm1().log()
        return distributions.NegativeBinomial(self.total_count, logits=logits, validate_args=False)


class Gamma(ExponentialFamily):
    """Positive numbers with a known concentration (shape); η is −rate, so it is negative.

    concentration: positive.
    """

    values = "positive numbers"
    support = constraints.positive
    needs_double = True

    def __init__(self, concentration: float) -> None:
        super().__init__()
        self.concentration = real("concentration", concentration, 1 / LARGEST, LARGEST)
        self.text = f"gamma:{self.concentration!r}"

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η) = −α·log(−η)."""
        return -self.concentration * (-natural).log()

    def log_base(self, value: Tensor) -> Tensor:
        """(α − 1)·log y − log Γ(α)."""
        return (self.concentration - 1) * value.log() - math.lgamma(self.concentration)

    def natural(self, raw: Tensor) -> Tensor:
        """−α·exp(−raw): the network gives the logarithm of the mean."""
        return -self.concentration * (-raw).exp()

    def distribution(self, natural: Tensor) -> Distribution:
        """Gamma."""
        return distributions.Gamma(torch.full_like(natural, self.concentration), -natural, validate_args=False)


class Categorical(ExponentialFamily):
    """One of D categories, numbered from 0; η are D logits, the last dimension of `natural`."""

    values = "category numbers from 0"
    support = constraints.nonnegative_integer

    def log_prob(self, natural: Tensor, value: Tensor) -> Tensor:
        """The logarithm of the probability of each value's category."""
        shape = np.broadcast_shapes(natural.shape[:-1], value.shape)
        chances = natural.log_softmax(-1).expand(*shape, -1)
        return chances.gather(-1, value.long().expand(shape)[..., None])[..., 0]

    def mean(self, natural: Tensor) -> Tensor:
        """The probability of each category, [..., D]."""
        return natural.softmax(-1)

    def distribution(self, natural: Tensor) -> Distribution:
        """Categorical."""
        return distributions.Categorical(logits=natural, validate_args=False)


class Ordinal(ExponentialFamily):
    """Ordered levels, numbered from 0: p(y | η) ∝ exp(η·y + b_y).

    The logit of each level against the level below is η plus a constant. This adjacent-category model is the ordinal
    model that is an exponential family.

    Args:
        levels: number of levels, from 2 to 100,000.

    Attributes:
        weights: b, [levels]; learned, and 0 at the start.
        values: the values in words, for errors.
        support: constraint on the values.
        text: the family as users write it, such as "ordinal:5".
    """

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = whole("levels", levels, 2, MOST_LEVELS)
        self.values = f"whole numbers from 0 to {levels - 1}"
        self.support = constraints.integer_interval(0, self.levels - 1)  # type: ignore[no-untyped-call]
        self.weights = nn.Parameter(torch.zeros(levels))
        self.text = f"ordinal:{self.levels}"

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η) = log Σ_k exp(η·k + b_k)."""
        return self._logits(natural).logsumexp(-1)

    def log_base(self, value: Tensor) -> Tensor:
        """b_y."""
        return self.weights[value.long()].to(torch.promote_types(value.dtype, torch.float32))

    def mean(self, natural: Tensor) -> Tensor:
        """The mean level."""
        levels = torch.arange(self.levels).to(natural)
        return self._logits(natural).softmax(-1) @ levels

    def sample(self, natural: Tensor) -> Tensor:
        """Levels, as numbers of the kind of the natural parameter."""
        return super().sample(natural).to(natural.dtype)

    def distribution(self, natural: Tensor) -> Distribution:
        """Categorical."""
        return distributions.Categorical(logits=self._logits(natural), validate_args=False)

    def _logits(self, natural: Tensor) -> Tensor:
        """η·k + b_k of each level k, [..., levels]."""
        levels = torch.arange(self.levels).to(natural)
        return natural[..., None] * levels + self.weights.to(natural.dtype)


# Makes each family from its number, or without; whole ones have a number without a fraction.
FAMILIES: dict[str, Callable[..., ExponentialFamily]] = {
    "gaussian": lambda variance=None: Gaussian(variance),
    "poisson": Poisson,
    "poisson-from-1": partial(Poisson, first=1),
    "bernoulli": Bernoulli,
    "binomial": Binomial,
    "negative-binomial": NegativeBinomial,
    "gamma": Gamma,
    "ordinal": Ordinal,
}
OF_WHOLE_NUMBERS = ("binomial", "ordinal")


def parse_family(text: str, option: str = "family") -> ExponentialFamily:
    """The family of a text such as "poisson", "gaussian:2" or "binomial:10". Raises UsageError.

    The number is the variance of a Gaussian (without it, the variance is learned), the least rate of a Poisson, the
    total count of a binomial or negative binomial, the concentration of a gamma, or the number of levels. option: that
    states it.

    >>> parse_family("binomial:10").total_count
    10
    """
    check_family(str(text), option)
    name, colon, number = str(text).partition(":")
    form = FAMILY_FORMS[name]
    problem = describe_family(text, option)
    if not colon and not form.startswith(":"):
        return FAMILIES[name]()
    if not number or not form:
        raise UsageError(f"{problem}, expected {name}{form}", option)
    is_whole = name in OF_WHOLE_NUMBERS
    try:
        parameter = int(number) if is_whole else float(number)
    except ValueError:
        kind = "whole number" if is_whole else "number"
        raise UsageError(f"{problem}, expected a {kind} after the colon", option) from None
    return FAMILIES[name](parameter)
