"""Names of tensors and modules in a checkpoint: their patterns, prefixes and layer numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# The fields of config.json, or of a section of it.
Fields = Mapping[str, Any]
# Name of a tensor or module, or a pattern of names → why it is left out.
Reasons = dict[str, str]
# More than any model has: a forged number of layers cannot make a loop endless.
MOST_LAYERS = 10_000
NUMBER = re.compile(r"(?<![^.])[0-9]{1,9}(?![^.])")


def pattern_of(name: str) -> str:
    """The name with each number replaced by "#": the same for every layer of a stack."""
    return NUMBER.sub("#", name)


def name_layers(layers: Iterable[int]) -> str:
    """Layer numbers in words.

    >>> name_layers([0, 1, 2, 5]), name_layers([3])
    ('layers 0-2, 5', 'layer 3')
    """
    numbers = sorted(set(map(int, layers)))
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number for number in numbers if number + 1 not in numbers]
    runs = [str(first) if first == last else f"{first}-{last}" for first, last in zip(starts, ends, strict=True)]
    noun = "layer" if len(numbers) == 1 else "layers"
    return f"{noun} {', '.join(runs)}"


def join(module: str, name: str) -> str:
    """The full name of a tensor or module inside `module`."""
    return f"{module}.{name}" if module else name


def is_in(name: str, module: str) -> bool:
    """Whether this is the module, or something inside it."""
    return name == module or name.startswith(f"{module}.") or not module
