"""Initialisations of attention: they set only the query and key weights of a model in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.attention.finding import select, sites_of
from attngeo.attention.layers import check_layers
from attngeo.attention.projections import key_heads_of
from attngeo.bounds.names import name_type
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.store import TensorStore
from attngeo.choices import whole
from attngeo.errors import ShapeError, UnsupportedModelError, UsageError, about
from attngeo.layouts.layout import AttentionSite, Heads, LatentLayout, Letter, assemble, number_outputs, output_axis
from attngeo.options import Layers
from attngeo.pretrain.presets import INITS
from attngeo.pretrain.references import parse_init

# Shares of noise and of the identity, as in Trockman & Kolter 2023 for queries and keys.
ALPHA = 0.7
BETA = 0.7
# Tensors by name or by role.
Tensors = dict[str, Tensor]


class Change(NamedTuple):
    """New values of some rows of a parameter, along an axis.

    Attributes:
        name: name of the parameter.
        rows: numbers of the rows.
        values: their new values.
        axis: axis along which rows are counted.
    """

    name: str
    rows: Tensor
    values: Tensor
    axis: int = 0


def initialize(
    model: Any,
    init: Any,
    *,
    stack: str | None = None,
    layers: Layers | None = None,
    seed: int | None = None,
) -> list[str]:
    """Set the query and key weights of a transformers model in memory.

    Biases, norms, values and the rest of fused tensors do not change. No parameter becomes an alias of another, so Wq
    and Wk differ after the first training step. With Wq, Wk [d_model, head_dim] of a head, M = Wq·Wkᵀ, and g(h) the key
    head of head h, `init` is one of:

    "default"     change nothing.
    "symmetric"   Wk := Wq; with fewer key heads than heads, Wq_h := Wk_g(h). M is symmetric, even with QK-norm, whose
                  gains only add a diagonal between the factors. With rotary embeddings, this is M at equal positions.
                  Latent attention: the factors of Wq are set to those of Wk, up to rounding; if the query latent is
                  narrower than the key latent, the keys first stop reading the part that does not fit. Source: Saponati
                  et al. 2025 (arXiv 2502.10927), S2.1.
    "identity"    M := the matrix of rank head_dim nearest to 0.7·Z + 0.7·I, with independent N(0, 1/d_model) entries of
                  Z, as Wq = U√Σ, Wk = V√Σ of its SVD. This is M before the model's own scale of the logits. Query heads
                  with the same key head share one Z, because one Wk can be the best only for one M. QK-norm: the gains
                  are undone, and if the norm subtracts the mean, the rank is head_dim − 1. This is the query and key
                  part of Trockman & Kolter 2023 (arXiv 2305.09828); values and projections do not change.
    a checkpoint  a reference (`org/name`, folder, file or `demo:NAME`) or another model in memory: use its Wq and Wk of
                  the same stack and layer, rounded to the model's dtype. Norm gains do not change.

    "symmetric" and "identity" skip cross-attention over inputs of another width, where M is not square. Everything is
    checked before anything is written.

    Args:
        model: a transformers model, changed in place.
        init: see above.
        stack: change only this stack.
        layers: change only these layers, as numbers or as "0-3,7".
        seed: seed of "identity"; None uses torch's global generator.

    Returns:
        The names of the changed parameters.

    Raises:
        UsageError: `model` is not a module, `init` is unknown, or the checkpoint has no such layer.
        ModelUnavailableError: the checkpoint cannot be found or reached.
        CheckpointError: the checkpoint cannot be read.
        ShapeError: the checkpoint's heads differ from the model's.
        UnsupportedModelError: the weights of this model cannot be set exactly.

    >>> from transformers import BertConfig, BertModel
    >>> import attngeo
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=16))
    >>> initialize(model, "symmetric")
    ['encoder.layer.0.attention.self.key.weight']
    >>> round(attngeo.score(model).symmetry.item(), 6)
    1.0
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model is {name_type(model)}, expected a transformers model in memory")
    if isinstance(init, str) and init == "default":
        return []
    with ExitStack() as opened, torch.no_grad():
        store = opened.enter_context(closing(open_store(model)))
        sites = select(sites_of(store)[0], stack, check_layers(layers), store.ref)
        make_changes: Callable[[AttentionSite, Tensors], Iterator[Change]]
        if isinstance(init, str) and init in INITS:
            sites = [site for site in sites if site.d_model == site.key_width]
            make_changes = _make_symmetric
            if init == "identity":
                generator = None if seed is None else torch.Generator().manual_seed(whole("seed", seed, 0))
                make_changes = partial(_make_identity, generator)
        else:
            source = opened.enter_context(closing(open_store(parse_init(init))))
            source_sites = {(site.stack, site.layer): site for site in sites_of(source)[0]}
            make_changes = partial(_make_copies, source, source_sites)
        parameters: Tensors = dict(model.named_parameters(remove_duplicate=False))
        changes: list[Change] = []
        opened.enter_context(about(store.ref))
        for site in sites:
            for name in site.tensors.values():
                if name not in parameters:
                    raise UnsupportedModelError(f"{name} is not a parameter, so it cannot be initialised")
                store.read(name, slice(0, 0))  # no rows; the store refuses a tensor without values
            changes += make_changes(site, {role: parameters[name] for role, name in site.tensors.items()})
        for change in changes:
            parameter = parameters[change.name]
            # A copy, because the values may be a view of the memory that is written to.
            values = change.values.to(parameter, copy=True)
            parameter.index_copy_(change.axis, change.rows.flatten().to(parameter.device), values)
    written = {id(parameters[change.name]) for change in changes}
    return [name for name, parameter in model.named_parameters() if id(parameter) in written]


