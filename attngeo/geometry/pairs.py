"""What the public scores share: checked arguments, any leading dimensions, one pair of factors at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attngeo.errors import ShapeError
from attngeo.geometry.factors import FormStatistics, form_statistics
from attngeo.geometry.scale import rescale


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
