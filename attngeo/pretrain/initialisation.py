"""Initialisations of attention: they set the query, key and value weights and biases of a model in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.attention.finding import select, sites_of
from attngeo.attention.layers import check_layers
from attngeo.attention.options import ReadingOptions
from attngeo.attention.projections import key_heads_of
from attngeo.bounds.names import name_type
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.store import TensorStore
from attngeo.choices import Parts, whole
from attngeo.errors import ShapeError, UnsupportedModelError, UsageError, about
from attngeo.layouts.layout import AttentionSite, Heads, LatentLayout, Letter, assemble, number_outputs, output_axis
from attngeo.options import Layers
from attngeo.pretrain.options import ThreeNumbers, parse_three, refuse_scale
from attngeo.pretrain.presets import INITS
from attngeo.pretrain.references import parse_init

# Shares of noise and of the identity, as in Trockman & Kolter 2023 for queries and keys.
ALPHA = 0.7
BETA = 0.7
# The order of the three numbers of `init_std` and `init_bias`.
LETTERS = ("q", "k", "v")
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

    def write(self, tensor: Tensor) -> None:
        """Write the values into a tensor."""
        # A copy, because the values may be a view of the memory that is written to.
        values = self.values.to(tensor, copy=True)
        tensor.index_copy_(self.axis, self.rows.flatten().to(tensor.device), values)


class Scale(NamedTuple):
    """The standard deviations of the initial weights and biases of queries, keys and values; None changes nothing."""

    std: ThreeNumbers | None = None
    bias: ThreeNumbers | None = None

    @property
    def given(self) -> list[str]:
        """Names of the options that are given."""
        return [f"init_{name}" for name, values in self._asdict().items() if values is not None]


# The changes of a site, by its tensors of each role.
MakeChanges = Callable[[AttentionSite, Tensors], Iterator[Change]]


def initialize(
    model: Any,
    init: Any,
    *,
    stack: str | None = None,
    layers: Layers | None = None,
    seed: int | None = None,
    init_std: float | Sequence[float] | None = None,
    init_bias: float | Sequence[float] | None = None,
) -> list[str]:
    """Set the query and key weights of a transformers model in memory, and the scale of its values and biases.

    Values and biases change only by "published", `init_std` and `init_bias`; norms, and the rest of fused tensors,
    never do. No parameter becomes an alias of another, so Wq and Wk differ after the first training step. With Wq, Wk
    [d_model, head_dim] of a head, M = Wq·Wkᵀ, and g(h) the key head of head h, `init` is one of:

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
    "published"   the start of "+symm" in the code of Saponati et al.: query, key and value weights and biases are drawn
                  anew, uniformly from ±1/√width of their input, as `torch.nn.Linear` does; then as "symmetric". The
                  standard deviation is 1/√(3·width). A model without biases stays without.
    a checkpoint  a reference (`org/name`, folder, file or `demo:NAME`) or another model in memory: use its Wq and Wk of
                  the same stack and layer, rounded to the model's dtype. Norm gains do not change.

    All but "default" and a checkpoint skip cross-attention over inputs of another width, where M is not square.
    Everything is checked before anything is written.

    Args:
        model: a transformers model, changed in place.
        init: see above.
        stack: change only this stack.
        layers: change only these layers, as numbers or as "0-3,7".
        seed: seed of "identity", of "published" and of biases; None uses torch's global generator.
        init_std: standard deviation of Wq, Wk and Wv in each layer: one positive number, or one for each of the three.
            Each matrix is multiplied by a factor that gives it exactly this root mean square. `init` follows, and must
            be "default" or "symmetric".
        init_bias: standard deviation of the biases of queries, keys and values, which are drawn anew from a normal
            distribution: one number of at least 0, or three. `init` must be "default" or "symmetric".

    Returns:
        The names of the changed parameters.

    Raises:
        UsageError: `model` is not a module, `init` is unknown, the checkpoint has no such layer, or `init_std` or
            `init_bias` is invalid or does not apply.
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
    scale = Scale(parse_three("init_std", init_std), parse_three("init_bias", init_bias))
    name = init if isinstance(init, str) else ""
    for option in scale.given:
        refuse_scale(option, name or "a model")
    if name == "default" and not scale.given:
        return []
    generator = None if seed is None else torch.Generator().manual_seed(whole("seed", seed, 0))
    with ExitStack() as opened, torch.no_grad():
        store = opened.enter_context(closing(open_store(model)))
        changes_values = name == "published" or bool(scale.given)
        parts: Parts = "qkvo" if changes_values else "qk"
        sites = sites_of(store, ReadingOptions(with_bias=changes_values), parts=parts)[0]
        sites = select(sites, stack, check_layers(layers), store.ref)
        if name in INITS and name != "default":
            sites = [site for site in sites if site.d_model == site.key_width]
        steps = list(_list_steps(init, scale, generator, opened))
        parameters: Tensors = dict(model.named_parameters(remove_duplicate=False))
        changes: list[Change] = []
        opened.enter_context(about(store.ref))
        for site in sites:
            for name in site.tensors.values():
                if name not in parameters:
                    raise UnsupportedModelError(f"{name} is not a parameter, so it cannot be initialised")
                store.read(name, slice(0, 0))  # no rows; the store refuses a tensor without values
            changes += _plan_changes(site, {role: parameters[name] for role, name in site.tensors.items()}, steps)
        for change in changes:
            change.write(parameters[change.name])
    written = {id(parameters[change.name]) for change in changes}
    return [name for name, parameter in model.named_parameters() if id(parameter) in written]


