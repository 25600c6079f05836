"""Runs of a model on known inputs, and the products of queries and keys in all of them.

`probe_inputs` replaces the input of attention modules, for every token alike, by one random vector of each width. Then
the queries of every token, window and chunk are the same up to rotations by position. `linear_norms` takes the division
out of the normalisations inside attention, so that queries and keys are linear in that vector.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from attngeo.bounds.machine import available_memory
from attngeo.errors import NotEnoughMemoryError
from attngeo.verification.recording import Product, Recorder, record_products

Vectors = Callable[[int], Tensor]
# Arguments of attention modules that are not the sequence that is projected.
NOT_PROJECTED = re.compile(r"pos|mask|bias|cos|sin|rope|rotary|cache|past|index|ids")


def random_vectors(run: int) -> Vectors:
    """A function of the width: the random vector [width] of this run, with variance 1. Each run has its own vectors."""

    def draw(width: int) -> Tensor:
        generator = torch.Generator().manual_seed(1_000_003 * run + width)
        return torch.randn(width, generator=generator)

    return draw


# (module, number of its call, name of the argument) → the argument
Arguments = dict[tuple[str, int, str], Tensor]


@contextmanager
def probe_inputs(
    model: nn.Module, modules: Mapping[str, Iterable[int]], vectors: Vectors, others: Arguments
) -> Iterator[None]:
    """Inside the block, every token that enters one of the modules is replaced by `vectors(width)`.

    Args:
        model: the model.
        modules: module name → widths of the inputs to replace.
        vectors: width → vector.
        others: the other arguments, such as positions. The first run fills it, and later runs reuse it, so that only
            the vectors change.
    """
    with ExitStack() as hooks:
        for name, widths in modules.items():
            module = model.get_submodule(name)
            hook = _input_hook(name, module, tuple(widths), vectors, others)
            hooks.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


def _input_hook(
    module_name: str, module: nn.Module, widths: tuple[int, ...], vectors: Vectors, others: Arguments
) -> Any:
    parameters = list(inspect.signature(module.forward).parameters)
    calls = count()

    def replace(name: str, value: Any, call: int) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if value.ndim >= 2 and not NOT_PROJECTED.search(name):
            for axis in (value.ndim - 1, 1):  # tokens are rows; in images, channels come second
                if value.shape[axis] in widths:
                    shape = [1] * value.ndim
                    shape[axis] = -1
                    return vectors(value.shape[axis]).to(value).reshape(shape).expand_as(value).clone()
        first = others.setdefault((module_name, call, name), value.detach().clone())
        return first.clone() if first.shape == value.shape else value

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = next(calls)
        names = [*parameters, *(f"argument {i}" for i in range(len(args)))]
        replaced = tuple(replace(name, value, call) for name, value in zip(names, args, strict=False))
        return replaced, {name: replace(name, value, call) for name, value in kwargs.items()}

    return hook


@contextmanager
def linear_norms(model: nn.Module, modules: Iterable[str], vectors: Vectors) -> Iterator[None]:
    """Inside the block, the normalisations in these modules are linear: with gain and centring, but without division.

    A normalisation of the module's own input is left out completely, because scores are about the weights after it.
    """
    norms = set()
    for name in modules:
        for module in model.get_submodule(name).modules():
            class_name = type(module).__name__.lower()
            if "norm" in class_name and "batch" not in class_name:
                norms.add(module)
    with ExitStack() as hooks:
        for norm in norms:
            hooks.callback(norm.register_forward_hook(_linear_hook(vectors), with_kwargs=True).remove)
        yield


def _linear_hook(vectors: Vectors) -> Any:
    def hook(norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        x = args[0] if args else next(iter(kwargs.values()))
        if not isinstance(output, Tensor) or output.shape != x.shape or not x.is_floating_point():
            return None
        probe = vectors(x.shape[-1]).to(x)
        if torch.equal(x, probe.expand_as(x)):
            return x

        def normalize(value: Tensor) -> Tensor:
            result: Tensor = norm.forward(value, *args[1:], **kwargs) if args else norm.forward(value)
            return result.float()

        large = 1e3 * x
        at_large = normalize(large)
        at_zero = normalize(torch.zeros_like(x))
        if not torch.allclose(at_large, normalize(2 * large), rtol=1e-3, atol=1e-5):
            return None  # it does not divide by the size of its input
        centres = torch.allclose(at_large, normalize(large + large.abs().max()), rtol=1e-2, atol=1e-3)
        wide = x.float()
        deviation = wide - wide.mean(-1, keepdim=True) if centres else wide
        size = deviation.square().mean(-1, keepdim=True).sqrt()
        return ((at_large - at_zero) * size).to(x)

    return hook


# The first run is what the others are compared with.
RUNS = 4
RunModel = Callable[[], None]
RecorderType = TypeVar("RecorderType", bound=Recorder)
# Is called with the number of runs that are done, and that of all.
OnRun = Callable[[int, int], None]


def products_of_runs(
    model: Any, run_model: RunModel, widths: Mapping[str, set[int]], first: Iterable[Product], on_run: OnRun
) -> Iterator[Product]:
    """Run the model as `run_on_vectors` does, and yield each product once, with its factors in all runs."""
    return align_products(run_on_vectors(model, run_model, widths, first, on_run, record_products))


def run_on_vectors(
    model: Any,
    run_model: RunModel,
    widths: Mapping[str, set[int]],
    first: Iterable[Product],
    on_run: OnRun,
    record: Callable[[Any, Collection[str]], AbstractContextManager[RecorderType]],
) -> list[RecorderType]:
    """Recordings of RUNS runs of the model on known inputs.

    Args:
        model: the model in memory.
        run_model: function that runs it.
        widths: module to check → the widths of its inputs.
        first: the products of a run without known inputs.
        on_run: called with the number of finished runs, and the number of all runs.
        record: function that makes the recorder of one run, from a model and the names of modules.

    Raises:
        NotEnoughMemoryError: the factors do not fit in memory.
    """
    kept = [product for product in first if not widths.keys().isdisjoint(product.running)]
    need = RUNS * sum(product.query.nbytes + product.key.nbytes for product in kept)
    have = available_memory()
    if need > have:
        raise NotEnoughMemoryError(
            f"the queries and keys of {RUNS} runs of {type(model).__name__} need {need / 1e9:.1f} GB of memory, but "
            f"{max(have, 0) / 1e9:.1f} GB are available; use a machine with more memory, or score it without "
            "verification"
        )
    others: Arguments = {}
    recordings = []
    for number, vectors in enumerate(vectors_of_runs()):
        on_run(number, RUNS)
        with (
            linear_norms(model, widths, vectors),
            probe_inputs(model, widths, vectors, others),
            record(model, widths) as recording,
        ):
            run_model()
        recordings.append(recording)
    return recordings


def vectors_of_runs() -> Iterator[Vectors]:
    """The vectors of each run."""
    return map(random_vectors, range(RUNS))


def align_products(recordings: Iterable[Recorder]) -> Iterator[Product]:
    """The products that every run computed. Sequences whose length depends on the input are cut to the shortest."""
    for products in align([recording.products for recording in recordings]):
        sizes = {(product.query.shape[0], product.key.shape[0], product.query.shape[2]) for product in products}
        if len(sizes) == 1:
            yield replace(
                products[0],
                query=stack_starts([product.query for product in products]),
                key=stack_starts([product.key for product in products]),
            )


class _Running(Protocol):
    @property
    def running(self) -> tuple[str, ...]: ...


Recorded = TypeVar("Recorded", bound=_Running)


def align(by_run: Sequence[Iterable[Recorded]]) -> Iterator[list[Recorded]]:
    """What every run computed, grouped over all runs.

    Records of several runs belong together if the same modules were running, and equally many records of these modules
    came before.
    """
    numbered: dict[tuple[tuple[str, ...], int], list[Recorded]] = defaultdict(list)
    for of_run in by_run:
        counts: Counter[tuple[str, ...]] = Counter()
        for recorded in of_run:
            numbered[recorded.running, counts[recorded.running]].append(recorded)
            counts[recorded.running] += 1
    yield from (of_runs for of_runs in numbered.values() if len(of_runs) == len(by_run))


def stack_starts(factors: list[Tensor]) -> Tensor:
    """Factors [n, tokens, width] stacked to one tensor [runs, n, tokens, width], with the tokens that all have."""
    tokens = min(factor.shape[1] for factor in factors)
    return torch.stack([factor[:, :tokens].float() for factor in factors])
