"""The products of queries and keys that a running model computes, found without the name of any tensor.

A product is attention if its result goes through a softmax, and if something uses the result of that. So the recorder
watches every operation of PyTorch, notes each product of two computed matrices, and follows its result through masks,
scales and sums to the softmax.

"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

ATEN = torch.ops.aten
# Operation → the positions of the two factors among its arguments. The second factor is [..., width, keys].
PRODUCTS = {ATEN.bmm.default: (0, 1), ATEN.baddbmm.default: (1, 2), ATEN.mm.default: (0, 1)}


@dataclass(eq=False)
class Product:
    """One product of queries and keys. Factors that were not kept are on the meta device.

    n is the batch size times the number of heads, times the number of windows if the model attends in windows. The
    factors can have the runs as an additional first dimension.

    Attributes:
        query: [n, tokens, width].
        key: [n or fewer, tokens, width].
        running: names of the modules that were running, the outermost first.
        number: number of products before it.
        softmax: number shared by products whose sum went through the same softmax.
    """

    query: Tensor
    key: Tensor
    running: tuple[str, ...]
    number: int
    softmax: int = -1


@contextmanager
def record_products(model: nn.Module, modules: Collection[str] = ()) -> Iterator[Recorder]:
    """Inside the block, the recorder records what `model` does. Gradients are off.

    modules: names of the modules whose factors are kept, including those of the modules inside them; for other modules,
    only shapes are kept.
    """
    recorder = Recorder(model, modules)
    with without_fast_path():
        with torch.no_grad(), recorder, recorder.follow(model):
            yield recorder
        recorder.drop_unused()


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Inside the block, torch does not fuse attention into one operation: its modules call their submodules."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A record of the run of a model.

    Attributes:
        products: products of queries and keys, in order.
        ran: names of all modules that ran.
        running: names of the running modules, the outermost first.
        stored: the memory of all parameters and buffers.
    """

    def __init__(self, model: nn.Module, modules: Collection[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products: list[Product] = []
        self.ran: set[str] = set()
        self._modules = modules
        self._names = {module: name for name, module in model.named_modules()}
        self.stored = {memory_of(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self.running: list[str] = []
        self._count = 0
        # Memory of a tensor → the products that its values depend on, and the tensor itself: memory is not reused
        # while the tensor lives.
        self._depends: dict[int, tuple[Tensor, frozenset[Product]]] = {}
        # The same for the results of softmax that nothing has used so far.
        self._unused: dict[int, tuple[Tensor, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        for used in tensors_in(args):
            self._unused.pop(memory_of(used), None)
        if name.startswith("_scaled_dot_product"):
            query, key = (x.flatten(0, -3) for x in args[:2])
            self._keep([self._product(query, key)])
        elif func in PRODUCTS:
            first, second = (args[position] for position in PRODUCTS[func])
            if not {memory_of(first), memory_of(second)} & self.stored:
                query, key = (x.reshape(-1, *x.shape[-2:]) for x in (first, second))
                self._depends[memory_of(result)] = result, frozenset([self._product(query, key.mT)])
        elif func is not ATEN.addmm.default:
            self._pass_on(name, args, result)
        return result

    def _pass_on(self, name: str, args: Any, result: Any) -> None:
        """Note what the result of an elementwise operation or a view depends on."""
        sources = frozenset[Product]().union(*map(self._sources_of, tensors_in(args)))
        if not sources:
            return
        if name in ("_softmax", "_safe_softmax", "exp"):
            self._keep(sorted(sources, key=lambda product: product.number))
            self._unused[memory_of(result)] = result, self.products[-1].softmax
            self._forget(sources)
            return
        for x in tensors_in([result]):
            self._depends[memory_of(x)] = (x, self._sources_of(x) | sources)

    def _sources_of(self, x: Tensor) -> frozenset[Product]:
        """The products that the values of a tensor depend on."""
        known = self._depends.get(memory_of(x))
        return frozenset() if known is None else known[1]

    def _forget(self, forgotten: Collection[Product]) -> None:
        """Drop some products from what tensors depend on."""
        remaining = {}
        for memory, (x, products) in self._depends.items():
            kept = products.difference(forgotten)
            if kept:
                remaining[memory] = (x, kept)
        self._depends = remaining

    def _product(self, query: Tensor, key: Tensor) -> Product:
        self._count += 1
        query, key = (x.detach().clone() if self.keeps else x.detach().to("meta") for x in (query, key))
        return Product(query, key, tuple(self.running), self._count)

    @property
    def keeps(self) -> bool:
        """Whether factors are kept: one of the requested modules is running."""
        return any(name in self._modules for name in self.running)

    def _keep(self, products: list[Product]) -> None:
        number = self.products[-1].softmax + 1 if self.products else 0
        for product in products:
            product.softmax = number
            self.products.append(product)

    def drop_unused(self) -> None:
        """Drop the products whose softmax was never used."""
        unused = {softmax for _, softmax in self._unused.values()}
        self.products[:] = [product for product in self.products if product.softmax not in unused]

    @contextmanager
    def follow(self, model: nn.Module) -> Iterator[None]:
        """Inside the block, the recorder knows which modules of `model` are running."""
        with ExitStack() as hooks:
            for module in model.modules():
                hooks.callback(module.register_forward_pre_hook(self._enter).remove)
                hooks.callback(module.register_forward_hook(self._leave, always_call=True).remove)
            yield

    def _enter(self, module: nn.Module, _: Any) -> None:
        self.running.append(self._names[module])
        self.ran.add(self._names[module])

    def _leave(self, *_: Any) -> None:
        self.running.pop()
        # A product that met no softmax in its module or in the one around it is something else.
        deepest = len(self.running) + 1
        pending = {product for _, products in self._depends.values() for product in products}
        ended = {product for product in pending if len(product.running) > deepest}
        if ended:
            self._forget(ended)


def tensors_in(args: Any) -> list[Tensor]:
    """The tensors among the arguments of an operation, including those in lists."""
    tensors = []
    for argument in args:
        items = argument if isinstance(argument, list | tuple) else [argument]
        tensors += [item for item in items if isinstance(item, Tensor)]
    return tensors


def memory_of(tensor: Tensor) -> int:
    """A number shared by tensors that are views of the same memory."""
    return tensor.untyped_storage().data_ptr()
