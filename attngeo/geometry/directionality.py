"""How far M = Wq·Wkᵀ is dominated by a few rows or by a few columns."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attngeo.choices import Convention, one_of
from attngeo.errors import UsageError
from attngeo.geometry.pairs import each_pair

# Relative rounding error that a norm computed in float32 may carry; norms nearer to the threshold are computed again.
NEAR = 1e-5
# Norms that are equal but for rounding do not stand out from one another.
EQUAL = 1e-12
CHUNK = 1024


def directionality(wq: Tensor, wk: Tensor, *, gamma: float = 2.0, convention: Convention = "corrected") -> Tensor:
    """(r̄ − c̄)/(r̄ + c̄) of M = wq·wkᵀ: negative where columns dominate, positive where rows do.

    r̄ sums the Euclidean row norms above their mean plus `gamma` standard deviations, c̄ the column norms; 0 where
    neither family has one. In [−1, 1].
    wq, wk: [*lead, d_model, head_dim], floating point; leading dimensions broadcast. Returns [*lead].
    NaN where M is zero or not finite. Raises ShapeError when the two cannot be one square form, UsageError for a
    `gamma` that is not finite or an unknown `convention`.
    `convention="published"` sums the excess over the threshold instead, with the unbiased standard deviation, as the
    paper's tables S4 and S5 did.

    Source: Saponati et al. 2025 (arXiv 2502.10927), Def. 3.2.

    >>> import torch
    >>> wq, wk = torch.ones(64, 1), torch.rand(64, 1)
    >>> wk[5] = 20.0  # one key coordinate, so one column of M, stands out
    >>> directionality(wq, wk).item()
    -1.0
    """
    check_choices(gamma, convention)
    return each_pair(
        wq,
        wk,
        lambda moments, q, k: directionality_of(
            moments.row_norms, moments.column_norms, gamma=gamma, convention=convention, factors=(q, k)
        ),
    )


def check_choices(gamma: float, convention: str) -> None:
    """Raise UsageError unless `gamma` is finite and `convention` one that exists."""
    if not isinstance(gamma, int | float) or not math.isfinite(gamma):
        raise UsageError(f"gamma is {gamma}, expected a finite number of standard deviations such as 2")
    one_of("convention", convention, Convention)


def directionality_of(
    row_norms: Tensor,
    column_norms: Tensor,
    *,
    gamma: float,
    convention: Convention,
    factors: tuple[Tensor, Tensor],
) -> Tensor:
    """The directionality of one matrix from its row and column norms [n], as a float64 scalar on the CPU.

    The definition jumps where a norm crosses the threshold, so rounding could move a norm across: norms computed in
    float32 that are near it are computed again in float64, from the `factors` q, k [rank, n].
    """
    q, k = factors
    rows = _dominance(row_norms, gamma, convention, q, k)
    columns = _dominance(column_norms, gamma, convention, k, q)
    total = rows + columns
    # Where norms are infinite, none exceeds their mean, and the sums alone would say 0.
    finite = all(part.isfinite().all() for part in (total, row_norms, column_norms))
    if not finite or not (row_norms > 0).any():
        return total.new_tensor(float("nan"))
    return (rows - columns) / total if total > 0 else torch.zeros_like(total)


def _dominance(norms: Tensor, gamma: float, convention: Convention, own: Tensor, other: Tensor) -> Tensor:
    """The sum of the norms ‖own_jᵀ·other‖ that stand out, by either convention."""
    norms = norms.cpu().double()
    published = convention == "published"
    threshold = threshold_of(norms, gamma, convention)
    if own.dtype == torch.float32:
        near = ((norms - threshold).abs() < NEAR * threshold.abs()).nonzero().flatten()
        if len(near):
            norms[near] = _exact_norms(own[:, near.to(own.device)], other)
            threshold = threshold_of(norms, gamma, convention)
    above = norms[stands_out(norms, threshold)]
    return (above - threshold).sum() if published else above.sum()


def threshold_of(norms: Tensor, gamma: float, convention: Convention = "corrected") -> Tensor:
    """What a norm has to exceed to stand out among norms [n]: their mean plus `gamma` standard deviations."""
    deviation = norms.std(correction=1 if convention == "published" else 0) if len(norms) > 1 else 0.0
    return norms.mean() + gamma * deviation


def stands_out(norms: Tensor, threshold: Tensor) -> Tensor:
    """Whether each norm exceeds the threshold, by more than rounding does where all norms are the same."""
    return norms > threshold * (1 + EQUAL)


def _exact_norms(own: Tensor, other: Tensor) -> Tensor:
    """‖own_jᵀ·other‖ for every column j of own [rank, m], other [rank, n], in float64."""
    own = own.cpu().double()
    squares = own.new_zeros(own.shape[1])
    for start in range(0, other.shape[1], CHUNK):
        squares += (own.T @ other[:, start : start + CHUNK].cpu().double()).square().sum(1)
    return squares.sqrt()
