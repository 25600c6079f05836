"""From a model to the tidy table of scores: reads ahead while it computes, one site in memory at a time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.store import TensorStore
from attngeo.choices import Convention, Precision, one_of
from attngeo.devices import pick_device
from attngeo.errors import UsageError
from attngeo.geometry.chance import symmetry_z
from attngeo.geometry.directionality import check_choices, directionality_of
from attngeo.geometry.factors import FormStatistics, form_statistics, head_statistics, layer_factors
from attngeo.geometry.scale import rescale
from attngeo.geometry.symmetry import symmetry_of
from attngeo.layouts.sites import AttentionSite
from attngeo.progress import Progress
from attngeo.provenance import machine, software
from attngeo.scores.projections import Variants, key_heads_of, projections, read, select, sites_of

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "float64": torch.float64, "fast": torch.bfloat16}

COLUMNS = (
    "model", "revision", "model_type", "stack", "layer", "head", "key_head", "d_model", "head_dim",
    "parameters", "symmetry", "directionality", "frobenius_norm", "symmetry_z", "note",
)  # fmt: skip
# Past this many positions float64 no longer knows the angle of a rotation.
LARGEST_OFFSET = 2**31
INTEGERS = ("layer", "head", "key_head", "d_model", "head_dim", "parameters")


@dataclass(frozen=True)
class ScoreOptions:
    """Which scores: standard deviations above the mean that make a norm stand out, and by whose convention."""

    gamma: float = 2.0
    convention: Convention = "corrected"


def score(
    model: Any,
    *,
    per_head: bool = False,
    stack: str | None = None,
    layers: Iterable[int] | None = None,
    gamma: float = 2.0,
    convention: Convention = "corrected",
    with_bias: bool = False,
    fold_norm: bool = False,
    rope_offset: int = 0,
    device: str = "auto",
    precision: Precision = "float32",
    offline: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> pd.DataFrame:
    """Symmetry and directionality of every layer, and with `per_head` of every head, of a model's attention.

    model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory.
    stack, layers: only these. gamma: threshold of directionality, in standard deviations above the mean norm.
    convention: "corrected" for the definitions, "published" for what the paper's tables S4 and S5 computed.
    with_bias: count the biases, as one more input that is always 1. fold_norm: score the form in front of the
    normalisation's gain. rope_offset: query position minus key position, for rotary embeddings.
    device: "auto", "cpu", "cuda", "cuda:N" or "mps". precision: "float32", "float64", or "fast" for bfloat16 products
    (norms to about 1e-3). offline: use the Hub's cache only. progress: called before each file and layer.

    Returns a DataFrame of one row per layer (`head` missing) and head, with the columns `COLUMNS`; scores are missing
    where the form is zero or not finite, and `note` says why. Its `attrs` say how it was made.
    Raises ModelUnavailableError, CheckpointError or UsageError.

    >>> import attngeo
    >>> frame = attngeo.score("demo:minilm", layers=[0])
    >>> round(frame.symmetry.item(), 4)
    0.4051
    """
    import pandas as pd

    check_choices(gamma, convention)
    scale, variants = ScoreOptions(gamma, convention), Variants(with_bias, fold_norm, rope_offset)
    target, dtype = pick_device(device), pick_dtype(precision)
    if target.type == "mps" and dtype == torch.float64:
        raise UsageError("device mps has no float64, expected precision float32 or fast, or device cpu")
    if abs(rope_offset) > LARGEST_OFFSET:
        raise UsageError(f"rope_offset is {rope_offset}, expected at most {LARGEST_OFFSET} positions either way")
    with closing(open_store(model, offline=offline)) as store, torch.inference_mode():
        sites, skipped = sites_of(store, variants)
        sites = select(sites, stack, layers, store.ref)
        log.info("%s: %s, on %s in %s", store.ref, _found(store, sites), target, precision)
        started = time.perf_counter()
        report = progress or (lambda _: None)
        store.fetch(
            (name for site in sites for name in site.tensors.values()),
            lambda file: report(Progress("download", file)),
        )
        rows: list[dict[str, Any]] = []
        common = {
            "model": store.ref, "revision": store.revision, "model_type": store.config.get("model_type"),
            "parameters": _parameters(store, sites),
        }  # fmt: skip
        for site, tensors in _read_ahead(store, sites, report):
            q, k, notes = projections(site, tensors, variants, dtype=dtype, device=target, ref=store.ref)
            notes += _unusual(scale)
            tensors.clear()
            wanted = islice(score_site(site, q, k, notes, scale), None if per_head else 1)
            rows += [common | row for row in wanted]
        log.info("%s: %d rows in %.1f s", store.ref, len(rows), time.perf_counter() - started)
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(INTEGERS, "Int64"))
    frame.attrs = _provenance(store, skipped, scale, variants, target, precision)
    return frame


def _found(store: TensorStore, sites: list[AttentionSite]) -> str:
    """What is about to be read, in words."""
    rules = ", ".join(dict.fromkeys(site.rule for site in sites))
    size = sum(site_nbytes(store, site) for site in sites)
    return f"{len(sites)} layers found by {rules}, {size / 1e6:,.1f} MB to read"


def _parameters(store: TensorStore, sites: list[AttentionSite]) -> int | None:
    """Numbers in the whole checkpoint, from its bytes: exact where all of it has the width of the weights scored."""
    total, info = store.total_nbytes, store.info(next(iter(sites[0].tensors.values())))
    count = math.prod(info.shape)
    return None if total is None or not count else total * count // info.nbytes


def _unusual(scale: ScoreOptions) -> list[str]:
    """Notes that tell rows from those of the default scale, wherever they are written to."""
    notes = [] if scale.convention == "corrected" else [f"{scale.convention} convention"]
    return notes if scale.gamma == ScoreOptions.gamma else [*notes, f"gamma {scale.gamma:g}"]


def pick_dtype(precision: str) -> torch.dtype:
    """The dtype that products are taken in. Raises UsageError for a name that is not a precision."""
    return DTYPES[one_of("precision", precision, Precision)]


def _read_ahead(
    store: TensorStore, sites: list[AttentionSite], report: Callable[[Progress], None]
) -> Iterator[tuple[AttentionSite, dict[str, Tensor]]]:
    """Each site with its tensors, the next site's being read while the caller works on this one's."""
    total = sum(site_nbytes(store, site) for site in sites)
    done = 0
    with ThreadPoolExecutor(1, thread_name_prefix="attngeo-read") as reader:
        following = reader.submit(read, store, sites[0])
        for i, site in enumerate(sites):
            tensors = following.result()
            if i + 1 < len(sites):
                following = reader.submit(read, store, sites[i + 1])
            report(Progress("score", f"{site.stack} {site.layer}", done, total))
            yield site, tensors
            done += site_nbytes(store, site)
        report(Progress("score", "done", done, total))


def site_nbytes(store: TensorStore, site: AttentionSite) -> int:
    """Bytes that are read for one site."""
    count = 0
    for name, rows in site.reads.items():
        info = store.info(name)
        count += info.row_nbytes * len(range(info.shape[0])[rows]) if info.shape else info.nbytes
    return count


def score_site(
    site: AttentionSite, q: Tensor, k: Tensor, notes: list[str], scale: ScoreOptions
) -> Iterator[dict[str, Any]]:
    """The row of the layer, then one of each head: computed as they are asked for."""
    key_head = key_heads_of(site, scale.convention)
    common = {"stack": site.stack, "layer": site.layer, "d_model": site.d_model, "head_dim": site.head_dim}
    if q.shape[-1] != k.shape[-1]:
        note = f"no square form: queries read a width of {site.d_model}, keys of {site.key_width}"
        empty = _empty("; ".join([*notes, note]))
        yield common | {"head": None, "key_head": None} | empty
        yield from (common | {"head": h, "key_head": key_head[h]} | empty for h in range(site.heads))
        return
    yield common | {"head": None, "key_head": None} | _layer_scores(q, k, key_head, notes, scale)
    for head, scores in enumerate(_head_scores(q, k, key_head, notes, scale)):
        yield common | {"head": head, "key_head": key_head[head]} | scores


def _layer_scores(q: Tensor, k: Tensor, key_head: list[int], notes: list[str], scale: ScoreOptions) -> dict[str, Any]:
    """The scores of Σ_h Wq_h·Wk_g(h)ᵀ."""
    (q, q_factor), (k, k_factor) = map(rescale, layer_factors(q, k, key_head))
    return _scores(form_statistics(q, k), q_factor, k_factor, notes, scale)


def _head_scores(
    q: Tensor, k: Tensor, key_head: list[int], notes: list[str], scale: ScoreOptions
) -> Iterator[dict[str, Any]]:
    (q, q_factors), (k, k_factors) = rescale(q), rescale(k)
    for head, own in enumerate(head_statistics(q, k, key_head)):
        yield _scores(own, q_factors[head], k_factors[key_head[head]], notes, scale)


def _scores(
    own: FormStatistics, q_factor: Tensor, k_factor: Tensor, notes: list[str], scale: ScoreOptions
) -> dict[str, Any]:
    """One row's scores, from the statistics of a form whose factors were divided by `q_factor` and `k_factor`."""
    factor = float(q_factor) * float(k_factor)
    if not math.isfinite(factor):
        return _empty("; ".join([*notes, "NaN or Inf in the query or key weights"]))
    squared_norm = float(own.squared_norm)
    if factor == 0 or squared_norm <= 0:
        return _empty("; ".join([*notes, "the form is zero"]), frobenius_norm=0.0)
    symmetry = float(symmetry_of(own))
    directionality = directionality_of(own, gamma=scale.gamma, convention=scale.convention)
    return {
        "symmetry": symmetry,
        "directionality": float(directionality),
        "frobenius_norm": math.sqrt(squared_norm) * factor,
        "symmetry_z": symmetry_z(symmetry, len(own.row_norms)),
        "note": "; ".join(notes),
    }


def _empty(note: str, frobenius_norm: float = math.nan) -> dict[str, Any]:
    scores = dict.fromkeys(("symmetry", "directionality", "symmetry_z"), math.nan)
    return scores | {"frobenius_norm": frobenius_norm, "note": note}


def _provenance(
    store: TensorStore,
    skipped: list[str],
    scale: ScoreOptions,
    variants: Variants,
    device: torch.device,
    precision: str,
) -> dict[Any, Any]:
    """How a table was made, for reports."""
    return {
        "title": "Attention scores", **software(), **machine(), "device": str(device),
        "precision": precision, "model": store.ref, "revision": store.revision, **asdict(scale), **asdict(variants),
        "skipped": skipped,
    }  # fmt: skip
