"""Composition of heads: how much of what a head writes another head reads, and what chance gives.

The composition of forms A and B is ‖A·B‖/(‖A‖·‖B‖), in [0, 1]. For a head that writes O₁ = Wv·Wo and one that reads
with M₂ = Wq·Wkᵀ and writes O₂, A·B is O₁·M₂ (its queries read), O₁·M₂ᵀ (its keys) or O₁·O₂ (its values).

A form is folded to one factor of the same norm: with xᵀ = Q·R, ‖xᵀ·y‖ = ‖R·y‖. What a head writes is R_v·Wo, and what
its queries, keys and values read is R_k·Wqᵀ, R_q·Wkᵀ and R_o·Wvᵀ, each [rank, n]. The norm of A·B is that of what one
head writes times the transpose of what the other one reads, and all heads of two layers are blocks of one product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attngeo.geometry.forms import rescale
from attngeo.geometry.spectra import to_float64, triangle


def fold(kept: Tensor, folded: Tensor) -> Tensor:
    """One factor of norm 1 in place of each form foldedᵀ·kept, without the directions of the other factor.

    Args:
        kept: the factors that meet another head, [heads, rank, n].
        folded: the other factors, of which only the Gram matrix counts, [heads, rank, any].

    Returns:
        R·kept/‖R·kept‖, [heads, min(rank, any), n]; some of it is NaN if the form is zero or not finite.
    """
    kept, _ = rescale(kept)
    folded, _ = rescale(folded)
    product = triangle(folded) @ kept
    norms: Tensor = torch.linalg.matrix_norm(product, keepdim=True)
    return product / norms


def compositions(writers: Tensor, readers: Tensor) -> Tensor:
    """The squared composition of every writing head with every reading head.

    Args:
        writers: what heads write, as `fold` returns it, [heads, rank, n].
        readers: what heads read, as `fold` returns it, [others, any, n].

    Returns:
        [heads, others]; NaN if either form is zero or not finite.
    """
    heads, rank, _ = writers.shape
    others, other_rank, _ = readers.shape
    product = writers.flatten(0, 1) @ readers.flatten(0, 1).mT
    return product.square_().reshape(heads, rank, others, other_rank).sum((1, 3))


def unevenness(folded: Tensor) -> Tensor:
    """‖P − (tr P/n)·I‖²/(tr P)² of P = foldedᵀ·folded: 0 if a form meets all directions of the stream equally.

    Args:
        folded: as `fold` returns it, [heads, rank, n].

    Returns:
        [heads], float64.
    """
    gram = to_float64(folded @ folded.mT)
    traces = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    return gram.square().sum((-2, -1)) / traces.square() - 1 / folded.shape[-1]


def standardize(squares: Tensor, of_writers: Tensor, of_readers: Tensor, n: int) -> Tensor:
    """Squared compositions in standard deviations above chance: one of the two forms rotated at random.

    With all rotations alike, and both spectra kept, the mean is 1/n and the variance 2uw/((n − 1)(n + 2)), where u and
    w are the `unevenness` of writer and reader. Trained heads differ from random ones even if they cannot compose.

    Args:
        squares: squared compositions, [heads, others].
        of_writers: unevenness of the writers, [heads].
        of_readers: unevenness of the readers, [others].
        n: width of the stream.

    Returns:
        [heads, others], float64; not finite if one of the two meets all directions equally.
    """
    variance = 2 * of_writers[:, None] * of_readers / ((n - 1) * (n + 2))
    return (to_float64(squares) - 1 / n) / variance.sqrt()
