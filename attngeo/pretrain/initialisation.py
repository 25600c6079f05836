"""Where training starts from: sets the query and key weights of a model in memory, and nothing else of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import torch
from torch import Tensor

from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.reference import ModelRef
from attngeo.checkpoints.store import TensorStore
from attngeo.errors import ShapeError, UnsupportedModelError, UsageError
from attngeo.layouts.assemble import Projections, assemble, numbered_outputs, output_axis
from attngeo.layouts.layout import LatentLayout
from attngeo.layouts.sites import AttentionSite
from attngeo.scores.projections import key_heads_of, read, select, sites_of

NAMES = ("default", "symmetric", "identity")
# How much noise and how much identity: what Trockman & Kolter 2023 use for queries and keys.
ALPHA = BETA = 0.7


def initialise(
    model: Any,
    init: Any,
    *,
    stack: str | None = None,
    layers: Iterable[int] | None = None,
    seed: int | torch.Generator | None = None,
) -> list[str]:
    """Set the query and key weights of a transformers model in memory; the names of the parameters it wrote to.

    Biases, norms, values and the rest of a fused tensor stay bit for bit as they are; no parameter becomes another's
    alias, so Wq and Wk part again at the first training step. With Wq, Wk [d_model, head_dim] of a head, M = Wq·Wkᵀ,
    and g(h) the key head of head h, `init` is one of:

    "default"     leave everything as it is.
    "symmetric"   Wk := Wq; with fewer key heads than heads, Wq_h := Wk_g(h). M is symmetric, also with QK-norm: its
                  two gains only put a diagonal between the factors. With rotary embeddings, at equal positions. Latent
                  attention: the factors of Wq are set to those of Wk, up to rounding; where the query latent is
                  narrower than that of the keys, the keys first stop reading what it cannot hold. Source: Saponati et
                  al. 2025 (arXiv 2502.10927), S2.1.
    "identity"    M := the nearest matrix of rank head_dim to 0.7·Z + 0.7·I, Z of independent N(0, 1/d_model), as
                  Wq = U√Σ, Wk = V√Σ of its SVD: M itself, in front of the model's own scale of the logits. One Z for
                  each key head, which its query heads share: one Wk can be the best for one M only. QK-norm: the gains
                  are undone, and where the norm takes the mean off the rank is head_dim − 1. The query and key part of
                  Trockman & Kolter 2023 (arXiv 2305.09828); values and projections stay.
    a checkpoint  a reference (`org/name`, folder, file, `demo:NAME`, or a ModelRef) or another model in memory: Wq and
                  Wk of the same stack and layer, rounded to the model's dtype. Norm gains stay the model's own.

    stack, layers: only these. seed: of "identity"; torch's own generator where it is None. Cross-attention over inputs
    of another width has no square M and is left as it is by "symmetric" and "identity".
    All is checked before anything is written. Raises UsageError, ModelUnavailableError and CheckpointError as reading
    does, ShapeError where the checkpoint's heads are not the model's, UnsupportedModelError for what has no exact form.

    >>> from transformers import BertConfig, BertModel
    >>> import attngeo
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=16))
    >>> initialise(model, "symmetric")
    ['encoder.layer.0.attention.self.key.weight']
    >>> round(attngeo.score(model).symmetry.item(), 6)
    1.0
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model is a {type(model).__name__}, expected a transformers model in memory")
    named = isinstance(init, str) and init in NAMES
    if named and init == "default":
        return []
    with ExitStack() as opened, torch.no_grad():
        store = opened.enter_context(closing(open_store(model)))
        live = _Live(model, store)
        sites = select(sites_of(store)[0], stack, layers, store.ref)
        start: _Symmetric | _Identity | _Copied
        if named:
            sites = [site for site in sites if site.d_model == site.key_width]
            start = _Symmetric(live) if init == "symmetric" else _Identity(live, _generator(seed))
        else:
            start = _Copied(live, opened.enter_context(closing(open_store(_checkpoint(init)))))
        for site in sites:
            live.check(site)
            start.check(site)
        for site in sites:
            start.write(site)
    return live.written


def check_init(init: str) -> None:
    """Raise as `initialise` does for an `init` that has no meaning, or a checkpoint that cannot be opened."""
    if init not in NAMES:
        open_store(_checkpoint(init)).close()


def _checkpoint(init: Any) -> Any:
    """`init` as the reading side takes it. Raises UsageError for a bare word that is no file: most likely a typo."""
    if not isinstance(init, str):
        return init
    try:
        reference = ModelRef.parse(init)
    except UsageError:
        reference = None
    if reference is None or (reference.kind == "hub" and "/" not in reference.name):
        raise UsageError(
            f"init is {init!r}, expected one of: {', '.join(NAMES)}; or org/name, demo:encoder, a folder or a file"
        )
    return reference


def _generator(seed: int | torch.Generator | None) -> torch.Generator | None:
    if seed is None or isinstance(seed, torch.Generator):
        return seed
    if type(seed) is not int:
        raise UsageError(f"seed is {seed!r}, expected an integer or a torch.Generator")
    return torch.Generator().manual_seed(seed)


