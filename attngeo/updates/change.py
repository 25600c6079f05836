"""The change of W_qk by a step of gradient descent on Wq and Wk, as factors of low rank.

Training changes Wq and Wk, not their product. With the gradients β by the logits, and Q, K [N, head_dim] the queries
and keys of the tokens X, the gradients of a head are Xᵀ·A by Wq, with A = β·K, and Xᵀ·B by Wk, with B = βᵀ·Q. A step of
rate η changes W_qk = Wq·Wkᵀ by −η·scale times

    C = Xᵀ·A·Wkᵀ + Wq·(Xᵀ·B)ᵀ    [d_model, d_model], of rank 2·head_dim

and terms of η². Without biases and rotary embeddings C = ΔM·Wk·Wkᵀ + Wq·Wqᵀ·ΔM, with the ΔM of `recording`. In the form
above, Q and K have their biases and rotations, and A and B are rotated back. Query heads that share a key head share
the sum of their B.

Source: Saponati et al. 2025 (arXiv 2502.10927), Remark S1.6.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from attngeo.attention.options import ReadingOptions
from attngeo.attention.projections import key_heads_of, projections
from attngeo.checkpoints.store import TensorStore
from attngeo.errors import UnsupportedModelError
from attngeo.geometry.factors import rotate
from attngeo.geometry.forms import Form, rescale
from attngeo.layouts.layout import AttentionSite, LatentLayout
from attngeo.layouts.rotary import rotary_frequencies, rotates

# The largest distance of logits that are computed from Wq and Wk to those of the model, as a share of these. Half
# precision stays below it, and a normalisation of queries and keys does not.
NOT_BILINEAR = 0.02


class Rotation(NamedTuple):
    """The rotary embeddings of a site; see `geometry.rotate`.

    Attributes:
        cosine: cosine for each position and pair, [N, pairs].
        sine: sine for each position and pair, [N, pairs].
        interleaved: whether neighbouring dimensions make a pair; otherwise one dimension of each half does.
        start: first dimension of a head that rotates.
    """

    cosine: Tensor
    sine: Tensor
    interleaved: bool
    start: int


class Projections(NamedTuple):
    """The query and key projections of a site.

    Attributes:
        q: [heads, head_dim, d_model], as `attngeo.score` reads them; with biases, d_model + 1.
        k: [key_heads, head_dim, d_model], likewise.
        key_heads: the key head of each query head.
        rotation: None without rotary embeddings.
    """

    q: Tensor
    k: Tensor
    key_heads: list[int]
    rotation: Rotation | None

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The queries and keys of inputs x [S, N, d_model]: [S, heads, N, head_dim], [S, key_heads, N, head_dim]."""
        projected = []
        x = x.to(self.q.dtype)
        width = x.shape[-1]
        for weight in (self.q, self.k):
            rows = weight.flatten(0, 1)  # [heads · head_dim, …]
            bias = rows[:, -1] if rows.shape[-1] > width else None
            outputs = F.linear(x, rows[:, :width], bias)
            projected.append(self.turn(outputs.reshape(*x.shape[:2], *weight.shape[:2]).transpose(1, 2)))
        return projected[0], projected[1]

    def turn(self, x: Tensor, *, back: bool = False) -> Tensor:
        """Queries or keys x [S, heads, N, head_dim], rotated by their positions; with `back`, rotated back."""
        if self.rotation is None:
            return x
        cosine, sine, interleaved, start = self.rotation
        sine = -sine if back else sine
        turned = [
            rotate(x[:, :, n].flatten(0, 1), cosine[n], sine[n], interleaved=interleaved, start=start)
            for n in range(x.shape[2])
        ]
        return torch.stack(turned, 1).reshape(x.shape)


