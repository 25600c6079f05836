"""The scores of every site of a model, few sites in memory at a time."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from attngeo.attention.opened import Attention, SiteForms
from attngeo.attention.projections import key_heads_of, require_outputs, turn_queries
from attngeo.attention.rotary_pairs import find_rotary_pairs
from attngeo.checkpoints.store import TensorStore
from attngeo.geometry.forms import (
    Form,
    FormStatistics,
    form_statistics,
    form_traces,
    layer_form,
    output_forms,
    rescale_form,
)
from attngeo.geometry.growths import LayerStatistics
from attngeo.geometry.offsets import PairLayout
from attngeo.geometry.rotary import score_offsets
from attngeo.geometry.scores import measure_spread
from attngeo.layouts.layout import AttentionSite
from attngeo.questions.making import Making, NoteText
from attngeo.scores.options import ScoreOptions
from attngeo.scores.spec import SCORES, SPREADS, layer_scores, number_columns, rotary_scores, score_names

log = logging.getLogger(__name__)

# One row of the table of scores: column → value.
Row = dict[str, Any]
# Types of models whose fused weight the code of the published tables cut rightly and did not transpose.
UNTRANSPOSED = ("modernbert", "phi3")


def score_sites(attention: Attention, options: ScoreOptions, making: Making) -> Iterator[list[Row]]:
    """The rows of the table of scores, of one site after the other; see `attngeo.score`. Each is kept as a part."""
    sites = attention.sites
    if options.circuit == "ov" and all(site.missing for site in sites):
        require_outputs(sites[0])
    making.about["skipped"] = attention.left_out
    finished = making.take_finished(len(sites), "layers")
    missing = [site for number, site in enumerate(sites) if number not in finished]
    common = attention.name() | {"parameters": attention.store.parameters}
    with closing(_score_forms(attention, missing, options)) as scored:
        for number, site in enumerate(sites):
            if number in finished:
                yield finished[number]
                continue
            of_site = common | {"format": _describe_format(attention.store, site)}
            rows = [of_site | row for row in next(scored)]
            making.keep_part(number, rows)
            yield rows


def _describe_format(store: TensorStore, site: AttentionSite) -> str:
    """How the weights of a site are stored: dtypes, or packed forms."""
    infos = map(store.info, site.reads)
    return ", ".join(dict.fromkeys(info.packed or info.dtype for info in infos if len(info.shape) > 1))


def _score_forms(attention: Attention, sites: list[AttentionSite], options: ScoreOptions) -> Generator[list[Row]]:
    """The rows of each site, without what all rows of the model have in common."""
    rules = ", ".join(dict.fromkeys(site.rule for site in sites))
    size = sum(attention.store.count_nbytes(site.reads) for site in sites) / 1e6
    count = "1 layer" if len(sites) == 1 else f"{len(sites):,} layers"
    what = f"{count} found by {rules}, {size:,.1f} MB to read"
    log.info("%s: %s, on %s in %s", attention.ref, what, attention.device, options.precision)
    for forms in attention.read(sites, convention=options.convention):
        scored = []
        if forms.query_key is not None:
            notes = forms.query_key.notes + _option_notes(options)
            if forms.update is not None:
                if _asks_for_rotary(options):
                    notes.append("no rotary scores of an update alone")
                scored.append(_score_rows(_begin_rows(forms.site, options), *forms.update, notes, options))
            else:
                scored.append(score_site(forms.site, forms.query_key.q, forms.query_key.k, notes, options))
        if options.circuit != "qk":
            scored.append(_score_output(forms, options))
        yield [row for rows in scored for row in islice(rows, None if options.per_head else 1)]


def _option_notes(options: ScoreOptions) -> list[str]:
    """Notes that tell rows from those with default options, in every file that they are written to."""
    usual = ScoreOptions()
    notes = []
    if options.adapter:
        changed = "update alone" if options.adapter_only else "with the update"
        notes.append(f"{changed} of {', '.join(options.adapter)}")
    if options.convention != usual.convention:
        notes.append(f"{options.convention} convention")
    if options.gamma != usual.gamma:
        notes.append(f"gamma {options.gamma:g}")
    return notes


def score_site(site: AttentionSite, q: Tensor, k: Tensor, notes: list[str], options: ScoreOptions) -> Iterator[Row]:
    """The row of the layer, then one of each head. The heads are computed when the caller requests the first of them.

    Args:
        site: the attention site.
        q: query weights, [heads, head_dim, d_model].
        k: key weights, [key_heads, head_dim, d_model].
        notes: notes of the site.
        options: the scores.
    """
    if options.convention == "published" and site.section.get("model_type") in UNTRANSPOSED:
        return _score_untransposed(site, q, k, notes, options)
    key_head = key_heads_of(site, options.convention)
    if q.shape[-1] != k.shape[-1]:
        note = f"M is not square: queries read {site.d_model} inputs, keys {site.key_width}"
        empty = _empty([*notes, note])
        return iter([beginning | empty for beginning in _begin_rows(site, options)])
    form = Form(q, k, key_head)
    beginnings = _begin_rows(site, options)
    if not _asks_for_rotary(options):
        return _score_rows(beginnings, form, layer_form(form), notes, options)
    layout, _, note = find_rotary_pairs(site)
    if note:
        return _score_rows(beginnings, form, layer_form(form), [*notes, f"no rotary scores: {note}"], options)
    at_0 = form._replace(left=turn_queries(site, q, -options.rope_offset))
    return _score_rows(beginnings, form, layer_form(form), notes, options, offsets=(at_0, layout))


def _asks_for_rotary(options: ScoreOptions) -> bool:
    """Whether a score over all rotary offsets was requested."""
    return not {*rotary_scores()}.isdisjoint(options.scores)


def _score_untransposed(
    site: AttentionSite, q: Tensor, k: Tensor, notes: list[str], options: ScoreOptions
) -> Iterator[Row]:
    """What `score_site` gives for Wqᵀ·Wk of the layer, a matrix over outputs. Heads have no such matrix.

    With grouped queries it is not square: the published tables have no such model.
    """
    beginnings = _begin_rows(site, options)
    left, right = (weight.flatten(0, 1).mT[None] for weight in (q, k))
    notes = [*notes, "a matrix over outputs: fused weights were not transposed"]
    if left.shape[-1] != right.shape[-1]:
        note = f"M is not square: queries have {left.shape[-1]} outputs, keys {right.shape[-1]}"
        return iter([beginning | _empty([*notes, note]) for beginning in beginnings])
    layer = Form(left, right, [0])
    of_layer = _score_rows(beginnings, None, layer, notes, options)
    of_heads = (beginning | _empty([*notes, "published for whole layers only"]) for beginning in beginnings[1:])
    return chain(of_layer, of_heads)


def _score_output(forms: SiteForms, options: ScoreOptions) -> Iterator[Row]:
    """What `score_outputs` returns, or the rows without scores of a site whose values and outputs are not known."""
    if forms.output is None:
        return score_missing_outputs(forms.site, options)
    notes = [*forms.output.notes, *_option_notes(options)]
    return score_outputs(forms.site, forms.output.v, forms.output.o, notes, options)


def score_outputs(site: AttentionSite, v: Tensor, o: Tensor, notes: list[str], options: ScoreOptions) -> Iterator[Row]:
    """The rows that `score_site` gives, for the matrices Wv·Wo.

    Rows of a matrix belong to what heads read, columns to what they write.

    Args:
        site: the attention site.
        v: value weights, [key_heads, value_dim, key_width].
        o: output weights, [heads, value_dim, output_width].
        notes: notes of the site.
        options: the scores.
    """
    beginnings = _begin_output_rows(site, options)
    if v.shape[-1] != o.shape[-1]:
        note = f"M is not square: values read {v.shape[-1]} inputs, outputs write {o.shape[-1]}"
        return iter([beginning | _empty([*notes, note]) for beginning in beginnings])
    heads, layer = output_forms(v, o, key_heads_of(site, "corrected"))
    return _score_rows(beginnings, heads, layer, notes, options, weights="value or output")


def score_missing_outputs(site: AttentionSite, options: ScoreOptions) -> Iterator[Row]:
    """The rows of a site with unknown values and outputs, without scores."""
    empty = _empty([f"values and outputs cannot be read: {site.missing}"])
    return iter([beginning | empty for beginning in _begin_output_rows(site, options)])


def _begin_output_rows(site: AttentionSite, options: ScoreOptions) -> list[Row]:
    """What `_begin_rows` returns, of W_ov."""
    of_outputs = {"circuit": "ov", "head_dim": site.value_dim or site.head_dim}
    return [beginning | of_outputs for beginning in _begin_rows(site, options.replace(convention="corrected"))]


def _begin_rows(site: AttentionSite, options: ScoreOptions) -> list[Row]:
    """The first columns of the rows of W_qk of a site, which tell them apart: of the layer, then of each head."""
    common = {"stack": site.stack, "circuit": "qk", "layer": site.layer}
    common |= {"d_model": site.d_model, "head_dim": site.head_dim}
    heads = [*enumerate(key_heads_of(site, options.convention))]
    return [common | {"head": head, "key_head": key} for head, key in [(None, None), *heads]]


def _score_rows(
    beginnings: Iterable[Row],
    heads: Form | None,
    layer: Form,
    notes: list[str],
    options: ScoreOptions,
    weights: str = "query or key",
    offsets: tuple[Form, PairLayout] | None = None,
) -> Iterator[Row]:
    """The rows of a site, from the forms of its heads and that of their sum.

    Heads are computed when the caller requests the first of them, or before the layer if a score compares it with them.

    Args:
        beginnings: the first columns of each row.
        heads: forms of the heads; None for a layer whose heads have no forms.
        layer: the form of the layer.
        notes: notes of the site.
        options: the scores.
        weights: what the forms are products of.
        offsets: forms of the heads at rotary offset 0, and which of their dimensions rotate; None to leave out scores
            over all offsets.
    """
    remaining = iter(beginnings)
    rescaled, divisors = rescale_form(layer)
    of_layer = form_statistics(rescaled)
    rescaled_heads = None
    of_heads = None
    if heads is not None and not {*layer_scores()}.difference(rotary_scores()).isdisjoint(options.scores):
        rescaled_heads = rescale_form(heads)
        form, head_divisors = rescaled_heads
        if options.per_head:
            of_heads = form_statistics(form)
        of_layer = LayerStatistics.join(of_layer, divisors, of_heads or form_traces(form), head_divisors)
    over_offsets = None
    if offsets is not None:
        at_0, layout = offsets
        rotary_layer, over_offsets = score_offsets(*rescale_form(at_0), layout)
        of_layer = replace(of_layer, over_offsets=rotary_layer)
    for row in score_forms(of_layer, divisors.tolist(), notes, options, weights):
        yield next(remaining) | row
    if heads is None:
        return
    form, head_divisors = rescaled_heads or rescale_form(heads)
    of_heads = replace(of_heads or form_statistics(form), over_offsets=over_offsets)
    for row in score_forms(of_heads, head_divisors.tolist(), notes, options, weights):
        yield next(remaining) | row


def score_forms(
    statistics: FormStatistics,
    divisors: Sequence[float],
    notes: list[str],
    options: ScoreOptions,
    weights: str = "query or key",
) -> list[Row]:
    """The scores of each head of a form.

    Args:
        statistics: statistics of the heads.
        divisors: divisor of the product of the factors of each head.
        notes: notes of the site.
        options: the scores.
        weights: name of the factors, for notes.
    """
    scores = {name: SCORES[name] for name in score_names(options.scores)}
    measures = [spec.compute(statistics, options) for spec in scores.values()]
    measures += [measure_spread(statistics.column_norms), measure_spread(statistics.row_norms)]
    names = (*scores, *SPREADS)
    numbers = torch.stack([measure.to(measures[0]) for measure in (statistics.squared_norm, *measures)], 1).tolist()
    d_model = statistics.row_norms.shape[1]
    note = NoteText(notes)
    rows = []
    for divisor, (squared_norm, *values) in zip(divisors, numbers, strict=True):
        if not math.isfinite(divisor):
            rows.append(_empty([*notes, f"NaN or Inf in the {weights} weights"]))
            continue
        if divisor == 0 or squared_norm <= 0:
            rows.append(_empty([*notes, "the form is zero"], frobenius_norm=0.0))
            continue
        row: Row = dict(zip(names, values, strict=True))
        for name, spec in scores.items():
            if spec.is_size:
                row[name] *= divisor
            if spec.chance_is_exact:
                row[f"{name}_z"] = spec.z(row[name], d_model)
        rows.append(row | {"frobenius_norm": math.sqrt(squared_norm) * divisor, "note": note})
    return rows


def _empty(notes: list[str], frobenius_norm: float = math.nan) -> Row:
    scores = dict.fromkeys(number_columns(), math.nan)
    return scores | {"frobenius_norm": frobenius_norm, "note": NoteText(notes)}
