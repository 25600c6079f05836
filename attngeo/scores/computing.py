"""The scores of every site of a model: reads ahead while it computes, few sites in memory at a time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from attngeo.bounds import in_utf8
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.store import TensorStore
from attngeo.choices import Precision
from attngeo.devices import pick_device
from attngeo.errors import UsageError
from attngeo.geometry.factors import FormStatistics, form_statistics, head_statistics, layer_factors
from attngeo.geometry.scale import rescale
from attngeo.layouts.sites import AttentionSite
from attngeo.progress import Progress, ProgressCallback
from attngeo.provenance import machine, software
from attngeo.scores.options import ScoreOptions
from attngeo.scores.pipeline import read_ahead, site_nbytes
from attngeo.scores.projections import Variants, key_heads_of, list_unused, projections, select, sites_of
from attngeo.scores.spec import SCORES, score_names, z_columns
from attngeo.studies.results import Kept, KeptResult

log = logging.getLogger(__name__)

DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "float64": torch.float64, "fast": torch.bfloat16}


def compute(
    model: Any,
    options: ScoreOptions,
    hub: HubAccess,
    report: ProgressCallback,
    record: KeptResult | None = None,
    *,
    resume: bool = True,
) -> Kept:
    """The rows of the table of scores, and how they were made; see `attngeo.score`.

    record: keeps each layer when it is finished, and all of them at the end. resume: whether layers that it has are
    taken from it; if not, they are removed.
    """
    started, device = time.perf_counter(), pick_device(options.device)
    if device.type == "mps" and options.precision == "float64":
        raise UsageError("device mps has no float64, expected precision float32 or fast, or device cpu")
    with closing(open_store(model, hub)) as store, torch.inference_mode():
        sites, skipped = sites_of(store, Variants.of(options), lambda file: report(Progress("download", file)))
        sites = select(sites, options.stack, options.layers, store.ref)
        about = _describe_making(store, sites, options, device) | {"skipped": skipped}
        if record is not None and not resume:
            record.forget_parts()
        parts = record.load_parts(len(sites)) if record is not None and resume else {}
        rows = {at: kept.rows for at, kept in parts.items() if kept.about.get("device") == str(device)}
        if rows:
            report(Progress("kept", f"{len(rows)} of {len(sites)} layers from the result store"))
        left = {at: site for at, site in enumerate(sites) if at not in rows}
        common = _describe_model(store, sites)
        with closing(_score_sites(store, list(left.values()), options, device, report)) as scored:
            for at, of_site in zip(left, scored, strict=True):
                rows[at] = [_in_utf8(common | row) for row in of_site]
                if record is not None:
                    record.keep_part(at, rows[at], about)
    found = Kept([row for at in range(len(sites)) for row in rows[at]], about)
    log.info("%s: %d rows in %.1f s", store.ref, len(found.rows), time.perf_counter() - started)
    if record is not None:
        record.keep(*found)
    return found


def _score_sites(
    store: TensorStore,
    sites: list[AttentionSite],
    options: ScoreOptions,
    device: torch.device,
    report: ProgressCallback,
) -> Generator[list[dict[str, Any]]]:
    """The rows of each site, without what all rows of the model have in common."""
    variants, dtype = Variants.of(options), DTYPES[options.precision]
    log.info("%s: %s, on %s in %s", store.ref, _describe(store, sites), device, options.precision)
    for site, tensors in read_ahead(store, sites, device=device, memory=options.memory, report=report):
        q, k, notes = projections(site, tensors, variants, dtype=dtype, device=device, ref=store.ref)
        tensors.clear()
        scored = score_site(site, q, k, [*notes, *_option_notes(options)], options)
        yield list(islice(scored, None if options.per_head else 1))


def _describe_model(store: TensorStore, sites: list[AttentionSite]) -> dict[str, Any]:
    """The columns that are equal in all rows."""
    return {
        "model": store.ref, "revision": store.revision, "model_type": store.config.get("model_type"),
        "parameters": _count_parameters(store, sites),
    }  # fmt: skip


def _in_utf8(row: dict[str, Any]) -> dict[str, Any]:
    return {name: in_utf8(value) if isinstance(value, str) else value for name, value in row.items()}


def _describe(store: TensorStore, sites: list[AttentionSite]) -> str:
    """What will be read, for the log."""
    rules = ", ".join(dict.fromkeys(site.rule for site in sites))
    size = sum(site_nbytes(store, site) for site in sites)
    return f"{len(sites)} layers found by {rules}, {size / 1e6:,.1f} MB to read"


def _count_parameters(store: TensorStore, sites: list[AttentionSite]) -> int | None:
    """Numbers in the whole checkpoint, from its bytes: exact if all of it has the width of the weights scored.

    None if the checkpoint does not state its bytes, or states fewer than those of the weights scored.
    """
    total, info = store.total_nbytes, store.info(next(iter(sites[0].tensors.values())))
    count, scored = math.prod(info.shape), {name for site in sites for name in site.tensors.values()}
    if total is None or not count or total < sum(store.info(name).nbytes for name in scored):
        return None
    return total * count // info.nbytes


def _option_notes(options: ScoreOptions) -> list[str]:
    """Notes that tell rows from those with default options, in every file that they are written to."""
    plain = ScoreOptions()
    notes = [] if options.convention == plain.convention else [f"{options.convention} convention"]
    return notes if options.gamma == plain.gamma else [*notes, f"gamma {options.gamma:g}"]


def score_site(
    site: AttentionSite, q: Tensor, k: Tensor, notes: list[str], options: ScoreOptions
) -> Iterator[dict[str, Any]]:
    """The row of the layer, then one of each head. Each is computed when the caller asks for it.

    q, k: [heads, head_dim, d_model] and [key_heads, head_dim, d_model].
    """
    key_head = key_heads_of(site, options.convention)
    common = {"stack": site.stack, "layer": site.layer, "d_model": site.d_model, "head_dim": site.head_dim}
    if q.shape[-1] != k.shape[-1]:
        note = f"M is not square: queries read {site.d_model} inputs, keys {site.key_width}"
        empty = _empty([*notes, note])
        yield common | {"head": None, "key_head": None} | empty
        yield from (common | {"head": h, "key_head": key_head[h]} | empty for h in range(site.heads))
        return
    yield common | {"head": None, "key_head": None} | _score_layer(q, k, key_head, notes, options)
    for head, scores in enumerate(_score_heads(q, k, key_head, notes, options)):
        yield common | {"head": head, "key_head": key_head[head]} | scores


def _score_layer(q: Tensor, k: Tensor, key_head: list[int], notes: list[str], options: ScoreOptions) -> dict[str, Any]:
    """The scores of Σ_h Wq_h·Wk_g(h)ᵀ."""
    (q, q_factor), (k, k_factor) = map(rescale, layer_factors(q, k, key_head))
    return _score_form(form_statistics(q, k), float(q_factor) * float(k_factor), notes, options)


def _score_heads(
    q: Tensor, k: Tensor, key_head: list[int], notes: list[str], options: ScoreOptions
) -> Iterator[dict[str, Any]]:
    (q, q_divisors), (k, k_divisors) = rescale(q), rescale(k)
    q_factors, k_factors = q_divisors.tolist(), k_divisors.tolist()
    for head, form in enumerate(head_statistics(q, k, key_head)):
        yield _score_form(form, q_factors[head] * k_factors[key_head[head]], notes, options)


def _score_form(form: FormStatistics, factor: float, notes: list[str], options: ScoreOptions) -> dict[str, Any]:
    """One row's scores, from the statistics of a form whose factors were divided by numbers of product `factor`."""
    if not math.isfinite(factor):
        return _empty([*notes, "NaN or Inf in the query or key weights"])
    squared_norm, d_model = float(form.squared_norm), len(form.row_norms)
    if factor == 0 or squared_norm <= 0:
        return _empty([*notes, "the form is zero"], frobenius_norm=0.0)
    scores = {name: spec.compute(form, options) for name, spec in SCORES.items()}
    above_chance = {f"{name}_z": spec.z(scores[name], d_model) for name, spec in SCORES.items() if spec.chance_is_exact}
    return scores | above_chance | {"frobenius_norm": math.sqrt(squared_norm) * factor, "note": "; ".join(notes)}


def _empty(notes: list[str], frobenius_norm: float = math.nan) -> dict[str, Any]:
    scores = dict.fromkeys((*score_names(), *z_columns()), math.nan)
    return scores | {"frobenius_norm": frobenius_norm, "note": "; ".join(notes)}


def _describe_making(
    store: TensorStore, sites: list[AttentionSite], options: ScoreOptions, device: torch.device
) -> dict[str, Any]:
    """How scores are made, for reports and for the list of what is kept."""
    return {
        **software(), **machine(), "model": store.ref, "revision": store.revision, "device": str(device),
        "unused": list_unused(sites, Variants.of(options)), "layers": len(sites), "options": dict(options),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }  # fmt: skip
