"""Where heads look by position alone: the parts of M that rotate, and the logits that positions give.

With rotary embeddings, M = Wq·Wkᵀ of a head is a sum of parts M_i = q₁k₁ᵀ + q₂k₂ᵀ, one for each pair of dimensions
that turns by ω_i from one position to the next, and a part that stands still. A query that follows its key by Δ
positions meets M_Δ = Wq·R_Δ·Wkᵀ, whose trace is the position kernel

    κ(Δ) = Σ_i (a_i·cos ω_iΔ + b_i·sin ω_iΔ) + c,   a_i = q₁·k₁ + q₂·k₂,   b_i = q₁·k₂ − q₂·k₁

the logit of a token with itself Δ positions earlier, summed over an orthonormal basis of tokens. With a table P of
learned positions, κ(Δ) is the mean of the entries (i, i − Δ) of P·M·Pᵀ. Δ is the query's position minus the key's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.geometry.factors import split_pairs
from attngeo.geometry.forms import Form, batches, take
from attngeo.geometry.spectra import to_float64

# Offsets beside the previous token, whose mean is its background.
BACKGROUND = (0, 2, 3)
# The share of the rotating pairs that counts as fast.
FAST = 0.25
# The rows at the beginning of a table that may be no positions: of a class token, and of padding.
OTHER_ROWS = 2
# Relative error of a sum of squares whose numbers were rounded to bfloat16.
ROUNDING = 0.01


class PairStatistics(NamedTuple):
    """The contribution of each rotary pair to the form of each head, float64.

    Attributes:
        norms: ‖M_i‖_F, [heads, pairs].
        cosines: a_i, [heads, pairs].
        sines: b_i, [heads, pairs].
        still: the trace c of what does not rotate, [heads].
    """

    norms: Tensor
    cosines: Tensor
    sines: Tensor
    still: Tensor


def pair_statistics(form: Form, pairs: int, *, interleaved: bool, start: int = 0) -> PairStatistics:
    """The contributions of rotary pairs to each head of a form.

    Args:
        form: factors whose rank is head_dim.
        pairs: number of pairs that rotate.
        interleaved: as for `rotate`.
        start: as for `rotate`.

    ‖M_i‖² is tr(A_i·B_i) of the 2 × 2 Grams of the pair's queries and keys.
    """
    parts = []
    for heads in batches(range(len(form.left)), form.left, torch.float64):
        q = to_float64(take(form.left, heads))
        k = to_float64(take(form.right, [form.key_heads[head] for head in heads]))
        q1, q2 = split_pairs(q, pairs, interleaved=interleaved, start=start)
        k1, k2 = split_pairs(k, pairs, interleaved=interleaved, start=start)
        squared_norms = _dot(q1, q1) * _dot(k1, k1) + _dot(q2, q2) * _dot(k2, k2) + 2 * _dot(q1, q2) * _dot(k1, k2)
        cosines = _dot(q1, k1) + _dot(q2, k2)
        sines = _dot(q1, k2) - _dot(q2, k1)
        still = (q * k).sum((1, 2)) - cosines.sum(1)
        parts.append(PairStatistics(squared_norms.clamp(min=0).sqrt(), cosines, sines, still))
    return PairStatistics(*map(torch.cat, zip(*parts, strict=True)))


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """The products of the last axes of x and y [heads, pairs, n], [heads, pairs]."""
    return torch.einsum("hpn,hpn->hp", x, y)


def rotary_kernel(statistics: PairStatistics, frequencies: Tensor, offsets: Sequence[int]) -> Tensor:
    """κ(Δ) of each head at some offsets Δ, [heads, offsets].

    Args:
        statistics: of the pairs that rotate by these frequencies.
        frequencies: in radians per position, negative for a rotation the other way, [pairs].
        offsets: position of the query minus that of the key.
    """
    angles = to_float64(frequencies)[:, None] * torch.tensor(offsets, dtype=torch.float64)
    rotating = statistics.cosines @ angles.cos() + statistics.sines @ angles.sin()
    return rotating + statistics.still[:, None]


def fast_share(norms: Tensor, frequencies: Tensor) -> Tensor:
    """Σ‖M_i‖ over the fastest quarter of the rotating pairs, rounded up, divided by the sum over all pairs, [heads].

    Args:
        norms: ‖M_i‖, [heads, pairs].
        frequencies: of the pairs, [pairs]; those with 0 do not rotate.

    Returns:
        In [0, 1]; NaN if no pair rotates, or all parts are zero.
    """
    rotating = norms[:, frequencies != 0]
    speeds = frequencies[frequencies != 0].abs()
    count = -(-len(speeds) // round(1 / FAST))
    fastest = speeds.argsort(descending=True, stable=True)[:count]
    return rotating[:, fastest].sum(1) / rotating.sum(1)


def table_kernel(form: Form, table: Tensor, offsets: Sequence[int]) -> tuple[Tensor, Tensor]:
    """κ(Δ) of each head of a form with a table of learned positions, and the spread of all position logits.

    Args:
        form: factors of d_model inputs.
        table: P, [positions, d_model].
        offsets: position of the query minus that of the key.

    Returns:
        κ, [heads, offsets], NaN at offsets for which the table is too short; and the standard deviation of the entries
        of P·M·Pᵀ, [heads]; float64.
    """
    rows = to_float64(table)
    count = len(rows)
    kernels = []
    deviations = []
    for head, key_head in enumerate(form.key_heads):
        queries = rows @ to_float64(form.left[head]).T
        keys = rows @ to_float64(form.right[key_head]).T
        means = []
        for offset in offsets:
            if abs(offset) >= count:
                means.append(rows.new_tensor(float("nan")))
                continue
            first = max(offset, 0)
            last = count + min(offset, 0)
            logits = (queries[first:last] * keys[first - offset : last - offset]).sum(1)
            means.append(logits.mean())
        kernels.append(torch.stack(means))
        mean_square = ((queries.T @ queries) * (keys.T @ keys)).sum() / count**2
        mean = queries.mean(0) @ keys.mean(0)
        deviations.append((mean_square - mean**2).clamp(min=0).sqrt())
    return torch.stack(kernels), torch.stack(deviations)


def are_sinusoids(table: Tensor) -> bool:
    """Whether a table holds sines and cosines, in pairs of columns: the squares of each row sum to half the width.

    Args:
        table: a row for each position, [positions, d_model] or [1, positions, d_model].

    Source: Vaswani et al. 2017 (arXiv 1706.03762); He et al. 2022 (2111.06377) for rows and columns of images.
    """
    rows = to_float64(table).flatten(0, -2)[OTHER_ROWS:]
    half = table.shape[-1] / 2
    return len(rows) > 0 and bool(((rows.square().sum(1) - half).abs() <= ROUNDING * half).all())


def previous_token(kernel: Tensor, scale: Tensor | float) -> Tensor:
    """(κ(1) − mean of κ(0), κ(2), κ(3))/scale, [*lead]: how far κ prefers the previous token.

    Args:
        kernel: κ(0), κ(1), κ(2), κ(3) and perhaps more, [*lead, offsets].
        scale: [*lead].
    """
    return (kernel[..., 1] - kernel[..., BACKGROUND].mean(-1)) / scale
