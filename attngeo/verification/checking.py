"""Run a model on known inputs and compare every product of queries and keys with the weights that attngeo reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from attngeo.attention.options import ReadingOptions
from attngeo.attention.projections import key_heads_of, output_projections, projections
from attngeo.checkpoints.store import TensorStore
from attngeo.errors import about
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.names import is_in, pattern_of
from attngeo.layouts.rules import OutputNote
from attngeo.verification.comparing import TOLERANCE, Prediction, compare_products
from attngeo.verification.mixing import record_mixtures
from attngeo.verification.probing import OnRun, RunModel, align_products, run_on_vectors, vectors_of_runs
from attngeo.verification.recording import Recorder, record_products
from attngeo.verification.written import OutputComparison, OutputPrediction, align_mixtures, compare_outputs

# What is compared: queries and keys with their biases.
COMPARED = ReadingOptions(with_bias=True)

Verdict = Literal["agrees", "directions agree", "heads agree", "parts agree", "differs", "no product", "not run"]
# Verdicts of values and outputs that need a reason → the notes one of which a site must have.
EXPLAINED: Mapping[Verdict, frozenset[OutputNote]] = {
    "heads agree": frozenset([OutputNote.SINK]),
    "parts agree": frozenset(OutputNote) - {OutputNote.VALUE_NORM},
}


@dataclass(frozen=True)
class Expectation:
    """The products that one site should give, if its weights are read correctly.

    Attributes:
        site: the attention site.
        module: name of its module in the running model, which can differ from the name in the file.
        prediction: its queries and keys for the vectors of `predict_factors`.
        outputs: its outputs for these vectors; None if outputs are not checked.
    """

    site: AttentionSite
    module: str
    prediction: Prediction
    outputs: OutputPrediction | None = None


@dataclass(frozen=True)
class SiteCheck:
    """One site compared with the running model.

    Attributes:
        site: the attention site.
        verdict: "agrees"; "directions agree" if the model divides queries and keys by their lengths; "differs"; "no
            product" if the module ran, but no product in it went through a softmax; "not run".
        difference: relative difference, see `compare_products`.
        outputs: verdict on values and outputs; "" if they are not checked. "heads agree" if each head writes what it
            should from what it reads, but its attention weights do not sum to 1; "parts agree" if values and output
            projection agree, but something comes between them; both only if a note of the site says why, see
            `EXPLAINED`.
        written: differences of values and outputs.
    """

    site: AttentionSite
    verdict: Verdict
    difference: float
    outputs: Verdict | Literal[""] = ""
    written: OutputComparison | None = None


@dataclass(frozen=True)
class Findings:
    """All sites of a model compared with the running model.

    Attributes:
        checks: one check per site.
        unexplained: name patterns of attending modules that match no site.
        unreported: the unexplained modules that are not left out for a known reason either.
    """

    checks: list[SiteCheck]
    unexplained: list[str]
    unreported: list[str]


def _module_of(pattern: str) -> str:
    """The module of what is left out: of a layer's weight, of a raw weight, or the module itself."""
    segments = pattern.split(".")
    if segments[-1] in ("weight", "bias"):
        return ".".join(segments[:-2])
    if segments[-1].endswith(("_weight", "_bias")):
        return ".".join(segments[:-1])
    return pattern


def predict_factors(store: TensorStore, site: AttentionSite, options: ReadingOptions = COMPARED) -> Prediction:
    """Queries and keys of a site for the input vector of each run. Reads only the weights of this site.

    options: which bilinear form to read; must include biases.
    """
    with about(store.ref):
        q, k, _ = projections(site, store.read_all(site.reads), options, dtype=torch.float32)
    query, query_with_bias = _apply_weight(q, site.d_model)
    key, key_with_bias = _apply_weight(k[key_heads_of(site, "corrected")], site.key_width)
    return Prediction(query, key, query_with_bias, key_with_bias)


def predict_outputs(store: TensorStore, site: AttentionSite, options: ReadingOptions = COMPARED) -> OutputPrediction:
    """What a site writes for the input vector of each run. Reads only its values and outputs.

    options: which form to read; must include biases. Raises UnsupportedModelError if its values or outputs are unknown.
    """
    with about(store.ref):
        v, o, bias, _ = output_projections(site, store.read_all(site.reads), options, dtype=torch.float32)
    _, values = _apply_weight(v, site.key_width)
    written = torch.einsum("hrk,hkd->rd", values[key_heads_of(site, "corrected")], o)
    return OutputPrediction(values, o, written if bias is None else written + bias)