def check_init(init: str, option: str = "init") -> None:
    """Raise the errors of `initialize` if `init` is unknown, or a checkpoint that cannot be opened.

    option: name of the option that gives it, for messages.
    """
    if init not in INITS:
        open_store(parse_init(init, option)).close()


def _number_outputs(site: AttentionSite, tensors: Tensors) -> dict[Letter, Heads]:
    """The numbers of the outputs that are queries [heads, head_dim] and keys [key_heads, head_dim]; the gains."""
    return number_outputs(site, {name: tensors[role] for role, name in site.tensors.items()})


def _write_heads(site: AttentionSite, tensors: Tensors, q: Tensor, k: Tensor) -> Iterator[Change]:
    """The changes that set queries [heads, head_dim, d_model] and keys [key_heads, head_dim, d_model]."""
    outputs = _number_outputs(site, tensors)
    for letter, heads in (("q", q), ("k", k)):
        axis = output_axis(site, letter)
        values = heads.flatten(0, 1).movedim(0, axis).to(tensors[letter])
        yield Change(site.tensors[letter], outputs[letter].weight, values, axis)


def _make_symmetric(site: AttentionSite, tensors: Tensors) -> Iterator[Change]:
    """Wk := Wq, or Wq_h := Wk_g(h) if there are fewer key heads. Raises UnsupportedModelError."""
    if isinstance(site.layout, LatentLayout):
        exact = {role: _to_exact(tensor) for role, tensor in tensors.items()}
        for role, values in _build_latent_queries(site, exact):
            yield Change(site.tensors[role], torch.arange(len(values)), values)
        return
    outputs = _number_outputs(site, tensors)
    source: Letter = "q"
    target: Letter = "k"
    source_rows = outputs["q"].weight
    if site.key_heads < site.heads:
        source = "k"
        target = "q"
        source_rows = outputs["k"].weight[key_heads_of(site, "corrected")]
    weights = tensors[source]
    values = weights.index_select(output_axis(site, source), source_rows.flatten().to(weights.device))
    yield Change(site.tensors[target], outputs[target].weight, values, output_axis(site, target))


def _build_latent_queries(site: AttentionSite, tensors: Tensors) -> Iterator[tuple[str, Tensor]]:
    """Roles, and new first rows of their tensors, so that each head's Wq is its Wk.

    With a query latent: q_a := kv_a, q_b := [kv_b·diag(γ_kv), 0; 0, I]·diag(1/γ_q). It holds the rotary key, and the
    part of the key latent that it has room for; the keys stop reading the rest.
    """
    if "q" in tensors:
        factors = assemble(site, {site.tensors[role]: tensor for role, tensor in tensors.items()})
        yield "q", factors["k"].weight.flatten(0, 1)
        return
    kv_a = tensors["kv_a"]  # [rank + rotary, d_model]
    kv_norm = tensors["kv_norm"]  # [rank]
    q_norm = tensors["q_norm"]  # [query rank]
    rank = len(kv_norm)
    query_rank = len(q_norm)
    rotary = len(kv_a) - rank
    if query_rank < rotary:
        raise UnsupportedModelError(
            f"{site.tensors['q_a']} has rank {query_rank}, expected at least {rotary}, the width of the rotary key"
        )
    if not q_norm.all():
        raise UnsupportedModelError(f"{site.tensors['q_norm']} has a gain of 0, which weights cannot undo")
    unrotated = site.head_dim - rotary
    kept = min(rank, query_rank - rotary)  # of the key latent
    kv_b = tensors["kv_b"].reshape(site.heads, -1, rank)  # for each head, rows of keys, then of values
    if kept < rank:
        kv_b = kv_b.clone()
        kv_b[:, :unrotated, kept:] = 0
        yield "kv_b", kv_b.flatten(0, 1)
    yield "q_a", torch.cat([kv_a[:kept], kv_a[rank:]])
    q_b = kv_b.new_zeros(site.heads, site.head_dim, query_rank)
    q_b[:, :unrotated, :kept] = kv_b[:, :unrotated, :kept] * kv_norm[:kept]
    q_b[:, unrotated:, kept : kept + rotary] = torch.eye(rotary).to(q_b)
    yield "q_b", (q_b / q_norm).flatten(0, 1)


