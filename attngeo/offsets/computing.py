"""The rows of the table of positions: the measures of every head, with few sites in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.attention.opened import Attention, SiteForms
from attngeo.attention.projections import FormNote
from attngeo.checkpoints.store import TensorStore
from attngeo.geometry.forms import Form
from attngeo.geometry.positions import (
    fast_share,
    pair_statistics,
    previous_token,
    rotary_kernel,
    table_kernel,
)
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.positions import (
    SiteRotation,
    explain_rotary,
    find_alibi_slopes,
    find_rotation,
    find_table,
    first_position,
    has_relative_terms,
    sees_later,
)
from attngeo.offsets.options import FARTHEST, KERNEL, MEASURES, PositionOptions
from attngeo.questions.making import Making

# End of the names of stacks with learned queries.
POOLING = "pooling"
Row = dict[str, Any]


class _Measures(NamedTuple):
    """Measures of the heads of a site.

    Attributes:
        kernel: κ at each offset, [heads, offsets]; NaN beyond the end of a table of positions.
        scale: divisor of `previous_token`, [heads]; None if it has no scale.
        fast_share: [heads]; None without rotary embeddings.
        source: how the heads know positions.
    """

    kernel: Tensor
    scale: Tensor | None
    fast_share: Tensor | None
    source: str


def measure_sites(attention: Attention, options: PositionOptions, making: Making) -> Iterator[list[Row]]:  # noqa: ARG001 - those of forms say all
    """The rows of the table of positions, one site after the other; see `attngeo.positions`."""
    making.about["skipped"] = attention.left_out
    tables: dict[str, Tensor] = {}
    for forms in attention.read():
        yield [attention.name() | row for row in _measure_site(attention.store, forms, tables)]


def _measure_site(store: TensorStore, forms: SiteForms, tables: dict[str, Tensor]) -> Iterator[Row]:
    """The rows of the heads of a site. tables: tables of positions already read, by name."""
    assert forms.query_key is not None
    site = forms.site
    form = forms.form
    notes = [note for note in forms.query_key.notes if note is not FormNote.NO_OFFSET]
    offsets = range(-FARTHEST if sees_later(site) else 0, FARTHEST + 1)
    measures = _measure_form(store, site, form, offsets, tables)
    for head, key_head in enumerate(form.key_heads):
        place = {"stack": site.stack, "layer": site.layer, "head": head, "key_head": key_head}
        if isinstance(measures, str):
            values = dict.fromkeys(MEASURES) | {"note": "; ".join([measures, *notes])}
        else:
            values = _measure_head(measures, head, offsets, notes)
        yield place | values


def _measure_head(measures: _Measures, head: int, offsets: range, notes: list[str]) -> Row:
    """The measured columns of one head, and its note."""
    scale = math.inf if measures.scale is None else measures.scale[head].item()
    reasons = [measures.source, *notes]
    if measures.scale is not None and (scale == 0 or not math.isfinite(scale)):
        reasons.append("the form is zero" if scale == 0 else "NaN or Inf in the query or key weights")
        return dict.fromkeys(MEASURES) | {"note": "; ".join(reasons)}
    kernel = dict(zip(offsets, measures.kernel[head].tolist(), strict=True))
    known = {offset: value for offset, value in kernel.items() if not math.isnan(value)}
    columns = torch.tensor([kernel[offset] for offset in range(len(KERNEL))], dtype=torch.float64)
    share = None if measures.fast_share is None else measures.fast_share[head].item()
    preference = None if measures.scale is None else previous_token(columns, scale).item()
    numbers = (share, preference, max(known, key=lambda offset: known[offset]), *columns.tolist())
    return dict(zip(MEASURES, numbers, strict=True)) | {"note": "; ".join(reasons)}


def _measure_form(
    store: TensorStore, site: AttentionSite, form: Form, offsets: Sequence[int], tables: dict[str, Tensor]
) -> _Measures | str:
    """The measures of the heads of a form, or why there are none."""
    if site.is_cross:
        return "cross-attention: queries and keys come from different sequences"
    if site.stack.endswith(POOLING):
        return "pooling: queries are not tokens of the sequence"
    slopes = find_alibi_slopes(site)
    if slopes is not None:
        distances = torch.tensor(offsets, dtype=torch.float64).abs()
        kernel = -torch.tensor(slopes, dtype=torch.float64)[:, None] * distances
        return _Measures(kernel, None, None, "ALiBi: the kernel is −slope·Δ, with fixed slopes")
    with explain_rotary("give a correct config.json with $config", "config"):
        rotation = find_rotation(site)
    if isinstance(rotation, SiteRotation):
        return _measure_rotation(site, form, rotation, offsets)
    if not rotation.is_known:
        return f"no position kernel: {rotation.reason}"
    name = find_table(site, store.names)
    if name is None:
        others = "; relative-position terms are not read" if has_relative_terms(store.names) else ""
        return f"no rotary embeddings, no ALiBi and no known table of positions{others}"
    if name not in tables:
        tables[name] = store.read(name).float().squeeze(0)
    return _measure_table(site, form, name, tables[name], offsets)


def _measure_rotation(site: AttentionSite, form: Form, rotation: SiteRotation, offsets: Sequence[int]) -> _Measures:
    frequencies = rotation.frequencies
    pairs = pair_statistics(form, len(frequencies), interleaved=rotation.interleaved, start=rotation.start)
    rotating = 2 * int(frequencies.count_nonzero())
    source = "rotary embeddings"
    if rotating < site.head_dim:
        source += f" in {rotating} of {site.head_dim} dimensions"
    if site.rotary is not None and site.rotary.axes:
        source += ", at an offset of Δ rows and Δ columns"
    scale = pairs.norms[:, frequencies != 0].sum(1)
    return _Measures(rotary_kernel(pairs, frequencies, offsets), scale, fast_share(pairs.norms, frequencies), source)


def _measure_table(
    site: AttentionSite, form: Form, name: str, table: Tensor, offsets: Sequence[int]
) -> _Measures | str:
    """The measures of the heads of a form for a table of positions, as stored under this name."""
    if table.ndim != 2 or table.shape[1] != site.d_model:
        return f"no position kernel: {name} is {list(table.shape)}, but queries read {site.d_model} inputs"
    rows = table[first_position(site.section, len(table)) :]
    if form.left.shape[2] > site.d_model:  # the input of biases
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
    kernel, deviation = table_kernel(form, rows, offsets)
    return _Measures(kernel, deviation, None, f"{len(rows)} positions of {name}, before any norm")
