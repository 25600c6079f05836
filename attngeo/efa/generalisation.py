"""Theorem 2: how far the loss of the best fit is above the lowest loss of its class, as a function with its terms.

The class has transformers with L layers of M heads for places τ_i with values y_i (section 5.2): token i is g(τ_i) and
y_i, masked where it is predicted; layers are those of Bai et al. 2023; the loss is half the mean squared error.

The theorem states its bound up to a constant that nobody names. `bound_excess` has its terms, and `bound_deviation` a
bound with all constants, from the proof's covering number and Lipschitz constant: Hoeffding's inequality at the points
of one net, instead of chaining over many. It has a logarithm of F more.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 5.2.3 and appendix D; Wainwright 2019, example 5.8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from attngeo.choices import real, whole
from attngeo.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class TransformerClass:
    """The class Θ of section 5.2.2 and what bounds its inputs. Raises UsageError for a value outside its limits.

    layers, heads: L and M. hidden: D', units of the layer after the attention. place_hidden: K', units of g. size: K,
    numbers of g(τ). coordinates: the dimensions of τ. norm: B, the largest |||θ|||. clip: R, the largest norm of a
    token. largest: B_y, the largest |y|.
    """

    layers: int
    heads: int
    hidden: int
    place_hidden: int
    size: int
    coordinates: int
    norm: float
    clip: float
    largest: float

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "hidden", "place_hidden", "size", "coordinates"):
            whole(name, getattr(self, name), 1)
        for name in ("norm", "clip", "largest"):
            _require_positive(name, getattr(self, name))

    @property
    def token(self) -> int:
        """The size of a token, K + 1. Theorem 2 calls it D, as section 2.1 calls the number of items."""
        return self.size + 1

    @property
    def parameters(self) -> int:
        """L(3MD² + 2DD') + K'(K + τ)."""
        layer = 3 * self.heads * self.token**2 + 2 * self.token * self.hidden
        return self.layers * layer + self.place_hidden * (self.size + self.coordinates)

    @property
    def iota(self) -> float:
        """ι = log(2 + max(B, R, 1/(2·B_y)))."""
        return math.log(2 + max(self.norm, self.clip, 1 / (2 * self.largest)))

    @property
    def log_lipschitz(self) -> float:
        """The log of 2·B_y·(L + 1)·B_H^L·B_Θ: how much the loss changes with θ, at most.

        B_H = (1 + B²)(1 + B²R³), B_Θ = BR(1 + BR² + B³R²).
        """
        b, r = self.norm, self.clip
        of_layer = math.log1p(b**2) + math.log1p(b**2 * r**3)
        of_weights = math.log(b * r) + math.log1p(b * r**2 + b**3 * r**2)
        return math.log(2 * self.largest * (self.layers + 1)) + self.layers * of_layer + of_weights

    @property
    def log_cover(self) -> float:
        """log(4 + 4(L + 1)·B_H^L·B_Θ·B/B_y), which the theorem replaces with the larger 43·L·ι."""
        ratio = math.log(self.norm / (2 * self.largest**2)) + self.log_lipschitz
        return math.log(4) + _log1p_exp(ratio)


class ExcessBound(NamedTuple):
    """The terms of theorem 2: L(θ̂) ≤ inf L(θ) + constant·B_y²·√((43·L·parameters·iota + log_failure)/F).

    log_failure: log(1/ξ). root: the square root. excess: the last term of the theorem.
    """

    parameters: int
    iota: float
    log_failure: float
    root: float
    excess: float


def bound_excess(shape: TransformerClass, sequences: int, failure: float, *, constant: float = 1.0) -> ExcessBound:
    """The terms of theorem 2. sequences: F. failure: ξ, the probability that it does not hold.

    constant: the one that O(·) hides; with 1, `excess` shows how the bound changes, not where it is.
    Raises UsageError for values outside their limits.
    """
    log_failure = _check(sequences, failure)
    _require_positive("constant", constant)
    root = math.sqrt((43 * shape.layers * shape.parameters * shape.iota + log_failure) / sequences)
    return ExcessBound(shape.parameters, shape.iota, log_failure, root, constant * shape.largest**2 * root)


class DeviationBound(NamedTuple):
    """A bound with all constants: |empirical − true loss| ≤ deviation for all θ of the class at once.

    net: log of the number of points of a net with radius δ = B_y²/(2Λ√F), (1 + 2B/δ)^parameters. at_points: the bound
    at these points, B_y²·√(2(net + log(2/ξ))/F). between: 2Λδ, how much more it is between them. deviation: the sum of
    both. excess: 2·deviation, for the loss of the best fit above the lowest one.
    """

    net: float
    at_points: float
    between: float
    deviation: float
    excess: float


def bound_deviation(shape: TransformerClass, sequences: int, failure: float) -> DeviationBound:
    """The bound of `DeviationBound`, with probability 1 − failure. sequences: F. Λ is exp of `shape.log_lipschitz`.

    Raises UsageError for values outside their limits.
    """
    log_failure = _check(sequences, failure)
    square = shape.largest**2
    log_scale = math.log(4 * shape.norm / square) + shape.log_lipschitz + math.log(sequences) / 2
    net = shape.parameters * _log1p_exp(log_scale)
    at_points = square * math.sqrt(2 * (net + math.log(2) + log_failure) / sequences)
    between = square / math.sqrt(sequences)
    return DeviationBound(net, at_points, between, at_points + between, 2 * (at_points + between))


def _check(sequences: int, failure: float) -> float:
    """log(1/ξ), if the arguments are within their limits."""
    whole("sequences", sequences, 1)
    real("failure", failure, 0, 1)
    if not 0 < failure < 1:
        raise UsageError(f"failure is {failure!r}, expected a probability between 0 and 1")
    return -math.log(failure)


def _require_positive(name: str, value: float) -> None:
    if real(name, value, 0) == 0:
        raise UsageError(f"{name} is {value!r}, expected a positive number")


def _log1p_exp(x: float) -> float:
    """log(1 + eˣ), for any x."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
