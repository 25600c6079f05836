"""Run a model on known inputs and compare every product of queries and keys with the weights that attngeo reads."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attngeo.checkpoints.store import TensorStore
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.names import is_in, pattern_of
from attngeo.scores.projections import key_heads_of, projections
from attngeo.scores.spec import ScoreOptions
from attngeo.scores.weights import read
from attngeo.verification.recording import Report, Run, products_of_runs, record_products, vectors_of_runs

# What is compared: queries and keys with their biases.
COMPARED = ScoreOptions(with_bias=True)

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

    unexplained: name patterns of modules that attend and that no site explains. unreported: those of them that are not
    left out with a reason, either.
    """

    checks: list[SiteCheck]
    unexplained: list[str]
    unreported: list[str]


def _module_of(pattern: str) -> str:
    """The module of what is left out: of a layer's weight, of a raw weight, or the module itself."""
    parts = pattern.split(".")
    depth = 2 if parts[-1] in ("weight", "bias") else 1 if parts[-1].endswith(("_weight", "_bias")) else 0
    return ".".join(parts[: len(parts) - depth])


def predict(store: TensorStore, site: AttentionSite, options: ScoreOptions = COMPARED) -> Prediction:
    """Queries and keys of a site for the vector that is the input of each run. Reads the weights of this site only.

    options: which bilinear form; with biases.
    """
    q, k, _ = projections(site, read(store, site), options, dtype=torch.float32, ref=store.ref)
    k = k[key_heads_of(site, "corrected")]
    factors = []
    for weight, width in ((q, site.d_model), (k, site.key_width)):
        inputs = torch.stack([vectors(width) for vectors in vectors_of_runs()])
        linear = torch.einsum("rd,hkd->hrk", inputs, weight[..., :width])
        factors.append((linear, linear + weight[..., width:].sum(-1)[:, None]))
    (query, query_with_bias), (key, key_with_bias) = factors
    return Prediction(query, key, query_with_bias, key_with_bias)


def check_expectations(
    model: Any,
    run: Run,
    expected: Sequence[Expectation],
    skipped: Mapping[str, str],
    report: Report,
) -> Findings:
    """Check what sites should multiply against what the model multiplies.

    run: runs the model, or parts of it one after the other, on inputs that reach every attention module; it must do the
    same each time. skipped: name pattern → reason, of the findings. report: is called with the number of runs that are
    done, and that of all.
    """
    with record_products(model) as seen:
        run()
    containers = [_nearest(expectation.module, seen.ran) for expectation in expected]
    places: dict[str, list[int]] = defaultdict(list)
    for i, container in enumerate(containers):
        if container is not None:
            places[container].append(i)
    best: dict[int, tuple[float, bool]] = {}
    explained: set[int] = set()
    attending: set[tuple[int, tuple[str, ...]]] = set()
    widths = {
        module: {width for i in numbers for width in (expected[i].site.d_model, expected[i].site.key_width)}
        for module, numbers in places.items()
    }
    for product in products_of_runs(model, run, widths, seen.products, report):
        attending.add((product.softmax, product.running))
        owner = next((name for name in reversed(product.running) if name in widths), None)
        for i in places[owner] if owner is not None else ():
            comparison = compare(expected[i].prediction, product.query, product.key)
            best[i] = min(best.get(i, comparison), comparison)
            if comparison[0] < TOLERANCE:
                explained.add(product.softmax)
    checks = [
        _judge(expectation.site, ran=container is not None, comparison=best.get(i))
        for i, (expectation, container) in enumerate(zip(expected, containers, strict=True))
    ]
    blamed = {container for container, check in zip(containers, checks, strict=True) if check.verdict == "differs"}
    unexplained = {
        pattern_of(running[-1])
        for softmax, running in attending
        if softmax not in explained and not blamed & set(running) and not _projects_nothing(model, running[-1])
    }
    listed = [_module_of(name) for name in skipped]
    reported = {place for place in unexplained if any(is_in(name, place) or is_in(place, name) for name in listed)}
    return Findings(checks, sorted(unexplained), sorted(unexplained - reported))


def _projects_nothing(model: Any, module: str) -> bool:
    """Whether what the module multiplies is no attention of its own.

    The whole model may multiply, for example for an alignment. If all parameters are vectors or learned queries, there
    is no query-key matrix.
    """
    parameters = list(model.get_submodule(module).named_parameters())
    return not module or (
        bool(parameters) and all(tensor.ndim < 2 or name.endswith(("query", "queries")) for name, tensor in parameters)
    )


def _nearest(module: str, ran: set[str]) -> str | None:
    """The module itself if it ran, or else the nearest one around it that did; None if only the whole model ran."""
    while module and module not in ran:
        module = module.rpartition(".")[0]
    return module or None


