"""The attention sites of an open checkpoint: all sites, the parts left out, and the sites you choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from attngeo.attention.layers import check_layers
from attngeo.attention.options import ReadingOptions
from attngeo.checkpoints.adapters import AdapterStore
from attngeo.checkpoints.store import TensorStore, float_shape
from attngeo.choices import Parts
from attngeo.errors import CorruptCheckpointError, UsageError, about
from attngeo.layouts.layout import WEIGHT_LETTERS, AttentionSite, output_axis, parts_of
from attngeo.layouts.sites import find_sites


def sites_of(
    store: TensorStore,
    options: ReadingOptions = ReadingOptions(),
    progress: Callable[[str], None] | None = None,
    *,
    parts: Parts = "qk",
) -> tuple[list[AttentionSite], dict[str, str]]:
    """The attention sites of an open checkpoint, and the parts left out: name pattern → reason. Reads no weights.

    A site lists only the tensors that the options and parts need. Opens the files that hold them, and calls `progress`
    with the name of each file first. If values or outputs are needed but unknown, `AttentionSite.missing` says why.
    """

    def prepare(names: list[str]) -> None:
        with suppress(CorruptCheckpointError):  # raised again for the module concerned
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
    """The site, with the notes of the store on its weights."""
    of_queries = [name for role, name in site.tensors.items() if not parts_of(role).isdisjoint("qk")]
    of_outputs = [name for role, name in site.tensors.items() if not parts_of(role).isdisjoint("vo")]
    notes = (*site.notes, *store.list_notes(of_queries))
    output_notes = (*site.output_notes, *store.list_notes(of_outputs))
    return replace(site, notes=notes, output_notes=output_notes)


def select(
    sites: Sequence[AttentionSite], stack: str | None, layers: Iterable[int] | None, ref: str
) -> list[AttentionSite]:
    """The sites of one stack and of some layers. Raises UsageError, which names existing ones, if there are none."""
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
        raise UsageError("layers is empty, expected at least one layer", subject=ref)
    return selected


def require_fit(store: TensorStore, sites: Iterable[AttentionSite]) -> None:
    """Raise CheckpointError or UsageError if adapters of the store do not fit the weights of these sites."""
    if isinstance(store, AdapterStore):
        is_transposed = {}
        for site in sites:
            for role, name in site.tensors.items():
                is_transposed[name] = role in WEIGHT_LETTERS and output_axis(site, role) == 1
        store.require_fit(is_transposed)


def require_updates(store: TensorStore, sites: Iterable[AttentionSite]) -> None:
    """Raise UnsupportedModelError if an adapter of the store changes no weight of these sites."""
    if isinstance(store, AdapterStore):
        store.require_changes({name for site in sites for name in site.tensors.values()})
