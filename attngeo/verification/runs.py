"""The products of queries and keys of a model in several runs, whose inputs to attention are known vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attngeo.verification.constant_inputs import Arguments, Vectors, linear_norms, probe_inputs, random_vectors
from attngeo.verification.products import Keep, Product, record_products

# The first run is what the others are compared with.
RUNS = 4
# Bytes of queries and keys that are held at once. A model that multiplies more is run again for each part of it.
MOST_HELD = 2**30

Run = Callable[[], None]
Report = Callable[[int, int], None]


@dataclass(frozen=True)
class Aligned:
    """One product in all runs: query, key [runs, n, tokens, width]. running, softmax: as in `Product`.

    owner: the innermost module that was running and that is to be checked, None for a product of another module, whose
    factors are on the meta device.
    """

    query: Tensor
    key: Tensor
    running: tuple[str, ...]
    softmax: int
    owner: str | None


def products_of_runs(
    model: Any, run: Run, widths: Mapping[str, set[int]], first: Sequence[Product], report: Report
) -> Iterator[Aligned]:
    """Run the model RUNS times on known inputs and yield each product once, with its factors in all runs.

    widths: module to check → the widths of its inputs. first: the products of a run without known inputs. report: is
    called with the number of runs that are done, and that of all. A model whose products take more than MOST_HELD
    bytes is run again for each group of modules.
    """
    others: Arguments = {}
    groups = _split_by_size(widths, first)
    for number, group in enumerate(groups):

        def is_kept(running: tuple[str, ...], group: set[str] = group) -> bool:
            return _owner(running, widths) in group

        by_run: list[list[Product]] = []
        for vectors in vectors_of_runs():
            report(number * RUNS + len(by_run), len(groups) * RUNS)
            by_run.append(_run_once(model, run, widths, is_kept, vectors, others))
        for product in _align(by_run, widths):
            if product.owner in group or (product.owner is None and not number):
                yield product


def _split_by_size(modules: Iterable[str], products: Sequence[Product]) -> list[set[str]]:
    """The modules in groups, each with at most MOST_HELD bytes of queries and keys, or with one module."""
    modules = dict.fromkeys(modules)
    size: Counter[str | None] = Counter()
    for product in products:
        size[_owner(product.running, modules)] += RUNS * (product.query.nbytes + product.key.nbytes)
    groups: list[set[str]] = [set()]
    held = 0
    for module in modules:
        if groups[-1] and held + size[module] > MOST_HELD:
            groups.append(set())
            held = 0
        groups[-1].add(module)
        held += size[module]
    return groups


def _owner(running: tuple[str, ...], modules: Collection[str]) -> str | None:
    return next((name for name in reversed(running) if name in modules), None)


def _run_once(
    model: Any, run: Run, widths: Mapping[str, set[int]], keep: Keep, vectors: Vectors, others: Arguments
) -> list[Product]:
    with ExitStack() as hooks:
        hooks.enter_context(linear_norms(model, widths, vectors))
        hooks.enter_context(probe_inputs(model, widths, vectors, others))
        seen = hooks.enter_context(record_products(model, keep))
        run()
    return seen.products


def vectors_of_runs() -> Iterator[Vectors]:
    """The vectors of each run."""
    return map(random_vectors, range(RUNS))


def _align(by_run: list[list[Product]], modules: Collection[str]) -> Iterator[Aligned]:
    """The products that every run computed. If the length of a sequence depends on the input, its start is kept."""
    numbered: list[dict[tuple[tuple[str, ...], int], Product]] = []
    for products in by_run:
        seen: Counter[tuple[str, ...]] = Counter()
        numbered.append({})
        for product in products:
            numbered[-1][product.running, seen[product.running]] = product
            seen[product.running] += 1
    for place, first in numbered[0].items():
        same = [products[place] for products in numbered if place in products]
        sizes = {(*(x.shape[0] for x in (one.query, one.key)), one.query.shape[2]) for one in same}
        if len(same) == len(by_run) and len(sizes) == 1:
            query, key = (
                torch.stack([x[:, : min(other.shape[1] for other in factors)].float() for x in factors])
                for factors in ([one.query for one in same], [one.key for one in same])
            )
            yield Aligned(query, key, first.running, first.softmax, _owner(first.running, modules))
