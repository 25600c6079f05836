"""Theorem 2: how far the loss of the best fit is above the lowest loss of its class, as a function with its terms.

The class has transformers with L layers of M heads for places τ_i with values y_i (section 5.2): token i is g(τ_i) and
y_i, masked where it is predicted; layers are those of Bai et al. 2023; the loss is half the mean squared error.

The theorem states its bound up to a constant that nobody names. `bound_excess` has its terms, and `bound_deviation` a
bound with all constants, from the proof's covering number and Lipschitz constant: Hoeffding's inequality at the points
of one net, instead of chaining over many. It has a logarithm of F more.

It is computed where all losses are known: sequences of I places with τ_i = ±1, each with probability 1/2, and a sign s.
Values are y_i = s·τ_i·B_y, each with the other sign with probability q. There are 4^I sequences, so the true loss is a
sum, and that of Bayes' rule is the least.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 5.2 and appendix D; Wainwright 2019, example 5.8; the layers
are those of Bai et al. 2023 (arXiv 2306.04637), equation (1) and definition 2.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attngeo.papers.statements import EFA, Residuals, statement
from attngeo.training.loop import seeded


@dataclass(frozen=True, kw_only=True)
class TransformerClass:
    """The class Θ of section 5.2.2 and what bounds its inputs.

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
        return math.log(4) + float(np.logaddexp(0, ratio))


def bound_excess(shape: TransformerClass, sequences: int, failure: float) -> float:
    """The last term of theorem 2 without its unknown constant: how the bound changes, not where it is.

    B_y²·√((43·L·parameters·ι + log(1/ξ))/F). sequences: F. failure: ξ, the probability that it does not hold.
    """
    terms = 43 * shape.layers * shape.parameters * shape.iota - math.log(failure)
    return shape.largest**2 * math.sqrt(terms / sequences)


class DeviationBound(NamedTuple):
    """A bound with all constants: |empirical − true loss| ≤ deviation for all θ of the class at once.

    net: log of the number of points of a net with radius δ = B_y²/(2Λ√F), (1 + 2B/δ)^parameters. at_points: the bound
    at these points, B_y²·√(2(net + log(2/ξ))/F). between: 2Λδ, how much more it is between them.
    """

    net: float
    at_points: float
    between: float

    @property
    def deviation(self) -> float:
        """The bound at any θ."""
        return self.at_points + self.between

    @property
    def excess(self) -> float:
        """The bound of how far the loss of the best fit is above the lowest one."""
        return 2 * self.deviation


def bound_deviation(shape: TransformerClass, sequences: int, failure: float) -> DeviationBound:
    """The bound that holds with probability 1 − failure. sequences: F. Λ is exp of `shape.log_lipschitz`."""
    square = shape.largest**2
    log_scale = math.log(4 * shape.norm / square) + shape.log_lipschitz + math.log(sequences) / 2
    net = shape.parameters * float(np.logaddexp(0, log_scale))
    at_points = square * math.sqrt(2 * (net + math.log(2 / failure)) / sequences)
    return DeviationBound(net, at_points, square / math.sqrt(sequences))


PLACES, WRONG = 3, 0.1
CLASS = TransformerClass(
    layers=1, heads=2, hidden=1, place_hidden=2, size=1, coordinates=1, norm=20.0, clip=4.0, largest=1.0
)
SEQUENCES, FAILURE, STEPS, STARTS, RANDOM = 200_000, 0.05, 250, 4, 30


class ToySequences(NamedTuple):
    """All sequences. places: τ, [n, I]. values: y, [n, I]. share: the probability of each, [n]."""

    places: Tensor
    values: Tensor
    share: Tensor


class ToyWeights(NamedTuple):
    """θ. query, key, value: [L, M, D, D]. inner, outer: W1 [L, D', D] and W2 [L, D, D']. first, second: G1 [K', τ] and
    G2 [K, K'].
    """

    query: Tensor
    key: Tensor
    value: Tensor
    inner: Tensor
    outer: Tensor
    first: Tensor
    second: Tensor

    def norm(self) -> Tensor:
        """|||θ|||: the largest of the layers, plus that of g."""
        size = torch.linalg.matrix_norm
        products = torch.maximum(size(self.query, 2).amax(1), size(self.key, 2).amax(1))
        layers = products + size(self.value, 2).sum(1) + size(self.inner, 2) + size(self.outer, 2)
        total: Tensor = layers.max() + size(self.first, 2) + size(self.second, 2)
        return total

    def scale(self, factor: Tensor | float) -> ToyWeights:
        """factor·θ, whose norm is factor times as large."""
        return ToyWeights(*(weight * factor for weight in self))


def list_sequences(largest: float = 1.0, places: int = PLACES, wrong: float = WRONG) -> ToySequences:
    """All sequences and their probabilities."""
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=2 * places)), dtype=torch.float64)
    tau, y = signs[:, :places], signs[:, places:]
    agree = (tau * y > 0).double().sum(1)
    share = sum((1 - wrong) ** k * wrong ** (places - k) / 2 for k in (agree, places - agree)) / 2**places
    assert isinstance(share, Tensor)
    return ToySequences(tau, largest * y, share)


def predict_by_bayes(sequences: ToySequences, wrong: float = WRONG) -> Tensor:
    """E[y_i | the other values and all places], [n, I]: no prediction has a lower loss."""
    largest = sequences.values.abs().max()
    votes = (sequences.places * sequences.values).sign()
    evidence = (votes.sum(1, keepdim=True) - votes) * math.log((1 - wrong) / wrong)
    means: Tensor = largest * (1 - 2 * wrong) * sequences.places * torch.tanh(evidence / 2)
    return means


