"""Changes between two models: the scores of both, layer by layer, and the distances of their forms."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.attention.finding import select
from attngeo.attention.opened import Attention, SiteForms
from attngeo.attention.options import ReadingOptions
from attngeo.attention.projections import FormNote, require_outputs
from attngeo.attention.rotary_pairs import shared_layouts
from attngeo.changes.compare_options import OTHER, OVERLAPS, SCORES, CompareOptions
from attngeo.changes.stacks import choose_stacks, group_sites, split_stack
from attngeo.errors import UnsupportedModelError, about
from attngeo.geometry.changes import FormChange, measure_head_changes, measure_layer_change
from attngeo.geometry.forms import Form
from attngeo.geometry.matching import match_heads
from attngeo.geometry.offsets import STILL, PairLayout, head_forms, inner_products, squared_norms
from attngeo.geometry.subspaces import subspace_overlap
from attngeo.layouts.layout import AttentionSite
from attngeo.progress import ignore_progress
from attngeo.questions.making import Making
from attngeo.scores.computing import (
    score_missing_outputs,
    score_outputs,
    score_site,
)
from attngeo.scores.options import ScoreOptions

# A head whose cosine with the head of its own number is smaller may be at another place in the other model.
SAME_HEAD = 0.5
Row = dict[str, Any]


class SitePair(NamedTuple):
    """A site of the first model, and the site of the other model to compare it with.

    Attributes:
        first: site of the first model.
        other: site of the other model.
        have_same_layers: whether both stacks have the same layers, so that forms are compared, too.
        note: how the two were paired, if their places differ.
    """

    first: AttentionSite
    other: AttentionSite
    have_same_layers: bool
    note: str


class ScoredSite(NamedTuple):
    """A site with its scores.

    Attributes:
        site: the attention site.
        rows: row of the layer, then one row per head, if requested.
        form: factors of its heads; the query heads of a group share the right one. None if values and outputs are
            unknown.
    """

    site: AttentionSite
    rows: list[Row]
    form: Form | None


class SiteChanges(NamedTuple):
    """The changes of a layer and of its heads, and the matching heads of the other model.

    Attributes:
        layer: change of the whole layer.
        heads: changes of its heads; None if not requested.
        matches: matching head of the other model for each head.
        overlaps: columns of `OVERLAPS` for the circuit, [heads] each.
    """

    layer: FormChange
    heads: FormChange | None
    matches: Sequence[int]
    overlaps: tuple[Tensor, Tensor] | None


def compare_sites(mine: Attention, others: Attention, options: CompareOptions, making: Making) -> Iterator[list[Row]]:
    """The rows of the table of changes from one model to the other; see `attngeo.compare`."""
    for attention in (mine, others):
        with about(attention.ref):
            if options.circuit == "ov" and all(site.missing for site in attention.sites):
                require_outputs(attention.sites[0])
    whole = select(mine.sites, None if options.stack is None else split_stack(options.stack)[0], None, mine.ref)
    pairs = pair_sites(whole, others.sites, options.stack, (mine.ref, others.ref))
    skipped = mine.left_out
    other_skipped = others.left_out
    if options.stack is None:
        skipped = skipped | _list_unpaired(whole, {pair.first.stack for pair in pairs})
        other_skipped = other_skipped | _list_unpaired(others.sites, {pair.other.stack for pair in pairs})
    chosen = {site.module for site in select(whole, None, options.layers, mine.ref)}
    pairs = [pair for pair in pairs if pair.first.module in chosen]
    making.about |= {"layers": len(pairs), "skipped": skipped, "other_skipped": other_skipped}
    names = mine.name_both(others)
    with closing(_score_both(mine, others, pairs, options)) as scored:
        for pair, my_site, other_site in scored:
            yield [names | row for row in _build_rows(pair, my_site, other_site, options)]


def pair_sites(
    sites: Sequence[AttentionSite], others: Sequence[AttentionSite], stack: str | None, refs: tuple[str, str]
) -> list[SitePair]:
    """The sites of the first model in shared stacks, each paired with a site of the other model.

    Layers are paired by number if both stacks have the same layers, else by relative depth. stack: see
    `choose_stacks`.

    Raises:
        UsageError: a model lacks the requested stack.
        UnsupportedModelError: the models have no stack in common.
    """
    by_stack = group_sites(sites)
    others_by_stack = group_sites(others)
    partners = choose_stacks(by_stack, others_by_stack, stack, refs)
    if not partners:
        raise UnsupportedModelError(
            f"the models have no stack in common: {refs[0]} has {', '.join(by_stack)}, {refs[1]} has "
            f"{', '.join(others_by_stack)}; pair two of them, for example with $stack "
            f"{next(iter(by_stack))}={next(iter(others_by_stack))}",
            "stack",
        )
    pairs = []
    for name, other_name in partners.items():
        members = by_stack[name]
        candidates = others_by_stack[other_name]
        numbers = [site.layer for site in members]
        have_same_layers = numbers == [site.layer for site in candidates]
        renamed = "" if name == other_name else f"compared with the stack {other_name} of the other model"
        for position, site in enumerate(members):
            partner = candidates[position if have_same_layers else _scale(position, len(members), len(candidates))]
            note = renamed
            if not have_same_layers:
                depths = f"{len(members)} and {len(candidates)} layers"
                note = "; ".join(
                    filter(None, [renamed, f"{depths}: paired with layer {partner.layer} of the other model"])
                )
            pairs.append(SitePair(site, partner, have_same_layers, note))
    return pairs


def _list_unpaired(sites: Sequence[AttentionSite], paired: set[str]) -> dict[str, str]:
    """The stacks of a model that are compared with nothing, as what is left out of it."""
    return {f"stack {name}": "the other model has no such stack" for name in group_sites(sites) if name not in paired}


def _scale(position: int, count: int, other_count: int) -> int:
    """The position among `other_count` at the same share of the way from the first to the last of `count`, rounded."""
    if count == 1:
        return 0
    steps = count - 1
    return (2 * position * (other_count - 1) + steps) // (2 * steps)


def _score_both(
    mine: Attention, others: Attention, pairs: Sequence[SitePair], options: CompareOptions
) -> Generator[tuple[SitePair, ScoredSite, ScoredSite]]:
    """Both sites of each pair with their scores: each site is read once, that of the first model before the other."""
    needed: list[AttentionSite] = []
    for pair in pairs:
        if not needed or pair.other is not needed[-1]:
            needed.append(pair.other)
    reads = mine.read([pair.first for pair in pairs], readers=2)
    other_reads = others.read(needed, readers=2, progress=ignore_progress)
    other_site: ScoredSite | None = None
    with closing(reads), closing(other_reads):
        for pair, forms in zip(pairs, reads, strict=True):
            with about(mine.ref):
                my_site = _score(forms, mine.options, options)
            if other_site is None or other_site.site is not pair.other:
                with about(others.ref):
                    other_site = _score(next(other_reads), others.options, options)
            yield pair, my_site, other_site


def _score(forms: SiteForms, reading: ReadingOptions, options: CompareOptions) -> ScoredSite:
    """A site with its scores."""
    asked = ScoreOptions()
    updated = [f"with the update of {', '.join(reading.adapter)}"] if reading.adapter else []
    form = None
    if forms.query_key is not None:
        q, k, notes = forms.query_key
        if options.rope_offset is None:
            notes = [note for note in notes if note is not FormNote.NO_OFFSET]
        form = forms.form
        rows = score_site(forms.site, q, k, notes + updated, asked)
    elif forms.output is None:
        rows = score_missing_outputs(forms.site, asked)
    else:
        v, o, _, notes = forms.output
        form = Form(o, v, forms.key_heads)
        rows = score_outputs(forms.site, v, o, notes + updated, asked)
    return ScoredSite(forms.site, list(islice(rows, None if options.per_head else 1)), form)


def _build_rows(pair: SitePair, mine: ScoredSite, others: ScoredSite, options: CompareOptions) -> list[Row]:
    """The row of a layer, then one of each head, if these are asked for."""
    layouts, note = _choose_layouts(pair, mine, others, options)
    compared = None
    if layouts is not None:
        assert mine.form is not None
        assert others.form is not None
        compared = _compare(mine.form, others.form, *layouts, options)
    return [_build_row(row, others.rows, compared, [pair.note, note], options) for row in mine.rows]


def _choose_layouts(
    pair: SitePair, mine: ScoredSite, others: ScoredSite, options: CompareOptions
) -> tuple[tuple[PairLayout, PairLayout] | None, str]:
    """Which dimensions of both sites rotate, and a note; None if their forms cannot be compared."""
    if mine.form is None or others.form is None:
        return None, ""
    difference = _describe_sizes(mine.form, others.form)
    if difference:
        return None, f"change not computed, because the sizes differ: {difference}"
    if not pair.have_same_layers:
        return None, ""
    if options.circuit == "ov" or options.rope_offset is not None:
        return (STILL, STILL), ""
    layout, other_layout, note = shared_layouts(mine.site, others.site)
    return (layout, other_layout), note


def _describe_sizes(form: Form, other: Form) -> str:
    """In which sizes two forms differ; "" if they can be compared."""
    sizes = {
        "heads": (len(form.left), len(other.left)),
        "key heads": (len(form.right), len(other.right)),
        "dimensions per head": (form.left.shape[1], other.left.shape[1]),
        "inputs": (form.left.shape[2], other.left.shape[2]),
        "inputs of keys or values": (form.right.shape[2], other.right.shape[2]),
    }
    return ", ".join(f"{mine} and {others} {name}" for name, (mine, others) in sizes.items() if mine != others)


def _compare(
    form: Form, other: Form, layout: PairLayout, other_layout: PairLayout, options: CompareOptions
) -> SiteChanges:
    """The changes from one form to another of the same sizes. options: per_head and circuit."""
    layer = measure_layer_change(form, other, layout, other_layout)
    heads = len(form.left)
    if not options.per_head:
        return SiteChanges(layer, None, range(heads), None)
    changes = measure_head_changes(form, other, layout, other_layout)
    matches = _match_heads(form, other, layout, other_layout, changes)
    if matches != [*range(heads)]:
        other = Form(other.left[matches], other.right, [other.key_heads[match] for match in matches])
        changes = measure_head_changes(form, other, layout, other_layout)
    other_keys = dict(zip(form.key_heads, other.key_heads, strict=True))
    others = [other_keys[key] for key in range(len(form.right))]
    of_left = subspace_overlap(form.left, other.left)
    of_right = subspace_overlap(form.right, other.right[others])[form.key_heads]
    # The left factor has the queries, or the outputs, which come after the values in the table.
    overlaps = (of_left, of_right) if options.circuit == "qk" else (of_right, of_left)
    return SiteChanges(layer, changes, matches, overlaps)


def _match_heads(
    form: Form, other: Form, layout: PairLayout, other_layout: PairLayout, changes: FormChange
) -> Sequence[int]:
    """The head of the other model that each head is.

    Heads keep their numbers unless one has a cosine below `SAME_HEAD` with the head of its number, and the heads that
    a matching of all heads moves have a median cosine of at least that with their matches. Heads that are zero or not
    finite have no cosine: they get what the others leave.
    """
    same = [*range(len(form.left))]
    if not bool((changes.cosine < SAME_HEAD).any()):
        return same
    ours = head_forms(form, layout)
    theirs = head_forms(other, other_layout)
    cosines = inner_products(ours, theirs) / squared_norms(ours).sqrt()[:, None] / squared_norms(theirs).sqrt()
    matches = match_heads(cosines, form.key_heads, other.key_heads)
    moved = [head for head in same if matches[head] != head]
    if not moved:
        return same
    of_moved = cosines[moved, [matches[head] for head in moved]]
    return matches if float(of_moved.nanmedian()) >= SAME_HEAD else same


def _build_row(
    row: Row, others: Sequence[Row], compared: SiteChanges | None, notes: list[str], options: CompareOptions
) -> Row:
    """The row of the layer or of one head, from that of its scores."""
    head = row["head"]
    built = {name: row[name] for name in ("circuit", "stack", "layer", "head", "key_head")}
    beside: Row = {}
    change = None
    index = 0
    if head is None:
        beside = others[0]
        change = None if compared is None else compared.layer
    elif compared is not None:
        match = compared.matches[head]
        beside = others[1 + match]
        change = compared.heads
        index = head
        if match != head:
            order = f"head {head} corresponds to its head {match}"
            notes = [*notes, f"heads of the other model are in a different order: {order}"]
    for score in SCORES:
        built[score] = row[score]
        built[score + OTHER] = beside.get(score, torch.nan)
    built["change"] = torch.nan if change is None else float(change.change.reshape(-1)[index])
    built["cosine"] = torch.nan if change is None else float(change.cosine.reshape(-1)[index])
    overlaps = None if head is None or compared is None else compared.overlaps
    for name, of_heads in zip(OVERLAPS[options.circuit], overlaps or (None, None), strict=True):
        built[name] = torch.nan if of_heads is None else float(of_heads[head])
    is_scored = not math.isnan(row["symmetry"]) and not math.isnan(beside.get("symmetry", math.nan))
    if change is not None and is_scored and math.isnan(built["cosine"]):
        missing = "change and cosine not computed" if math.isnan(built["change"]) else "cosine not computed"
        notes = [*notes, f"{missing}: one form is too large relative to the other for floating-point numbers"]
    note = beside.get("note", "")
    other_note = f"other: {note}" if note and note != row["note"] else ""
    built["note"] = "; ".join(filter(None, [row["note"], other_note, *notes]))
    return built