def _judge(site: AttentionSite, *, ran: bool, comparison: tuple[float, bool] | None) -> SiteCheck:
    if comparison is None:
        return SiteCheck(site, "no product" if ran else "not run", float("nan"))
    difference, only_directions = comparison
    if difference >= TOLERANCE:
        return SiteCheck(site, "differs", difference)
    return SiteCheck(site, "directions agree" if only_directions else "agrees", difference)


# Relative difference that rounding in float32 explains. A wrong head, gain or order differs by far more.
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Prediction:
    """Queries and keys of one site for known inputs, from its weights: [heads, runs, head_dim] each.

    query, key: Wq and Wk applied to the inputs. query_with_bias, key_with_bias: with the biases added.
    """

    query: Tensor
    key: Tensor
    query_with_bias: Tensor
    key_with_bias: Tensor


def compare(predicted: Prediction, query: Tensor, key: Tensor, offset: int = 0) -> tuple[float, bool]:
    """How far the products of a running model are from those of the weights, and whether only directions were compared.

    query, key: [runs, n, tokens, width], the factors that the model multiplied in each run. Returns the relative
    difference of the products of all queries with all keys of the same head and token, up to one positive factor:
    infinite if their numbers do not fit. If a model divides queries and keys by their lengths, only directions fit.
    offset: compare queries with the keys that many tokens before them.
    """
    best = (math.inf, False)
    for ran_query, ran_key in _arrangements(query, key, len(predicted.query), offset):
        changes = [x[:, 1:] - x[:, :1] for x in (ran_query, ran_key, predicted.query, predicted.key)]
        directions = [
            normalize(x, dim=-1) for x in (ran_query, ran_key, predicted.query_with_bias, predicted.key_with_bias)
        ]
        for only_directions, (want_q, want_k, q, k) in ((False, changes), (True, directions)):
            difference = _relative_difference(want_q @ want_k.mT, q @ k.mT)
            if difference < best[0]:
                best = difference, only_directions
            if difference < TOLERANCE and not only_directions:
                return difference, False
    return best


def difference_of(one: Prediction, other: Prediction) -> float:
    """How far the weights of two sites are from each other, by what they multiply to: infinite if shapes differ.

    Relative to the second, without biases. It is 0 whatever the order of the dimensions of a head is.
    """
    have, want = one.query @ one.key.mT, other.query @ other.key.mT
    if have.shape != want.shape:
        return math.inf
    size = want.norm()
    return float((have - want).norm() / size) if size else math.inf if have.any() else 0.0


def _arrangements(query: Tensor, key: Tensor, heads: int, offset: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries and keys [heads, runs, width] of one token, for each order in which a model may store its heads.

    The token is one in the middle, where no padding is near, and then the first one, which no position rotates.
    """
    runs, n, tokens, width = query.shape
    if n % key.shape[1]:
        return
    key = key.repeat_interleave(n // key.shape[1], 1)  # keys that a fused operation shares between heads
    if n < heads:  # the queries that share a key head are rows of one product
        shared = heads // n
        if heads % n or tokens % shared:
            return
        key = key.repeat_interleave(shared, 1)
        for shape, axes in (((tokens // shared, shared), (3, 2)), ((shared, tokens // shared), (2, 3))):
            by_head = query.reshape(runs, n, *shape, width).permute(0, 1, *axes, 4)
            yield from _of_tokens(by_head.reshape(runs, heads, tokens // shared, width), key, offset)
    elif n % heads == 0:
        others = n // heads  # sequences, windows or chunks, before or after the heads
        for shape, axis in (((others, heads), 1), ((heads, others), 2)):
            q, k = (x.reshape(runs, *shape, *x.shape[2:]) for x in (query, key))
            for place in dict.fromkeys((others // 2, 0)):
                yield from _of_tokens(q.select(axis, place), k.select(axis, place), offset)


def _of_tokens(query: Tensor, key: Tensor, offset: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries and keys [heads, runs, width] of some tokens, from [runs, heads, tokens, width].

    If a block of tokens looks at itself and its neighbours, the first token is the first one of the second block. If
    tokens look at others before them, such as those of an encoder, their own keys are the last ones.
    """
    tokens, keys = query.shape[2], key.shape[2]
    places = dict.fromkeys(((tokens // 2, keys // 2), (0, 0), (0, tokens if keys >= 2 * tokens else 0)))
    if keys > tokens:
        places |= {(tokens // 2, keys - tokens + tokens // 2): None}
    if offset:
        middle = (tokens - offset) // 2
        places = dict.fromkeys((middle + offset, place) for place in (middle, middle + keys - tokens))
        places = places if tokens > abs(offset) and keys >= tokens else {}
    for q_place, k_place in places:
        yield query[:, :, q_place].transpose(0, 1), key[:, :, k_place].transpose(0, 1)


def _relative_difference(want: Tensor, have: Tensor) -> float:
    if want.shape != have.shape or not want.isfinite().all():
        return math.inf
    if not have.any():
        return math.inf if want.any() else 0.0
    scale = (want * have).sum() / have.square().sum()
    if scale <= 0:
        return math.inf
    return float((scale * have - want).norm() / want.norm())
