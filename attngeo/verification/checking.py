"""Run a model on known inputs and compare every product of queries and keys with the weights that attngeo reads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from attngeo.checkpoints.module_store import ModuleStore
from attngeo.layouts.names import pattern_of
from attngeo.layouts.sites import AttentionSite
from attngeo.scores.projections import Variants, key_heads_of, projections, read, sites_of
from attngeo.verification.agreement import TOLERANCE, Prediction, compare
from attngeo.verification.constant_inputs import Arguments, Vectors, linear_norms, probe_inputs, random_vectors
from attngeo.verification.products import Product, record_products

# The first run is what the others are compared with.
RUNS = 4

Verdict = Literal["agrees", "directions agree", "differs", "no product", "not run"]


@dataclass(frozen=True)
class SiteCheck:
    """One site against the running model.

    verdict: "agrees"; "directions agree" if the model divides queries and keys by their lengths; "differs";
    "no product" if the module ran, but no product in it went through a softmax; "not run". difference: relative, see
    `compare`.
    """

    site: AttentionSite
    verdict: Verdict
    difference: float


@dataclass(frozen=True)
class Findings:
    """All sites of a model against the running model.

    unexplained: name patterns of modules that attend and that no site explains. skipped: what attngeo
    reports as left out, name pattern → reason.
    """

    checks: list[SiteCheck]
    unexplained: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def check_model(model: Any, run: Callable[[], None]) -> Findings:
    """Check every attention site of a model in memory.

    run: runs the model, or parts of it one after the other, on inputs that reach every attention module; it must do the
    same each time. Raises what `attention_sites` raises.
    """
    store = ModuleStore(model)
    sites, skipped = sites_of(store, Variants(with_bias=True))
    vectors = [random_vectors(number) for number in range(RUNS)]
    predicted = [_predict(store, site, vectors) for site in sites]
    with record_products(model) as seen:
        run()
    containers = [_nearest(site.module, seen.ran) for site in sites]
    widths: dict[str, set[int]] = defaultdict(set)
    for site, container in zip(sites, containers, strict=True):
        if container is not None:
            widths[container] |= {site.d_model, site.key_width}
    others: Arguments = {}
    by_run = [_run_once(model, run, widths, own, others) for own in vectors]
    products = [product for product in _align(by_run) if not _projects_nothing(model, product.running[-1])]
    return _judge(sites, predicted, containers, products, skipped)


def _projects_nothing(model: Any, module: str) -> bool:
    """Whether the module has parameters, all of them vectors or learned queries: it has no query-key matrix."""
    own = list(model.get_submodule(module).named_parameters())
    return bool(own) and all(tensor.ndim < 2 or name.endswith(("query", "queries")) for name, tensor in own)


def _predict(store: ModuleStore, site: AttentionSite, vectors: Iterable[Vectors]) -> Prediction:
    """Queries and keys of the site for each run's input."""
    q, k, _ = projections(site, read(store, site), Variants(with_bias=True), dtype=torch.float32, ref=store.ref)
    k = k[key_heads_of(site, "corrected")]
    vectors = list(vectors)
    factors = []
    for weight, width in ((q, site.d_model), (k, site.key_width)):
        inputs = torch.stack([own(width) for own in vectors])
        linear = torch.einsum("rd,hkd->hrk", inputs, weight[..., :width])
        factors.append((linear, linear + weight[..., width:].sum(-1)[:, None]))
    (query, query_with_bias), (key, key_with_bias) = factors
    return Prediction(query, key, query_with_bias, key_with_bias)


def _nearest(module: str, ran: set[str]) -> str | None:
    """The module itself if it ran, or else the nearest one around it that did; None if only the whole model ran."""
    while module and module not in ran:
        module = module.rpartition(".")[0]
    return module or None


def _run_once(
    model: Any, run: Callable[[], None], widths: dict[str, set[int]], vectors: Vectors, others: Arguments
) -> list[Product]:
    with ExitStack() as hooks:
        hooks.enter_context(linear_norms(model, widths, vectors))
        hooks.enter_context(probe_inputs(model, widths, vectors, others))
        seen = hooks.enter_context(record_products(model))
        run()
    return seen.products


@dataclass(frozen=True)
class Aligned:
    """One product in all runs: query, key [runs, n, tokens, width]. running, softmax: as in `Product`."""

    query: Tensor
    key: Tensor
    running: tuple[str, ...]
    softmax: int


def _align(by_run: list[list[Product]]) -> list[Aligned]:
    """The products that every run computed. If the length of a sequence depends on the input, its start is kept."""
    numbered: list[dict[tuple[tuple[str, ...], int], Product]] = []
    for products in by_run:
        seen: Counter[tuple[str, ...]] = Counter()
        numbered.append({})
        for product in products:
            numbered[-1][product.running, seen[product.running]] = product
            seen[product.running] += 1
    found = []
    for place, first in numbered[0].items():
        same = [products[place] for products in numbered if place in products]
        sizes = {(*(x.shape[0] for x in (one.query, one.key)), one.query.shape[2]) for one in same}
        if len(same) == len(by_run) and len(sizes) == 1:
            query, key = (
                torch.stack([x[:, : min(other.shape[1] for other in factors)].float() for x in factors])
                for factors in ([one.query for one in same], [one.key for one in same])
            )
            found.append(Aligned(query, key, first.running, first.softmax))
    return found


def _judge(
    sites: list[AttentionSite],
    predicted: list[Prediction],
    containers: list[str | None],
    products: list[Aligned],
    skipped: dict[str, str],
) -> Findings:
    best: dict[int, tuple[float, bool]] = {}
    explained: set[int] = set()
    for product in products:
        places = [i for i, container in enumerate(containers) if container in product.running]
        deepest = max((product.running.index(str(containers[i])) for i in places), default=0)
        for i in places:
            if product.running.index(str(containers[i])) != deepest:
                continue
            found = compare(predicted[i], product.query, product.key)
            best[i] = min(best.get(i, found), found)
            if found[0] < TOLERANCE:
                explained.add(product.softmax)
    checks = []
    for i, site in enumerate(sites):
        difference, directions = best.get(i, (float("nan"), False))
        verdict: Verdict = "no product" if containers[i] else "not run"
        if i in best:
            verdict = "differs"
        if difference < TOLERANCE:
            verdict = "directions agree" if directions else "agrees"
        checks.append(SiteCheck(site, verdict, difference))
    blamed = {containers[i] for i, check in enumerate(checks) if check.verdict == "differs"}
    unexplained = {
        pattern_of(product.running[-1])
        for product in products
        if product.softmax not in explained and not blamed & set(product.running)
    }
    return Findings(checks, sorted(unexplained), skipped)
