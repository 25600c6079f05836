"""The scores of every site of a model, few sites in memory at a time; and one W_qk as a whole, for a picture."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from attngeo.bounds.machine import available_memory
from attngeo.bounds.names import in_utf8
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.adapters import AdapterStore
from attngeo.checkpoints.opening import open_adapted, open_store
from attngeo.checkpoints.reference import Model
from attngeo.checkpoints.store import TensorStore
from attngeo.choices import Precision, real, whole
from attngeo.devices import pick_device
from attngeo.errors import CheckpointError, UsageError, about
from attngeo.geometry import (
    Form,
    FormStatistics,
    form_statistics,
    is_outlier,
    largest_entries,
    layer_form,
    outlier_threshold,
    rescale,
)
from attngeo.keywords import takes
from attngeo.layouts.layout import AttentionSite
from attngeo.progress import Progress
from attngeo.provenance import machine, software
from attngeo.scores.options import ScoreOptions
from attngeo.scores.projections import key_heads_of, projections, update_factors
from attngeo.scores.read_ahead import read_ahead
from attngeo.scores.spec import SCORES, score_names, z_columns
from attngeo.scores.weights import read, require_updates, select, sites_of
from attngeo.session import Session
from attngeo.studies.results import Kept, ResultRecord

log = logging.getLogger(__name__)

# Squares along an edge; a screen cannot show more.
MOST_CELLS = 384
DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "float64": torch.float64, "fast": torch.bfloat16}


# One row of the table of scores: column → value.
Row = dict[str, Any]


def compute(model: Model, options: ScoreOptions, session: Session, record: ResultRecord | None = None) -> Kept:
    """The rows of the table of scores, and how they were made; see `attngeo.score`.

    record: keeps each layer when it is finished, and all of them at the end. Layers that it has are taken from it; if
    the session wants fresh results, they are removed.
    """
    started = time.perf_counter()
    device = pick_device(options.device)
    if device.type == "mps" and options.precision == "float64":
        raise UsageError("device mps has no float64, expected precision float32 or fast, or device cpu")
    opened = open_adapted(model, options.adapter, session.hub, config=options.config, only_updates=options.adapter_only)
    with closing(opened) as store, about(store.ref), torch.inference_mode():
        if isinstance(store, AdapterStore):
            record = None  # the base of an adapter may change
        sites, skipped = sites_of(store, options, lambda file: session.progress(Progress("download", file)))
        require_updates(store, sites)
        sites = select(sites, options.stack, options.layers, store.ref)
        description = _describe_making(store, sites, options, device) | {"skipped": skipped}
        rows = {} if record is None else _take_finished(record, len(sites), device, session)
        missing = {number: site for number, site in enumerate(sites) if number not in rows}
        common = {
            "model": store.ref,
            "revision": store.revision,
            "model_type": store.config.get("model_type"),
            "parameters": store.parameters,
        }
        with closing(_score_sites(store, list(missing.values()), options, device, session)) as scored:
            for (number, site), rows_of_site in zip(missing.items(), scored, strict=True):
                of_site = common | {"format": _describe_format(store, site)}
                rows[number] = [_in_utf8(of_site | row) for row in rows_of_site]
                if record is not None:
                    record.keep_part(number, rows[number], description)
    in_order = itertools.chain.from_iterable(rows[number] for number in range(len(sites)))
    result = Kept(list(in_order), description)
    log.info("%s: %d rows in %.1f s", store.ref, len(result.rows), time.perf_counter() - started)
    if record is not None:
        record.keep(*result)
    return result


def _take_finished(record: ResultRecord, sites: int, device: torch.device, session: Session) -> dict[int, list[Row]]:
    """The rows of the sites that were finished before on the same device, by the number of the site."""
    if session.results.fresh:
        record.forget_parts()
        return {}
    parts = record.load_parts(sites)
    rows = {number: part.rows for number, part in parts.items() if part.about.get("device") == str(device)}
    if rows:
        session.progress(Progress("kept", f"{len(rows)} of {sites} layers from the result store"))
    return rows


def _describe_format(store: TensorStore, site: AttentionSite) -> str:
    """How the weights of a site are stored: dtypes, or packed forms."""
    infos = map(store.info, site.tensors.values())
    return ", ".join(dict.fromkeys(info.packed or info.dtype for info in infos if len(info.shape) > 1))


def _in_utf8(row: Row) -> Row:
    """A row whose texts can be written to every file."""
    return {name: in_utf8(value) if isinstance(value, str) else value for name, value in row.items()}


def _score_sites(
    store: TensorStore,
    sites: list[AttentionSite],
    options: ScoreOptions,
    device: torch.device,
    session: Session,
) -> Generator[list[Row]]:
    """The rows of each site, without what all rows of the model have in common."""
    dtype = DTYPES[options.precision]
    rules = ", ".join(dict.fromkeys(site.rule for site in sites))
    size = sum(store.count_nbytes(site.reads) for site in sites) / 1e6
    what = f"{len(sites)} layers found by {rules}, {size:,.1f} MB to read"
    log.info("%s: %s, on %s in %s", store.ref, what, device, options.precision)
    memory = options.memory
    if memory is None and session.study.jobs > 1:  # processes share a quarter of the free memory
        memory = max(available_memory() // 4 // session.study.jobs, 1)
    for site, tensors in read_ahead(store, sites, device=device, memory=memory, report=session.progress):
        q, k, notes = projections(site, tensors, options, dtype=dtype, device=device)
        notes += _option_notes(options)
        if options.adapter_only and q.shape[-1] == k.shape[-1]:
            form, layer = update_factors(site, tensors, q, k, options)
            scored = _score_rows(site, form, layer, notes, options)
        else:
            scored = score_site(site, q, k, notes, options)
        tensors.clear()
        yield list(islice(scored, None if options.per_head else 1))


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
    """The row of the layer, then one of each head. The heads are computed when the caller asks for the first of them.

    q, k: [heads, head_dim, d_model] and [key_heads, head_dim, d_model].
    """
    key_head = key_heads_of(site, options.convention)
    if q.shape[-1] != k.shape[-1]:
        note = f"M is not square: queries read {site.d_model} inputs, keys {site.key_width}"
        empty = _empty([*notes, note])
        return iter([beginning | empty for beginning in _begin_rows(site, options)])
    form = Form(q, k, key_head)
    return _score_rows(site, form, layer_form(form), notes, options)


def _begin_rows(site: AttentionSite, options: ScoreOptions) -> list[Row]:
    """The first columns of the rows of a site, which tell them apart: of the layer, then of each head."""
    common = {"stack": site.stack, "layer": site.layer, "d_model": site.d_model, "head_dim": site.head_dim}
    heads = [*enumerate(key_heads_of(site, options.convention))]
    return [common | {"head": head, "key_head": key} for head, key in [(None, None), *heads]]


def _score_rows(
    site: AttentionSite, heads: Form, layer: Form, notes: list[str], options: ScoreOptions
) -> Iterator[Row]:
    """The rows of a site, from the forms of its heads and that of their sum."""
    beginnings = iter(_begin_rows(site, options))
    for form in (layer, heads):
        left, left_divisors = rescale(form.left)
        right, right_divisors = rescale(form.right)
        divisors = left_divisors.double() * right_divisors[form.key_heads].double()
        statistics = form_statistics(Form(left, right, form.key_heads))
        for row in score_forms(statistics, divisors.tolist(), notes, options):
            yield next(beginnings) | row


def score_forms(
    statistics: FormStatistics, divisors: Sequence[float], notes: list[str], options: ScoreOptions
) -> list[Row]:
    """The scores of each head of a form. divisors: what the product of the factors of each head was divided by."""
    scores = [spec.compute(statistics, options) for spec in SCORES.values()]
    numbers = torch.stack([statistics.squared_norm.to(scores[0]), *scores], 1).tolist()
    d_model = statistics.row_norms.shape[1]
    note = "; ".join(notes)
    rows = []
    for divisor, (squared_norm, *values) in zip(divisors, numbers, strict=True):
        if not math.isfinite(divisor):
            rows.append(_empty([*notes, "NaN or Inf in the query or key weights"]))
            continue
        if divisor == 0 or squared_norm <= 0:
            rows.append(_empty([*notes, "the form is zero"], frobenius_norm=0.0))
            continue
        row: Row = dict(zip(SCORES, values, strict=True))
        for name, spec in SCORES.items():
            if spec.chance_is_exact:
                row[f"{name}_z"] = spec.z(row[name], d_model)
        rows.append(row | {"frobenius_norm": math.sqrt(squared_norm) * divisor, "note": note})
    return rows


def _empty(notes: list[str], frobenius_norm: float = math.nan) -> Row:
    scores = dict.fromkeys((*score_names(), *z_columns()), math.nan)
    return scores | {"frobenius_norm": frobenius_norm, "note": "; ".join(notes)}


def _describe_making(
    store: TensorStore, sites: list[AttentionSite], options: ScoreOptions, device: torch.device
) -> dict[str, Any]:
    """How scores are made, for reports and for the list of what is kept."""
    return {
        **software(), **machine(), "model": store.ref, "revision": store.revision, "device": str(device),
        "layers": len(sites), "options": dict(options),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }  # fmt: skip


class QueryKeyMatrix(NamedTuple):
    """A reduced W_qk.

    cells: the largest |entry| of each square of W_qk; rows and columns are named after the first of the square. norms:
    one row for each row and column of W_qk, with the columns axis ("row" or "column"), index, norm and outlier.
    """

    cells: pd.DataFrame
    norms: pd.DataFrame


class MatrixKeywords(HubAccess):
    """The keywords of `query_key_matrix`."""

    hub: HubAccess | None = None
    layer: int = 0
    head: int | None = None
    stack: str | None = None
    gamma: float = 2.0
    cells: int = MOST_CELLS


@takes(MatrixKeywords)
def query_key_matrix(
    model: Model,
    layer: int = 0,
    *,
    head: int | None = None,
    stack: str | None = None,
    gamma: float = 2.0,
    cells: int = MOST_CELLS,
    hub: HubAccess,
) -> QueryKeyMatrix:
    """W_qk of one layer, or of one of its heads, small enough to be drawn.

    Args:
        model: as for `attngeo.score`.
        layer: number of the layer in its stack.
        head: number of a query head; by default the sum over all heads.
        stack: name of the stack; by default the first one.
        gamma: a row or column is an outlier if its norm exceeds mean + gamma·std of the norms; directionality sums the
            outliers.
        cells: the largest number of squares along an edge.
        hub: access to the Hub; its fields are keywords, too:
            {hub}

    Returns:
        The squares, and the norms of rows and columns. The `attrs` of both tables say which matrix it is.

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: the model cannot be read or scored.
        UsageError: there is no such layer or head, or a number is outside its limits.

    >>> cells, norms = query_key_matrix("demo:minilm", layer=2, cells=100)
    >>> cells.shape, int(norms.outlier.sum())
    ((96, 96), 57)
    """
    gamma = real("gamma", gamma, 0)
    cells = whole("cells", cells, 1)
    with closing(open_store(model, hub)) as store, about(store.ref), torch.inference_mode():
        sites, _ = sites_of(store)
        site = select(sites, stack or sites[0].stack, [layer], store.ref)[0]
        if head is not None and not 0 <= head < site.heads:
            raise UsageError(f"{store.ref} has no head {head} in layer {layer}, expected from 0 to {site.heads - 1}")
        form = _read_form(store, site, head)
    d_model = form.left.shape[2]
    edge = -(-d_model // cells)
    attrs: dict[Any, Any] = {
        "model": store.ref,
        "stack": site.stack,
        "layer": layer,
        "head": head,
        "gamma": gamma,
        "edge": edge,
    }
    firsts = range(0, d_model, edge)
    largest = largest_entries(form.left[0], form.right[0], edge)
    shown = pd.DataFrame(largest.float().numpy(), index=firsts, columns=firsts)
    norms = _measure_norms(form, gamma)
    shown.attrs = norms.attrs = attrs
    return QueryKeyMatrix(shown, norms)


def _read_form(store: TensorStore, site: AttentionSite, head: int | None) -> Form:
    """The form of one head, or of the whole layer. Raises CheckpointError."""
    q, k, _ = projections(site, read(store, site), dtype=torch.float64)
    if q.shape[-1] != k.shape[-1]:
        raise CheckpointError(f"{site.module}: W_qk is not square, expected queries and keys of the same input width")
    key_head = key_heads_of(site, "corrected")
    form = layer_form(Form(q, k, key_head)) if head is None else Form(q[[head]], k[[key_head[head]]], [0])
    if not (form.left.isfinite().all() and form.right.isfinite().all()):
        raise CheckpointError(f"{site.module} has NaN or Inf in its query or key weights")
    return form


def _measure_norms(form: Form, gamma: float) -> pd.DataFrame:
    """The norm of each row and each column of a form of one head."""
    statistics = form_statistics(form)
    parts = [
        pd.DataFrame(
            {
                "axis": axis,
                "index": range(len(norms)),
                "norm": norms,
                "outlier": is_outlier(norms, outlier_threshold(norms, gamma)).numpy(),
            }
        )
        for axis, norms in (("row", statistics.row_norms[0]), ("column", statistics.column_norms[0]))
    ]
    return pd.concat(parts, ignore_index=True)
