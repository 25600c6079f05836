"""Names that are imported when they are first used: those of packages, and those in tables of data."""

from __future__ import annotations

import ast
import logging
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from attngeo.choices import RENAMED, find_new_name
from attngeo.errors import require_extra

# Names of columns, or a function that lists them.
Columns = Sequence[str] | Callable[[], Sequence[str]]


def resolve(value: Any) -> Any:
    """The value, or the value that "module:name" names."""
    return pkgutil.resolve_name(value) if isinstance(value, str) else value


def resolve_columns(columns: str | Columns) -> tuple[str, ...]:
    """The columns that a value, a function or the name of either gives."""
    value = resolve(columns)
    return tuple(value() if callable(value) else value)


@contextmanager
def hide_advice() -> Iterator[None]:
    """Inside the block, bitsandbytes does not log which packages to install, as it does if transformers imports it."""
    logger = logging.getLogger("bitsandbytes")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def import_when_used(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package that imports its public names when they are first used.

    The names are those that the package imports under `if TYPE_CHECKING`, so that editors, mypy and this function read
    the same list.

    Args:
        package: the name of the package.

    Returns:
        Functions to be called `__getattr__`, which raises MissingPackageError if a package of an extra is missing, and
        AttributeError with the new name for a former one, and `__dir__`.
    """

    @cache
    def find_homes() -> dict[str, str]:
        loader: Any = sys.modules[package].__loader__
        block = next(node for node in ast.parse(loader.get_source(package)).body if isinstance(node, ast.If))
        homes: dict[str, str] = {}
        for node in block.body:
            if isinstance(node, ast.ImportFrom):
                homes |= {alias.name: str(node.module) for alias in node.names}
        return homes

    def get(name: str) -> object:
        if name == "__all__":
            return list_names()
        if name.startswith("__") or name not in find_homes():
            new_name = find_new_name(name, find_homes()) if name in RENAMED else None
            if new_name is not None:
                raise AttributeError(f"{package} has no {name}; it is now called {new_name}")
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = find_homes()[name]
        with require_extra(), hide_advice():
            value = import_module(f"{package}.{name}") if home == package else getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)  # so that the next use does not come here
        return value

    def list_names() -> list[str]:
        return sorted(find_homes())

    return get, list_names
