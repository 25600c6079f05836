"""The products of queries and keys that a running model computes, found without the name of any tensor.

A product is attention if its result goes through a softmax, and if something uses the result of that. So the recorder
watches every operation of PyTorch, notes each product of two computed matrices, and follows its result through masks,
scales and sums to the softmax.

The model runs several times. `probe_inputs` replaces the input of attention modules, for every token alike, by one
random vector of each width. Then the queries of every token, window and chunk are the same up to rotations by position.
`linear_norms` takes the division out of the normalisations inside attention, so that queries and keys are linear in
that vector.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attngeo.bounds.machine import available_memory
from attngeo.errors import NotEnoughMemoryError

ATEN = torch.ops.aten
# Operation → the places of the two factors among its arguments. The second factor is [..., width, keys].
PRODUCTS = {ATEN.bmm.default: (0, 1), ATEN.baddbmm.default: (1, 2), ATEN.mm.default: (0, 1)}


@dataclass(eq=False)
class Product:
    """One product of queries and keys: query [n, tokens, width], key [n or fewer, tokens, width].

    n is the batch size times the number of heads, and of windows if the model attends in windows. In front of it may
    be the number of runs. running: names of the
    modules that were running, the outermost first. number: how many products came before it. softmax: a number that
    products share if their sum went through the same softmax. Factors that were not kept are on the meta device.
    """

    query: Tensor
    key: Tensor
    running: tuple[str, ...]
    number: int
    softmax: int = -1


@dataclass(frozen=True)
class Recording:
    """What a model did: its products of queries and keys in their order, and the names of all modules that ran."""

    products: list[Product] = field(default_factory=list)
    ran: set[str] = field(default_factory=set)


@contextmanager
def record_products(model: nn.Module, modules: Collection[str] = ()) -> Iterator[Recording]:
    """Inside, what `model` does is added to the recording. Gradients are off.

    modules: names of those whose factors are kept, and those of the modules in them; of others, only shapes are.
    """
    recorder = _Recorder(model, modules)
    with without_fast_path():
        with torch.no_grad(), recorder, recorder.follow(model):
            yield recorder.seen
        recorder.drop_unused()


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Inside, attention of torch is not one operation, and its modules call the modules in them one by one."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, model: nn.Module, modules: Collection[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen, self._modules = Recording(), modules
        self._names = {module: name for name, module in model.named_modules()}
        self._stored = {_memory_of(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self._running: list[str] = []
        self._products = 0
        # Memory of a tensor → the products that its values depend on, and the tensor itself: memory is not reused
        # while the tensor lives.
        self._depends: dict[int, tuple[Tensor, frozenset[Product]]] = {}
        # The same for the results of softmax that nothing has used so far.
        self._unused: dict[int, tuple[Tensor, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        for used in _tensors_in(args):
            self._unused.pop(_memory_of(used), None)
        if name.startswith("_scaled_dot_product"):
            query, key = (x.flatten(0, -3) for x in args[:2])
            self._keep([self._product(query, key)])
        elif func in PRODUCTS:
            first, second = (args[place] for place in PRODUCTS[func])
            if not {_memory_of(first), _memory_of(second)} & self._stored:
                query, key = (x.reshape(-1, *x.shape[-2:]) for x in (first, second))
                self._depends[_memory_of(result)] = result, frozenset([self._product(query, key.mT)])
        elif func is not ATEN.addmm.default:
            self._pass_on(name, args, result)
        return result

    def _pass_on(self, name: str, args: Any, result: Any) -> None:
        """Note what the result of an elementwise operation or a view depends on."""
        sources = frozenset[Product]().union(
            *(self._depends.get(_memory_of(x), (x, frozenset()))[1] for x in _tensors_in(args))
        )
        if not sources:
            return
        if name in ("_softmax", "_safe_softmax", "exp"):
            self._keep(sorted(sources, key=lambda product: product.number))
            self._unused[_memory_of(result)] = result, self.seen.products[-1].softmax
            self._depends = {
                at: (x, products - sources) for at, (x, products) in self._depends.items() if products - sources
            }
            return
        for x in result if isinstance(result, list | tuple) else [result]:
            if isinstance(x, Tensor):
                _, products = self._depends.get(_memory_of(x), (x, frozenset()))
                self._depends[_memory_of(x)] = (x, products | sources)

    def _product(self, query: Tensor, key: Tensor) -> Product:
        self._products += 1
        running = tuple(self._running)
        keeps = any(name in self._modules for name in running)
        query, key = (x.detach().clone() if keeps else x.detach().to("meta") for x in (query, key))
        return Product(query, key, running, self._products)

    def _keep(self, products: list[Product]) -> None:
        record = self.seen.products
        number = record[-1].softmax + 1 if record else 0
        for product in products:
            product.softmax = number
            record.append(product)

    def drop_unused(self) -> None:
        """Drop the products that went through a softmax whose result nothing used."""
        unused = {softmax for _, softmax in self._unused.values()}
        self.seen.products[:] = [product for product in self.seen.products if product.softmax not in unused]

    @contextmanager
    def follow(self, model: nn.Module) -> Iterator[None]:
        """Inside, the recorder knows which modules of `model` are running."""
        with ExitStack() as hooks:
            for module in model.modules():
                hooks.callback(module.register_forward_pre_hook(self._enter).remove)
                hooks.callback(module.register_forward_hook(self._leave, always_call=True).remove)
            yield

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._running.append(self._names[module])
        self.seen.ran.add(self._names[module])

    def _leave(self, *_: Any) -> None:
        self._running.pop()
        # A product that met no softmax in its module or in the one around it is something else.
        depth = len(self._running)
        if any(len(product.running) > depth + 1 for _, products in self._depends.values() for product in products):
            kept = {
                at: (x, frozenset(one for one in products if len(one.running) <= depth + 1))
                for at, (x, products) in self._depends.items()
            }
            self._depends = {at: (x, products) for at, (x, products) in kept.items() if products}


def _tensors_in(args: Any) -> list[Tensor]:
    """The tensors among the arguments of an operation, and those in its lists."""
    return [x for arg in args for x in (arg if isinstance(arg, list | tuple) else [arg]) if isinstance(x, Tensor)]


def _memory_of(tensor: Tensor) -> int:
    """A number that tensors share if they are views of the same memory."""
    return tensor.untyped_storage().data_ptr()


Vectors = Callable[[int], Tensor]
# Arguments of attention modules that are not the sequence that is projected.
NOT_PROJECTED = re.compile(r"pos|mask|bias|cos|sin|rope|rotary|cache|past|index|ids")


def random_vectors(run: int) -> Vectors:
    """Width → the random vector [width] of this run, with entries of variance 1. Each run has its own vectors."""

    def draw(width: int) -> Tensor:
        generator = torch.Generator().manual_seed(1_000_003 * run + width)
        return torch.randn(width, generator=generator)

    return draw


# (module, number of its call, place of the argument) → the argument
Arguments = dict[tuple[str, int, str], Tensor]


@contextmanager
def probe_inputs(
    model: nn.Module, modules: Mapping[str, Iterable[int]], vectors: Vectors, others: Arguments
) -> Iterator[None]:
    """Inside, every token that enters one of the modules is `vectors(width)`.

    modules: module name → widths of the inputs to replace. others: the other arguments, such as positions; those of the
    first run are noted there, and are used again in later runs, so that nothing but the vectors changes.
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
    parameters, calls = list(inspect.signature(module.forward).parameters), count()

    def replace(name: str, value: Any, call: int) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if value.ndim >= 2 and not NOT_PROJECTED.search(name):
            for axis in (value.ndim - 1, 1):  # tokens are rows; in images, channels come second
                width = value.shape[axis]
                if width in widths:
                    shape = [width if i == axis else 1 for i in range(value.ndim)]
                    return vectors(width).to(value).reshape(shape).expand_as(value).clone()
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
    """Inside, the normalisations in these modules are linear: they keep their gain and centring and do not divide.

    A normalisation of the module's own input is left out altogether: scores are those of the weights behind it.
    """
    norms = {
        norm
        for name in modules
        for norm in model.get_submodule(name).modules()
        if "norm" in type(norm).__name__.lower() and "batch" not in type(norm).__name__.lower()
    }
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

        def normalise(value: Tensor) -> Tensor:
            result: Tensor = norm.forward(value, *args[1:], **kwargs) if args else norm.forward(value)
            return result.float()

        large, zero = 1e3 * x, torch.zeros_like(x)
        at_large, at_zero = normalise(large), normalise(zero)
        if not torch.allclose(at_large, normalise(2 * large), rtol=1e-3, atol=1e-5):
            return None  # it does not divide by the size of its input
        centres = torch.allclose(at_large, normalise(large + large.abs().max()), rtol=1e-2, atol=1e-3)
        wide = x.float()
        deviation = wide - wide.mean(-1, keepdim=True) if centres else wide
        size = deviation.square().mean(-1, keepdim=True).sqrt()
        return ((at_large - at_zero) * size).to(x)

    return hook


