"""Run a model on known inputs and compare every product of queries and keys with the weights that attngeo reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from attngeo.checkpoints.store import ModuleStore, TensorStore
from attngeo.layouts.names import is_in, pattern_of
from attngeo.layouts.sites import AttentionSite
from attngeo.scores.projections import Variants, key_heads_of, projections, read, sites_of
from attngeo.verification.agreement import TOLERANCE, Prediction, compare
from attngeo.verification.products import record_products
from attngeo.verification.runs import Report, Run, products_of_runs, vectors_of_runs

# What is compared: queries and keys with their biases.
COMPARED = Variants(with_bias=True)

Verdict = Literal["agrees", "directions agree", "differs", "no product", "not run"]


@dataclass(frozen=True)
class Expectation:
    """What one site should multiply, if its weights are read rightly.

    module: the name of its module in the running model, which may differ from that in the file. prediction: its queries
    and keys for the vectors of `predict`.
    """

    site: AttentionSite
    module: str
    prediction: Prediction


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

    @property
    def unreported(self) -> list[str]:
        """The name patterns of modules that attend, and that are neither read nor left out.

        What is left out is given as a module, or as a weight of one.
        """
        listed = [_module_of(name) for name in self.skipped]
        return [
            place for place in self.unexplained if not any(is_in(name, place) or is_in(place, name) for name in listed)
        ]


def _module_of(pattern: str) -> str:
    """The module of what is left out: of a layer's weight, of a raw weight, or the module itself."""
    parts = pattern.split(".")
    depth = 2 if parts[-1] in ("weight", "bias") else 1 if parts[-1].endswith(("_weight", "_bias")) else 0
    return ".".join(parts[: len(parts) - depth])


def check_model(model: Any, run: Run) -> Findings:
    """Check every attention site that attngeo finds in a model in memory.

    run: runs the model, or parts of it one after the other, on inputs that reach every attention module; it must do the
    same each time. Raises what `attention_sites` raises.
    """
    store = ModuleStore(model)
    sites, skipped = sites_of(store, COMPARED)
    expected = [Expectation(site, site.module, predict(store, site)) for site in sites]
    return check_expectations(model, run, expected, skipped)


def predict(store: TensorStore, site: AttentionSite) -> Prediction:
    """Queries and keys of a site for the vector that is the input of each run. Reads the weights of this site only."""
    q, k, _ = projections(site, read(store, site), COMPARED, dtype=torch.float32, ref=store.ref)
    k = k[key_heads_of(site, "corrected")]
    factors = []
    for weight, width in ((q, site.d_model), (k, site.key_width)):
        inputs = torch.stack([vectors(width) for vectors in vectors_of_runs()])
        linear = torch.einsum("rd,hkd->hrk", inputs, weight[..., :width])
        factors.append((linear, linear + weight[..., width:].sum(-1)[:, None]))
    (query, query_with_bias), (key, key_with_bias) = factors
    return Prediction(query, key, query_with_bias, key_with_bias)


def _ignore(done: int, total: int) -> None:
    """The report of a caller that gave none: does nothing."""


def check_expectations(
    model: Any,
    run: Run,
    expected: Sequence[Expectation],
    skipped: Mapping[str, str],
    report: Report = _ignore,
) -> Findings:
    """Check what sites should multiply against what the model multiplies.

    run: as for `check_model`. skipped: name pattern → reason, of the findings. report: is called
    with the number of runs that are done, and that of all.
    """
    with record_products(model, keep=lambda _: False) as seen:
        run()
    containers = [_nearest(each.module, seen.ran) for each in expected]
    places: dict[str, list[int]] = defaultdict(list)
    for i, container in enumerate(containers):
        if container is not None:
            places[container].append(i)
    best: dict[int, tuple[float, bool]] = {}
    explained: set[int] = set()
    attending: set[tuple[int, tuple[str, ...]]] = set()
    widths = {
        module: {width for i in own for width in (expected[i].site.d_model, expected[i].site.key_width)}
        for module, own in places.items()
    }
    for product in products_of_runs(model, run, widths, seen.products, report):
        attending.add((product.softmax, product.running))
        for i in places[product.owner] if product.owner is not None else ():
            found = compare(expected[i].prediction, product.query, product.key)
            best[i] = min(best.get(i, found), found)
            if found[0] < TOLERANCE:
                explained.add(product.softmax)
    checks = [
        _judge(each.site, ran=container is not None, found=best.get(i))
        for i, (each, container) in enumerate(zip(expected, containers, strict=True))
    ]
    blamed = {container for container, check in zip(containers, checks, strict=True) if check.verdict == "differs"}
    unexplained = {
        pattern_of(running[-1])
        for softmax, running in attending
        if softmax not in explained and not blamed & set(running) and not _projects_nothing(model, running[-1])
    }
    return Findings(checks, sorted(unexplained), dict(skipped))


def _projects_nothing(model: Any, module: str) -> bool:
    """Whether what the module multiplies is no attention of its own.

    The whole model may multiply, for example for an alignment. If all parameters are vectors or learned queries, there
    is no query-key matrix.
    """
    own = list(model.get_submodule(module).named_parameters())
    return not module or (
        bool(own) and all(tensor.ndim < 2 or name.endswith(("query", "queries")) for name, tensor in own)
    )


def _nearest(module: str, ran: set[str]) -> str | None:
    """The module itself if it ran, or else the nearest one around it that did; None if only the whole model ran."""
    while module and module not in ran:
        module = module.rpartition(".")[0]
    return module or None


def _judge(site: AttentionSite, *, ran: bool, found: tuple[float, bool] | None) -> SiteCheck:
    if found is None:
        return SiteCheck(site, "no product" if ran else "not run", float("nan"))
    difference, only_directions = found
    if difference >= TOLERANCE:
        return SiteCheck(site, "differs", difference)
    return SiteCheck(site, "directions agree" if only_directions else "agrees", difference)
