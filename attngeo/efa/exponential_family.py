"""What a family of one observation states, and what follows from it.

    p(y | η) = h(y)·exp(η·t(y) − A(η))

η: the natural parameter. t: the sufficient statistic. A: the log-partition. h: the base measure.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 2.2 and equation (3).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attngeo.errors import UsageError


class ExponentialFamily(nn.Module):
    """A family whose values are numbers. Tensors of values and natural parameters have one shape, or are broadcast.

    A family states `log_partition`, `log_base` and `sample`; `sufficient` and `supports` if they are not those below.
    """

    # What the values are, for messages.
    values = "numbers"
    # Whether log p is computed in double precision: η·t(y) and A(η) of large counts nearly cancel.
    needs_double = False

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(η)."""
        raise NotImplementedError

    def log_base(self, value: Tensor) -> Tensor:
        """The logarithm of h(y)."""
        raise NotImplementedError

    def sample(self, natural: Tensor) -> Tensor:  # noqa: ARG002 - the signature of families
        """One value for each natural parameter, by torch's random numbers."""
        raise UsageError(f"the family {type(self).__name__} draws no values; define its method sample")

    def sufficient(self, value: Tensor) -> Tensor:
        """t(y); y itself by default."""
        return value

    def supports(self, value: Tensor) -> Tensor:
        """Whether each value is one that the family can give, boolean."""
        return value.isfinite()

    @property
    def is_of_counts(self) -> bool:
        """Whether its values are whole numbers."""
        return not self.supports(torch.tensor([0.25, 0.5, 1.5])).any()

    def natural(self, raw: Tensor) -> Tensor:
        """A natural parameter from any real number, as a network gives it."""
        return raw

    def mean(self, natural: Tensor) -> Tensor:
        """The mean of t(y), which is A'(η), without a gradient."""
        with torch.enable_grad():
            at = natural.detach().requires_grad_()
            return torch.autograd.grad(self.log_partition(at).sum(), at)[0]

    def log_prob(self, natural: Tensor, value: Tensor) -> Tensor:
        """The logarithm of p(y | η), constants included."""
        return self.log_likelihood(natural, value) + self.log_base(value)

    def log_likelihood(self, natural: Tensor, value: Tensor) -> Tensor:
        """η·t(y) − A(η): the part of log p(y | η) that depends on η, which the paper's numbers are made of."""
        return natural * self.sufficient(value) - self.log_partition(natural)
