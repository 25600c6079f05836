"""Variants of the bilinear form: each changes the matrix that is scored, not the definition of a score.

Shapes here: w is [heads, head_dim, d_model], a bias [heads, head_dim], as a Linear layer stores them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def append_bias(w: Tensor, bias: Tensor | None) -> Tensor:
    """Append the bias to w as the weights of one more input that is always 1: [heads, head_dim, d_model + 1].

    bias: None appends zeros.
    """
    column = w.new_zeros(w.shape[:2]) if bias is None else bias
    return torch.cat([w, column.unsqueeze(-1)], dim=-1)


def fold_input_gain(w: Tensor, gain: Tensor) -> Tensor:
    """Fold the elementwise gain [d_model] of the normalisation in front of attention into w: w for inputs before it."""
    return w * gain


def input_shift(w: Tensor, shift: Tensor) -> Tensor:
    """The bias [heads, head_dim] that has the effect of a constant shift [d_model] of the input."""
    return w @ shift


def fold_head_norm(x: Tensor, gain: Tensor, *, centred: bool, across_heads: bool = False) -> Tensor:
    """Apply the linear part of a normalisation of queries or keys to x [heads, head_dim, ...], over head_dim.

    gain: [heads or 1, head_dim]. centred: subtract the mean over head_dim first, as LayerNorm does. across_heads: the
    mean is one over all heads.
    """
    if centred:
        x = x - x.mean(dim=(0, 1) if across_heads else 1, keepdim=True)
    return x * gain.reshape(*gain.shape, *[1] * (x.ndim - 2))


def rotate(x: Tensor, cosine: Tensor, sine: Tensor, *, interleaved: bool, start: int = 0) -> Tensor:
    """Rotate the pairs in the slice [start, start + 2·pairs) of x's dimension 1; x is [heads, head_dim, ...].

    cosine, sine: of the angle of each pair, [pairs]. Pairs are neighbours (2i, 2i + 1) if `interleaved`, else
    (i, i + pairs): the two layouts of rotary embeddings.
    Source: Su et al. 2021 (arXiv 2104.09864), eq. 34.
    """
    pairs = len(cosine)
    part = x[:, start : start + 2 * pairs]
    first, second = (part[:, 0::2], part[:, 1::2]) if interleaved else (part[:, :pairs], part[:, pairs:])
    cosine, sine = (angle.reshape(1, pairs, *[1] * (x.ndim - 2)) for angle in (cosine, sine))
    turned = first * cosine - second * sine, second * cosine + first * sine
    part = torch.stack(turned, dim=2).flatten(1, 2) if interleaved else torch.cat(turned, dim=1)
    return torch.cat([x[:, :start], part, x[:, start + 2 * pairs :]], dim=1)
