"""Families: densities by scipy, gradients, moments, and what each refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from support.messages import refuses
from torch import Tensor

from attngeo.errors import UsageError
from attngeo.estimators.efa.families import (
    FAMILIES,
    Bernoulli,
    Binomial,
    Categorical,
    ExponentialFamily,
    Gamma,
    Gaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
)
from attngeo.estimators.efa.options import FAMILY_FORMS

NATURAL = torch.tensor([-2.5, -0.7, -0.01, 0.4, 1.8], dtype=torch.float64)
NEGATIVE = torch.tensor([-6.0, -2.5, -0.7, -0.2, -0.01], dtype=torch.float64)
REALS = torch.tensor([-3.2, -0.5, 0.0, 0.7, 4.0], dtype=torch.float64)
COUNTS = torch.tensor([0.0, 1, 2, 7, 30], dtype=torch.float64)
FEW = torch.tensor([0.0, 1, 2, 3, 4], dtype=torch.float64)
# A family, natural parameters, values, and scipy's distribution for each natural parameter.
CASES: dict[str, tuple[ExponentialFamily, Tensor, Tensor, Callable[[np.ndarray], Any]]] = {
    "gaussian": (Gaussian(2.5), NATURAL, REALS, lambda eta: stats.norm(eta * 2.5, math.sqrt(2.5))),
    "poisson": (Poisson(), NATURAL, COUNTS, lambda eta: stats.poisson(np.exp(eta))),
    "bernoulli": (Bernoulli(), NATURAL, FEW[:2], lambda eta: stats.bernoulli(1 / (1 + np.exp(-eta)))),
    "binomial": (Binomial(4), NATURAL, FEW, lambda eta: stats.binom(4, 1 / (1 + np.exp(-eta)))),
    "negative-binomial": (NegativeBinomial(3), NEGATIVE, COUNTS, lambda eta: stats.nbinom(3, -np.expm1(eta))),
    "real-count": (NegativeBinomial(0.4), NEGATIVE, COUNTS, lambda eta: stats.nbinom(0.4, -np.expm1(eta))),
    "gamma": (Gamma(1.7), NEGATIVE, REALS.exp(), lambda eta: stats.gamma(1.7, scale=-1 / eta)),
    "ordinal": (Ordinal(5), NEGATIVE, FEW, lambda eta: stats.boltzmann(-eta, 5)),
    "shifted": (Poisson(first=1), NATURAL, COUNTS + 1, lambda eta: stats.poisson(np.exp(eta), loc=1)),
}
CASE = pytest.mark.parametrize("name", CASES)


@CASE
def test_densities_are_those_of_scipy(name: str) -> None:
    family, natural, values, make = CASES[name]
    eta, y = natural[:, None], values[None]
    oracle = make(eta.numpy())
    density = oracle.logpmf if isinstance(oracle.dist, stats.rv_discrete) else oracle.logpdf
    np.testing.assert_allclose(family.log_prob(eta, y).detach(), density(y.numpy()), rtol=1e-6, atol=1e-9)


@CASE
def test_means_are_those_of_scipy_and_gradients_of_the_log_partition(name: str) -> None:
    family, natural, _, make = CASES[name]
    found = family.mean(natural).detach()
    np.testing.assert_allclose(found, make(natural.numpy()).mean(), rtol=1e-6)
    shift = family.first if isinstance(family, Poisson) else 0
    at = natural.clone().requires_grad_()
    torch.testing.assert_close(found - shift, torch.autograd.grad(family.log_partition(at).sum(), at)[0])


@CASE
def test_gradients(name: str) -> None:
    family, natural, values, _ = CASES[name]
    size = min(len(natural), len(values))
    at = natural[:size].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda eta: family.log_prob(eta, values[:size]), (at,))


@CASE
def test_samples_have_the_mean_and_are_of_the_support(name: str) -> None:
    family, natural, values, make = CASES[name]
    torch.manual_seed(0)
    eta = natural[1]
    drawn = family.sample(eta.expand(20_000))
    assert family.supports(drawn).all()
    oracle = make(eta.numpy())
    error = oracle.std() / math.sqrt(20_000)
    assert abs(drawn.mean() - oracle.mean()) < 5 * error
    assert drawn.std() == pytest.approx(oracle.std(), rel=0.1)
    assert family.supports(values).all()


@CASE
def test_any_number_of_a_network_gives_a_natural_parameter(name: str) -> None:
    family, _, values, _ = CASES[name]
    raw = torch.linspace(-8, 8, 41, dtype=torch.float64)[:, None]
    natural = family.natural(raw)
    assert (natural.diff(dim=0) > 0).all()
    assert family.log_prob(natural, values).isfinite().all()


def test_the_means_that_a_network_states() -> None:
    raw = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
    for family, mean in (
        (Gaussian(4.0), raw), (Gamma(2.0), raw.exp()), (Poisson(), raw.exp()), (Poisson(least=1), 1 + raw.exp()),
        (Bernoulli(), raw.sigmoid()), (Poisson(first=1), 1 + raw.exp()),
    ):  # fmt: skip
        torch.testing.assert_close(family.mean(family.natural(raw)), mean)


def test_categories_have_the_chances_of_a_softmax() -> None:
    family = Categorical()
    natural = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    every = torch.stack([family.log_prob(natural, torch.full((4,), k)) for k in range(5)], -1)
    np.testing.assert_allclose(every.exp(), natural.softmax(-1))
    torch.testing.assert_close(family.mean(natural), natural.softmax(-1))
    expected = [stats.multinomial(1, p).logpmf(np.eye(5)[2]) for p in natural.softmax(-1).numpy()]
    np.testing.assert_allclose(family.log_prob(natural, torch.tensor(2)), expected)
    assert torch.autograd.gradcheck(
        lambda eta: family.log_prob(eta, torch.tensor([0, 1, 4, 4])), (natural.clone().requires_grad_(),)
    )
    torch.manual_seed(0)
    shares = torch.bincount(family.sample(natural[0].expand(20_000, 5)), minlength=5) / 20_000
    np.testing.assert_allclose(shares, natural[0].softmax(-1), atol=0.02)


def test_the_chances_of_all_levels_have_the_sum_one_whatever_their_weights() -> None:
    family = Ordinal(4).double()
    with torch.no_grad():
        family.weights.copy_(torch.tensor([0.3, -1.0, 2.0, 0.1]))
    levels = torch.arange(4, dtype=torch.float64)
    chances = family.log_prob(NATURAL[:, None], levels).exp()
    np.testing.assert_allclose(chances.sum(1).detach(), 1)
    torch.testing.assert_close(family.mean(NATURAL), chances @ levels)
    ratios = (chances[:, 1:] / chances[:, :-1]).log() - NATURAL[:, None]
    torch.testing.assert_close(ratios, family.weights.diff().expand_as(ratios))


def test_a_learned_variance_ends_at_that_of_the_data() -> None:
    torch.manual_seed(0)
    values = torch.randn(4000, dtype=torch.float64) * 3 + 5
    family = Gaussian(variance=None)
    mean = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([mean, *family.parameters()], max_iter=200, line_search_fn="strong_wolfe")

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = -family.log_prob(family.natural(mean), values).mean()
        loss.backward()
        return loss

    optimizer.step(step)
    assert mean.item() == pytest.approx(values.mean().item(), rel=1e-4)
    assert family.variance_as(values).item() == pytest.approx(values.var(correction=0).item(), rel=1e-4)


@pytest.mark.parametrize(
    ("family", "outside"),
    [
        (Gaussian(), [math.nan, math.inf]), (Poisson(), [-1, 0.5]), (Bernoulli(), [2, -1]), (Binomial(3), [4, 1.5]),
        (NegativeBinomial(2), [-1, 0.1]), (Gamma(1.0), [0, -1]), (Categorical(), [-1, 0.5]), (Ordinal(3), [3, -1]),
        (Poisson(first=1), [0, 1.5]),
    ],
)  # fmt: skip
def test_values_outside_the_support(family: ExponentialFamily, outside: list[float]) -> None:
    assert not family.supports(torch.tensor([*outside, math.nan])).any()


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda: Gaussian(0.0), ["variance", "0.0"]), (lambda: Binomial(0), ["total_count", "0"]),
        (lambda: Binomial(True), ["total_count"]), (lambda: NegativeBinomial(-1), ["total_count", "-1"]),
        (lambda: Gamma(math.inf), ["concentration"]), (lambda: Ordinal(1), ["levels", "2"]),
        (lambda: Poisson(-1), ["least"]),
    ],
)  # fmt: skip
def test_bad_parameters_are_refused(make: Callable[[], ExponentialFamily], facts: list[str]) -> None:
    with refuses(UsageError, *facts):
        make()


def test_every_family_has_a_form_of_its_number() -> None:
    """The forms are apart from the families, so that a mistyped one is refused before torch is loaded."""
    assert list(FAMILY_FORMS) == list(FAMILIES)
