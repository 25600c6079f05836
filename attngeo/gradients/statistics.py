"""The update of W_qk of one attention site, as rows: what it is like as a matrix, and which tokens it comes from.

The update of a head is ΔM = Xᵀ·(β·X) [d_model, d_model] over all tokens of S sequences, of rank S·N at most; it is
never formed. That of a layer is the sum over its heads, ΔM = Xᵀ·(Σ_h β_h)·X, as its W_qk is the sum of theirs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attngeo.geometry import FormStatistics, form_statistics, half_gram, is_low_rank, rescale
from attngeo.gradients.options import SPREADS, TOKENS
from attngeo.gradients.recording import SiteGradients
from attngeo.scores.computing import score_form
from attngeo.scores.projections import key_heads_of
from attngeo.scores.options import ScoreOptions
from attngeo.scores.spec import score_names


def tabulate_site(gradients: SiteGradients, generator: torch.Generator) -> list[dict[str, Any]]:
    """The row of the layer, whose `head` is None, then one of each head.

    generator: of the shuffles, on the CPU. Each row has, besides the place,

        symmetry, directionality …   scores of ΔM, as of any W_qk
        frobenius_norm               ‖ΔM‖
        column_spread, row_spread    variance of the norms of its columns, and of its rows, over their mean square
        beta_symmetry                correlation of β_ij with β_ji over the pairs that see each other; missing if no
                                     tokens do, as under a causal mask
        context_share                share of Σ_t ‖C_t‖² of the first half of the positions, where C_t is the part of ΔM
                                     with the token t as context: Σ_i β_it·x_iᵀ·x_t
        prediction_share             the same of the parts with the token t as predicted: Σ_j β_tj·x_tᵀ·x_j
        symmetry_chance …            scores of ΔM if the entries of each row of β are shuffled among what it sees

    Shuffled rows keep their sum, which a softmax makes 0, so that chance knows the tokens and the mask, but no pairs.
    Source: Saponati et al. 2025, Propositions 2.1 and 2.2, Theorems 2.3 and 2.4.
    """
    site, x, beta, seen = gradients
    factor, divisor = rescale(x.flatten(0, 1))
    gram = half_gram(factor) if is_low_rank(factor) else None
    inner = x @ x.mT
    rows, mixed_sum = [], torch.zeros_like(beta[:, 0])

    def describe(own: Tensor, mixed: Tensor, sees: Tensor) -> dict[str, Any]:
        form, size = _form_update(factor, gram, own)
        scored = score_form(form, float(divisor) ** 2 * size, list(site.notes), ScoreOptions())
        chance = score_form(_form_update(factor, gram, mixed)[0], 1.0, [], ScoreOptions())
        spreads = _spread(form.column_norms), _spread(form.row_norms)
        tokens = _correlate_pairs(own, sees), *_early_shares(own, inner)
        return (
            {name: scored[name] for name in (*score_names(), "frobenius_norm")}
            | dict(zip((*SPREADS, *TOKENS), (*spreads, *tokens), strict=True))
            | {f"{name}_chance": chance[name] for name in score_names()}
            | {"note": scored["note"]}
        )

    for head in range(beta.shape[1]):
        mixed = _shuffle_rows(beta[:, head], seen[:, head], generator)
        mixed_sum += mixed
        rows.append(describe(beta[:, head], mixed, seen[:, head]))
    rows.insert(0, describe(beta.sum(1), mixed_sum, seen.any(1)))
    key_heads = key_heads_of(site, "corrected")
    places: list[dict[str, Any]] = [{"head": h, "key_head": k} for h, k in [(None, None), *enumerate(key_heads)]]
    common: dict[str, Any] = {"stack": site.stack, "layer": site.layer, "d_model": x.shape[-1]}
    return [common | place | row for place, row in zip(places, rows, strict=True)]


def _form_update(x: Tensor, gram: Tensor | None, beta: Tensor) -> tuple[FormStatistics, float]:
    """The statistics of Xᵀ·β·X for x [S·N, d_model] and β [S, N, N], and the number that β was divided by.

    They are computed for the transpose (β·X)ᵀ·X, whose right factor all heads share.
    """
    beta, size = rescale(beta.flatten(0, 1))
    blocks = beta.reshape(-1, beta.shape[-1], beta.shape[-1])
    y = (blocks @ x.reshape(len(blocks), -1, x.shape[-1])).flatten(0, 1)
    form = form_statistics(y, x, gram)
    return FormStatistics(form.k, form.q, form.trace, form.squared_norm, form.column_norms, form.row_norms), float(size)


def _spread(norms: Tensor) -> float:
    """Variance of norms over their mean square, in [0, 1); NaN if all are 0."""
    norms = norms.double()
    square = norms.square().mean()
    return float(1 - norms.mean().square() / square) if square > 0 else math.nan


def _correlate_pairs(beta: Tensor, seen: Tensor) -> float:
    """Correlation of β_ij with β_ji over ordered pairs i ≠ j that see each other; beta, seen: [S, N, N]. Else NaN."""
    others = ~torch.eye(beta.shape[-1], dtype=torch.bool, device=beta.device)
    pairs = seen & seen.mT & others
    own, mirrored = beta[pairs].double(), beta.mT[pairs].double()
    if len(own) == 0 or (variance := own.var(correction=0)) <= 0:
        return math.nan
    return float(((own - own.mean()) * (mirrored - own.mean())).mean() / variance)


def _early_shares(beta: Tensor, inner: Tensor) -> tuple[float, float]:
    """The shares `context_share` and `prediction_share`; inner: products of all pairs of tokens, [S, N, N].

    ‖C_t‖² = ‖x_t‖²·‖Σ_i β_it·x_i‖² = ‖x_t‖²·(βᵀ·XXᵀ·β)_tt.
    """
    squares = inner.diagonal(dim1=-2, dim2=-1)
    shares = []
    for weights in (beta.mT, beta):
        parts = (squares * ((weights @ inner) * weights).sum(-1)).double().clamp(min=0)
        total = parts.sum()
        shares.append(float(parts[:, : parts.shape[1] // 2].sum() / total) if total > 0 else math.nan)
    return shares[0], shares[1]


def _shuffle_rows(beta: Tensor, seen: Tensor, generator: torch.Generator) -> Tensor:
    """β [S, N, N] with the entries of each row in a random order among those that are seen."""
    draws = torch.rand(beta.shape, generator=generator).to(beta.device).masked_fill(~seen, 2.0)
    places = seen.logical_not().to(torch.uint8).argsort(dim=-1, stable=True)  # what is seen, in its order, comes first
    return torch.zeros_like(beta).scatter(-1, places, beta.gather(-1, draws.argsort(-1)))
