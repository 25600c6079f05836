"""Mixtures of values in a running model: the products of attention weights and values, and their output projection.

Found without the name of any tensor. A product is one of weights and values if one of its factors comes from a softmax.
The first stored matrix that multiplies what comes of it is the output projection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attngeo.verification.recording import ATEN, PRODUCTS, Recorder, memory_of, tensors_in, without_fast_path

SOFTMAX = ("_softmax", "_safe_softmax", "exp")
# Operation → the positions of its factors among its arguments.
LINEAR = {**PRODUCTS, ATEN.addmm.default: (1, 2)}


@dataclass(eq=False)
class Mixture:
    """One product of attention weights and values, and what the site writes from it.

    Attributes:
        values: [n, tokens, value_dim]; for n see `Product`.
        result: what each query reads, [n, tokens, value_dim].
        running: names of the modules that were running, the outermost first.
        projected: input of the output projection, [rows, inputs]; None if nothing projects the result.
        written: output of the output projection, without a bias that is added later, [rows, output_width].
    """

    values: Tensor
    result: Tensor
    running: tuple[str, ...]
    projected: Tensor | None = None
    written: Tensor | None = None


@contextmanager
def record_mixtures(model: nn.Module, modules: Collection[str] = ()) -> Iterator[MixtureRecorder]:
    """Like `record_products`, but also records the mixtures in these modules."""
    recorder = MixtureRecorder(model, modules)
    with without_fast_path():
        with torch.no_grad(), recorder, recorder.follow(model):
            yield recorder
        recorder.drop_unused()


class MixtureRecorder(Recorder):  # type: ignore[no-untyped-call]
    """A record of a run that also has `mixtures`: what the kept modules made of values, in order."""

    def __init__(self, model: nn.Module, modules: Collection[str]) -> None:
        super().__init__(model, modules)
        self.mixtures: list[Mixture] = []
        # Memory of a tensor → the tensor, if it comes from a softmax.
        self._weights: dict[int, Tensor] = {}
        # Memory of a tensor → the tensor, if it is a copy of a stored one.
        self._copies: dict[int, Tensor] = {}
        # Memory of a tensor → the tensor, and the mixtures that it comes from.
        self._mixed: dict[int, tuple[Tensor, list[Mixture]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if not self.keeps and not self._mixed:
            return result
        name = func.overloadpacket.__name__
        if name.startswith("_scaled_dot_product"):
            self._add(args[2].flatten(0, -3), result[0].flatten(0, -3), result[0])
        elif func in LINEAR:
            self._multiply(func, args, result)
        elif name in SOFTMAX:
            # A query that may look at no token has no weights; here it looks at all.
            result.nan_to_num_(1 / result.shape[-1])
            self._weights[memory_of(result)] = result
        else:
            self._pass_on_mixture(args, result)
        return result

    def _multiply(self, func: Any, args: Any, result: Tensor) -> None:
        """Note a product of weights and values, or one of what comes of it and a stored matrix."""
        first, second = (args[position] for position in LINEAR[func])
        if self._is_stored(second):
            self._project(first, result)
        elif memory_of(first) in self._weights:
            self._add(second.reshape(-1, *second.shape[-2:]), result.reshape(-1, *result.shape[-2:]), result)
        elif memory_of(second) in self._weights:
            self._add(first.mT.reshape(-1, *first.mT.shape[-2:]), result.mT.reshape(-1, *result.mT.shape[-2:]), result)

    def _add(self, values: Tensor, read: Tensor, result: Tensor) -> None:
        mixture = Mixture(values.detach().clone(), read.detach().clone(), tuple(self.running))
        self.mixtures.append(mixture)
        self._mixed[memory_of(result)] = result, [mixture]

    def _project(self, x: Tensor, result: Tensor) -> None:
        """Note the result of an output projection, if x comes from mixtures."""
        _, mixtures = self._mixed.get(memory_of(x), (None, []))
        for mixture in mixtures:
            if mixture.written is None:
                mixture.projected = x.detach().reshape(-1, x.shape[-1]).clone()
                mixture.written = result.detach().reshape(-1, result.shape[-1]).clone()

    def _is_stored(self, x: Tensor) -> bool:
        return memory_of(x) in self.stored or memory_of(x) in self._copies

    def _pass_on_mixture(self, args: Any, result: Any) -> None:
        """Note what the result of an elementwise operation or a view comes from."""
        sources = [memory_of(x) for x in tensors_in(args)]
        mixtures: list[Mixture] = []
        for source in sources:
            _, of_source = self._mixed.get(source, (None, []))
            mixtures += of_source
        from_softmax = any(source in self._weights for source in sources)
        is_copy = bool(sources) and all(map(self._is_stored, tensors_in(args)))
        for x in tensors_in([result]):
            if is_copy:
                self._copies[memory_of(x)] = x
            elif mixtures:
                self._mixed[memory_of(x)] = x, list(dict.fromkeys(mixtures))
            elif from_softmax:
                self._weights[memory_of(x)] = x

    def _leave(self, *arguments: Any) -> None:
        super()._leave(*arguments)
        # What was not projected in its module or in the one around it is something else.
        deepest = len(self.running) + 1
        for memory, (_, mixtures) in list(self._mixed.items()):
            if any(len(mixture.running) > deepest for mixture in mixtures):
                del self._mixed[memory]
        if not self.keeps:
            self._weights.clear()
            self._copies.clear()
