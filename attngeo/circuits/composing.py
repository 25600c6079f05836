"""Composition of every pair of heads of a model: few layers in memory at a time, each layer folded once it is read.

What is kept of a pair of layers are records: lists of numbers over all pairs of their heads, of one kind and direction.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.attention.opened import Attention, SiteForms
from attngeo.attention.projections import require_outputs
from attngeo.circuits.compose_options import ComposeOptions
from attngeo.circuits.pairs import Direction, LayerPair, list_pairs
from attngeo.circuits.planning import Reading, meet, plan_readings
from attngeo.geometry.composition import compositions, fold, standardize, unevenness
from attngeo.layouts.layout import AttentionSite
from attngeo.questions.making import Making

log = logging.getLogger(__name__)

# Of one pair of layers, one kind and direction.
Record = dict[str, Any]


# In place of a kind: what heads write.
WRITTEN = "o"


class FoldedHeads(NamedTuple):
    """What the heads of a site write, or read with one kind, folded to one factor per head.

    Attributes:
        factors: as returned by `fold`, [heads, rank, width].
        unevenness: unevenness of each factor, [heads].
        notes: caveats.
    """

    factors: Tensor
    unevenness: Tensor
    notes: list[str]


# Kind, or `WRITTEN` → the heads of one site.
FoldedSite = dict[str, FoldedHeads]


def compose_layers(attention: Attention, options: ComposeOptions, making: Making) -> Iterator[list[Record]]:
    """The records of all pairs of layers; see `attngeo.compose`. Each pair is kept as soon as it is finished."""
    sites, missing = _split_missing(attention.sites)
    pairs = list_pairs(sites, options)
    making.about |= {"layers": len(sites), "skipped": attention.left_out | missing}
    records = making.take_finished(len(pairs), "pairs of layers")
    left = {number: pair for number, pair in enumerate(pairs) if number not in records}
    sizes = [count_bytes(site, attention.dtype) for site in sites]
    plan = plan_readings(sizes, [(pair.a, pair.b) for pair in left.values()], attention.share_memory())
    making.about["layers_read"] = len({reading.number for reading in plan})
    making.about["readings"] = len(plan)
    with closing(_compose_pairs(attention, sites, left, plan, options)) as composed:
        for number, of_pair in composed:
            records[number] = of_pair
            making.keep_part(number, of_pair)
    yield from (records[number] for number in range(len(pairs)))


def _split_missing(sites: list[AttentionSite]) -> tuple[list[AttentionSite], dict[str, str]]:
    """The sites whose values and outputs are known, and why those of others are not. Raises if none is."""
    known = [site for site in sites if not site.missing]
    if not known:
        require_outputs(sites[0])
    return known, {site.module: f"its outputs cannot be read: {site.missing}" for site in sites if site.missing}


def count_bytes(site: AttentionSite, dtype: torch.dtype) -> int:
    """Bytes of the folded heads of a site: what is written, and what is read with q, k and v."""
    inner = min(site.head_dim, site.d_model)
    inner_value = min(site.value_dim, site.d_model)
    entries = inner_value * site.output_width + inner * (site.d_model + site.key_width) + inner_value * site.key_width
    return site.heads * entries * dtype.itemsize


def _compose_pairs(
    attention: Attention,
    sites: Sequence[AttentionSite],
    pairs: dict[int, LayerPair],
    plan: Sequence[Reading],
    options: ComposeOptions,
) -> Generator[tuple[int, list[Record]]]:
    """The number and the records of each pair, as soon as both of its sites are there."""
    readings = attention.read([sites[reading.number] for reading in plan])
    folded = (_fold_heads(forms, options) for forms in readings)
    numbers = {number: (pair.a, pair.b) for number, pair in pairs.items()}
    for number, first, second in meet(plan, folded, numbers):
        pair = pairs[number]
        heads = {pair.a: first, pair.b: second}
        records = [row for direction in pair.directions for row in _compose(sites, heads, direction)]
        yield number, [{"revision": attention.store.revision} | record for record in records]


def _fold_heads(forms: SiteForms, options: ComposeOptions) -> FoldedSite:
    assert forms.query_key is not None
    assert forms.output is not None
    q, k, notes = forms.query_key
    v, o, _, output_notes = forms.output
    k = k[forms.key_heads]
    v = v[forms.key_heads]
    pairs = {"q": (q, k, notes), "k": (k, q, notes), "v": (v, o, output_notes), WRITTEN: (o, v, output_notes)}
    folded: FoldedSite = {}
    for kind, (kept, other, caveats) in pairs.items():
        if kind == WRITTEN or kind in options.kind:
            factors = fold(kept, other)
            folded[kind] = FoldedHeads(factors, unevenness(factors), caveats)
    return folded


def _compose(sites: Sequence[AttentionSite], heads: dict[int, FoldedSite], direction: Direction) -> Iterator[Record]:
    """The records of one direction of a pair of layers, one for each kind."""
    writer = sites[direction.writer]
    reader = sites[direction.reader]
    written = heads[direction.writer][WRITTEN]
    for kind in direction.kinds:
        read = heads[direction.reader][kind]
        squares = compositions(written.factors, read.factors)
        z = standardize(squares, written.unevenness, read.unevenness, written.factors.shape[-1])
        notes = (*written.notes, *read.notes)
        yield {
            "kind": kind,
            "is_possible": direction.is_possible,
            "from_route": direction.route[0],
            "to_route": direction.route[1],
            "from_stack": writer.stack,
            "from_layer": writer.layer,
            "to_stack": reader.stack,
            "to_layer": reader.layer,
            "from_heads": writer.heads,
            "to_heads": reader.heads,
            "composition": squares.sqrt().flatten().tolist(),
            "composition_z": z.flatten().tolist(),
            "note": "; ".join(dict.fromkeys(notes)),
        }