class _Live:
    """The parameters of a model in memory, under each of their names, and what was written to them."""

    def __init__(self, model: torch.nn.Module, store: TensorStore) -> None:
        self.ref, self._model, self._store = store.ref, model, store
        self._parameters: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        self._written: set[int] = set()

    @property
    def written(self) -> list[str]:
        """The parameters written to, in the model's order; a shared one once."""
        return [name for name, parameter in self._model.named_parameters() if id(parameter) in self._written]

    def check(self, site: AttentionSite) -> None:
        """Raises CheckpointError where a tensor of the site cannot be written to."""
        for name in site.tensors.values():
            if name not in self._parameters:
                raise UnsupportedModelError(f"{self.ref}: {name} is no parameter, expected one that can be written to")
            self._store.read(name, slice(0, 0))  # no rows: the store refuses what has no values

    def tensors(self, site: AttentionSite) -> dict[str, Tensor]:
        """Role → parameter."""
        return {role: self._parameters[name] for role, name in site.tensors.items()}

    def outputs(self, site: AttentionSite) -> Projections:
        """The numbers of the outputs that are queries [heads, head_dim] and keys [key_heads, head_dim], and gains."""
        return numbered_outputs(site, {name: self._parameters[name] for name in site.tensors.values()})

    def write(self, name: str, rows: Tensor, values: Tensor, axis: int = 0) -> None:
        """Write `values` to some rows in place: the parameter stays the same object, on its device and in its dtype."""
        parameter = self._parameters[name]
        # A copy, as the values may be a view of the very memory that is written to.
        parameter.index_copy_(axis, rows.flatten().to(parameter.device), values.to(parameter, copy=True))
        self._written.add(id(parameter))

    def write_heads(self, site: AttentionSite, q: Tensor, k: Tensor) -> None:
        """Write queries [heads, head_dim, d_model] and keys [key_heads, head_dim, d_model] to where they are stored."""
        axis, outputs = output_axis(site), self.outputs(site)
        for role, rows, heads in (("q", outputs.q, q), ("k", outputs.k, k)):
            self.write(site.tensors[role], rows, heads.flatten(0, 1).movedim(0, axis), axis)


class _Symmetric:
    """Wk := Wq, or Wq_h := Wk_g(h) where key heads are fewer."""

    def __init__(self, live: _Live) -> None:
        self._live = live

    def check(self, site: AttentionSite) -> None:
        tensors, ref = self._live.tensors(site), self._live.ref
        if "q_a" not in tensors:
            return
        rank, rotary = len(tensors["q_a"]), len(tensors["kv_a"]) - len(tensors["kv_norm"])
        if rank < rotary:
            raise UnsupportedModelError(
                f"{ref}: {site.tensors['q_a']} has rank {rank}, expected at least the {rotary} of the rotary key"
            )
        if not tensors["q_norm"].all():
            raise UnsupportedModelError(f"{ref}: {site.tensors['q_norm']} has a gain of 0, which no weight can undo")

    def write(self, site: AttentionSite) -> None:
        tensors, live = self._live.tensors(site), self._live
        if isinstance(site.layout, LatentLayout):
            for role, values in _latent_queries(site, {role: _exact(tensor) for role, tensor in tensors.items()}):
                live.write(site.tensors[role], torch.arange(len(values)), values)
            return
        axis, outputs = output_axis(site), live.outputs(site)
        source, given, target, written = "q", outputs.q, "k", outputs.k
        if site.key_heads < site.heads:
            source, given, target, written = "k", outputs.k[key_heads_of(site, "corrected")], "q", outputs.q
        values = tensors[source].index_select(axis, given.flatten().to(tensors[source].device))
        live.write(site.tensors[target], written, values, axis)