def check_init(init: str, option: str = "init") -> None:
    """Raise the errors of `initialize` if `init` is unknown, or a checkpoint that cannot be opened.

    option: name of the option that gives it, for messages.
    """
    if init not in INITS:
        open_store(parse_init(init, option)).close()


def _list_steps(init: Any, scale: Scale, generator: torch.Generator | None, opened: ExitStack) -> Iterator[MakeChanges]:
    """What an initialisation does, in this order. opened: closes the checkpoint of `init`."""
    if scale.std is not None:
        yield partial(_make_scaled, scale.std)
    if scale.bias is not None:
        yield partial(_make_biases, scale.bias, generator)
    if not isinstance(init, str) or init not in INITS:
        source = opened.enter_context(closing(open_store(parse_init(init))))
        source_sites = {(site.stack, site.layer): site for site in sites_of(source)[0]}
        yield partial(_make_copies, source, source_sites)
    elif init == "published":
        yield partial(_make_linear, generator)
        yield _make_symmetric
    elif init == "symmetric":
        yield _make_symmetric
    elif init == "identity":
        yield partial(_make_identity, generator)


def _plan_changes(site: AttentionSite, tensors: Tensors, steps: Sequence[MakeChanges]) -> Iterator[Change]:
    """The changes of all steps. Each step sees the tensors (by role) as the steps before leave them."""
    for number, make_changes in enumerate(steps):
        changes = list(make_changes(site, tensors))
        yield from changes
        if number + 1 < len(steps):
            roles = {name: role for role, name in site.tensors.items()}
            written = {change.name: tensors[roles[change.name]].clone() for change in changes}
            for change in changes:
                change.write(written[change.name])
            tensors = {role: written.get(name, tensors[role]) for role, name in site.tensors.items()}


def _number_parts(site: AttentionSite, tensors: Tensors) -> dict[Letter, Heads]:
    """The numbers of the outputs that are queries, keys and values, in weights and biases [heads, width].

    Raises UnsupportedModelError for latent attention, and for values that the layout does not name.
    """
    if isinstance(site.layout, LatentLayout):
        raise UnsupportedModelError(
            f"{site.module} makes keys and values from one latent, whose scale cannot be set; choose $init default or "
            "symmetric alone",
            "init",
        )
    if site.missing:
        raise UnsupportedModelError(f"{site.module} has no known values: {site.missing}")
    return number_outputs(site, {name: tensors[role] for role, name in site.tensors.items()}, LETTERS)


def _make_scaled(std: ThreeNumbers, site: AttentionSite, tensors: Tensors) -> Iterator[Change]:
    """Wq, Wk and Wv with these root mean squares. Raises UnsupportedModelError."""
    numbers = _number_parts(site, tensors)
    for letter, deviation in zip(LETTERS, std, strict=True):
        axis = output_axis(site, letter)
        rows = numbers[letter].weight.flatten()
        values = tensors[letter].index_select(axis, rows.to(tensors[letter].device)).double()
        size = values.square().mean().sqrt()
        if not size.isfinite() or size == 0:
            raise UnsupportedModelError(f"{site.tensors[letter]} is 0 or not finite, so no factor gives it a scale")
        yield Change(site.tensors[letter], rows, values * (deviation / size), axis)


def _make_biases(
    deviations: ThreeNumbers, generator: torch.Generator | None, site: AttentionSite, tensors: Tensors
) -> Iterator[Change]:
    """Biases from N(0, deviation²). Raises UnsupportedModelError if the model has none."""
    numbers = _number_parts(site, tensors)
    for letter, deviation in zip(LETTERS, deviations, strict=True):
        rows = numbers[letter].bias
        if rows is None:
            raise UnsupportedModelError(f"{site.module} has no {letter} bias; leave out $init_bias", "init_bias")
        draws = torch.randn(rows.numel(), generator=generator, dtype=torch.float64)
        yield Change(site.tensors[f"{letter}_bias"], rows, deviation * draws)


def _make_linear(generator: torch.Generator | None, site: AttentionSite, tensors: Tensors) -> Iterator[Change]:
    """Query, key and value weights and biases from ±1/√width, as in torch.nn.Linear. Raises UnsupportedModelError."""
    numbers = _number_parts(site, tensors)
    for letter in LETTERS:
        width = site.d_model if letter == "q" else site.key_width
        axis = output_axis(site, letter)
        rows = numbers[letter].weight.flatten()
        shape = (len(rows), width) if axis == 0 else (width, len(rows))
        yield Change(site.tensors[letter], rows, _draw_uniform(shape, width, generator), axis)
        bias = numbers[letter].bias
        if bias is not None:
            yield Change(site.tensors[f"{letter}_bias"], bias, _draw_uniform((len(rows),), width, generator))


def _draw_uniform(shape: tuple[int, ...], width: int, generator: torch.Generator | None) -> Tensor:
    """Uniform draws from ±1/√width, float64."""
    return (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) / math.sqrt(width)


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