def draw_weights(shape: TransformerClass) -> ToyWeights:
    """Normal weights, scaled to the norm B."""
    token, hidden = shape.token, shape.hidden
    shapes = [(shape.layers, shape.heads, token, token)] * 3 + [
        (shape.layers, hidden, token), (shape.layers, token, hidden),
        (shape.place_hidden, shape.coordinates), (shape.size, shape.place_hidden),
    ]  # fmt: skip
    weights = ToyWeights(*(torch.randn(size, dtype=torch.float64) for size in shapes))
    return weights.scale(shape.norm / weights.norm())


def predict(weights: ToyWeights, sequences: ToySequences, shape: TransformerClass) -> Tensor:
    """The prediction of each value from the others, clipped to ±B_y, [n, I]."""
    tau = _clip(sequences.places[..., None], shape.clip)
    about = torch.relu(tau @ weights.first.T) @ weights.second.T  # g(τ), [n, I, K]
    places = about.shape[1]
    values = sequences.values[:, None].expand(-1, places, -1).masked_fill(torch.eye(places, dtype=torch.bool), 0)
    x = torch.cat([about[:, None].expand(-1, places, -1, -1), values[..., None]], -1)  # [n, masked, I, D]
    x = _clip(x, shape.clip)
    for layer in range(len(weights.query)):
        q, k, v = (torch.einsum("nsid,hed->nshie", x, matrix[layer]) for matrix in weights[:3])
        x = x + (torch.relu(q @ k.transpose(-1, -2)) @ v).sum(2) / places
        x = _clip(x + torch.relu(x @ weights.inner[layer].T) @ weights.outer[layer].T, shape.clip)
    read = x[..., -1].diagonal(dim1=1, dim2=2)
    return read.clamp(-shape.largest, shape.largest)


def _clip(x: Tensor, largest: float) -> Tensor:
    """Tokens with a norm of at most `largest`."""
    clipped: Tensor = x * (largest / x.norm(dim=-1, keepdim=True).clamp(min=largest))
    return clipped


def measure_loss(predicted: Tensor, sequences: ToySequences, share: Tensor | None = None) -> Tensor:
    """ℓ, half the mean squared error, on average over the sequences. share: of each; by default its probability."""
    losses = ((sequences.values - predicted) ** 2).mean(1) / 2
    mean: Tensor = losses @ (sequences.share if share is None else share)
    return mean


def fit_weights(sequences: ToySequences, share: Tensor, shape: TransformerClass, *, steps: int = STEPS) -> ToyWeights:
    """Weights of the class with a low empirical loss: the best of several starts."""
    fits = [_fit_once(sequences, share, shape, steps) for _ in range(STARTS)]
    return min(fits, key=lambda weights: float(measure_loss(predict(weights, sequences, shape), sequences, share)))


def _fit_once(sequences: ToySequences, share: Tensor, shape: TransformerClass, steps: int) -> ToyWeights:
    """Adam; weights with a norm above B are scaled back to it."""
    weights = ToyWeights(*(weight.requires_grad_() for weight in draw_weights(shape).scale(0.3)))
    optimizer = torch.optim.Adam(weights, lr=5e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        measure_loss(predict(weights, sequences, shape), sequences, share).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            scale = (shape.norm / weights.norm()).clamp(max=1)
            for weight in weights:
                weight.mul_(scale)
    return ToyWeights(*(weight.detach() for weight in weights))


@statement(
    "efa-theorem-2", EFA, "Theorem 2", "excess and deviation of the loss as a share of a bound with all constants", 1.0
)
def check_theorem_2(seed: int = 0, *, sequences: int = SEQUENCES, steps: int = STEPS) -> Residuals:
    """Theorem 2 where the true loss is a sum: losses as shares of `bound_deviation`, which has all constants.

    The lowest loss of the class is not known, but that of Bayes' rule is, and is not higher: the excess over it is at
    least that of the theorem. Also the step of the proof from `log_cover` to 43·L·ι.
    """
    everything = list_sequences(CLASS.largest)
    bound = bound_deviation(CLASS, sequences, FAILURE)
    with seeded(seed):
        counts = torch.bincount(
            torch.multinomial(everything.share, sequences, replacement=True), minlength=len(everything.share)
        )
        share = counts.double() / sequences
        fitted = fit_weights(everything, share, CLASS, steps=steps)
        others = [draw_weights(CLASS).scale(torch.rand(1)) for _ in range(RANDOM)]
    losses = [
        [float(measure_loss(predict(weights, everything, CLASS), everything, of)) for of in (None, share)]
        for weights in (fitted, *others)
    ]
    least = float(measure_loss(predict_by_bayes(everything), everything))
    deviation, excess = max(abs(true - empirical) for true, empirical in losses), losses[0][0] - least
    computed = (
        f"{sequences:,} sequences: loss of the fit {losses[0][0]:.4f}, of Bayes' rule {least:.4f}, of 0 as prediction "
        f"{CLASS.largest**2 / 2:.4f}, bound of the excess {bound.excess:.2f}; losses of {len(losses)} parameters "
        f"deviate by up to {deviation:.4f}, bound {bound.deviation:.2f}; printed bound without its constant "
        f"{bound_excess(CLASS, sequences, FAILURE):.2f}"
    )
    replaced = CLASS.log_cover / (43 * CLASS.layers * CLASS.iota)
    return Residuals(computed, (excess / bound.excess, deviation / bound.deviation, replaced))