def _latent_queries(site: AttentionSite, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Role → new first rows, such that each head's Wq is its Wk.

    With a query latent: q_a := kv_a, q_b := [kv_b·diag(γ_kv), 0; 0, I]·diag(1/γ_q). It holds the rotary key and as much
    of the key latent as has room; the keys stop reading the rest.
    """
    if "q" in tensors:
        yield "q", assemble(site, {site.tensors[role]: tensor for role, tensor in tensors.items()}).k.flatten(0, 1)
        return
    kv_a, kv_b, kv_norm, q_norm = (tensors[role] for role in ("kv_a", "kv_b", "kv_norm", "q_norm"))
    rank, rotary = len(kv_norm), len(kv_a) - len(kv_norm)
    nope, held = site.head_dim - rotary, min(rank, len(q_norm) - rotary)
    up = kv_b.reshape(site.heads, -1, rank)  # per head, rows of keys and then of values
    if held < rank:
        up = up.clone()
        up[:, :nope, held:] = 0
        yield "kv_b", up.flatten(0, 1)
    yield "q_a", torch.cat([kv_a[:held], kv_a[rank:]])
    q_b = up.new_zeros(site.heads, site.head_dim, len(q_norm))
    q_b[:, :nope, :held] = up[:, :nope, :held] * kv_norm[:held]
    q_b[:, nope:, held : held + rotary] = torch.eye(rotary).to(q_b)
    yield "q_b", (q_b / q_norm).flatten(0, 1)


class _Identity:
    """M := the nearest matrix of rank head_dim to α·Z + β·I."""

    def __init__(self, live: _Live, generator: torch.Generator | None) -> None:
        self._live, self._generator = live, generator

    def check(self, site: AttentionSite) -> None:
        where = f"{self._live.ref}: {site.module}"
        if isinstance(site.layout, LatentLayout):
            raise UnsupportedModelError(f"{where} makes the keys of all heads of one latent; expected symmetric for it")
        _, between = _head_norm(site, self._live.outputs(site))
        if not between.isfinite().all() or (torch.linalg.matrix_rank(between) < between.shape[-1]).any():
            raise UnsupportedModelError(f"{where} has a query or key gain of 0 or none, which no weight can undo")

    def write(self, site: AttentionSite) -> None:
        basis, between = _head_norm(site, self._live.outputs(site))
        device = self._live.tensors(site)["q"].device
        device = device if device.type == "cuda" else torch.device("cpu")  # not every device has float64
        factors = [self._factors(site.d_model, basis.shape[1], device) for _ in range(site.key_heads)]
        q, k = (torch.stack(heads) for heads in zip(*factors, strict=True))
        q = torch.linalg.solve(between.to(q), q[key_heads_of(site, "corrected")])
        self._live.write_heads(site, basis.to(q) @ q, basis.to(k) @ k)

    def _factors(self, width: int, rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """q, k [rank, width] whose qᵀk is nearest to α·Z + β·I; rows past its width are 0.

        By the eigenvectors of the Gram matrix: much faster than an SVD, and as exact for the largest values.
        """
        source = self._generator.device if self._generator else torch.device("cpu")
        z = torch.randn(width, width, generator=self._generator, device=source, dtype=torch.float64).to(device)
        m = ALPHA / math.sqrt(width) * z + BETA * torch.eye(width).to(z)
        squares, v = torch.linalg.eigh(m.T @ m)
        top = min(rank, width)
        v, root = v[:, -top:], squares[-top:].clamp_min(torch.finfo(z.dtype).tiny) ** 0.25
        q, k = z.new_zeros(2, rank, width)
        q[:top], k[:top] = (m @ v / root).T, (v * root).T
        return q, k


def _head_norm(site: AttentionSite, parts: Projections) -> tuple[Tensor, Tensor]:
    """What QK-norm puts between Wq and Wk: a basis B [head_dim, n] of what it lets through, and Bᵀ·diag(γ_q∘γ_k)·B.

    The second is [heads, n, n]. n is head_dim − 1 where the mean is taken off. Without QK-norm, identities.
    """
    gain = torch.ones(site.heads, site.head_dim, dtype=torch.float64)
    basis = torch.eye(site.head_dim).to(gain)
    if parts.q_gain is not None:
        gain = gain * parts.q_gain.to(gain)
    if parts.k_gain is not None:
        gain = gain * parts.k_gain.to(gain).expand(site.key_heads, -1)[key_heads_of(site, "corrected")]
    norm = site.family.head_norm
    if norm is not None and norm.centred and any(role.startswith(("q_gain", "k_gain")) for role in site.tensors):
        basis = torch.linalg.qr(torch.cat([torch.ones_like(basis[:, :1]), basis[:, 1:]], dim=1))[0][:, 1:]
    return basis, basis.T @ (gain.unsqueeze(-1) * basis)


class _Copied:
    """Wq and Wk of the same stack and layer of another checkpoint."""

    def __init__(self, live: _Live, source: TensorStore) -> None:
        self._live, self._source = live, source
        self._sites = {(site.stack, site.layer): site for site in sites_of(source)[0]}

    def check(self, site: AttentionSite) -> None:
        where = f"{site.module} of {self._live.ref}"
        if isinstance(site.layout, LatentLayout):
            raise UnsupportedModelError(f"{where} makes keys and values of one latent: expected symmetric for it")
        source = self._sites.get((site.stack, site.layer))
        if source is None:
            raise UsageError(f"{self._source.ref} has no {site.stack} layer {site.layer}, expected one for {where}")
        if (got := _sizes(source)) != (want := _sizes(site)):
            raise ShapeError(f"{self._source.ref}: {source.module} has {got}, expected {want} as {where} has")
        self._source.fetch(source.tensors.values())
        for name in source.tensors.values():
            self._source.read(name, slice(0, 0))

    def write(self, site: AttentionSite) -> None:
        source = self._sites[site.stack, site.layer]
        parts = assemble(source, {name: _exact(tensor) for name, tensor in read(self._source, source).items()})
        self._live.write_heads(site, parts.q, parts.k)


def _sizes(site: AttentionSite) -> str:
    width = f"{site.d_model}" if site.key_width == site.d_model else f"{site.d_model} and {site.key_width}"
    return f"{site.heads} heads and {site.key_heads} key heads of {site.head_dim} over a width of {width}"


def _exact(tensor: Tensor) -> Tensor:
    """In a dtype that products can be taken in."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