def read_projections(
    store: TensorStore, site: AttentionSite, x: Tensor, query: Tensor, key: Tensor
) -> Projections | None:
    """The projections of a site; None if `change_form` does not describe a step on its Wq and Wk.

    These cases are latent attention, where several weights make queries and keys; a normalisation of queries and keys;
    and an unknown kind of rotary embedding.

    Args:
        store: has the weights.
        site: the attention site, with its biases.
        x: inputs of some sequences, [S, N, d_model].
        query: queries the model computed from x, [S, heads, N, head_dim].
        key: keys the model computed from x, [S, key_heads, N, head_dim].
    """
    if isinstance(site.layout, LatentLayout):
        return None
    dtype = torch.promote_types(x.dtype, torch.float32)
    q, k, _ = projections(
        site, store.read_all(site.reads), ReadingOptions(with_bias=True), dtype=dtype, device=x.device
    )
    # Copies, as training may change the weights before the gradients are looked at.
    found = Projections(q.clone(), k.clone(), key_heads_of(site, "corrected"), _find_rotation(site, x))
    queries, keys = found.project(x)
    logits = queries @ keys[:, found.key_heads].mT
    groups = query.shape[1] // key.shape[1]
    expected = (query @ key.repeat_interleave(groups, 1).mT).to(dtype)
    # Some models scale queries before they attend.
    factor = (logits * expected).sum() / logits.square().sum()
    distance = (factor * logits - expected).norm() / expected.norm()
    return found if distance <= NOT_BILINEAR else None


def _find_rotation(site: AttentionSite, x: Tensor) -> Rotation | None:
    """The rotation of the positions of x [S, N, d_model]; None if there is none, or none that is known."""
    rotary = site.rotary
    if rotary is None or rotary.other:
        return None
    try:
        if not rotates(site.section, site.family, site.layer):
            return None
        frequencies = rotary_frequencies(site.section, site.family, site.head_dim, site.layer)
    except (UnsupportedModelError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequencies
    if rotary.reversed:
        angles = -angles
    start = site.head_dim - 2 * len(frequencies) if rotary.tail else 0
    dtype = torch.promote_types(x.dtype, torch.float32)
    return Rotation(angles.cos().to(x.device, dtype), angles.sin().to(x.device, dtype), rotary.interleaved, start)


def change_form(made_by: Projections, x: Tensor, projected: tuple[Tensor, Tensor], beta: Tensor) -> Form:
    """C of each head, up to a positive factor shared by all heads: left factors [heads, 2·head_dim, d_model].

    The factor makes the gradients as large as the weights, so that float32 has digits for both.

    Args:
        made_by: the projections of the site.
        x: inputs of the site, [S, N, d_model].
        projected: the queries and keys that `made_by` computes from x.
        beta: gradients of the loss by the logits of the site, [S, heads, N, N].
    """
    width = x.shape[-1]
    q = made_by.q[..., :width]
    k = made_by.k[..., :width]
    x = x.to(q.dtype)
    queries, keys = projected
    flat, _ = rescale(beta.flatten(0, 2).to(q.dtype))
    weights = flat.reshape(beta.shape)
    by_query = made_by.turn(weights @ keys[:, made_by.key_heads], back=True)  # A, [S, heads, N, head_dim]
    by_key = made_by.turn(weights.mT @ queries, back=True)  # B
    key_heads = torch.tensor(made_by.key_heads, device=k.device)
    by_key_head = torch.zeros_like(keys).index_add_(1, key_heads, by_key)
    query_gradient = _weight_gradient(by_query, x)
    key_gradient = _weight_gradient(by_key_head, x)
    size = (query_gradient.norm() + key_gradient.norm()) / (q.norm() + k.norm())
    if size > 0:
        query_gradient = query_gradient / size
        key_gradient = key_gradient / size
    left = torch.cat([query_gradient, q], 1)
    right = torch.cat([k, key_gradient], 1)
    return Form(left, right, made_by.key_heads)


def _weight_gradient(outputs: Tensor, x: Tensor) -> Tensor:
    """(Xᵀ·A)ᵀ of each head [heads, head_dim, d_model]. outputs: A [S, heads, N, head_dim]. x: [S, N, d_model]."""
    by_output = outputs.permute(1, 3, 0, 2).flatten(2)  # [heads, head_dim, S·N]
    gradient = by_output.flatten(0, 1) @ x.flatten(0, 1)
    return gradient.reshape(*by_output.shape[:2], -1)