def _make_identity(generator: torch.Generator | None, site: AttentionSite, tensors: Tensors) -> Iterator[Change]:
    """M := the nearest matrix of rank head_dim to α·Z + β·I. Raises UnsupportedModelError."""
    if isinstance(site.layout, LatentLayout):
        raise UnsupportedModelError(
            f"{site.module} makes the keys of all heads from one latent, which supports only init symmetric"
        )
    basis, gains = _read_head_norm(site, _number_outputs(site, tensors))
    if not gains.isfinite().all() or (torch.linalg.matrix_rank(gains) < gains.shape[-1]).any():
        raise UnsupportedModelError(f"{site.module} has a query or key gain of 0 or NaN, which weights cannot undo")
    device = tensors["q"].device if tensors["q"].is_cuda else torch.device("cpu")  # not every device has float64
    factors = [_draw_factors(generator, site.d_model, basis.shape[1], device) for _ in range(site.key_heads)]
    q, k = (torch.stack(of_heads) for of_heads in zip(*factors, strict=True))  # [key_heads, n, d_model]
    q = torch.linalg.solve(gains.to(q), q[key_heads_of(site, "corrected")])  # [heads, n, d_model]
    yield from _write_heads(site, tensors, basis.to(q) @ q, basis.to(k) @ k)


def _draw_factors(
    generator: torch.Generator | None, width: int, rank: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """q, k [rank, width] whose qᵀk is nearest to α·Z + β·I; rows beyond the width are 0.

    Uses the eigenvectors of the Gram matrix: much faster than an SVD, and as exact for the largest values.
    """
    z = torch.randn(width, width, generator=generator, dtype=torch.float64).to(device)
    m = ALPHA / math.sqrt(width) * z + BETA * torch.eye(width).to(z)
    squares, vectors = torch.linalg.eigh(m.T @ m)  # ascending: [width], [width, width]
    top = min(rank, width)
    v = vectors[:, -top:]
    root = squares[-top:].clamp_min(torch.finfo(z.dtype).tiny) ** 0.25  # √Σ
    q, k = z.new_zeros(2, rank, width)
    q[:top] = (m @ v / root).T
    k[:top] = (v * root).T
    return q, k


def _read_head_norm(site: AttentionSite, outputs: dict[Letter, Heads]) -> tuple[Tensor, Tensor]:
    """The factors of QK-norm between Wq and Wk: a basis B [head_dim, n] of its range, and its gains in this basis.

    The gains are Bᵀ·diag(γ_q∘γ_k)·B [heads, n, n].

    n is head_dim − 1 if the norm subtracts the mean. Without QK-norm both are identities.
    """
    gain = torch.ones(site.heads, site.head_dim, dtype=torch.float64)
    basis = torch.eye(site.head_dim).to(gain)
    query_gain = outputs["q"].gain
    if query_gain is not None:
        gain = gain * query_gain.to(gain)
    key_gain = outputs["k"].gain
    if key_gain is not None:
        gain = gain * key_gain.to(gain).expand(site.key_heads, -1)[key_heads_of(site, "corrected")]
    norm = site.family.head_norm
    if norm is not None and norm.centered and (query_gain is not None or key_gain is not None):
        # An orthonormal basis that begins with the direction of the mean, without this direction.
        with_mean = torch.cat([torch.ones_like(basis[:, :1]), basis[:, 1:]], dim=1)
        basis = torch.linalg.qr(with_mean)[0][:, 1:]
    return basis, basis.T @ (gain.unsqueeze(-1) * basis)


def _make_copies(
    source: TensorStore,
    source_sites: Mapping[tuple[str, int], AttentionSite],
    site: AttentionSite,
    tensors: Tensors,
) -> Iterator[Change]:
    """Wq and Wk of the same stack and layer of a checkpoint. Raises UsageError, ShapeError, UnsupportedModelError."""
    if isinstance(site.layout, LatentLayout):
        raise UnsupportedModelError(
            f"{site.module} makes keys and values from one latent, which supports only init symmetric"
        )
    source_site = source_sites.get((site.stack, site.layer))
    if source_site is None:
        raise UsageError(f"{source.ref} has no {site.stack} layer {site.layer}, which {site.module} needs")
    got = _describe_sizes(source_site)
    expected = _describe_sizes(site)
    if got != expected:
        raise ShapeError(
            f"{source_site.module} has {got}, expected {expected}, as in {site.module}", subject=source.ref
        )
    factors = assemble(
        source_site, {name: _to_exact(tensor) for name, tensor in source.read_all(source_site.reads).items()}
    )
    yield from _write_heads(site, tensors, factors["q"].weight, factors["k"].weight)


def _describe_sizes(site: AttentionSite) -> str:
    width = f"{site.d_model}" if site.key_width == site.d_model else f"{site.d_model} and {site.key_width}"
    return f"{site.heads} heads and {site.key_heads} key heads of {site.head_dim} over a width of {width}"


def _to_exact(tensor: Tensor) -> Tensor:
    """The tensor in float32 or float64, for products."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
