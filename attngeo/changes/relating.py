"""The row of one candidate in the table of lineage: both models are read side by side, few layers in memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from attngeo import embeddings
from attngeo.attention.opened import Attention
from attngeo.attention.rotary_pairs import shared_layouts
from attngeo.bounds.names import in_utf8
from attngeo.changes.lineage_options import LINEAGE_NUMBERS, VERDICTS, LineageOptions
from attngeo.changes.stacks import choose_stacks, group_sites
from attngeo.checkpoints.store import TensorStore, float_shape
from attngeo.embeddings.opening import find_table as find_embeddings
from attngeo.errors import AttnGeoError, about
from attngeo.geometry.forms import Form, rescale_form
from attngeo.geometry.lineage import (
    MOST_COORDINATES,
    Coordinates,
    Judgement,
    aligned_similarities,
    draw_coordinates,
    have_equal_spectra,
    judge,
    layer_similarities,
    least_distance,
    spectral_distances,
)
from attngeo.geometry.positions import are_sinusoids
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.names import name_layers
from attngeo.layouts.positions import find_table, find_unlike_coordinates
from attngeo.progress import ignore_progress
from attngeo.questions.making import Making, NoteText

if TYPE_CHECKING:
    from attngeo.embeddings.aligning import Alignment

log = logging.getLogger(__name__)

# Beyond this many standard deviations, models are related; those above what strangers reach, also if they are aligned
# first, may be.
LEAST_Z = 10
STRANGERS_Z = 5
# A p below this looks like evidence.
UNLIKELY = 0.05
# Random rotations, and draws of signs, in place of permutations if streams are aligned: each rotation costs an
# assignment of all coordinates.
TURNS = 19
RELATED, NO_EVIDENCE, SUSPICIOUS, NOT_TESTABLE = VERDICTS
# Verdict → `related`, which is missing for the others.
IS_RELATED = {RELATED: True, NO_EVIDENCE: False}
HYPOTHESIS = "initial weights drawn independently"
NULL = f"null: {HYPOTHESIS}"
# The first note of a row is the reason of the verdict, if there is one.
REJECTED = f"the null hypothesis ({HYPOTHESIS}) is rejected, but the test cannot tell which model came first"
NOT_REJECTED = f"no evidence: this test misses copies with a rotated stream ({NULL})"
SMALL_P = (
    f"no evidence, although p is small: z is not above {STRANGERS_Z}, and similar training alone can make models this "
    f"similar ({NULL})"
)
# What follows depends on whether streams are aligned, or can be.
EQUAL_SPECTRA = "heads have equal singular values, as in a copy in different coordinates"
ASK_AGAIN = "run again with --align, which finds permuted copies"
ROTATED = "--align finds no permuted copy, but a rotated copy cannot be excluded"
CANNOT_ALIGN = "--align cannot look for a permuted copy: it needs token embeddings of the same width in both models"
NEAR = (
    f"z is between {STRANGERS_Z} (never exceeded by independent models so far) and {LEAST_Z}: run again with another "
    "--seed"
)
NO_CHANGE = "the test does not apply: coordinates in a different order or with different signs give the same similarity"
Row = dict[str, Any]
# Stack and layer → the attention site.
Sites = dict[tuple[str, int], AttentionSite]


class _Model(NamedTuple):
    """A model that is open, and its self-attention."""

    attention: Attention
    sites: Sites


class _Comparison(NamedTuple):
    """What is compared: pairs of sites of both models, and notes. The pairs are empty if the test does not apply."""

    pairs: list[tuple[AttentionSite, AttentionSite]]
    notes: list[str]


def relate_sites(mine: Attention, others: Attention, options: LineageOptions, making: Making) -> Iterator[list[Row]]:
    """The table row of a candidate; see `attngeo.lineage`."""
    one = _Model(mine, _find_self_attention(mine))
    two = _Model(others, _find_self_attention(others))
    making.about["layers"] = len(one.sites)
    comparison = _pair_sites(one, two, options.stack)
    row: Row = mine.name_both(others) | {"verdict": NOT_TESTABLE, "related": None}
    row |= dict.fromkeys(LINEAGE_NUMBERS) | {"layers": "", "note": NoteText(comparison.notes)}
    if comparison.pairs:
        row |= _test(mine, others, comparison, options)
    yield [row]


def _find_self_attention(attention: Attention) -> Sites:
    """The self-attention of a model: queries and keys of other widths are of two streams."""
    by_place: Sites = {}
    for site in attention.sites:
        if not site.is_cross and site.d_model == site.key_width:
            by_place.setdefault((site.stack, site.layer), site)
    return by_place


def _pair_sites(one: _Model, two: _Model, stack: str | None) -> _Comparison:
    """The layers that both models have, with heads of one size and coordinates that are alike before training.

    stack: see `choose_stacks`.
    """
    pairs = _list_common(one, two, stack)
    if not pairs:
        names = f"{_name_layers(one.sites.values())} and {_name_layers(two.sites.values())}"
        return _Comparison([], [f"the test does not apply: no layer in common, {names}"])
    alike = [(site, other) for site, other in pairs if _shape(site) == _shape(other)]
    if not alike:
        return _Comparison([], [f"the test does not apply: sizes differ, {_describe_sizes(*pairs[0])}"])
    notes = []
    for stack, other_stack in dict.fromkeys((site.stack, other.stack) for site, other in alike):
        if stack != other_stack:
            notes.append(f"stack {stack} compared with stack {other_stack} of the candidate")
    if len(alike) < len(pairs):
        notes.append(f"left out: {len(pairs) - len(alike)} layers whose heads differ in size")
    for number, model in enumerate((one, two)):
        unlike = _find_unlike(model)
        reasons = "; ".join(f"{stack}: {reason}" for stack, reason in unlike.items())
        kept = [pair for pair in alike if pair[number].stack not in unlike]
        if not kept:
            return _Comparison([], [f"the test does not apply: {in_utf8(model.attention.ref)}: {reasons}"])
        if len(kept) < len(alike):
            notes.append(f"left out: {reasons}")
        alike = kept
    return _Comparison(alike, notes)


def _list_common(one: _Model, two: _Model, stack: str | None) -> list[tuple[AttentionSite, AttentionSite]]:
    """The sites that are in both models by stack, see `choose_stacks`, and number."""
    stacks, others = (group_sites(model.sites.values()) for model in (one, two))
    refs = (in_utf8(one.attention.ref), in_utf8(two.attention.ref))
    partners = choose_stacks(stacks, others, stack, refs)
    pairs = []
    for (name, layer), site in one.sites.items():
        other = two.sites.get((partners.get(name, ""), layer))
        if other is not None:
            pairs.append((site, other))
    return pairs


def _find_unlike(model: _Model) -> dict[str, str]:
    """The stacks whose coordinates may differ from the start, and why."""
    by_stack = group_sites(model.sites.values())
    unlike = {}
    with about(model.attention.ref):
        for stack, sites in by_stack.items():
            reasons = [find_unlike_coordinates(site, model.attention.store.names) for site in sites]
            if all(reasons):  # of some models, only some layers rotate: their stack has positions
                unlike[stack] = reasons[0]
            elif _has_sinusoids(model.attention.store, sites[0]):
                unlike[stack] = "its positions are sinusoids, although its configuration does not say so"
    return unlike


def _has_sinusoids(store: TensorStore, site: AttentionSite) -> bool:
    """Whether the stream of a site begins with fixed sinusoids, which the type of the model does not tell."""
    table = None if site.rotary is not None else find_table(site, store.names)
    if table is None or store.info(table).shape[-1] != site.d_model:
        return False
    store.open([table])
    return are_sinusoids(store.read(table))


def _shape(site: AttentionSite) -> tuple[int, ...]:
    return site.heads, site.key_heads, site.head_dim, site.d_model


def _describe_sizes(site: AttentionSite, other: AttentionSite) -> str:
    """The sizes in which two sites differ."""
    names = ("heads", "key heads", "head_dim", "d_model")
    sizes = zip(names, _shape(site), _shape(other), strict=True)
    return ", ".join(f"{name} {size} and {other_size}" for name, size, other_size in sizes if size != other_size)


def _name_layers(sites: Iterable[AttentionSite]) -> str:
    """Layers by their stacks."""
    stacks: dict[str, list[int]] = {}
    for site in sites:
        stacks.setdefault(site.stack, []).append(site.layer)
    return ", ".join(f"{stack} {name_layers(layers)}" for stack, layers in stacks.items()) or "no self-attention"


def _test(mine: Attention, others: Attention, comparison: _Comparison, options: LineageOptions) -> Row:
    """The columns of the test."""
    alignment = None
    if options.align:
        alignment, comparison = _align(mine.store, others.store, comparison, options)
        if alignment is None:
            return {"note": NoteText(comparison.notes)}
    notes = list(comparison.notes)
    drawn: dict[int, Coordinates] = {}
    similarities = []
    shares = []
    heads = 0
    without_form = [0, 0]
    for sites, forms in zip(comparison.pairs, _read_layers(mine, others, comparison), strict=True):
        layout, other_layout, note = shared_layouts(*sites)
        layouts = (layout, other_layout)
        width = forms[0].left.shape[2]
        if width not in drawn:
            drawn[width] = draw_coordinates(width, options.n_permutations, options.seed)
        if alignment is None:
            similarities.append(layer_similarities(*forms, layouts, drawn[width]))
        else:
            similarities.append(aligned_similarities(*forms, layouts, alignment.kept, alignment.bases))
        shares.append(spectral_distances(*forms) / least_distance(forms[0]))
        heads += len(forms[0].left)
        for number, form in enumerate(forms):
            without_form[number] += _count_without_form(form)
        if note:
            notes.append(note)
    for name, count in zip(("model", "candidate"), without_form, strict=True):
        if count:
            notes.append(
                f"{count} of {heads} heads of the {name} are zero or not finite, and count as similar to no head"
            )
    notes += [
        f"{MOST_COORDINATES} of {width} coordinates, drawn at random" for width in drawn if width > MOST_COORDINATES
    ]
    means = torch.stack(similarities).mean(0)
    draws = options.n_permutations if alignment is None else TURNS
    observed, moved, flipped = torch.split(means, [1, draws, draws])
    judgement = judge(torch.cat([observed, moved]))
    of_signs = judge(torch.cat([observed, flipped]))
    smaller_z = torch.tensor([judgement.z, of_signs.z], dtype=torch.float64).min().item()  # NaN if one is
    judgement = judgement._replace(z=smaller_z)
    are_equal = have_equal_spectra(torch.cat(shares))
    verdict, reason = _decide(
        judgement, are_equal=are_equal, advise=partial(_advise, mine.store, others.store, options)
    )
    return {
        "verdict": verdict,
        "related": IS_RELATED.get(verdict),
        **dict(zip(LINEAGE_NUMBERS, judgement, strict=True)),
        "layers": _name_layers(site for site, _ in comparison.pairs),
        "note": NoteText(dict.fromkeys([reason, *notes])),
    }


def _align(
    store: TensorStore, other: TensorStore, comparison: _Comparison, options: LineageOptions
) -> tuple[Alignment | None, _Comparison]:
    """The alignment of both streams, and what is compared of models that have others beside; None if there is none."""

    def keep(width: int) -> Tensor:
        return draw_coordinates(width, options.n_permutations, options.seed).kept

    alignment = embeddings.align_streams(store, other, keep, TURNS, options.seed)
    if alignment is None:
        return None, _Comparison([], ["the test does not apply: the widths of the token embeddings differ"])
    width = alignment.bases.shape[1]
    pairs = [pair for pair in comparison.pairs if pair[0].d_model == width]
    if not pairs:
        reason = f"the test does not apply: no attention layer has the width of the token embeddings, {width}"
        return None, _Comparison([], [reason])
    notes = [
        *comparison.notes,
        f"coordinates matched by {alignment.rows} rows of the embeddings, and again after each of {TURNS} random "
        f"rotations, which replace the permutations; z is relative to these or to {TURNS} draws of signs, whichever "
        "gives the smaller z; p and z are approximate",
    ]
    left_out = len(comparison.pairs) - len(pairs)
    if left_out:
        notes.append(f"left out: {left_out} layers whose width differs from the width of the embeddings")
    return alignment, _Comparison(pairs, notes)


def _read_layers(mine: Attention, others: Attention, comparison: _Comparison) -> Generator[tuple[Form, Form]]:
    """The heads of each pair of sites."""
    sites, other_sites = ([pair[i] for pair in comparison.pairs] for i in (0, 1))
    with (
        closing(mine.read(sites, readers=2)) as reads,
        closing(others.read(other_sites, readers=2, progress=ignore_progress)) as other_reads,
    ):
        for forms, other_forms in zip(reads, other_reads, strict=True):
            yield forms.form, other_forms.form


def _count_without_form(form: Form) -> int:
    """How many heads are zero or not finite."""
    _, divisors = rescale_form(form)
    return int((~divisors.isfinite() | (divisors == 0)).sum())


def _decide(judgement: Judgement, *, are_equal: bool, advise: Callable[[], str]) -> tuple[str, str]:
    """The verdict on two models, and its reason. are_equal: their spectra. advise: what to do if they are."""
    if judgement.z > LEAST_Z:
        return RELATED, REJECTED
    if are_equal:
        return SUSPICIOUS, f"{EQUAL_SPECTRA}: {advise()}"
    if judgement.z > STRANGERS_Z:
        return SUSPICIOUS, NEAR
    if math.isnan(judgement.z):
        return NOT_TESTABLE, NO_CHANGE
    return NO_EVIDENCE, SMALL_P if judgement.p_value < UNLIKELY else NOT_REJECTED


def _advise(store: TensorStore, other: TensorStore, options: LineageOptions) -> str:
    """What to do about models with equal spectra."""
    if options.align:
        return ROTATED
    return ASK_AGAIN if _can_align(store, other) else CANNOT_ALIGN


def _can_align(store: TensorStore, other: TensorStore) -> bool:
    """Whether the streams can be aligned: both models have token embeddings, of one width."""
    try:
        widths = {float_shape(opened, find_embeddings(opened, "input")[0])[1] for opened in (store, other)}
    except AttnGeoError:  # of a model without embeddings, or whose embeddings cannot be read
        return False
    return len(widths) == 1