# The first run is what the others are compared with.
RUNS = 4
Run = Callable[[], None]
Report = Callable[[int, int], None]


def products_of_runs(
    model: Any, run: Run, widths: Mapping[str, set[int]], first: Iterable[Product], report: Report
) -> Iterator[Product]:
    """Run the model RUNS times on known inputs and yield each product once, with its factors in all runs.

    widths: module to check → the widths of its inputs. first: the products of a run without known inputs. report: is
    called with the number of runs that are done, and that of all. Raises NotEnoughMemoryError if all factors do not
    fit in memory.
    """
    kept = [product for product in first if not widths.keys().isdisjoint(product.running)]
    need, have = RUNS * sum(x.nbytes for product in kept for x in (product.query, product.key)), available_memory()
    if need > have:
        raise NotEnoughMemoryError(
            f"the queries and keys that {type(model).__name__} multiplies in {RUNS} runs need {need / 1e9:.1f} GB of "
            f"memory; {max(have, 0) / 1e9:.1f} GB are available; use a machine with more memory, or score it without "
            "verification"
        )
    others: Arguments = {}
    by_run: list[list[Product]] = []
    for number, vectors in enumerate(vectors_of_runs()):
        report(number, RUNS)
        with (
            linear_norms(model, widths, vectors),
            probe_inputs(model, widths, vectors, others),
            record_products(model, widths) as recording,
        ):
            run()
        by_run.append(recording.products)
    yield from _align(by_run)


def vectors_of_runs() -> Iterator[Vectors]:
    """The vectors of each run."""
    return map(random_vectors, range(RUNS))


def _align(by_run: list[list[Product]]) -> Iterator[Product]:
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
            yield replace(first, query=query, key=key)
