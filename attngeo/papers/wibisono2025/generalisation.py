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

from attngeo.papers.residuals import Residuals
from attngeo.training.loop import seeded


@dataclass(frozen=True, kw_only=True)
class TransformerClass:
    """The class Θ of section 5.2.2, and the bounds of its inputs.

    Attributes:
        layers: L.
        heads: M.
        hidden: D', units of the layer after the attention.
        place_hidden: K', units of g.
        size: K, numbers of g(τ).
        coordinates: dimensions of τ.
        norm: B, the largest |||θ|||.
        clip: R, the largest norm of a token.
        largest: B_y, the largest |y|.
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
        b = self.norm
        r = self.clip
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

    B_y²·√((43·L·parameters·ι + log(1/ξ))/F).

    Args:
        shape: the class of transformers.
        sequences: F.
        failure: ξ, the probability that the bound does not hold.
    """
    terms = 43 * shape.layers * shape.parameters * shape.iota - math.log(failure)
    return shape.largest**2 * math.sqrt(terms / sequences)


class DeviationBound(NamedTuple):
    """A bound with all constants: |empirical − true loss| ≤ deviation for all θ of the class at once.

    Attributes:
        net: log of the number of points of a net with radius δ = B_y²/(2Λ√F), (1 + 2B/δ)^parameters.
        at_points: bound at these points, B_y²·√(2(net + log(2/ξ))/F).
        between: 2Λδ, the increase of the bound between these points.
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
        """The bound on the loss of the best fit above the lowest loss."""
        return 2 * self.deviation


def bound_deviation(shape: TransformerClass, sequences: int, failure: float) -> DeviationBound:
    """The bound that holds with probability 1 − failure. sequences: F. Λ is exp of `shape.log_lipschitz`."""
    square = shape.largest**2
    log_scale = math.log(4 * shape.norm / square) + shape.log_lipschitz + math.log(sequences) / 2
    net = shape.parameters * float(np.logaddexp(0, log_scale))
    at_points = square * math.sqrt(2 * (net + math.log(2 / failure)) / sequences)
    return DeviationBound(net, at_points, square / math.sqrt(sequences))


# The class of the statement, and its sequences: their places, and the probability of the other sign.
CLASS = TransformerClass(
    layers=1, heads=2, hidden=1, place_hidden=2, size=1, coordinates=1, norm=20.0, clip=4.0, largest=1.0
)
PLACES = 3
WRONG = 0.1
# Sequences that train, the probability that the bound does not hold, and steps and starts of a fit.
SEQUENCES = 200_000
FAILURE = 0.05
STEPS = 250
STARTS = 4
# Random parameters whose losses are compared as well.
RANDOM = 30


class ToySequences(NamedTuple):
    """All sequences.

    Attributes:
        places: τ, [n, I].
        values: y, [n, I].
        share: probability of each sequence, [n].
    """

    places: Tensor
    values: Tensor
    share: Tensor


class ToyWeights(NamedTuple):
    """The parameters θ.

    Attributes:
        query: [L, M, D, D].
        key: [L, M, D, D].
        value: [L, M, D, D].
        inner: W1, [L, D', D].
        outer: W2, [L, D, D'].
        first: G1, [K', τ].
        second: G2, [K, K'].
    """

    query: Tensor
    key: Tensor
    value: Tensor
    inner: Tensor
    outer: Tensor
    first: Tensor
    second: Tensor

    def norm(self) -> Tensor:
        """|||θ|||: the largest norm of a layer, plus the norm of g."""
        products = torch.maximum(_norm(self.query).amax(1), _norm(self.key).amax(1))
        layers = products + _norm(self.value).sum(1) + _norm(self.inner) + _norm(self.outer)
        return layers.max() + _norm(self.first) + _norm(self.second)

    def scale(self, factor: Tensor | float) -> ToyWeights:
        """factor·θ, whose norm is factor times as large."""
        return ToyWeights(*(weight * factor for weight in self))


def _norm(matrices: Tensor) -> Tensor:
    """The operator norms of matrices [*lead, rows, columns], [*lead]."""
    norms: Tensor = torch.linalg.matrix_norm(matrices, 2)
    return norms


def list_sequences(largest: float = 1.0, places: int = PLACES, wrong: float = WRONG) -> ToySequences:
    """All sequences and their probabilities."""
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=2 * places)), dtype=torch.float64)
    tau = signs[:, :places]
    y = signs[:, places:]
    agree = (tau * y > 0).double().sum(1)
    disagree = places - agree
    # Given the places, for s = 1 and for s = −1.
    positive = (1 - wrong) ** agree * wrong**disagree / 2
    negative = (1 - wrong) ** disagree * wrong**agree / 2
    return ToySequences(tau, largest * y, (positive + negative) / 2**places)


def predict_by_bayes(sequences: ToySequences, wrong: float = WRONG) -> Tensor:
    """E[y_i | the other values and all places], [n, I]: no prediction has a lower loss."""
    largest = sequences.values.abs().max()
    votes = (sequences.places * sequences.values).sign()
    evidence = (votes.sum(1, keepdim=True) - votes) * math.log((1 - wrong) / wrong)
    means: Tensor = largest * (1 - 2 * wrong) * sequences.places * torch.tanh(evidence / 2)
    return means


def draw_weights(shape: TransformerClass) -> ToyWeights:
    """Normal weights, scaled to the norm B."""
    of_heads = (shape.layers, shape.heads, shape.token, shape.token)
    weights = ToyWeights(
        query=torch.randn(of_heads, dtype=torch.float64),
        key=torch.randn(of_heads, dtype=torch.float64),
        value=torch.randn(of_heads, dtype=torch.float64),
        inner=torch.randn(shape.layers, shape.hidden, shape.token, dtype=torch.float64),
        outer=torch.randn(shape.layers, shape.token, shape.hidden, dtype=torch.float64),
        first=torch.randn(shape.place_hidden, shape.coordinates, dtype=torch.float64),
        second=torch.randn(shape.size, shape.place_hidden, dtype=torch.float64),
    )
    return weights.scale(shape.norm / weights.norm())


def predict_values(weights: ToyWeights, sequences: ToySequences, shape: TransformerClass) -> Tensor:
    """The prediction of each value from the others, clipped to ±B_y, [n, I]."""
    tau = _clip(sequences.places[..., None], shape.clip)
    of_places = torch.relu(tau @ weights.first.T) @ weights.second.T  # g(τ), [n, I, K]
    places = of_places.shape[1]
    is_masked = torch.eye(places, dtype=torch.bool)
    # A copy of each sequence for each of its places, whose value is masked: [n, masked, I, D].
    values = sequences.values[:, None].expand(-1, places, -1).masked_fill(is_masked, 0)
    x = torch.cat([of_places[:, None].expand(-1, places, -1, -1), values[..., None]], -1)
    x = _clip(x, shape.clip)
    for layer in range(len(weights.query)):
        q = torch.einsum("nsid,hed->nshie", x, weights.query[layer])
        k = torch.einsum("nsid,hed->nshie", x, weights.key[layer])
        v = torch.einsum("nsid,hed->nshie", x, weights.value[layer])
        x = x + (torch.relu(q @ k.transpose(-1, -2)) @ v).sum(2) / places
        x = _clip(x + torch.relu(x @ weights.inner[layer].T) @ weights.outer[layer].T, shape.clip)
    at_masked = x[..., -1].diagonal(dim1=1, dim2=2)  # the number that is read, [n, I]
    return at_masked.clamp(-shape.largest, shape.largest)


def _clip(x: Tensor, largest: float) -> Tensor:
    """Tokens with a norm of at most `largest`."""
    clipped: Tensor = x * (largest / x.norm(dim=-1, keepdim=True).clamp(min=largest))
    return clipped


def measure_loss(predicted: Tensor, sequences: ToySequences, share: Tensor | None = None) -> Tensor:
    """ℓ, half the mean squared error, on average over the sequences. share: of each; by default its probability."""
    losses = ((sequences.values - predicted) ** 2).mean(1) / 2
    mean: Tensor = losses @ (sequences.share if share is None else share)
    return mean


def fit_weights(sequences: ToySequences, share: Tensor, shape: TransformerClass, steps: int) -> ToyWeights:
    """Weights of the class with a low empirical loss: the best of several starts of Adam.

    Weights with a norm above B are scaled back to it.
    """

    def empirical_loss(weights: ToyWeights) -> Tensor:
        return measure_loss(predict_values(weights, sequences, shape), sequences, share)

    fits = []
    for _ in range(STARTS):
        weights = ToyWeights(*(weight.requires_grad_() for weight in draw_weights(shape).scale(0.3)))
        optimizer = torch.optim.Adam(weights, lr=5e-2)
        for _ in range(steps):
            optimizer.zero_grad()
            empirical_loss(weights).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            with torch.no_grad():
                scale = (shape.norm / weights.norm()).clamp(max=1)
                for weight in weights:
                    weight.mul_(scale)
        fits.append(ToyWeights(*(weight.detach() for weight in weights)))
    return min(fits, key=empirical_loss)


def check_theorem_2(seed: int = 0, *, sequences: int = SEQUENCES, steps: int = STEPS) -> Residuals:
    """Theorem 2 where the true loss is a sum: losses as shares of `bound_deviation`, which has all constants.

    The lowest loss of the class is not known, but that of Bayes' rule is, and is not higher: the excess over it is at
    least that of the theorem. Also the step of the proof from `log_cover` to 43·L·ι.
    """
    everything = list_sequences(CLASS.largest)
    bound = bound_deviation(CLASS, sequences, FAILURE)
    with seeded(seed):
        drawn = torch.multinomial(everything.share, sequences, replacement=True)
        share = torch.bincount(drawn, minlength=len(everything.share)).double() / sequences
        fitted = fit_weights(everything, share, CLASS, steps)
        others = [draw_weights(CLASS).scale(torch.rand(1)) for _ in range(RANDOM)]
    true_losses = []
    deviations = []
    for weights in (fitted, *others):
        predicted = predict_values(weights, everything, CLASS)
        true_losses.append(float(measure_loss(predicted, everything)))
        deviations.append(abs(true_losses[-1] - float(measure_loss(predicted, everything, share))))
    least = float(measure_loss(predict_by_bayes(everything), everything))
    deviation = max(deviations)
    excess = true_losses[0] - least
    computed = (
        f"{sequences:,} sequences: loss of the fit {true_losses[0]:.4f}, of Bayes' rule {least:.4f}, of 0 as "
        f"prediction {CLASS.largest**2 / 2:.4f}, bound of the excess {bound.excess:.2f}; losses of {len(deviations)} "
        f"parameters deviate by up to {deviation:.4f}, bound {bound.deviation:.2f}; printed bound without its constant "
        f"{bound_excess(CLASS, sequences, FAILURE):.2f}"
    )
    replaced = CLASS.log_cover / (43 * CLASS.layers * CLASS.iota)
    return Residuals(computed, (excess / bound.excess, deviation / bound.deviation, replaced))
