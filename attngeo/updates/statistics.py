"""Statistics of the update of W_qk of one attention site: of its matrix, and of the tokens behind it.

The update of a head is ΔM = Xᵀ·(β·X) [d_model, d_model] over all tokens of S sequences, of rank S·N at most; it is
never formed. That of a layer is the sum over its heads, ΔM = Xᵀ·(Σ_h β_h)·X, as its W_qk is the sum of theirs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.attention.projections import key_heads_of
from attngeo.geometry.forms import (
    Form,
    FormStatistics,
    form_statistics,
    half_gram,
    is_low_rank,
    multiply_forms,
    rescale,
)
from attngeo.geometry.spectra import to_float64
from attngeo.scores.computing import score_forms, score_site
from attngeo.scores.options import ScoreOptions
from attngeo.scores.spec import SPREADS, score_names
from attngeo.updates.change import change_form
from attngeo.updates.options import CHANGE, OWN_TOKEN
from attngeo.updates.recording import SiteGradients


class _Inputs(NamedTuple):
    """Inputs of one attention site, which the updates of all of its heads share: S sequences of N tokens.

    Attributes:
        factor: X divided by `divisor`, [S·N, d_model].
        divisor: scale of X.
        gram: `half_gram` of `factor` as [1, S·N, d_model]; None if the Gram form is not the cheaper one.
        inner: products of all pairs of tokens of a sequence, [S, N, N].
        predicted: see `SiteGradients`.
        notes: notes of the site.
    """

    factor: Tensor
    divisor: float
    gram: Tensor | None
    inner: Tensor
    predicted: Tensor
    notes: list[str]


def tabulate_site(
    gradients: SiteGradients, generator: torch.Generator, *, own_token: bool = False
) -> list[dict[str, Any]]:
    """Rows of one site: one for the layer, with `head` None, then one per head.

    Chance shuffles the entries of each row of β. They keep their sum, which a softmax makes 0, so chance keeps the
    tokens and the mask, but not the pairs.

    Args:
        gradients: gradients of the site.
        generator: random generator for the shuffles, on the CPU.
        own_token: whether `beta_own` was asked for, so that a note says if it is unknown.

    Returns:
        Rows with stack, layer, head, key_head, d_model, and:

            symmetry, directionality …   scores of ΔM, as for any W_qk
            frobenius_norm               ‖ΔM‖
            column_spread, row_spread    variance of the norms of the columns (rows) of ΔM, over their mean square
            beta_symmetry                correlation of β_ij with β_ji over the pairs that see each other; missing
                                         without such pairs, as under a causal mask
            context_share                share of the first half of the positions in Σ_t ‖C_t‖², where C_t is the part
                                         of ΔM with token t as context: Σ_i β_it·x_iᵀ·x_t
            prediction_share             the same for the parts with token t as the attending one, which Proposition 2.2
                                         calls predicted: P_t = Σ_j β_tj·x_tᵀ·x_j
            symmetry_chance …            scores of ΔM with the entries of each row of β shuffled among the tokens it
                                         sees
            change_symmetry …            scores of the change of W_qk by a step, see `attngeo.updates.change`
            change_symmetry_chance …     the same with shuffled rows
            beta_symmetry_predicted      beta_symmetry over the pairs with two predicted positions
            prediction_share_predicted   prediction_share among the predicted positions
            predicted_share              share of the predicted positions in Σ_t ‖P_t‖²
            own_token_share              ⟨ΔM_own, ΔM⟩/‖ΔM‖² of the part of ΔM by `beta_own`; NaN without it
            other_tokens_share           ⟨ΔM − ΔM_own, ΔM⟩/‖ΔM‖², which is 1 − own_token_share
            own_token_cosine             ⟨ΔM_own, ΔM⟩/(‖ΔM_own‖·‖ΔM‖)

    A position is predicted if the loss has a prediction there; with clm, it is the prediction of the next token.

    Source: Saponati et al. 2025, Propositions 2.1 and 2.2, Theorems 2.3 and 2.4, Remark S1.6.
    """
    site, x, beta, seen, predicted, projections, beta_own = gradients
    factor, divisor = rescale(x.flatten(0, 1))
    gram = half_gram(factor[None]) if is_low_rank(factor) else None
    notes = list(site.notes)
    if projections is None:
        notes.append("change of W_qk missing: the logits are not a known product of Wq and Wk")
    if own_token and beta_own is None:
        notes.append("own-token part missing: something else than a known form of attention mixes tokens")
    inputs = _Inputs(factor, float(divisor), gram, inner=x @ x.mT, predicted=predicted, notes=notes)
    layer: dict[str, Any] = {
        "stack": site.stack,
        "layer": site.layer,
        "d_model": x.shape[-1],
        "head": None,
        "key_head": None,
    }
    heads = range(beta.shape[1])
    shuffled = torch.stack([_shuffle_rows(beta[:, head], seen[:, head], generator) for head in heads], 1)
    rows = [layer | _describe_update(inputs, beta.sum(1), shuffled.sum(1), seen.any(1))]
    for head, key_head in enumerate(key_heads_of(site, "corrected")):
        update = _describe_update(inputs, beta[:, head], shuffled[:, head], seen[:, head])
        rows.append(layer | {"head": head, "key_head": key_head} | update)
    for row, split in zip(rows, _split_updates(inputs, beta, beta_own), strict=True):
        row |= split
    changes, chances = _score_changes(gradients, [beta, shuffled])
    for row, change, chance in zip(rows, changes, chances, strict=True):
        row |= {f"{CHANGE}{name}": change[name] for name in score_names()}
        row |= {f"{CHANGE}{name}_chance": chance[name] for name in score_names()}
    return rows


def _score_changes(gradients: SiteGradients, betas: list[Tensor]) -> list[list[dict[str, Any]]]:
    """The scores of the change of W_qk by each β [S, heads, N, N]: of the layer, then of each head."""
    made_by = gradients.projections
    if made_by is None:
        missing: dict[str, Any] = dict.fromkeys(score_names(), math.nan)
        return [[missing] * (1 + beta.shape[1]) for beta in betas]
    projected = made_by.project(gradients.x)
    changes = []
    for beta in betas:
        left, right, _ = change_form(made_by, gradients.x, projected, beta)
        changes.append(list(score_site(gradients.site, left, right, [], ScoreOptions())))
    return changes


def _describe_update(inputs: _Inputs, beta: Tensor, shuffled: Tensor, seen: Tensor) -> dict[str, Any]:
    """The columns of one update. beta, shuffled: β [S, N, N], and with shuffled rows. seen: which tokens see which."""
    form, size = _form_update(inputs, beta)
    shuffled_form, _ = _form_update(inputs, shuffled)
    (scores,) = score_forms(form, [inputs.divisor**2 * size], inputs.notes, ScoreOptions())
    (chance,) = score_forms(shuffled_form, [1.0], [], ScoreOptions())
    row = {name: scores[name] for name in (*score_names(), "frobenius_norm", *SPREADS)}
    row["beta_symmetry"] = _correlate_pairs(beta, seen)
    row["beta_symmetry_predicted"] = _correlate_pairs(beta, seen & inputs.predicted[:, :, None])
    row["context_share"] = _early_share(_part_norms(beta.mT, inputs.inner))
    parts = _part_norms(beta, inputs.inner)
    parts_of_predicted = parts * inputs.predicted.to(parts.device)
    row["prediction_share"] = _early_share(parts)
    row["prediction_share_predicted"] = _early_share(parts_of_predicted)
    row["predicted_share"] = float(parts_of_predicted.sum() / parts.sum())
    row |= {f"{name}_chance": chance[name] for name in score_names()}
    row["note"] = str(scores["note"])
    return row


def _form_update(inputs: _Inputs, beta: Tensor) -> tuple[FormStatistics, float]:
    """The statistics of Xᵀ·β·X for β [S, N, N], and the number that β was divided by.

    They are computed for the transpose (β·X)ᵀ·X, whose right factor all heads share.
    """
    x = inputs.factor  # [S·N, d_model]
    flat, size = rescale(beta.flatten(0, 1))
    blocks = flat.reshape(beta.shape)
    weighted = (blocks @ x.reshape(len(blocks), -1, x.shape[-1])).flatten(0, 1)  # β·X, [S·N, d_model]
    transposed = form_statistics(Form(weighted[None], x[None], [0]), inputs.gram)
    form = replace(
        transposed,
        form=Form(x[None], weighted[None], [0]),
        row_norms=transposed.column_norms,
        column_norms=transposed.row_norms,
    )
    return form, float(size)


def _split_updates(inputs: _Inputs, beta: Tensor, beta_own: Tensor | None) -> list[dict[str, float]]:
    """The columns of `OWN_TOKEN` of the layer, then of each head; beta, beta_own: [S, heads, N, N]."""
    if beta_own is None:
        return [dict.fromkeys(OWN_TOKEN, math.nan)] * (1 + beta.shape[1])
    splits = [_split_update(inputs, beta.sum(1), beta_own.sum(1))]
    splits += [_split_update(inputs, beta[:, head], beta_own[:, head]) for head in range(beta.shape[1])]
    return splits


def _split_update(inputs: _Inputs, beta: Tensor, beta_own: Tensor) -> dict[str, float]:
    """The columns of `OWN_TOKEN` of one update; beta, beta_own: [S, N, N]."""
    x = inputs.factor  # [S·N, d_model]
    flat, _ = rescale(torch.stack([beta, beta_own]).flatten(0, 2))
    blocks = flat.reshape(2, *beta.shape)
    weighted = (blocks @ x.reshape(*beta.shape[:2], -1)).flatten(1, 2)  # β·X of ΔM and ΔM_own, [2, S·N, d_model]
    (update, product), (_, own) = multiply_forms(x, weighted)
    cosine = (product / (own * update).sqrt()).clamp(-1, 1)
    values = (product / update, (update - product) / update, cosine)
    return dict(zip(OWN_TOKEN, map(float, values), strict=True))


def _correlate_pairs(beta: Tensor, seen: Tensor) -> float:
    """Correlation of β_ij with β_ji over ordered pairs i ≠ j that see each other; beta, seen: [S, N, N]. Else NaN."""
    others = ~torch.eye(beta.shape[-1], dtype=torch.bool, device=beta.device)
    pairs = seen & seen.mT & others
    forward = to_float64(beta[pairs])
    backward = to_float64(beta.mT[pairs])
    if len(forward) == 0:
        return math.nan
    mean = forward.mean()  # that of the other order, too
    return float(((forward - mean) * (backward - mean)).mean() / forward.var(correction=0))


def _part_norms(weights: Tensor, inner: Tensor) -> Tensor:
    """‖C_t‖² of each position t, [S, N], in float64; inner: products of all pairs of tokens, [S, N, N].

    weights: βᵀ for tokens as context, β for predicted ones, [S, N, N].
    ‖C_t‖² = ‖x_t‖²·‖Σ_i β_it·x_i‖² = ‖x_t‖²·(βᵀ·XXᵀ·β)_tt.
    """
    squares = inner.diagonal(dim1=-2, dim2=-1)
    norms = squares * ((weights @ inner) * weights).sum(-1)
    return to_float64(norms).clamp(min=0)


def _early_share(norms: Tensor) -> float:
    """The share of the first half of the positions in the sum of numbers [S, N]; NaN if all are 0."""
    return float(norms[:, : norms.shape[1] // 2].sum() / norms.sum())


def _shuffle_rows(beta: Tensor, seen: Tensor, generator: torch.Generator) -> Tensor:
    """β [S, N, N] with the entries of each row in a random order among those that are seen."""
    draws = torch.rand(beta.shape, generator=generator).to(beta.device).masked_fill(~seen, 2.0)
    columns = seen.logical_not().to(torch.uint8).argsort(dim=-1, stable=True)  # what is seen, in its order, comes first
    return torch.zeros_like(beta).scatter(-1, columns, beta.gather(-1, draws.argsort(-1)))
