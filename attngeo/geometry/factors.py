"""What models do to queries and keys between their weights and W_qk: biases, norms of heads, rotations."""

from __future__ import annotations

import torch
from torch import Tensor


def append_bias(w: Tensor, bias: Tensor | None) -> Tensor:
    """Append the bias to w as the weights of one more input that is always 1.

    Args:
        w: weights, [heads, head_dim, d_model].
        bias: [heads, head_dim]; None appends zeros.

    Returns:
        [heads, head_dim, d_model + 1].
    """
    column = w.new_zeros(w.shape[:2]) if bias is None else bias
    return torch.cat([w, column.unsqueeze(-1)], dim=-1)


def fold_head_norm(x: Tensor, gain: Tensor, *, centered: bool, across_heads: bool = False) -> Tensor:
    """Apply the linear part of a normalisation of queries or keys, over head_dim.

    Args:
        x: weights or biases, [heads, head_dim, ...].
        gain: [heads or 1, head_dim].
        centered: subtract the mean over head_dim first, as LayerNorm does.
        across_heads: take one mean over all heads.
    """
    if centered:
        x = x - x.mean(dim=(0, 1) if across_heads else 1, keepdim=True)
    return x * gain.reshape(*gain.shape, *[1] * (x.ndim - 2))


def rotate(x: Tensor, cosine: Tensor, sine: Tensor, *, interleaved: bool, start: int = 0) -> Tensor:
    """Rotate pairs of dimensions of each head, as rotary position embeddings do.

    Args:
        x: weights or biases, [heads, head_dim, ...].
        cosine: of the angle of each pair, [pairs].
        sine: of the angle of each pair, [pairs].
        interleaved: pairs are neighbours (2i, 2i + 1), else (i, i + pairs): the two layouts of rotary embeddings.
        start: the first of the 2·pairs dimensions of a head that rotate.

    Source: Su et al. 2021 (arXiv 2104.09864), eq. 34.
    """
    pairs = len(cosine)
    first, second = split_pairs(x, pairs, interleaved=interleaved, start=start)
    cosine, sine = (angle.reshape(1, pairs, *[1] * (x.ndim - 2)) for angle in (cosine, sine))
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    rotated = torch.stack(turned, dim=2).flatten(1, 2) if interleaved else torch.cat(turned, dim=1)
    return torch.cat([x[:, :start], rotated, x[:, start + 2 * pairs :]], dim=1)


def split_pairs(x: Tensor, pairs: int, *, interleaved: bool, start: int = 0) -> tuple[Tensor, Tensor]:
    """The first and the second dimension of each rotary pair, [heads, pairs, ...] each; arguments as for `rotate`."""
    rotating = x[:, start : start + 2 * pairs]
    if interleaved:
        return rotating[:, 0::2], rotating[:, 1::2]
    return rotating[:, :pairs], rotating[:, pairs:]
