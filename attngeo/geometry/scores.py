"""The two scores of M = Wq·Wkᵀ: how symmetric it is, and how far a few rows or columns dominate it.

Each has a public function of two factors, and an unchecked one of a form's statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attngeo.choices import Convention, one_of
from attngeo.errors import ShapeError, UsageError
from attngeo.geometry.forms import FormStatistics, form_statistics, rescale


def symmetry(wq: Tensor, wk: Tensor) -> Tensor:
    """tr(M·M)/‖M‖²_F of M = wq·wkᵀ: 1 symmetric, −1 skew-symmetric, about 1/d_model by chance.

    wq, wk: [*lead, d_model, head_dim], floating point; leading dimensions broadcast. Returns [*lead].
    Equals (‖M_s‖² − ‖M_n‖²)/‖M‖² for the symmetric part M_s and the skew part M_n. M itself is never formed.
    NaN if M is zero or not finite. Raises ShapeError if wq and wk do not make a square form.

    Source: Saponati et al. 2025 (arXiv 2502.10927), Def. 3.1 without its factor 2, which contradicts the range.

    >>> import torch
    >>> w = torch.randn(3, 64, 8)
    >>> symmetry(w, w).round(decimals=3).tolist()
    [1.0, 1.0, 1.0]
    """
    return score_pairs(wq, wk, symmetry_of)


def symmetry_of(form: FormStatistics) -> Tensor:
    """tr(M·M)/‖M‖² of one matrix, as a float64 scalar on the CPU. In [−1, 1]; NaN if the norm is 0 or not finite.

    The quotient is clamped: rounding may leave the range by an ulp.
    """
    trace, squared_norm = form.trace.cpu().double(), form.squared_norm.cpu().double()
    defined = squared_norm.isfinite() & (squared_norm > 0)
    return (trace / squared_norm).clamp(-1, 1).where(defined, float("nan"))


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
        raise UsageError(f"$gamma is {gamma}, expected a finite number of standard deviations such as 2", "gamma")
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


def _sum_outliers(norms: Tensor, gamma: float, convention: Convention, factor: Tensor, other: Tensor) -> Tensor:
    """The sum of the outliers among the norms ‖own_jᵀ·other‖ [n], or of their excess, as `convention` has it."""
    norms = norms.cpu().double()
    threshold = outlier_threshold(norms, gamma, convention)
    if factor.dtype == torch.float32:
        near = ((norms - threshold).abs() < NEAR * threshold.abs()).nonzero().flatten()
        if len(near):
            norms[near] = _exact_norms(factor[:, near.to(factor.device)], other)
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


def _exact_norms(factor: Tensor, other: Tensor) -> Tensor:
    """‖own_jᵀ·other‖ in float64 for each column j of own [rank, m]; other is [rank, n]. Returns [m]."""
    place = torch.device("cpu") if factor.device.type == "mps" else factor.device  # which has no float64
    factor = factor.to(place).double()
    squares = factor.new_zeros(factor.shape[1])
    for start in range(0, other.shape[1], CHUNK):
        squares += (factor.T @ other[:, start : start + CHUNK].to(place).double()).square().sum(1)
    return squares.sqrt().cpu()


def score_pairs(wq: Tensor, wk: Tensor, score: Callable[[FormStatistics], Tensor]) -> Tensor:
    """Apply `score` to the form of each pair in wq, wk [*lead, d_model, head_dim].

    Returns [*lead], in float64 if a factor is float64, else in float32. Raises ShapeError if the two do not fit.
    """
    lead = check_pair(wq, wk)
    dtype = torch.float64 if torch.float64 in (wq.dtype, wk.dtype) else torch.float32
    queries = wq.expand(*lead, *wq.shape[-2:]).reshape(-1, *wq.shape[-2:])
    keys = wk.expand(*lead, *wk.shape[-2:]).reshape(-1, *wk.shape[-2:])
    with torch.no_grad():
        scores = []
        for query, key in zip(queries, keys, strict=True):
            q, k = (rescale(w.mT.to(dtype).contiguous())[0] for w in (query, key))
            scores.append(score(form_statistics(q, k)).to(wq.device, dtype))
        return torch.stack(scores).reshape(lead) if scores else wq.new_zeros(lead, dtype=dtype)


def check_pair(wq: Tensor, wk: Tensor) -> torch.Size:
    """The broadcast leading shape of two factors [*lead, d_model, head_dim]. Raises ShapeError if they do not fit."""
    for name, w in (("wq", wq), ("wk", wk)):
        if not isinstance(w, Tensor):
            raise ShapeError(f"{name} is a {type(w).__name__}, expected a torch tensor [*lead, d_model, head_dim]")
        if w.ndim < 2 or not w.is_floating_point() or 0 in w.shape[-2:]:
            raise ShapeError(
                f"{name} is {w.dtype} {list(w.shape)}, expected floating point [*lead, d_model, head_dim] with "
                "d_model and head_dim of at least 1"
            )
    if wq.shape[-2:] != wk.shape[-2:]:
        raise ShapeError(
            f"wq is [..., {wq.shape[-2]}, {wq.shape[-1]}] and wk [..., {wk.shape[-2]}, {wk.shape[-1]}], "
            "expected the same d_model and head_dim"
        )
    try:
        return torch.empty(wq.shape[:-2], device="meta").add(torch.empty(wk.shape[:-2], device="meta")).shape
    except RuntimeError:
        raise ShapeError(
            f"leading dimensions {list(wq.shape[:-2])} of wq and {list(wk.shape[:-2])} of wk do not broadcast; "
            "for grouped-query attention repeat each key head with repeat_interleave"
        ) from None
