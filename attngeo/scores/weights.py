"""Attention sites of a checkpoint and their weights: which there are, which the options select, and their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.adapters import AdapterStore
from attngeo.checkpoints.opening import open_adapted
from attngeo.checkpoints.reference import Model
from attngeo.checkpoints.store import TensorStore, float_shape
from attngeo.choices import Parts
from attngeo.errors import CorruptCheckpointError, UsageError, about
from attngeo.keywords import takes
from attngeo.layouts.layout import PARTS, AttentionSite, output_axis, parts_of
from attngeo.layouts.sites import find_sites
from attngeo.scores.layers import check_layers
from attngeo.scores.options import ScoreOptions
from attngeo.scores.projections import output_projections, projections, require_outputs


class _QueryKeyWeights(NamedTuple):
    site: AttentionSite
    wq: Tensor
    wk: Tensor


class SiteWeights(_QueryKeyWeights):
    """One attention site and its weights. As a tuple it is (site, wq, wk).

    Query head h reads key head and value head g(h) = h // (heads / key_heads). A token x is a row: its query is x @
    wq[h], its key x @ wk[g(h)], and a head that attends to it with weight 1 writes x @ wv[g(h)] @ wo[h].

    Weights that were not asked for have no heads: their first dimension is 0.

    Attributes:
        site: the attention site.
        wq: [heads, d_model, head_dim].
        wk: [key_heads, key_width, head_dim].
        wv: [key_heads, key_width, value_dim].
        wo: [heads, value_dim, output_width].
        bo: the bias of the output projection, [output_width], if biases are included and it has one.

    With biases, the input widths of queries, keys and values are one more.
    """

    wv: Tensor
    wo: Tensor
    bo: Tensor | None

    def __new__(
        cls,
        site: AttentionSite,
        wq: Tensor,
        wk: Tensor,
        wv: Tensor | None = None,
        wo: Tensor | None = None,
        bo: Tensor | None = None,
    ) -> Self:
        """From queries and keys, and perhaps values and outputs."""
        weights = super().__new__(cls, site, wq, wk)
        weights.wv = wk.new_empty(0, *wk.shape[1:]) if wv is None else wv
        weights.wo = wk.new_empty(0, site.head_dim, site.d_model) if wo is None else wo
        weights.bo = bo
        return weights


class SiteKeywords(HubAccess):
    """The keywords of `attention_sites`."""

    hub: HubAccess | None = None
    parts: Parts = "qk"
    stack: str | None = None
    layers: Iterable[int] | None = None
    with_bias: bool = False
    fold_norm: bool = False
    rope_offset: int = 0
    adapter: str | Sequence[str] = ()
    config: str | None = None
    dtype: torch.dtype = torch.float32


@takes(SiteKeywords)
def attention_sites(
    model: Model,
    *,
    parts: Parts = "qk",
    stack: str | None = None,
    layers: Iterable[int] | None = None,
    with_bias: bool = False,
    fold_norm: bool = False,
    rope_offset: int = 0,
    adapter: str | Sequence[str] = (),
    config: str | None = None,
    dtype: torch.dtype = torch.float32,
    hub: HubAccess,
) -> Iterator[SiteWeights]:
    """Iterate over the attention sites of `model`, with their weights. One site is in memory at a time.

    Args:
        model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory.
        parts: the weights that are read: "qk" for queries and keys, "vo" for values and outputs, "qkvo" for all four.
        stack: only sites of this stack.
        layers: only sites of these layers.
        with_bias: as for `score`.
        fold_norm: as for `score`.
        rope_offset: as for `score`.
        adapter: as for `score`.
        config: as for `score`.
        dtype: of the returned weights.
        hub: access to the Hub; its fields are keywords, too:
            {hub}

    Yields:
        Each site, with wq [heads, d_model, head_dim] and wk [key_heads, d_model, head_dim]; and as attributes wv
        [key_heads, d_model, value_dim] and wo [heads, value_dim, d_model].

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: it cannot be scored.
        UnsupportedModelError: the values or outputs of a site are asked for, and it is not known where they are.
        UsageError: a value is no choice, or no site is left.

    >>> import attngeo
    >>> [(site.layer, tuple(wq.shape)) for site, wq, wk in attngeo.attention_sites("demo:minilm", layers=[0, 1])]
    [(0, (12, 384, 32)), (1, (12, 384, 32))]
    >>> weights = next(attngeo.attention_sites("demo:minilm", parts="qkvo"))
    >>> (weights.wv @ weights.wo).shape  # what each head writes
    torch.Size([12, 384, 384])
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"$dtype is {dtype!r:.60}, expected one of floating point, such as torch.float32", "dtype")
    options = ScoreOptions(
        with_bias=with_bias, fold_norm=fold_norm, rope_offset=rope_offset, adapter=adapter, config=config
    )
    with closing(open_adapted(model, options.adapter, hub, config=options.config)) as store:
        sites, _ = sites_of(store, options, parts=parts)
        for site in select(sites, stack, layers, store.ref):
            with about(store.ref):
                yield _build_weights(site, read(store, site), options, dtype)