def _apply_weight(weight: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The product [heads, runs, head_dim] of a weight with the vector of each run, and the same with its bias.

    weight: [heads, head_dim, width], or width + 1 with a bias.
    """
    inputs = torch.stack([vectors(width) for vectors in vectors_of_runs()])
    linear = torch.einsum("rd,hkd->hrk", inputs, weight[..., :width])
    return linear, linear + weight[..., width:].sum(-1)[:, None]


def check_expectations(
    model: Any,
    run_model: RunModel,
    expected: Sequence[Expectation],
    skipped: Mapping[str, str],
    on_run: OnRun,
) -> Findings:
    """Compare the products that sites should give with the products of the running model.

    Args:
        model: the model in memory.
        run_model: runs the model, or its parts one by one, on inputs that reach every attention module; it must do the
            same each time.
        expected: what each site should multiply.
        skipped: what is left out: name pattern → reason.
        on_run: called with the number of finished runs, and the number of all runs.
    """
    with record_products(model) as recording:
        run_model()
    with_outputs = any(expectation.outputs is not None for expectation in expected)
    record: Callable[..., AbstractContextManager[Recorder]] = record_mixtures if with_outputs else record_products
    containers = [_nearest(expectation.module, recording.ran) for expectation in expected]
    contained: dict[str, list[int]] = defaultdict(list)
    widths: dict[str, set[int]] = defaultdict(set)
    for index, container in enumerate(containers):
        if container is not None:
            site = expected[index].site
            contained[container].append(index)
            widths[container] |= {site.d_model, site.key_width}
    best: dict[int, tuple[float, bool]] = {}
    explained: set[int] = set()
    attending: set[tuple[int, tuple[str, ...]]] = set()
    recordings = run_on_vectors(model, run_model, widths, recording.products, on_run, record)
    for product in align_products(recordings):
        attending.add((product.softmax, product.running))
        owner = next((name for name in reversed(product.running) if name in widths), None)
        if owner is None:
            continue
        for index in contained[owner]:
            comparison = compare_products(expected[index].prediction, product.query, product.key)
            best[index] = min(best.get(index, comparison), comparison)
            if comparison[0] < TOLERANCE:
                explained.add(product.softmax)
    written = _compare_mixtures(recordings, expected, contained)
    checks = []
    differing = set()
    for index, container in enumerate(containers):
        check = _judge(expected[index].site, ran=container is not None, comparison=best.get(index))
        checks.append(_judge_outputs(check, expected[index], written.get(index)))
        if check.verdict == "differs":
            differing.add(container)
    others = [running for softmax, running in attending if softmax not in explained and differing.isdisjoint(running)]
    unexplained = sorted({pattern_of(running[-1]) for running in others if not _projects_nothing(model, running[-1])})
    left_out = [_module_of(name) for name in skipped]
    return Findings(checks, unexplained, [module for module in unexplained if not _is_reported(module, left_out)])


def _is_reported(module: str, left_out: Sequence[str]) -> bool:
    """Whether a module is one of those that are left out, inside one or around one."""
    return any(is_in(other, module) or is_in(module, other) for other in left_out)


def _projects_nothing(model: Any, module: str) -> bool:
    """Whether the products of a module are no attention of its own.

    The whole model may multiply, for example for an alignment. If all parameters are vectors or learned queries, there
    is no query-key matrix.
    """
    if not module:
        return True
    parameters = list(model.get_submodule(module).named_parameters())
    if not parameters:
        return False
    return all(tensor.ndim < 2 or name.endswith(("query", "queries")) for name, tensor in parameters)


def _nearest(module: str, ran: set[str]) -> str | None:
    """The module itself if it ran, or else the nearest one around it that did; None if only the whole model ran."""
    while module and module not in ran:
        module = module.rpartition(".")[0]
    return module or None


def _compare_mixtures(
    recordings: Iterable[Recorder], expected: Sequence[Expectation], contained: Mapping[str, Sequence[int]]
) -> dict[int, OutputComparison]:
    """The best comparison of each expectation, by its number, with what is made of values in its container.

    contained: module → the numbers of the expectations in it.
    """
    best: dict[int, OutputComparison] = {}
    for mixture in align_mixtures(recordings):
        owner = next((name for name in reversed(mixture.running) if name in contained), None)
        if owner is None:
            continue
        for index in contained[owner]:
            outputs = expected[index].outputs
            if outputs is not None:
                comparison = compare_outputs(outputs, mixture)
                best[index] = min(best.get(index, comparison), comparison, key=lambda other: other.rank)
    return best


def _judge_outputs(check: SiteCheck, expectation: Expectation, comparison: OutputComparison | None) -> SiteCheck:
    """The check with the result for values and outputs, if they are checked."""
    if expectation.outputs is None:
        return check
    if comparison is None:
        return replace(check, outputs=check.verdict if check.verdict == "not run" else "no product")
    verdict: Verdict = comparison.verdict
    stated = {note for note in check.site.output_notes if isinstance(note, OutputNote)}
    if verdict in EXPLAINED and EXPLAINED[verdict].isdisjoint(stated):
        verdict = "differs"
    return replace(check, outputs=verdict, written=comparison)


def _judge(site: AttentionSite, *, ran: bool, comparison: tuple[float, bool] | None) -> SiteCheck:
    if comparison is None:
        return SiteCheck(site, "no product" if ran else "not run", float("nan"))
    difference, only_directions = comparison
    if difference >= TOLERANCE:
        return SiteCheck(site, "differs", difference)
    return SiteCheck(site, "directions agree" if only_directions else "agrees", difference)
