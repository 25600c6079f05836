"""Names of modules and tensors: numbers of layers, and which module a name is in."""

from __future__ import annotations

import re

# More than any model has: a forged number of layers cannot make a loop endless.
MOST_LAYERS = 10_000
NUMBER = re.compile(r"(?<![^.])[0-9]{1,9}(?![^.])")


def pattern_of(name: str) -> str:
    """The name with each number replaced by "#": the same for every layer of a stack."""
    return NUMBER.sub("#", name)


def join(module: str, name: str) -> str:
    """The full name of a tensor or module inside `module`."""
    return f"{module}.{name}" if module else name


def is_in(name: str, module: str) -> bool:
    """Whether this is the module, or something inside it."""
    return name == module or name.startswith(f"{module}.") or not module
