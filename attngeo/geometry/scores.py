"""The two scores of the form M = Wq·Wkᵀ: how symmetric it is, and how far a few rows or columns dominate it.

Each has a public function of two factors, and an unchecked one of the statistics of forms.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attngeo.bounds.names import name_type
from attngeo.choices import Convention, one_of, real
from attngeo.errors import ShapeError
from attngeo.geometry.forms import (
    Form,
    FormStatistics,
    batches,
    form_statistics,
    half_gram,
    quadratic_norms,
    rescale_form,
    take,
)
from attngeo.geometry.spectra import to_float64


def symmetry(wq: Tensor, wk: Tensor) -> Tensor:
    """Symmetry of the form M = wq·wkᵀ: tr(M·M)/‖M‖²_F.

    1 if M is symmetric, −1 if it is skew-symmetric, about 1/d_model by chance. It equals (‖M_s‖² − ‖M_n‖²)/‖M‖² for the
    symmetric part M_s and the skew part M_n. M itself is never formed.

    Args:
        wq: query weights, [*lead, d_model, head_dim], floating point; leading dimensions broadcast with those of `wk`.
        wk: key weights, [*lead, d_model, head_dim].

    Returns:
        [*lead], float64 if a factor is float64, else float32. NaN where M is zero or not finite.

    Raises:
        ShapeError: `wq` and `wk` do not make a square form.

    Source: Saponati et al. 2025 (arXiv 2502.10927), Def. 3.1 without its factor 2, which contradicts the range.

    >>> import torch
    >>> w = torch.randn(3, 64, 8)
    >>> symmetry(w, w).round(decimals=3).tolist()
    [1.0, 1.0, 1.0]
    """
    return score_pairs(wq, wk, symmetry_of)


def symmetry_of(statistics: FormStatistics) -> Tensor:
    """tr(M·M)/‖M‖² of each head, [heads], float64. In [−1, 1]; NaN if the norm is 0 or not finite.

    The quotient is clamped: rounding may leave the range by an ulp.
    """
    trace = to_float64(statistics.trace)
    squared_norm = to_float64(statistics.squared_norm)
    defined = squared_norm.isfinite() & (squared_norm > 0)
    return (trace / squared_norm).clamp(-1, 1).where(defined, float("nan"))


# Bound of the relative rounding error of norms computed in float32. If one is nearer to the threshold, all are computed
# again: what moves them together, such as a Gram matrix that is too small, moves the threshold, too.
NEAR = 1e-5
# A norm is an outlier only if it exceeds the threshold by more than this share, so that rounding makes no outlier of
# norms that are all equal.
EQUAL = 1e-12


def directionality(wq: Tensor, wk: Tensor, *, gamma: float = 2.0, convention: Convention = "corrected") -> Tensor:
    """Directionality of the form M = wq·wkᵀ: (r̄ − c̄)/(r̄ + c̄), negative if columns dominate, positive if rows do.

    r̄ sums the outliers among the Euclidean row norms: those above their mean plus `gamma` standard deviations. c̄ is
    the same for the columns. The value is 0 if there is no outlier, and lies in [−1, 1].

    Args:
        wq: query weights, [*lead, d_model, head_dim], floating point; leading dimensions broadcast with those of `wk`.
        wk: key weights, [*lead, d_model, head_dim].
        gamma: number of standard deviations above which a norm is an outlier.
        convention: "published" sums the excess over the threshold instead and uses the unbiased standard deviation, as
            the paper's tables S4 and S5 did.

    Returns:
        [*lead], float64 if a factor is float64, else float32. NaN where M is zero or not finite.

    Raises:
        ShapeError: `wq` and `wk` do not make a square form.
        UsageError: `gamma` is not finite, or `convention` is unknown.

    Source: Saponati et al. 2025 (arXiv 2502.10927), Def. 3.2.

    >>> import torch
    >>> wq, wk = torch.ones(64, 1), torch.rand(64, 1)
    >>> wk[5] = 20.0  # one large key coordinate, so one large column of M
    >>> directionality(wq, wk).item()
    -1.0
    """
    gamma = real("gamma", gamma, 0)
    one_of("convention", convention, Convention)
    return score_pairs(wq, wk, lambda forms: directionality_of(forms, gamma=gamma, convention=convention))


def directionality_of(statistics: FormStatistics, *, gamma: float, convention: Convention) -> Tensor:
    """The directionality of each head, [heads], float64; see `directionality`.

    The definition jumps when a norm crosses the threshold, see `norms_and_thresholds`.

    Args:
        statistics: statistics of the forms of the heads.
        gamma: number of standard deviations from which on a norm is an outlier.
        convention: "corrected" or "published", as for `directionality`.
    """
    norms, thresholds = norms_and_thresholds(statistics, gamma, convention)
    amounts = norms - thresholds if convention == "published" else norms
    rows, columns = amounts.where(is_outlier(norms, thresholds), 0).sum(-1).unbind()
    total = rows + columns
    scores = ((rows - columns) / total).where(total > 0, 0)
    # An infinite norm does not exceed a mean that is infinite too: the sums alone would give 0.
    defined = norms.isfinite().all(-1).all(0) & total.isfinite() & (norms[0] > 0).any(-1)
    return scores.where(defined, float("nan"))


def norms_and_thresholds(
    statistics: FormStatistics, gamma: float, convention: Convention = "corrected"
) -> tuple[Tensor, Tensor]:
    """The norms of rows and of columns, and what they must exceed to be outliers.

    Rounding could move a norm across the threshold. If one that was computed in float32 is near it, the norms are
    therefore computed again in float64, from the factors.

    Returns:
        [2, heads, n] and [2, heads, 1], float64: rows first.
    """
    norms = to_float64(torch.stack([statistics.row_norms, statistics.column_norms]))
    thresholds = outlier_threshold(norms, gamma, convention)
    if statistics.form.left.dtype == torch.float32:
        is_near = ((norms - thresholds).abs() < NEAR * thresholds.abs()).any(-1).cpu()
        if is_near.any():
            _make_exact(norms, is_near, statistics.form)
            thresholds = outlier_threshold(norms, gamma, convention)
    return norms, thresholds


def _make_exact(norms: Tensor, wanted: Tensor, form: Form) -> None:
    """Replace norms of rows and of columns [2, heads, n] by those of the factors in float64, if wanted [2, heads]."""
    for axis, wanted_heads in enumerate(wanted):
        for heads in batches(wanted_heads.nonzero().flatten().tolist(), form.left, torch.float64):
            factor = take(form.left, heads)
            other = take(form.right, [form.key_heads[head] for head in heads])
            if axis == 1:
                factor, other = other, factor
            gram = half_gram(to_float64(other))
            norms[axis, heads] = quadratic_norms(gram, to_float64(factor))


def outlier_threshold(norms: Tensor, gamma: float, convention: Convention = "corrected") -> Tensor:
    """The value that a norm must exceed to be an outlier among norms [*lead, n]: mean plus `gamma` deviations.

    Returns:
        [*lead, 1].
    """
    mean = norms.mean(-1, keepdim=True)
    if norms.shape[-1] < 2:
        return mean
    deviation: Tensor = norms.std(-1, correction=1 if convention == "published" else 0, keepdim=True)
    return mean + gamma * deviation


def is_outlier(norms: Tensor, threshold: Tensor) -> Tensor:
    """Whether each norm [*lead, n] exceeds the threshold [*lead, 1] by more than rounding can."""
    return norms > threshold * (1 + EQUAL)


def measure_spread(norms: Tensor) -> Tensor:
    """Variance of norms [*lead, n] over their mean square, [*lead], float64; in [0, 1), NaN if all of them are 0."""
    norms = to_float64(norms)
    return (1 - norms.mean(-1).square() / norms.square().mean(-1)).clamp(min=0)


def score_pairs(wq: Tensor, wk: Tensor, score: Callable[[FormStatistics], Tensor]) -> Tensor:
    """Apply `score` to the form of each pair of factors.

    Args:
        wq: query weights, [*lead, d_model, head_dim].
        wk: key weights, [*lead, d_model, head_dim].
        score: a score of each head, [heads], of the statistics of a form.

    Returns:
        [*lead], float64 if a factor is float64, else float32.

    Raises:
        ShapeError: the two do not fit.
    """
    lead = check_pair(wq, wk)
    dtype = torch.float64 if torch.float64 in (wq.dtype, wk.dtype) else torch.float32
    queries = wq.expand(*lead, *wq.shape[-2:]).reshape(-1, *wq.shape[-2:]).mT
    keys = wk.expand(*lead, *wk.shape[-2:]).reshape(-1, *wk.shape[-2:]).mT
    with torch.no_grad():
        scores = [wq.new_zeros(0, dtype=dtype)]
        for pairs in batches(range(len(queries)), queries, dtype):
            left, right = (take(w, pairs).to(dtype).contiguous() for w in (queries, keys))
            form, _ = rescale_form(Form(left, right, list(range(len(pairs)))))
            scores.append(score(form_statistics(form)).to(wq.device, dtype))
        return torch.cat(scores).reshape(lead)


def check_pair(wq: Tensor, wk: Tensor) -> torch.Size:
    """The broadcast leading shape of two factors [*lead, d_model, head_dim]. Raises ShapeError if they do not fit."""
    for name, w in (("wq", wq), ("wk", wk)):
        if not isinstance(w, Tensor) or w.ndim < 2 or not w.is_floating_point() or 0 in w.shape[-2:]:
            description = f"{w.dtype} {list(w.shape)}" if isinstance(w, Tensor) else f"{name_type(w)}"
            raise ShapeError(
                f"{name} is {description}, expected a floating-point torch tensor [*lead, d_model, head_dim] with "
                "d_model and head_dim of at least 1"
            )
    if wq.shape[-2:] != wk.shape[-2:]:
        raise ShapeError(
            f"wq is [..., {wq.shape[-2]}, {wq.shape[-1]}] and wk [..., {wk.shape[-2]}, {wk.shape[-1]}], "
            "expected the same d_model and head_dim"
        )
    try:
        shape: torch.Size = torch.broadcast_shapes(wq.shape[:-2], wk.shape[:-2])  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ShapeError(
            f"leading dimensions {list(wq.shape[:-2])} of wq and {list(wk.shape[:-2])} of wk do not broadcast; "
            "for grouped-query attention repeat each key head with repeat_interleave"
        ) from None
    return shape
