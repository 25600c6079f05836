"""Make attention linear and its inputs known, so that what it multiplies can be compared with weights.

`probe_inputs` replaces the input of attention modules, for every token alike, by one random vector of each width. Then
the queries of every token, window and chunk are the same up to rotations by position. `linear_norms` takes the division
out of the normalisations inside attention, so that queries and keys are linear in that vector.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

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
        known = others.setdefault((module_name, call, name), value.detach().clone())
        return known.clone() if known.shape == value.shape else value

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
        own = vectors(x.shape[-1]).to(x)
        if torch.equal(x, own.expand_as(x)):
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