def _build_weights(
    site: AttentionSite, tensors: dict[str, Tensor], options: ScoreOptions, dtype: torch.dtype
) -> SiteWeights:
    """The weights of a site, those of its parts that were asked for."""
    q = torch.empty(0, site.head_dim, site.d_model, dtype=dtype)
    k = torch.empty(0, site.head_dim, site.key_width, dtype=dtype)
    if "q" in site.parts:
        q, k, _ = projections(site, tensors, options, dtype=dtype)
    require_outputs(site)
    if "v" not in site.parts:
        return SiteWeights(site, q.mT, k.mT)
    v, o, bias, _ = output_projections(site, tensors, options, dtype=dtype)
    return SiteWeights(site, q.mT, k.mT, v.mT, o, bias)


def sites_of(
    store: TensorStore,
    options: ScoreOptions = ScoreOptions(),
    progress: Callable[[str], None] | None = None,
    *,
    parts: Parts = "qk",
) -> tuple[list[AttentionSite], dict[str, str]]:
    """The attention sites of an open checkpoint, and what is left out: name pattern → reason. Reads no weights.

    A site lists only the tensors that the options and parts need. The files that hold them are opened; `progress` is
    called with the name of each one before. If values or outputs are needed and not known, `AttentionSite.missing` says
    why.
    """

    def prepare(names: list[str]) -> None:
        with suppress(CorruptCheckpointError):  # raised again for the module that it is about
            store.open(names, progress)

    with about(store.ref):
        sites, skipped = find_sites(
            store.names,
            store.config,
            shape_of=lambda name: float_shape(store, name),
            parts=parts,
            biases=options.with_bias,
            input_norms=options.fold_norm,
            prepare=prepare,
        )
    require_fit(store, sites)
    with about(store.ref):
        return [_add_notes(store, site) for site in sites], skipped


def _add_notes(store: TensorStore, site: AttentionSite) -> AttentionSite:
    """The site with what the store says about its weights."""
    of_queries = [name for role, name in site.tensors.items() if not parts_of(role).isdisjoint("qk")]
    of_outputs = [name for role, name in site.tensors.items() if not parts_of(role).isdisjoint("vo")]
    notes = (*site.notes, *store.list_notes(of_queries))
    output_notes = (*site.output_notes, *store.list_notes(of_outputs))
    return replace(site, notes=notes, output_notes=output_notes)


def select(
    sites: list[AttentionSite], stack: str | None, layers: Iterable[int] | None, ref: str
) -> list[AttentionSite]:
    """The sites of one stack and of some layers. Raises UsageError, which lists those that exist, if none is left."""
    stacks = list(dict.fromkeys(site.stack for site in sites))
    if stack is not None and stack not in stacks:
        raise UsageError(f"{ref} has no stack {stack!r}, expected one of: {', '.join(stacks)}")
    selected = [site for site in sites if stack in (None, site.stack)]
    wanted = check_layers(layers)
    if wanted is not None:
        present = sorted({site.layer for site in selected})
        missing = sorted(set(wanted) - set(present))
        if missing:
            raise UsageError(f"{ref} has no layer {missing[0]}, expected layers from {present[0]} to {present[-1]}")
        selected = [site for site in selected if site.layer in wanted]
    if not selected:
        raise UsageError(f"{ref}: layers is empty, expected at least one layer")
    return selected


def read(store: TensorStore, site: AttentionSite) -> dict[str, Tensor]:
    """The tensors of a site by name, in the dtype of the file."""
    return store.read_all(site.reads)


def require_fit(store: TensorStore, sites: Iterable[AttentionSite]) -> None:
    """Raise CheckpointError or UsageError if the store has adapters that do not fit the weights of these sites."""
    if isinstance(store, AdapterStore):
        is_transposed = {}
        for site in sites:
            for role, name in site.tensors.items():
                is_transposed[name] = role in PARTS and output_axis(site, role) == 1
        store.require_fit(is_transposed)


def require_updates(store: TensorStore, sites: Iterable[AttentionSite]) -> None:
    """Raise UnsupportedModelError if the store has adapters, and one of them changes no weight of these sites."""
    if isinstance(store, AdapterStore):
        store.require_changes({name for site in sites for name in site.tensors.values()})
