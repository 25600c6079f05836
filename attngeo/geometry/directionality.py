"""How far a few rows or a few columns dominate M = Wq·Wkᵀ."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attngeo.choices import Convention, one_of
from attngeo.errors import UsageError
from attngeo.geometry.factors import FormStatistics
from attngeo.geometry.pairs import score_pairs

# Bound of the relative rounding error of a norm computed in float32. Norms nearer to the threshold are computed again.
NEAR = 1e-5
# A norm is an outlier only if it exceeds the threshold by more than this share, so that rounding makes no outlier of
# norms that are all equal.
EQUAL = 1e-12
CHUNK = 1024


def directionality(wq: Tensor, wk: Tensor, *, gamma: float = 2.0, convention: Convention = "corrected") -> Tensor:
    """(r̄ − c̄)/(r̄ + c̄) of M = wq·wkᵀ: negative if columns dominate, positive if rows do.

    r̄ sums the outliers among the Euclidean row norms: those above their mean plus `gamma` standard deviations. c̄ is
    the same for the columns. The value is 0 if there is no outlier, and lies in [−1, 1].
    wq, wk: [*lead, d_model, head_dim], floating point; leading dimensions broadcast. Returns [*lead].
    NaN if M is zero or not finite. Raises ShapeError if wq and wk do not make a square form, UsageError if `gamma` is
    not finite or `convention` is unknown.
    `convention="published"` sums the excess over the threshold instead and uses the unbiased standard deviation, as
    the paper's tables S4 and S5 did.

    Source: Saponati et al. 2025 (arXiv 2502.10927), Def. 3.2.

    >>> import torch
    >>> wq, wk = torch.ones(64, 1), torch.rand(64, 1)
    >>> wk[5] = 20.0  # one large key coordinate, so one large column of M
    >>> directionality(wq, wk).item()
    -1.0
    """
    check_choices(gamma, convention)
    return score_pairs(wq, wk, lambda form: directionality_of(form, gamma=gamma, convention=convention))


def check_choices(gamma: float, convention: str) -> None:
    """Raise UsageError unless `gamma` is finite and `convention` is a known one."""
    if not isinstance(gamma, int | float) or not math.isfinite(gamma):
        raise UsageError(f"gamma is {gamma}, expected a finite number of standard deviations such as 2")
    one_of("convention", convention, Convention)


def directionality_of(form: FormStatistics, *, gamma: float, convention: Convention) -> Tensor:
    """The directionality of one matrix, as a float64 scalar on the CPU; see `directionality`.

    The definition jumps when a norm crosses the threshold, so rounding could move a norm across. Norms that were
    computed in float32 and are near the threshold are therefore computed again in float64, from the factors.
    """
    rows = _sum_outliers(form.row_norms, gamma, convention, form.q, form.k)
    columns = _sum_outliers(form.column_norms, gamma, convention, form.k, form.q)
    total = rows + columns
    # An infinite norm does not exceed a mean that is infinite too: the sums alone would give 0.
    finite = all(part.isfinite().all() for part in (total, form.row_norms, form.column_norms))
    if not finite or not (form.row_norms > 0).any():
        return total.new_tensor(float("nan"))
    return (rows - columns) / total if total > 0 else torch.zeros_like(total)


def _sum_outliers(norms: Tensor, gamma: float, convention: Convention, own: Tensor, other: Tensor) -> Tensor:
    """The sum of the outliers among the norms ‖own_jᵀ·other‖ [n], or of their excess, as `convention` has it."""
    norms = norms.cpu().double()
    threshold = outlier_threshold(norms, gamma, convention)
    if own.dtype == torch.float32:
        near = ((norms - threshold).abs() < NEAR * threshold.abs()).nonzero().flatten()
        if len(near):
            norms[near] = _exact_norms(own[:, near.to(own.device)], other)
            threshold = outlier_threshold(norms, gamma, convention)
    outliers = norms[is_outlier(norms, threshold)]
    return (outliers - threshold).sum() if convention == "published" else outliers.sum()


def outlier_threshold(norms: Tensor, gamma: float, convention: Convention = "corrected") -> Tensor:
    """The value that a norm must exceed to be an outlier among norms [n]: mean plus `gamma` standard deviations."""
    deviation = norms.std(correction=1 if convention == "published" else 0) if len(norms) > 1 else 0.0
    return norms.mean() + gamma * deviation


def is_outlier(norms: Tensor, threshold: Tensor) -> Tensor:
    """Whether each norm [n] exceeds the threshold by more than rounding can."""
    return norms > threshold * (1 + EQUAL)


def _exact_norms(own: Tensor, other: Tensor) -> Tensor:
    """‖own_jᵀ·other‖ in float64 for each column j of own [rank, m]; other is [rank, n]. Returns [m]."""
    place = torch.device("cpu") if own.device.type == "mps" else own.device  # which has no float64
    own = own.to(place).double()
    squares = own.new_zeros(own.shape[1])
    for start in range(0, other.shape[1], CHUNK):
        squares += (own.T @ other[:, start : start + CHUNK].to(place).double()).square().sum(1)
    return squares.sqrt().cpu()
