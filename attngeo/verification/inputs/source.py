"""What the makers of inputs draw from, and the table of makers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

TOKENS = 7
# Token ids of inputs, [from, to): special tokens have others.
TOKENS_FROM, TOKENS_TO = 10, 100


@dataclass
class Source:
    """A module that is to run, the configurations around it, the nearest first, and random numbers."""

    module: nn.Module
    configs: list[Any]
    seed: int

    def __post_init__(self) -> None:
        self.takes = list(inspect.signature(self.module.forward).parameters)
        self.generator = torch.Generator().manual_seed(self.seed)

    def first(self, *names: str, default: Any = None) -> Any:
        """Return the first of these fields that a configuration has."""
        for config in self.configs:
            for name in names:
                value = _read_field(config, name)
                if value is not None and value != []:
                    return value
        return default

    def integer(self, *names: str, default: int = 3) -> int:
        """Return the first of these fields as one number."""
        value = self.first(*names, default=default)
        if isinstance(value, list | tuple):
            value = value[0]
        if isinstance(value, dict):
            value = value.get("height", default)
        return int(value) if isinstance(value, int | float) else default

    def noise(self, *shape: int) -> Tensor:
        """Draw a tensor of normal numbers."""
        return torch.randn(*shape, generator=self.generator)

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        """Draw a tensor of whole numbers from `low` on, all below `high`."""
        return torch.randint(low, max(high, low + 1), shape, generator=self.generator)


Maker = Callable[[Source], list[Any]]
# Name of a parameter → what makes the values to try for it, the most likely first.
MAKERS: dict[str, Maker] = {}


def makes(*names: str) -> Callable[[Maker], Maker]:
    """Register a function that returns the values to try for the parameters of these names."""

    def register(make: Maker) -> Maker:
        for name in names:
            MAKERS[name] = make
        return make

    return register


def width_taken(source: Source) -> int:
    """Return the width of what the module takes: of its first norm or Linear, else of its configuration."""
    for child in source.module.modules():
        if isinstance(child, nn.Linear):
            return child.in_features
        if isinstance(child, nn.LayerNorm):
            return int(child.normalized_shape[-1])
        weight = child._parameters.get("weight")
        if weight is not None and weight.ndim == 1 and "Norm" in type(child).__name__:
            return weight.shape[0]
    return source.integer("hidden_size", "d_model", "n_embd", "embed_dim", default=48)


def _read_field(config: Any, name: str) -> Any:
    fields = {**vars(config)}
    name = getattr(config, "attribute_map", {}).get(name, name)
    if name in fields:
        return fields[name]
    try:
        return getattr(config, name, None)
    except Exception:  # a property that its configuration cannot compute
        return None
