"""Attention sites of a checkpoint and their weights: which there are, which the options select, and their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.adapters import AdapterStore
from attngeo.checkpoints.opening import open_adapted
from attngeo.checkpoints.reference import Model
from attngeo.checkpoints.store import TensorStore, float_shape
from attngeo.errors import CorruptCheckpointError, UsageError, about
from attngeo.keywords import takes
from attngeo.layouts.layout import LETTERS, AttentionSite, output_axis
from attngeo.layouts.sites import find_sites
from attngeo.scores.layers import check_layers
from attngeo.scores.options import ScoreOptions
from attngeo.scores.projections import projections


class SiteWeights(NamedTuple):
    """One attention site and its weights: wq [heads, d_model, head_dim], wk [key_heads, d_model, head_dim].

    Query head h reads key head h // (heads / key_heads). With biases, d_model is one more.
    """

    site: AttentionSite
    wq: Tensor
    wk: Tensor


class SiteKeywords(HubAccess):
    """The keywords of `attention_sites`."""

    hub: HubAccess | None = None
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
    """Iterate over the attention sites of `model`, with their query and key weights. One site is in memory at a time.

    Args:
        model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory.
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
        Each site, with wq [heads, d_model, head_dim] and wk [key_heads, d_model, head_dim].

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: it cannot be scored.
        UsageError: a value is no choice, or no site is left.

    >>> import attngeo
    >>> [(site.layer, tuple(wq.shape)) for site, wq, wk in attngeo.attention_sites("demo:minilm", layers=[0, 1])]
    [(0, (12, 384, 32)), (1, (12, 384, 32))]
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"$dtype is {dtype!r:.60}, expected one of floating point, such as torch.float32", "dtype")
    options = ScoreOptions(
        with_bias=with_bias, fold_norm=fold_norm, rope_offset=rope_offset, adapter=adapter, config=config
    )
    with closing(open_adapted(model, options.adapter, hub, config=options.config)) as store:
        sites, _ = sites_of(store, options)
        for site in select(sites, stack, layers, store.ref):
            with about(store.ref):
                q, k, _ = projections(site, read(store, site), options, dtype=dtype)
            yield SiteWeights(site, q.mT, k.mT)


def sites_of(
    store: TensorStore, options: ScoreOptions = ScoreOptions(), progress: Callable[[str], None] | None = None
) -> tuple[list[AttentionSite], dict[str, str]]:
    """The attention sites of an open checkpoint, and what is left out: name pattern → reason. Reads no weights.

    A site lists only the tensors that the options need. The files that hold them are opened; `progress` is called with
    the name of each one before.
    """

    def prepare(names: list[str]) -> None:
        with suppress(CorruptCheckpointError):  # raised again for the module that it is about
            store.open(names, progress)

    with about(store.ref):
        sites, skipped = find_sites(
            store.names,
            store.config,
            shape_of=lambda name: float_shape(store, name),
            biases=options.with_bias,
            input_norms=options.fold_norm,
            prepare=prepare,
        )
    require_fit(store, sites)
    return sites, skipped


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
                is_transposed[name] = role in LETTERS and output_axis(site, role) == 1
        store.require_fit(is_transposed)


def require_updates(store: TensorStore, sites: Iterable[AttentionSite]) -> None:
    """Raise UnsupportedModelError if the store has adapters, and one of them changes no weight of these sites."""
    if isinstance(store, AdapterStore):
        store.require_changes({name for site in sites for name in site.tensors.values()})
