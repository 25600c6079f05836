"""Pairs of heads of a model, as mirrors and twins: few layers in memory at a time, each prepared once it is read.

What is kept of a layer, or of a pair of layers, is one record: lists of numbers over all pairs of their heads.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from attngeo.attention.opened import Attention, SiteForms
from attngeo.attention.projections import FormNote
from attngeo.attention.rotary_pairs import find_rotary_pairs, shared_layouts
from attngeo.circuits.mirror_options import PLAIN, ROTARY, MirrorOptions
from attngeo.circuits.orientation import match_pairs
from attngeo.circuits.pairs import require_one_width
from attngeo.circuits.planning import Reading, meet, plan_readings
from attngeo.errors import UnsupportedModelError, UsageError
from attngeo.geometry.forms import Form
from attngeo.geometry.mirrors import (
    HeadMoments,
    PairedHeads,
    Products,
    cosines,
    measure_moments,
    multiply_pairs,
    multiply_themselves,
    pair_heads,
    standardize_mirrors,
)
from attngeo.geometry.offsets import STILL, PairLayout
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.positions import SiteRotation, explain_rotary, find_rotation
from attngeo.questions.making import Making

log = logging.getLogger(__name__)

# Of one layer, or of one pair of layers.
Record = dict[str, Any]
COMPLEX_NUMBERS = 2


class ComparedSites(NamedTuple):
    """Two sites whose heads are compared, or a site by itself.

    Attributes:
        a: number of the first site, in the list of sites.
        b: number of the other site; a ≤ b.
        layout: which dimensions rotate in the first site.
        other_layout: which ones rotate in the other site.
        note: what the comparison leaves out; "" for nothing.
    """

    a: int
    b: int
    layout: PairLayout
    other_layout: PairLayout
    note: str

    @property
    def form(self) -> str:
        """The form in which heads are compared."""
        return ROTARY if bool(self.layout.rotates.any()) else PLAIN


class MeasuredHeads(NamedTuple):
    """The heads of a site in one form.

    Attributes:
        heads: the heads, for the products of their pairs.
        alone: products of each head with itself.
        moments: what the chance of a mirror depends on.
    """

    heads: PairedHeads
    alone: Products
    moments: HeadMoments


class PreparedSite(NamedTuple):
    """The heads of a site in each form that its pairs need, and caveats.

    Attributes:
        by_form: form → the heads.
        notes: caveats.
    """

    by_form: dict[str, MeasuredHeads]
    notes: list[str]


def mirror_layers(attention: Attention, options: MirrorOptions, making: Making) -> Iterator[list[Record]]:
    """The records of all layers and pairs of layers; see `attngeo.mirrors`. Each is kept as soon as it is finished."""
    sites, left_out = _split_sites(attention.sites)
    pairs = list_pairs(sites, options, left_out)
    making.about |= {"layers": len(sites), "skipped": attention.left_out | left_out}
    records = making.take_finished(len(pairs), "pairs of layers" if options.across else "layers")
    left = {number: pair for number, pair in enumerate(pairs) if number not in records}
    sizes = [count_bytes(site, attention.dtype) for site in sites]
    plan = plan_readings(sizes, [(pair.a, pair.b) for pair in left.values()], attention.share_memory())
    making.about["layers_read"] = len({reading.number for reading in plan})
    making.about["readings"] = len(plan)
    with closing(_compare_sites(attention, sites, left, plan, options)) as compared:
        for number, record in compared:
            records[number] = [record]
            making.keep_part(number, [record])
    yield from (records[number] for number in range(len(pairs)))


def _split_sites(sites: list[AttentionSite]) -> tuple[list[AttentionSite], dict[str, str]]:
    """The sites whose heads have mirrors, and why the others have none."""
    kept: list[AttentionSite] = []
    left_out: dict[str, str] = {}
    for site in sites:
        if site.is_cross:
            left_out[site.module] = "cross-attention: queries and keys come from different sequences"
        elif site.d_model != site.key_width:
            left_out[site.module] = f"M is not square: queries read {site.d_model} inputs, keys {site.key_width}"
        else:
            kept.append(site)
    return kept, left_out


def list_pairs(sites: Sequence[AttentionSite], options: MirrorOptions, left_out: dict[str, str]) -> list[ComparedSites]:
    """Each layer by itself and, if requested, each pair of layers of a stack.

    Args:
        sites: the sites with mirrors.
        options: which pairs to compare, and in which form.
        left_out: other sites, and why they have none.

    Raises:
        UnsupportedModelError: there is no pair of heads, or the layers of a stack differ in width.
        UsageError: the rotary form is requested, but no layer rotates.
        CorruptCheckpointError: the configuration describes an invalid rotary embedding.
    """
    if options.form == ROTARY:
        _require_rotation(sites)
    pairs = [ComparedSites(number, number, *_find_layouts(site, site, options)) for number, site in enumerate(sites)]
    if options.across:
        by_stack: dict[str, list[int]] = {}
        for number, site in enumerate(sites):
            by_stack.setdefault(site.stack, []).append(number)
        for stack, numbers in by_stack.items():
            require_one_width(stack, [sites[number].d_model for number in numbers])
            for a, b in combinations(numbers, 2):
                if sites[a].layer != sites[b].layer:
                    pairs.append(ComparedSites(a, b, *_find_layouts(sites[a], sites[b], options)))
    if all(pair.a == pair.b and sites[pair.a].heads == 1 for pair in pairs):
        raise UnsupportedModelError(_describe_missing(sites, options, left_out), "across")
    return pairs


def _describe_missing(sites: Sequence[AttentionSite], options: MirrorOptions, left_out: dict[str, str]) -> str:
    """Why a model has no pair of heads."""
    if not sites:
        return f"no attention has pairs of heads: {next(iter(left_out.values()))}"
    if options.across:
        return "no stack has two heads"
    return "no layer has two heads; compare the heads of different layers with $across"


def _require_rotation(sites: Sequence[AttentionSite]) -> None:
    """Raise UsageError if no site rotates its queries and keys in a known way."""
    reasons = []
    for site in sites:
        with explain_rotary("compare with $form plain, or give a correct config.json with $config", "form", "config"):
            rotation = find_rotation(site)
        if isinstance(rotation, SiteRotation) and bool(rotation.frequencies.any()):
            return
        reasons.append("all frequencies are 0" if isinstance(rotation, SiteRotation) else rotation.reason)
    if reasons:
        raise UsageError(f"$form is rotary, but no layer rotates: {reasons[0]}; choose $form auto or plain", "form")


def _find_layouts(
    site: AttentionSite, other: AttentionSite, options: MirrorOptions
) -> tuple[PairLayout, PairLayout, str]:
    """Which dimensions of two sites rotate, and a note."""
    if options.form == PLAIN:
        return STILL, STILL, FormNote.NO_OFFSET if site.rotary else ""
    if site is other:
        layout, _, note = find_rotary_pairs(site)
        return layout, layout, note
    return shared_layouts(site, other)


def count_bytes(site: AttentionSite, dtype: torch.dtype) -> int:
    """Bytes of the heads of a site in one form: queries and keys, and the inner products of their parts."""
    entries = (site.heads + site.key_heads) * site.head_dim * site.d_model
    parts = (site.head_dim + 1) ** 2 if site.rotary else 1
    return entries * dtype.itemsize + COMPLEX_NUMBERS * site.heads * parts * torch.float64.itemsize


def _compare_sites(
    attention: Attention,
    sites: Sequence[AttentionSite],
    pairs: dict[int, ComparedSites],
    plan: Sequence[Reading],
    options: MirrorOptions,
) -> Generator[tuple[int, Record]]:
    """The number and the record of each pair of sites, as soon as both are there."""
    layouts: dict[str, dict[str, PairLayout]] = {}
    for pair in pairs.values():
        layouts.setdefault(sites[pair.a].module, {})[pair.form] = pair.layout
        layouts.setdefault(sites[pair.b].module, {})[pair.form] = pair.other_layout
    readings = attention.read([sites[reading.number] for reading in plan])
    prepared = (_prepare(forms, layouts[forms.site.module], options) for forms in readings)
    numbers = {number: (pair.a, pair.b) for number, pair in pairs.items()}
    names = attention.name()
    about = {"revision": names["revision"], "model_type": names["model_type"]}
    for number, mine, others in meet(plan, prepared, numbers):
        pair = pairs[number]
        place = {
            "stack": sites[pair.a].stack,
            "layer": sites[pair.a].layer,
            "other_layer": sites[pair.b].layer,
            "form": pair.form,
        }
        notes = [note for note in (*mine.notes, *others.notes, pair.note) if note]
        one = mine.by_form[pair.form]
        other = others.by_form[pair.form]
        values = _compare_within(one) if pair.a == pair.b else _compare_across(one, other)
        yield number, about | place | values | {"note": "; ".join(dict.fromkeys(notes))}


def _prepare(forms: SiteForms, layouts: dict[str, PairLayout], options: MirrorOptions) -> PreparedSite:
    assert forms.query_key is not None
    form = forms.form
    notes = [note for note in forms.query_key.notes if note is not FormNote.NO_OFFSET]
    if options.adapter:
        notes.append(f"with the update of {', '.join(options.adapter)}")
    if options.across and options.with_bias and form.left.shape[-1] == forms.site.d_model:
        # The heads of other layers of the stack may have biases, and so one input more.
        form = Form(pad(form.left, (0, 1)), pad(form.right, (0, 1)), form.key_heads)
    by_form = {}
    for name, layout in layouts.items():
        heads = pair_heads(form, layout)
        by_form[name] = MeasuredHeads(heads, multiply_themselves(heads), measure_moments(heads))
    return PreparedSite(by_form, notes)


def _compare_within(measured: MeasuredHeads) -> Record:
    """What is kept of the pairs of heads of one layer."""
    heads = measured.heads
    products = multiply_pairs(heads, heads)
    of_pairs = _measure_pairs(products, measured, measured)
    total = float(products.twins.sum())
    size = total if total > 0 else torch.nan
    count = len(heads.key_heads)
    key_heads = torch.tensor(heads.key_heads)
    rows, columns = torch.triu_indices(count, count, 1)
    is_partner = torch.zeros(count, count)
    for head, other in match_pairs(of_pairs["antisymmetric_cosine"], heads.key_heads):
        is_partner[head, other] = 1
    of_pairs |= {
        "symmetry_part": 2 * products.mirrors.cpu() / size,
        "shares_key_head": (key_heads[:, None] == key_heads).float(),
        "is_partner": is_partner,
    }
    return {
        "symmetry": float(products.mirrors.sum()) / size,
        "own_symmetry": float(products.mirrors.diagonal().sum()) / size,
        **_describe_heads(measured, measured),
        **{name: values[rows, columns].tolist() for name, values in of_pairs.items()},
    }


def _compare_across(measured: MeasuredHeads, others: MeasuredHeads) -> Record:
    """What is kept of the pairs of heads of two layers."""
    of_pairs = _measure_pairs(multiply_pairs(measured.heads, others.heads), measured, others)
    missing = torch.full_like(of_pairs["mirror"], torch.nan)
    no = torch.zeros_like(missing)
    of_pairs |= {"symmetry_part": missing, "shares_key_head": no, "is_partner": no}
    return {
        "symmetry": torch.nan,
        "own_symmetry": torch.nan,
        **_describe_heads(measured, others),
        **{name: values.flatten().tolist() for name, values in of_pairs.items()},
    }


def _measure_pairs(products: Products, measured: MeasuredHeads, others: MeasuredHeads) -> dict[str, Tensor]:
    """The columns of every pair of heads of one or two layers, [heads, other heads] each."""
    mirror, twin, cosine = cosines(products, measured.alone, others.alone)
    width = measured.heads.left.shape[-1]
    z = standardize_mirrors(products.mirrors, measured.moments, others.moments, width)
    of_pairs = {"mirror": mirror, "twin": twin, "antisymmetric_cosine": cosine, "mirror_z": z}
    return {name: values.cpu() for name, values in of_pairs.items()}


def _describe_heads(measured: MeasuredHeads, others: MeasuredHeads) -> Record:
    """The number of the heads of both layers, and their norms."""
    return {
        "heads": len(measured.heads.key_heads),
        "other_heads": len(others.heads.key_heads),
        "norms": measured.alone.twins.sqrt().tolist(),
        "other_norms": others.alone.twins.sqrt().tolist(),
    }
