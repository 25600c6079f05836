"""The symmetry of heads and of their sum over all rotary offsets, and how the heads add up.

A query that follows its key by Δ meets the form M_Δ, see `offsets`, and one that precedes it M_−Δ. Symmetric is what
both read alike: M_−Δ = M_Δᵀ. With the means over all Δ in place of the products of one form,

    rotary symmetry = ⟨tr(M_Δ·M_−Δ)⟩/⟨‖M_Δ‖²⟩

and the parts of M_Δ are S_Δ = (M_Δ + M_−Δᵀ)/2 and A_Δ = (M_Δ − M_−Δᵀ)/2. `mirrors` has the products of pairs of heads;
those of the layer are their sums. Without rotary embeddings, all of this is that of W_qk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attngeo.geometry.forms import Form, FormStatistics, RotaryScores
from attngeo.geometry.growths import MOST_MAGNIFIED, Sums
from attngeo.geometry.mirrors import Products, multiply_pairs, pair_heads
from attngeo.geometry.offsets import PairLayout
from attngeo.geometry.spectra import to_float64


def score_offsets(form: Form, divisors: Tensor, layout: PairLayout) -> tuple[RotaryScores, RotaryScores]:
    """The scores of a layer, and those of its heads, exact to about 1e-6.

    Args:
        form: factors of the heads, of rank head_dim, as `rescale_form` returns them.
        divisors: what the form of each head was divided by, [heads], float64.
        layout: which of the head_dim dimensions rotate.
    """
    form = form._replace(left=_widen(form.left), right=_widen(form.right))
    ratios = divisors / divisors.amax()
    products = _multiply(form, layout)
    sums = _add(products, ratios)
    if form.left.dtype != torch.float64 and sums.magnification > MOST_MAGNIFIED:
        form = form._replace(left=to_float64(form.left), right=to_float64(form.right))
        products = _multiply(form, layout)
        sums = _add(products, ratios)
    of_layer = [
        _divide(sums.symmetric - sums.antisymmetric, sums.squared_norm),
        *torch.tensor(sums.list_growths()[:2], dtype=torch.float64),
    ]
    symmetry = _divide(products.mirrors.diagonal(), products.twins.diagonal())
    missing = torch.full_like(symmetry, torch.nan)
    return (
        RotaryScores(*(score[None].to(symmetry.device) for score in of_layer)),
        RotaryScores(symmetry, missing, missing),
    )


def rotary_scores_of(statistics: FormStatistics) -> RotaryScores:
    """The scores over all offsets of the forms of statistics; NaN if they were not computed."""
    if statistics.over_offsets is not None:
        return statistics.over_offsets
    missing = torch.full_like(to_float64(statistics.trace), torch.nan)
    return RotaryScores(missing, missing, missing)


def _widen(factor: Tensor) -> Tensor:
    """A factor in a number type that has complex numbers."""
    return factor if factor.dtype == torch.float64 else factor.float()


def _multiply(form: Form, layout: PairLayout) -> Products:
    """The products of all pairs of heads, [heads, heads]."""
    heads = pair_heads(form, layout)
    return multiply_pairs(heads, heads)


def _add(products: Products, ratios: Tensor) -> Sums:
    """The sums over heads, brought to one unit by these ratios."""
    units = ratios[:, None] * ratios
    mirrors = products.mirrors.cpu() * units
    twins = products.twins.cpu() * units
    return Sums.of((mirrors.sum(), twins.sum()), (mirrors.trace(), twins.trace()))


def _divide(mirrors: Tensor, twins: Tensor) -> Tensor:
    """mirrors/twins of forms, in [−1, 1]; NaN if twins are 0 or not finite."""
    is_defined = twins.isfinite() & (twins > 0)
    return (mirrors / twins).clamp(-1, 1).where(is_defined, torch.nan)
