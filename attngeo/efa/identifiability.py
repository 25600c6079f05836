"""Theorem 1: which parameters of exponential family attention its distribution determines.

Two parameters of the item part with the same p(x_i | x_<i) have context representations H' = A·H* and center embeddings
e' = B·e* + b, A and B invertible. The theorem says b = 0. That is not so: a vector that is added to all center
embeddings adds the same number to all logits, which the softmax ignores. Two parameters of the value part with the same
p(y_i | x, y_<i), a readout L of representations K(y), have K' = C·K* at d_j chosen inputs; the theorem says at all.

Notation: H(x)_i is X'_ii, the vector that the last layer has at the masked position, [n, K]; e(x) is δ_x, [D, K].
Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 5.1, appendices B and C.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from attngeo.efa.attention import AttentionShape, MaskedLayer
from attngeo.efa.network import ItemAttention, Observations, ValueAttention, ValueShape
from attngeo.errors import UsageError
from attngeo.papers.statements import EFA, Residuals, difference, statement
from attngeo.training import seeded

ITEMS, SIZE, LENGTH, TRIALS = 9, 3, 5, 5


class Relation(NamedTuple):
    """How nearly one set of vectors is a linear map of another.

    forward: R² of the second from the first. backward: of the first from the second. correlation: the mean canonical
    correlation. Maps are fitted on every other row, and R² is that of the remaining rows.
    """

    forward: float
    backward: float
    correlation: float

    @property
    def error(self) -> float:
        """1 − the lower R²."""
        return 1 - min(self.forward, self.backward)

    def __str__(self) -> str:
        return f"R² {self.forward:.4f} and {self.backward:.4f}, correlation {self.correlation:.4f}"


class FitComparison(NamedTuple):
    """Two item parts with the same items, compared: their context representations, and their center embeddings."""

    contexts: Relation
    centers: Relation

    @property
    def error(self) -> float:
        """The larger error of both."""
        return max(self.contexts.error, self.centers.error)


def relate(first: Tensor, second: Tensor, *, intercept: bool = False) -> Relation:
    """Compare vectors of the same things, [n, K] each. intercept: whether the map may add a vector.

    R² is 1 − Σ‖error‖²/Σ‖vector − mean‖², so that a constant explains nothing. Raises UsageError for other shapes, or
    if half of the rows do not determine a map.
    """
    least = 2 * (max(first.shape[-1], second.shape[-1]) + 2)
    if first.ndim != 2 or second.ndim != 2 or len(first) != len(second) or len(first) < least:
        raise UsageError(
            f"vectors have the shapes {tuple(first.shape)} and {tuple(second.shape)}, "
            f"expected two matrices with the same number of rows, at least {least}"
        )
    first, second = first.detach().double(), second.detach().double()
    forward, backward = (_explain(*pair, intercept) for pair in ((first, second), (second, first)))
    bases = (torch.linalg.qr(each - each.mean(0)).Q for each in (first, second))
    left, right = bases
    correlations = torch.linalg.svdvals(left.T @ right).clamp(max=1)
    return Relation(forward, backward, float(correlations.mean()))


def _explain(given: Tensor, wanted: Tensor, intercept: bool) -> float:
    """R² of a linear map that is fitted on the even rows, on the odd ones."""
    if intercept:
        given = functional.pad(given, (0, 1), value=1.0)
    fitted = torch.linalg.lstsq(given[::2], wanted[::2], driver="gelsd").solution
    held_out = wanted[1::2]
    errors = held_out - given[1::2] @ fitted
    return 1 - float((errors**2).sum() / ((held_out - held_out.mean(0)) ** 2).sum())


@torch.no_grad()
def compare_models(first: ItemAttention, second: ItemAttention, items: Tensor, known: Tensor) -> FitComparison:
    """Compare two fits as theorem 1 does: contexts up to a linear map, centers up to an affine one.

    items, known: sequences whose masked positions are compared, [B, I]; those of no training.
    Raises UsageError if there are fewer items or positions than determine a map.
    """
    contexts = [model.read(items, known)[known] for model in (first, second)]
    centers = [model.center.weight for model in (first, second)]
    return FitComparison(relate(contexts[0], contexts[1]), relate(centers[0], centers[1], intercept=True))


@statement(
    "efa-theorem-1-items", EFA, "Theorem 1, items", "same distribution: contexts H' = A·H*, centers e' = B·e* + b"
)
@torch.no_grad()
def check_theorem_1_items(seed: int = 0, *, trials: int = TRIALS) -> Residuals:
    """Theorem 1 for items: H' = A·H* and e' = B·e* + b for two parameters with the same distribution.

    A and B are found as in the proof. It ends with a map from [1; e*] to [1; e'], which has a b. Printed: b = 0.
    """
    errors, printed = [], []
    for trial in range(trials):
        with seeded(1000 * seed + trial):
            model = _draw_item_part()
            same = _transform(model)
            items = torch.randint(ITEMS, (30, LENGTH))
        logs, contexts, centers, points = zip(*(_describe(each, items) for each in (same, model)), strict=True)
        tuples = [each[1:] - each[0] for each in centers]  # the columns of L' and L*
        a = torch.linalg.lstsq(tuples[0], tuples[1]).solution
        b = torch.linalg.lstsq(points[0], points[1]).solution
        affine = functional.pad(centers[1], (1, 0), value=1.0) @ b.T
        linear = centers[1] @ torch.linalg.lstsq(centers[1], centers[0]).solution
        errors += [
            difference(logs[0], logs[1]),
            difference(contexts[1] @ a.T, contexts[0]),
            difference(affine, functional.pad(centers[0], (1, 0), value=1.0)),
        ]
        printed.append(float((linear - centers[0]).norm() / (centers[0] - centers[0].mean(0)).norm()))
    found = (
        f"{trials} pairs of parameters; printed, b = 0: the best linear map of the centers is off by "
        f"{min(printed):.0%} to {max(printed):.0%} of their deviation"
    )
    return Residuals(found, tuple(errors), tuple(printed))


def _draw_item_part() -> ItemAttention:
    shape = AttentionShape(width=SIZE, residual=False, output=False)
    model = ItemAttention(ITEMS, shape, positions=LENGTH, causal=True).double()
    for weight in model.parameters():
        weight.normal_()
    return model


def _transform(model: ItemAttention) -> ItemAttention:
    """Other parameters with the same distribution: other bases of all embeddings, and a vector added to all centers."""
    tokens, products, contexts = (_draw_basis() for _ in range(3))
    same = copy.deepcopy(model)
    assert same.position is not None
    layer = same.attention.layers[0]
    assert isinstance(layer, MaskedLayer)
    for weight in (same.context.weight, same.position.weight):
        weight.copy_(weight @ tokens.T)
    for name, left in (("query", products), ("key", products.inverse().T), ("value", contexts)):
        weight = getattr(layer, name).weight
        weight.copy_(left @ weight @ tokens.inverse())
    same.center.weight.copy_(same.center.weight @ contexts.inverse() + torch.randn(SIZE, dtype=torch.float64))
    return same


def _draw_basis() -> Tensor:
    """A change of basis [K, K] of a condition below 4: one near a singular matrix would lose the digits of float64."""
    turn = torch.linalg.qr(torch.randn(SIZE, SIZE, dtype=torch.float64)).Q
    basis: Tensor = turn * (0.5 + 1.5 * torch.rand(SIZE, dtype=torch.float64))
    return basis


def _describe(model: ItemAttention, items: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The logs of p [n, D], H [n, K], e [D, K], and the columns of M, [−log Z; H], as rows [n, 1 + K]."""
    known = torch.ones_like(items, dtype=torch.bool)
    logits, contexts = (each.flatten(0, 1) for each in (model(items, known), model.read(items, known)))
    logs = torch.log_softmax(logits, -1)
    return logs, contexts, model.center.weight, torch.cat([-logits.logsumexp(-1, keepdim=True), contexts], 1)


@statement(
    "efa-theorem-1-values", EFA, "Theorem 1, values", "same distribution: K' = C·K* at d_j chosen inputs, K'·L' = K*·L*"
)
@torch.no_grad()
def check_theorem_1_values(seed: int = 0, *, trials: int = TRIALS) -> Residuals:
    """Theorem 1 for values: K'(y)·L' = K*(y)·L*, and K' = C·K* at d_j chosen inputs. Printed: K' = C·K* at all inputs.

    The value part reads one number of Y'_ii, so the distribution says nothing about its other numbers.
    """
    errors, printed = [], []
    for trial in range(trials):
        with seeded(1000 * seed + trial):
            model = _draw_value_part()
            same = copy.deepcopy(model)
            assert same.center is not None
            same.center.weight.normal_()
            items, values = torch.randint(ITEMS, (40, LENGTH)), torch.randn(40, LENGTH, dtype=torch.float64)
            given = Observations(values, torch.ones_like(items, dtype=torch.bool), items)
            ours, others = (each.read(given)[:, -1] for each in (same, model))  # K', K*: one position each, [40, d_j]
            chosen = _choose_rows(ours, others)
        width = ours.shape[1]
        c = torch.linalg.solve(others[chosen], ours[chosen]).T
        readout = torch.eye(width, dtype=torch.float64)[-1]  # L' = L* = the last number
        d = torch.linalg.solve(ours[chosen], others[chosen])  # the transpose of N*·N'⁻¹
        errors += [
            difference(ours @ readout, others @ readout),
            difference(others[chosen] @ c.T, ours[chosen]),
            difference(d @ readout, readout),
        ]
        printed.append(float((others @ c.T - ours).norm() / ours.norm()))
    found = (
        f"{trials} pairs of parameters with {width} numbers in Y'_ii; printed: at other inputs the C of the proof is "
        f"off by at least {min(printed):.0%} of K'"
    )
    return Residuals(found, tuple(errors), tuple(printed))


def _draw_value_part() -> ValueAttention:
    """A random value part, unidirectional, that uses center embeddings in no number that is read."""
    shape = ValueShape(items=ITEMS, item_size=SIZE, head=None)
    attention = AttentionShape(width=shape.attended, residual=False, output=False)
    model = ValueAttention(shape, attention, causal=True).double()
    for weight in model.parameters():
        weight.normal_()
    layer = model.attention.layers[0]
    assert isinstance(layer, MaskedLayer)
    centers = slice(SIZE, 2 * SIZE)
    for matrix, rows in ((layer.query, slice(None)), (layer.key, slice(None)), (layer.value, slice(-1, None))):
        matrix.weight[rows, centers] = 0
    return model


def _choose_rows(first: Tensor, second: Tensor, draws: int = 50) -> Tensor:
    """As many rows as there are columns, for which both matrices are far from singular."""
    drawn = [torch.randperm(len(first))[: first.shape[1]] for _ in range(draws)]
    conditions = [max(float(torch.linalg.cond(each[rows])) for each in (first, second)) for rows in drawn]
    return drawn[conditions.index(min(conditions))]
